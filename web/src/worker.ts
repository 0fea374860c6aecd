/** The worker: owns the WebAssembly module and its engine, and does one thing at a time. */
import type { WebEngine } from "./wgslm.js";
import { open, type Opened } from "./download.js";
import { EngineError, ofReading } from "./error.js";
import type { Failure, FromWorker, Parts, ToWorker, Usage } from "./protocol.js";
import { hashed, type ToHash } from "./sha256.js";
import { BlobSource, UrlSource, type ByteSource } from "./source.js";
import { remove } from "./store.js";
import { moduleOf, type Device } from "./support.js";
import { withThreads } from "./threads.js";

/** An event of `WebEngine.step`. */
type StepEvent = { request: number } & Parts & (
  | { id: number; finish?: undefined }
  | { finish: string; usage: Usage; error: Failure | null }
);

interface Answer {
  id: number;
  /** To be asked again where the GPU is lost before anything came. */
  json: string;
  started: number;
  first?: number;
}

const scope = self as unknown as DedicatedWorkerGlobalScope;
const post = (message: FromWorker, moved: Transferable[] = []): void => scope.postMessage(message, moved);

/** The modules have the same functions. */
interface Module {
  default: () => Promise<{ memory: WebAssembly.Memory }>;
  WebEngine: Pick<typeof WebEngine, "load" | "live_buffers">;
}

/** The module of a device, and its memory. */
interface Running {
  device: Device;
  threads: number;
  module: Module;
  wasm: { memory: WebAssembly.Memory };
}

let running: Running | undefined;
let engine: WebEngine | undefined;
/** Why there is no engine any more. */
let broken: Failure = { code: "disposed", message: "the engine was disposed" };
/** By the engine's number. */
const answers = new Map<number, Answer>();
/** Messages that came while a step was in flight. */
const inbox: ToWorker[] = [];
let working = false;

scope.onmessage = ({ data }: MessageEvent<ToWorker | ToHash>) => {
  if (data.type === "hash") return scope.postMessage(hashed(data));
  inbox.push(data);
  void work();
};

async function work(): Promise<void> {
  if (working) return;
  working = true;
  while (inbox.length > 0 || engine?.busy() || lost !== undefined) {
    for (let message = inbox.shift(); message; message = inbox.shift()) await handle(message);
    const why = lost;
    lost = undefined;
    if (engine && why !== undefined) await lose(engine, { code: "device_lost", message: why });
    if (engine?.busy()) await step(engine);
    // A message that waits is taken here: a promise alone does not let it in.
    await breath();
  }
  working = false;
}

/** The device that was made last, and why it was lost where no step has noticed. */
let gpu: GPUDevice | undefined;
let lost: string | undefined;

// An engine that has nothing to do asks nothing of its device, so it would learn of a loss by the next request only.
if (typeof GPUAdapter === "function") {
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...args: Parameters<typeof request>) {
    const device = await request.apply(this, args);
    gpu = device;
    void device.lost.then(({ reason, message }) => {
      if (reason === "destroyed" || gpu !== device) return;
      lost = `the device was lost: ${message || "the browser does not say why"}`;
      void work();
    });
    return device;
  };
}

async function handle(message: ToWorker): Promise<void> {
  switch (message.type) {
    case "load":
      return load(message);
    case "create":
      try {
        const json = JSON.stringify(message.request);
        const request = engine?.submit(json);
        if (request === undefined) post({ type: "error", id: message.id, error: broken });
        else answers.set(request, { id: message.id, json, started: performance.now() });
      } catch (error) {
        post({ type: "error", id: message.id, error: failure(error) });
      }
      return;
    case "embed":
      try {
        const { vectors, tokens } = await embed(message);
        post({ type: "vectors", id: message.id, vectors, tokens }, [vectors.buffer]);
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
      post({ type: "disposed", left: { buffers: running?.module.WebEngine.live_buffers() ?? 0, memory: running?.wasm.memory.buffer.byteLength ?? 0 } });
  }
}

type Load = ToWorker & { type: "load" };

/** What the engine was made of, to make it again. */
let made: Load | undefined;

/** What a GPU may fail with where the processor does not. */
const GPU_FAULTS = ["device", "device_lost", "miscomputed", "unsupported"];

async function load(message: Load): Promise<void> {
  const progress: Report = (phase, done, total) => post({ type: "progress", phase, done, total });
  try {
    let fallback: string | undefined;
    let notKept: string | undefined;
    try {
      notKept = await make(message, progress);
    } catch (error) {
      const { code, message: why } = failure(error);
      if (!fallsBack(message) || !GPU_FAULTS.includes(code)) throw error;
      [message, fallback] = [{ ...message, device: "cpu" }, why];
      notKept = await make(message, progress);
    }
    made = message;
    const info = { ...JSON.parse(engine!.info()), device: message.device, threads: running!.threads, ...(fallback !== undefined ? { fallback } : {}) };
    post({ type: "loaded", info, ...(notKept !== undefined ? { notKept } : {}) });
  } catch (error) {
    post({ type: "error", error: failure(error) });
  }
}

function fallsBack({ device, fallback }: Load): boolean {
  return device === "gpu" && fallback;
}

/** A module is fetched when it is needed. Bundlers want to see each name. */
const modules: Record<ReturnType<typeof moduleOf>, () => Promise<Module>> = {
  wgslm: () => import("./wgslm.js"),
  wgslm_cpu: () => import("./wgslm_cpu.js"),
  wgslm_cpu_relaxed: () => import("./wgslm_cpu_relaxed.js"),
  wgslm_cpu_threads: () => import("./wgslm_cpu_threads.js"),
};

/** The module of a device, ready. */
async function ready(device: Device, threads: number): Promise<Running> {
  if (running?.device === device) return running;
  if (moduleOf(device, threads) === "wgslm_cpu_threads") {
    try {
      const module: Module = await withThreads(threads);
      return (running = { device, threads, module, wasm: await module.default() });
    } catch (error) {
      // A browser that gives no memory to share, or a package built without: one thread does it, too.
      console.warn("wgslm: one thread,", error);
    }
  }
  const module = await modules[moduleOf(device, 1)]();
  return (running = { device, threads: 1, module, wasm: await module.default() });
}

type Report = (phase: "download" | "test" | "load" | "compile", done: number, total: number) => void;

/** Makes the engine; gives why its files are not kept. */
async function make(message: Load, progress: Report): Promise<string | undefined> {
  const { parts, keep, device, threads, options } = message;
  const { module } = await ready(device, threads);
  let opened: Opened | undefined;
  const sources: ByteSource[] = [];
  try {
    if (keep) {
      opened = await open(keep, (done, total) => progress("download", done, total));
      sources.push(...opened.sources);
    } else {
      for (const part of parts) {
        if (part instanceof Blob) {
          sources.push(new BlobSource(part, part instanceof File ? part.name : "model"));
        } else {
          const remote = await UrlSource.open(part.url);
          sources.push(await remote.inAnyOrder((done) => progress("download", done, remote.size)));
        }
      }
    }
    const passed = { ...options, selfTestResults: device === "gpu" ? await remembered() : "" };
    const loaded = await module.WebEngine.load(sources, JSON.stringify(passed), progress);
    try {
      // What is not verified is not run.
      await opened?.arrived;
    } catch (error) {
      loaded.free();
      throw error;
    }
    engine = loaded;
    if (device === "gpu") await remember(engine.self_test_results());
    return opened?.notKept();
  } catch (seen) {
    const error = opened?.failure?.() ?? seen;
    opened?.close();
    // A file that is no model, or none that can be run, would only take space.
    if (keep && !fallsBack(message) && ["malformed", "unsupported"].includes(failure(error).code)) await remove(keep.source).catch(() => {});
    throw error;
  } finally {
    opened?.close();
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

/** When the GPU was lost in the last minutes. */
let losses: number[] = [];
/** Losses further apart have nothing to do with each other. */
const FORGOTTEN = 5 * 60_000;
const LONGEST_WAIT = 60;

async function step(current: WebEngine): Promise<void> {
  let why: Failure | undefined;
  try {
    for (const event of JSON.parse(await current.step()) as StepEvent[]) {
      // A lost device ends what is in flight; whether anything came of it decides what becomes of it.
      if (event.finish !== undefined && event.error?.code === "device_lost") why = event.error;
      else report(event);
    }
  } catch (error) {
    why = failure(error);
  }
  if (why) await lose(current, why);
}

/** Vectors of texts, a few at a time: messages that came meanwhile may end it. */
async function embed({ id, texts }: ToWorker & { type: "embed" }): Promise<{ vectors: Float32Array<ArrayBuffer>; tokens: number }> {
  const AT_ONCE = 16;
  const all: Float32Array[] = [];
  let tokens = 0;
  while (all.length * AT_ONCE < texts.length) {
    const current = engine;
    if (!current) throw new EngineError(broken);
    const from = all.length * AT_ONCE;
    try {
      const [vectors, counted] = (await current.embed(texts.slice(from, from + AT_ONCE))) as [Float32Array, number];
      all.push(vectors);
      tokens += counted;
    } catch (error) {
      const why = failure(error);
      if (why.code !== "device_lost") throw error;
      await lose(current, why);
    }
    await breath();
    const ended = inbox.some((message) => message.type === "dispose" || (message.type === "cancel" && message.id === id));
    if (ended) throw new EngineError({ code: "canceled", message: "nobody waits for it" });
  }
  const vectors = new Float32Array(all.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of all) {
    vectors.set(part, at);
    at += part.length;
  }
  return { vectors, tokens };
}

/** Gives up an engine that is broken; one whose GPU was lost is made again. */
async function lose(current: WebEngine, why: Failure): Promise<void> {
  [engine, gpu, lost] = [undefined, undefined, undefined];
  try {
    current.free();
  } catch {
    // what it holds is broken, and goes with the device
  }
  if (why.code === "device_lost") await rebuild(why);
  else end(why);
}

/** Nobody gets an answer any more. */
function end(why: Failure): void {
  broken = why;
  for (const { id } of answers.values()) post({ type: "error", id, error: why });
  answers.clear();
}

/** Loads the model again after the GPU was lost: at once, then after longer and longer waits. */
async function rebuild(why: Failure): Promise<void> {
  // Text that was given cannot be taken back; what has not begun is asked again.
  const again = [...answers.values()].filter(({ first }) => first === undefined);
  for (const { id, first } of answers.values()) if (first !== undefined) post({ type: "error", id, error: why });
  answers.clear();
  for (let failures = 0; ; failures++) {
    const now = performance.now();
    losses = [...losses.filter((at) => now - at < FORGOTTEN), now];
    const seconds = losses.length < 2 ? 0 : Math.min(2 ** (losses.length - 1), LONGEST_WAIT);
    post({ type: "device", state: { state: "lost", reason: why.message, seconds } });
    const disposed = (): boolean => inbox.some(({ type }) => type === "dispose");
    for (const until = now + seconds * 1000; performance.now() < until && !disposed(); ) await new Promise((resume) => setTimeout(resume, 50));
    if (disposed()) return end(broken);
    try {
      await make(made!, () => {});
      break;
    } catch (error) {
      const last = failure(error);
      if (failures < 7 && ["device", "device_lost"].includes(last.code)) continue;
      for (const { id } of again) post({ type: "error", id, error: last });
      return end(last);
    }
  }
  post({ type: "device", state: { state: "restored" } });
  for (const answer of again) {
    try {
      answers.set(engine!.submit(answer.json), answer);
    } catch (error) {
      post({ type: "error", id: answer.id, error: failure(error) });
    }
  }
}

function report(event: StepEvent): void {
  const answer = answers.get(event.request);
  if (!answer) return;
  const now = performance.now();
  if (event.finish === undefined) {
    answer.first ??= now;
    const { thought, text, calls } = event;
    post({ type: "text", id: answer.id, thought, text, calls, token: event.id });
    return;
  }
  answers.delete(event.request);
  if (event.error) {
    post({ type: "error", id: answer.id, error: event.error });
    return;
  }
  const { id, started, first = now } = answer;
  const times = { first: first - started, rest: now - first };
  const { thought, text, calls, finish, usage } = event;
  post({ type: "finish", id, thought, text, calls, finish, usage, times });
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
  const known = ofReading(error);
  if (known instanceof EngineError) return { code: known.code, message: known.message };
  return { code: "internal", message: error instanceof Error ? error.message : String(error) };
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
