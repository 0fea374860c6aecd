// What a user of the package writes, in strict TypeScript.
import { checkSupport, createEngine, EngineError, models, TINY_MODEL, type Device, type Plan } from "@wgslm/web";

const said: unknown[] = [];
try {
  const { ok, adapter } = await checkSupport();
  const plan: Plan = await models.plan(TINY_MODEL);
  const device = new URLSearchParams(location.search).get("device") as Device;
  const engine = await createEngine(TINY_MODEL, { device, onProgress: ({ phase, done, total }) => void [phase, done / total] });
  const stream = await engine.chat.completions.create({ prompt: "Once", stream: true, temperature: 0, max_tokens: 4 });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
  const { buffers } = await engine.dispose();
  said.push(ok, typeof adapter, engine.info.device, plan.bytes, text, buffers);
} catch (error) {
  said.push(error instanceof EngineError ? error.code : "", String(error));
}
document.title = JSON.stringify(said);
