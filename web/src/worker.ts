/** The worker: owns the WebAssembly module and its engine, and does one thing at a time. */
import init, { WebEngine, type InitOutput } from "./wgslm.js";
import type { FromWorker, ToWorker, Usage, Failure } from "./protocol.js";
import { BlobSource, SourceError, UrlSource, type ByteSource } from "./source.js";

/** An event of `WebEngine.step`. */
type StepEvent = { request: number; text: string } & (
  | { id: number; finish?: undefined }
  | { finish: string; usage: Usage; error: Failure | null }
);

interface Answer {
  id: number;
  started: number;
  first?: number;
}

const scope = self as unknown as DedicatedWorkerGlobalScope;
const post = (message: FromWorker): void => scope.postMessage(message);

let wasm: InitOutput | undefined;
let engine: WebEngine | undefined;
/** Why there is no engine any more. */
let broken: Failure = { code: "disposed", message: "the engine was disposed" };
/** By the engine's number. */
const answers = new Map<number, Answer>();
/** Messages that came while a step was in flight. */
const inbox: ToWorker[] = [];
let working = false;

scope.onmessage = async ({ data }: MessageEvent<ToWorker>) => {
  inbox.push(data);
  if (working) return;
  working = true;
  while (inbox.length > 0 || engine?.busy()) {
    for (let message = inbox.shift(); message; message = inbox.shift()) await handle(message);
    if (engine?.busy()) await step(engine);
    // A message that waits is taken here: a promise alone does not let it in.
    await breath();
  }
  working = false;
};

async function handle(message: ToWorker): Promise<void> {
  switch (message.type) {
    case "load":
      return load(message);
    case "create":
      try {
        const request = engine?.submit(JSON.stringify(message.request));
        if (request === undefined) post({ type: "error", id: message.id, error: broken });
        else answers.set(request, { id: message.id, started: performance.now() });
      } catch (error) {
        post({ type: "error", id: message.id, error: failure(error) });
      }
      return;
    case "cancel":
      for (const [request, answer] of answers) if (answer.id === message.id) engine?.cancel(request);
      return;
    case "dispose":
      engine?.free();
      engine = undefined;
      post({ type: "disposed", left: { buffers: WebEngine.live_buffers(), memory: wasm?.memory.buffer.byteLength ?? 0 } });
  }
}

async function load({ parts, options }: ToWorker & { type: "load" }): Promise<void> {
  const sources: ByteSource[] = [];
  try {
    wasm = await init();
    for (const part of parts) {
      const name = part instanceof File ? part.name : "model";
      sources.push(typeof part === "string" ? await UrlSource.open(part) : new BlobSource(part, name));
    }
    const passed = { ...options, selfTestResults: await remembered() };
    engine = await WebEngine.load(sources, JSON.stringify(passed), (phase: "test" | "load" | "compile", done: number, total: number) =>
      post({ type: "progress", phase, done, total }),
    );
    await remember(engine.self_test_results());
    post({ type: "loaded", info: JSON.parse(engine.info()) });
  } catch (error) {
    post({ type: "error", error: failure(error) });
  } finally {
    for (const source of sources) source.close();
  }
}

/** Where the origin's cache has what this GPU has passed of the self-test, in this version of the browser. */
async function resultsAddress(): Promise<string> {
  const { vendor, architecture, device } = (await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" }))?.info ?? {};
  const known = [navigator.userAgent, vendor, architecture, device].map((part) => encodeURIComponent(part ?? ""));
  return `./wgslm-self-test-results?${known.join("&")}`;
}

async function remembered(): Promise<string> {
  try {
    const response = await (await caches.open("wgslm")).match(await resultsAddress());
    return (await response?.text()) ?? "";
  } catch {
    return ""; // a browser that keeps nothing tests each time
  }
}

async function remember(passed: string): Promise<void> {
  try {
    const cache = await caches.open("wgslm");
    // Those of other versions and GPUs would pile up.
    for (const old of await cache.keys()) await cache.delete(old);
    await cache.put(await resultsAddress(), new Response(passed));
  } catch {
    // as above
  }
}

async function step(running: WebEngine): Promise<void> {
  try {
    for (const event of JSON.parse(await running.step()) as StepEvent[]) report(event);
  } catch (error) {
    // The device is gone: nobody gets an answer any more.
    broken = failure(error);
    for (const { id } of answers.values()) post({ type: "error", id, error: broken });
    answers.clear();
    engine = undefined;
  }
}

function report(event: StepEvent): void {
  const answer = answers.get(event.request);
  if (!answer) return;
  const now = performance.now();
  if (event.finish === undefined) {
    answer.first ??= now;
    post({ type: "text", id: answer.id, text: event.text, token: event.id });
    return;
  }
  answers.delete(event.request);
  if (event.error) {
    post({ type: "error", id: answer.id, error: event.error });
    return;
  }
  const { id, started, first = now } = answer;
  const times = { first: first - started, rest: now - first };
  post({ type: "finish", id, text: event.text, finish: event.finish, usage: event.usage, times });
}

/** What went wrong, as a message can carry it. Rust's errors come as JSON. */
function failure(error: unknown): Failure {
  if (typeof error === "string") {
    try {
      return JSON.parse(error) as Failure;
    } catch {
      return { code: "internal", message: error };
    }
  }
  const code = error instanceof SourceError || error instanceof TypeError ? "network" : "internal";
  return { code, message: error instanceof Error ? error.message : String(error) };
}

const channel = new MessageChannel();
let resume: (() => void) | undefined;
channel.port1.onmessage = () => resume?.();

function breath(): Promise<void> {
  return new Promise((done) => {
    resume = done;
    channel.port2.postMessage(null);
  });
}
