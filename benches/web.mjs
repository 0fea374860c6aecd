// The page beside wllama, alternating, each run in a browser of its own: see scripts/bench-web.
//
// Both load the same file from a server on this machine and continue the same texts greedily. A first answer of one token, so
// that nothing is compiled later, gives the time from the start to the first token; a second one, of another text, gives the
// prompt's rate (its tokens by the time to the first one) and the rate of decoding (tokens after the first one by their time).
//
// `again` is the second visit of a browser that has kept the model.
//
// With --frames, the page's own frames are looked at instead: the time from one to the next (median, 99th percentile, largest), at
// rest, while a model is loaded, and while it answers and the page shows the text.
import { homedir, loadavg } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { launch } from "../tests/web/chromium.mjs";
import { serve } from "../web/serve.mjs";

const option = (name, otherwise) => (process.argv.includes(name) ? process.argv[process.argv.indexOf(name) + 1] : otherwise);
const cache = join(process.env.WGSLM_TEST_DATA || join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "wgslm-test-data"), "models");
const model = resolve(option("--model", join(cache, "SmolLM2-135M-Instruct.Q4_1.gguf")));
const runs = Number(option("--runs", 3));
const peer = option("--peer");

const WARM = "The lighthouse keeper climbed the spiral stairs every evening at dusk, because";
const PROMPT = "In the small town by the river there was an old mill whose wheel had not turned for forty years. One spring morning a young engineer arrived with a";
const TOKENS = Number(option("--tokens", 16));

/** In the page: a completion of either engine as a stream, and what became of it. */
const measure = `async (start, tokens) => {
  const began = performance.now();
  let first = 0, last = 0, usage;
  for await (const chunk of await start()) {
    if (chunk.choices[0]?.delta?.content || chunk.choices[0]?.text) {
      last = performance.now();
      first ||= last;
    }
    usage = chunk.usage ?? usage;
  }
  return { first: first - began, rest: last - first, prompt: usage?.prompt_tokens, generated: usage?.completion_tokens ?? tokens };
}`;

const ours = `async ({ model, device, warm, prompt, tokens, threads }) => {
  const measure = ${measure};
  const { createEngine } = await import("/index.js");
  const began = performance.now();
  const engine = await createEngine(model, { context: 1024, device, threads });
  if (engine.info.threads !== threads) throw new Error("the page computes on " + engine.info.threads + " threads");
  const load = performance.now() - began;
  const answer = (prompt, max_tokens) =>
    measure(() => engine.chat.completions.create({ prompt, max_tokens, temperature: 0, stream: true, stream_options: { include_usage: true } }), max_tokens);
  const cold = await answer(warm, 1);
  const result = { load, cold, ...(await answer(prompt, tokens)) };
  await engine.dispose();
  return result;
}`;

const frames = `async ({ model, device, prompt, tokens, threads }) => {
  const { createEngine } = await import("/index.js");
  const meanwhile = async (work) => {
    const gaps = [];
    let going = true, last = performance.now();
    work.finally(() => (going = false)).catch(() => {});
    while (going) {
      await new Promise(requestAnimationFrame);
      const now = performance.now();
      gaps.push(now - last);
      last = now;
    }
    gaps.sort((a, b) => a - b);
    return [0.5, 0.99, 1].map((part) => gaps[Math.ceil(gaps.length * part) - 1]);
  };
  const rest = await meanwhile(new Promise((done) => setTimeout(done, 5000)));
  const loading = createEngine(model, { context: 1024, device, threads });
  const load = await meanwhile(loading);
  const engine = await loading;
  const answer = async () => {
    for await (const chunk of await engine.chat.completions.create({ prompt, max_tokens: tokens, temperature: 0, stream: true })) {
      document.body.append(chunk.choices[0]?.delta?.content ?? "");
    }
  };
  const result = { rest, load, answer: await meanwhile(answer()) };
  await engine.dispose();
  return result;
}`;

const theirs = `async ({ model, warm, prompt, tokens, threads }) => {
  const measure = ${measure};
  const { Wllama } = await import("/index.js");
  const began = performance.now();
  const quiet = { debug() {}, log() {}, warn() {}, error() {} };
  const wllama = new Wllama({ default: "/wasm/wllama.wasm" }, { suppressNativeLog: true, logger: quiet });
  const file = await (await fetch(model)).blob();
  await wllama.loadModel([file], { n_ctx: 1024, n_threads: threads, n_gpu_layers: 0, cache_type_k: "f16", cache_type_v: "f16" });
  const load = performance.now() - began;
  if (wllama.isMultithread() !== threads > 1) throw new Error("wllama runs on " + wllama.getNumThreads() + " threads");
  const answer = (prompt, max_tokens) =>
    measure(() => wllama.createCompletion({ prompt, max_tokens, temperature: 0, stream: true, cache_prompt: false, ignore_eos: true }), max_tokens);
  const cold = await answer(warm, 1);
  const result = { load, cold, ...(await answer(prompt, tokens)) };
  await wllama.exit();
  return result;
}`;

const looked = process.argv.includes("--frames");
const root = fileURLToPath(new URL("..", import.meta.url));
const only = new RegExp(option("--only", ""));
const contenders = [
  { name: "page, processor, 1 thread", run: ours, device: "cpu", folder: join(root, "web/dist"), threads: 1 },
  { name: "page, processor, 2 threads", run: ours, device: "cpu", folder: join(root, "web/dist"), threads: 2 },
  { name: "page, processor, 1 thread, again", run: ours, device: "cpu", folder: join(root, "web/dist"), threads: 1, visits: 2 },
  { name: "page, SwiftShader", run: ours, device: "gpu", folder: join(root, "web/dist"), threads: 1 },
  { name: "wllama, 1 thread", run: theirs, folder: join(peer, "esm"), threads: 1 },
  { name: "wllama, 2 threads", run: theirs, folder: join(peer, "esm"), threads: 2 },
].filter(({ name, run }) => only.test(name) && (!looked || run === ours)).map((contender) => (looked ? { ...contender, run: frames } : contender));

async function once({ run, device, folder, threads, visits = 1 }) {
  const first = (path, _, response) => {
    if (path !== "/blank.html") return false;
    response.writeHead(200, { "content-type": "text/html" }).end("<!doctype html>");
    return true;
  };
  const server = await serve({ folder, models: dirname(model), first, isolated: threads > 1 }); // others get no threads
  const browser = await launch();
  try {
    // The pages of a context share what they keep.
    const context = await browser.newContext();
    const argument = { model: `/models/${basename(model)}`, warm: WARM, prompt: PROMPT, tokens: TOKENS, device, threads };
    let result;
    for (let visit = 0; visit < visits; visit++) {
      const page = await context.newPage();
      await page.goto(`http://127.0.0.1:${server.address().port}/blank.html`);
      result = await page.evaluate(`(${run})(${JSON.stringify(argument)})`);
      await page.close();
    }
    return result;
  } finally {
    await browser.close();
    server.closeAllConnections();
    server.close();
  }
}

/** Median, with the lowest and the highest. */
function figures(values, digits) {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = (sorted[Math.floor((sorted.length - 1) / 2)] + sorted[Math.ceil((sorted.length - 1) / 2)]) / 2;
  return `${middle.toFixed(digits)} (${sorted[0].toFixed(digits)} - ${sorted.at(-1).toFixed(digits)})`;
}

const results = new Map(contenders.map(({ name }) => [name, []]));
for (let i = 0; i < runs; i++) {
  for (const contender of contenders) {
    const result = await once(contender);
    results.get(contender.name).push(result);
    console.error(`${i + 1}/${runs} ${contender.name}: ${JSON.stringify(result)}, load ${loadavg()[0].toFixed(1)}`);
  }
}
if (looked) {
  console.log(`${basename(model)}; milliseconds from frame to frame, median / 99 % / largest; medians of ${runs} runs (lowest - highest)\n`);
  console.log("| where | at rest | loading | answering |\n|---|---|---|---|");
  for (const [name, all] of results) {
    const column = (when) => [0, 1, 2].map((i) => figures(all.map((r) => r[when][i]), 1)).join(" / ");
    console.log(`| ${name} | ${column("rest")} | ${column("load")} | ${column("answer")} |`);
  }
  process.exit();
}
const [{ prompt }] = results.get(contenders[0].name);
console.log(`${basename(model)}; prompt of ${prompt} tokens, ${TOKENS} generated; medians of ${runs} runs (lowest - highest)\n`);
console.log("| where | loading, ms | start to first token, ms | prompt tok/s | decode tok/s |\n|---|---:|---:|---:|---:|");
for (const [name, all] of results) {
  const loads = figures(all.map((r) => r.load), 0);
  const starts = figures(all.map((r) => r.load + r.cold.first), 0);
  const prompts = figures(all.map((r) => ((r.prompt ?? prompt) / r.first) * 1000), 1);
  const decodes = figures(all.map((r) => ((r.generated - 1) / r.rest) * 1000), 2);
  console.log(`| ${name} | ${loads} | ${starts} | ${prompts} | ${decodes} |`);
}
