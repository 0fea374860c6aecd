// What a user of the package writes, in strict TypeScript.
import { checkSupport, createEngine, EngineError, models, TINY_MODEL, type Device, type Engine, type Plan, type Tool, type ToolCall } from "@wgslm/web";

/** A call of a tool, as programs read it; the small model makes none. */
export async function call(engine: Engine, tools: Tool[]): Promise<ToolCall | undefined> {
  const { choices } = await engine.chat.completions.create({ messages: [{ role: "user", content: "Hello" }], tools, tool_choice: "auto" });
  return choices[0].message.tool_calls?.[0];
}

/** The first number of a text's vector. */
export async function first(engine: Engine, text: string): Promise<number | string | undefined> {
  const { data } = await engine.embeddings.create({ input: [text] });
  return data[0]?.embedding[0];
}

const said: unknown[] = [];
try {
  const { ok, adapter } = await checkSupport();
  const plan: Plan = await models.plan(TINY_MODEL);
  const device = new URLSearchParams(location.search).get("device") as Device;
  const engine = await createEngine(TINY_MODEL, { device, threads: 2, onProgress: ({ phase, done, total }) => void [phase, done / total] });
  const stream = await engine.chat.completions.create({ prompt: "Once", stream: true, temperature: 0, max_tokens: 4 });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
  const { buffers } = await engine.dispose();
  said.push(ok, typeof adapter, engine.info.device, engine.info.threads, plan.bytes, text, buffers);
} catch (error) {
  said.push(error instanceof EngineError ? error.code : "", String(error));
}
document.title = JSON.stringify(said);
