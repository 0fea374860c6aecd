/** The engine as a page sees it: a worker behind promises and iterators. */
import {
  forEngine,
  textsOf,
  type AnswerMessage,
  type ChatCompletion,
  type ChatCompletionChunk,
  type ChatRequest,
  type ChunkChoice,
  type Completion,
  type CompletionRequest,
  type CompletionUsage,
  type EmbeddingRequest,
  type Embeddings,
  type FinishReason,
  type Timings,
  type ToolCall,
} from "./openai.js";
import { EngineError } from "./error.js";
import { locate, type ModelSource } from "./models.js";
import { randomName } from "./names.js";
import { checkSupport, threadsHere, type Device } from "./support.js";
import type { DeviceState, EngineOptions, Failure, FromWorker, Leftovers, ModelInfo, Parts, ToWorker } from "./protocol.js";

export interface Progress {
  /**
   * Files on their way into the browser's storage, in bytes; the self-test of the GPU; weights on their way to it, in bytes; kernels.
   * What is downloaded goes on to the GPU at once: the two phases overlap.
   */
  phase: "download" | "test" | "load" | "compile";
  done: number;
  total: number;
}

export interface CreateOptions extends EngineOptions {
  /**
   * What the model runs on. Default `auto`: graphics hardware, and the processor where there is none, or where it computes wrongly or
   * lacks what the model needs. `gpu` takes an adapter that is a program on the processor, too.
   */
  device?: Device | "auto";
  /**
   * Threads on the processor at most, up to 8, where the page is cross-origin isolated (headers COOP and COEP); elsewhere there is one.
   * Default what the processor has.
   */
  threads?: number;
  onProgress?: (progress: Progress) => void;
  /** Ends the download, and frees all there is. What has arrived is kept, and the next time goes on from there. */
  signal?: AbortSignal;
  /**
   * Whether files from addresses are kept by the browser (default true): the next visit needs no network. Where the browser has no
   * storage or too little, the model is loaded without (`Engine.notKept` says why). `models.delete` gives the space back.
   */
  keep?: boolean;
  /** The hub that references are looked up at. Default https://huggingface.co. */
  hub?: string;
  /** The GPU was lost (a driver's update, sleep, a crash), and what is done about it: the model is loaded again by itself. */
  onDevice?: (state: DeviceState) => void;
}

/** The small model that comes with the package: it tells short stories. */
export const TINY_MODEL: string = new URL("./tiny.gguf", import.meta.url).href;

/** Answers that were asked for: the number of the first, how many follow one another, and where their events arrive. */
interface Started {
  first: number;
  count: number;
  inbox: Inbox;
}

type AnswerEvent = FromWorker & { type: "text" | "finish" };
/** An event of one of a request's answers. */
type Indexed = AnswerEvent & { index: number };
type Vectors = FromWorker & { type: "vectors" };
type Arrived = AnswerEvent | Vectors;

/** Where the events of a request's answers arrive, and wait to be read. */
class Inbox {
  #events: Arrived[] = [];
  #failure: unknown;
  #wake: (() => void) | undefined;

  push(event: Arrived): void {
    this.#events.push(event);
    this.#wake?.();
  }

  fail(error: unknown): void {
    this.#failure ??= error;
    this.#wake?.();
  }

  async next(): Promise<Arrived> {
    for (;;) {
      if (this.#failure) throw this.#failure;
      const event = this.#events.shift();
      if (event) return event;
      await new Promise<void>((wake) => (this.#wake = wake));
    }
  }
}

/** Loads a model into a worker of its own. */
export async function createEngine(model: ModelSource, options: CreateOptions = {}): Promise<Engine> {
  const { onProgress, signal, keep, hub, onDevice, device = "auto", threads = threadsHere(), ...rest } = options;
  if (!["auto", "gpu", "cpu"].includes(device)) throw new EngineError({ code: "argument", message: `device: ${JSON.stringify(device)}; "auto", "gpu" and "cpu" work` });
  if (!Number.isInteger(threads) || threads < 1) throw new EngineError({ code: "argument", message: `threads: ${threads}; integers from 1 on work` });
  signal?.throwIfAborted();
  const support = await checkSupport();
  if (!support.ok) throw new EngineError({ code: "unsupported", message: `${support.reason} ${support.advice}` });
  const on = { device: device === "auto" ? support.device! : device, fallback: device === "auto", threads: Math.min(threads, threadsHere()) };
  const { parts, remote } = await locate(model, { ...(hub ? { hub } : {}), ...(signal ? { signal } : {}) });
  signal?.throwIfAborted();
  // What comes with the package is the package's to keep, and changes with it.
  const kept = keep !== false && remote && remote.source !== TINY_MODEL ? remote : undefined;
  const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  // Ending the worker ends its downloads and frees its device.
  let abort = (): void => {};
  try {
    const loaded = await new Promise<FromWorker & { type: "loaded" }>((loaded, failed) => {
      abort = () => failed(signal?.reason);
      signal?.addEventListener("abort", abort);
      worker.onerror = (event) => failed(new EngineError({ code: "internal", message: event.message || "the worker did not start" }));
      worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
        if (data.type === "progress") onProgress?.({ phase: data.phase, done: data.done, total: data.total });
        else if (data.type === "loaded") loaded(data);
        else if (data.type === "error") failed(new EngineError(data.error));
      };
      worker.postMessage({ type: "load", parts, ...(kept ? { keep: kept } : {}), ...on, options: rest } satisfies ToWorker);
    });
    return new Engine(worker, loaded.info, loaded.notKept, onDevice);
  } catch (error) {
    worker.terminate();
    throw error;
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

export class Engine {
  readonly chat = { completions: new ChatCompletions(this) };
  readonly completions = new Completions(this);
  readonly embeddings = new EmbeddingsOf(this);
  #answers = new Map<number, Inbox>();
  #disposed: ((left: Leftovers) => void) | undefined;
  #left: Promise<Leftovers> | undefined;
  #last = 0;
  #gone: EngineError | undefined;

  /** @internal */
  constructor(
    private readonly worker: Worker,
    readonly info: ModelInfo,
    /** Why the browser does not keep the model's files; undefined where it does, or was not asked to. */
    readonly notKept: string | undefined,
    private readonly onDevice: ((state: DeviceState) => void) | undefined,
  ) {
    worker.onmessage = ({ data }: MessageEvent<FromWorker>) => this.#receive(data);
    worker.onerror = (event) => this.#end({ code: "internal", message: event.message });
  }

  /** Frees all memory, on the GPU and here, and returns what is left. */
  async dispose(): Promise<Leftovers> {
    this.#left ??= this.#dispose();
    return this.#left;
  }

  async #dispose(): Promise<Leftovers> {
    this.#end({ code: "disposed", message: "the engine was disposed" });
    const left = await new Promise<Leftovers>((disposed) => {
      this.#disposed = disposed;
      this.#post({ type: "dispose" });
    });
    this.worker.terminate();
    return left;
  }

  /** @internal */
  start(request: ChatRequest): Started {
    return this.#ask(forEngine(request).map((request) => (id) => ({ type: "create", id, request })));
  }

  /** @internal */
  embed(texts: string[]): Started {
    return this.#ask([(id) => ({ type: "embed", id, texts })]);
  }

  #ask(messages: ((id: number) => ToWorker)[]): Started {
    if (this.#gone) throw this.#gone;
    const inbox = new Inbox();
    const first = this.#last + 1;
    for (const message of messages) {
      const id = ++this.#last;
      this.#answers.set(id, inbox);
      this.#post(message(id));
    }
    return { first, count: messages.length, inbox };
  }

  /** Ends an answer; nothing more comes of it. @internal */
  cancel(id: number): void {
    if (this.#answers.delete(id) && !this.#gone) this.#post({ type: "cancel", id });
  }

  #post(message: ToWorker): void {
    this.worker.postMessage(message);
  }

  #receive(message: FromWorker): void {
    if (message.type === "disposed") this.#disposed?.(message.left);
    if (message.type === "device") this.onDevice?.(message.state);
    if (!("id" in message) || message.id === undefined) return;
    const inbox = this.#answers.get(message.id);
    if (message.type === "error") inbox?.fail(new EngineError(message.error));
    else inbox?.push(message);
    if (message.type !== "text") this.#answers.delete(message.id);
  }

  #end(why: Failure): void {
    this.#gone ??= new EngineError(why);
    for (const inbox of this.#answers.values()) inbox.fail(this.#gone);
    this.#answers.clear();
  }
}

export interface RequestOptions {
  /** Ends the answer. The iterator throws the signal's reason. */
  signal?: AbortSignal;
}

/** The events of a request; leaving the loop early ends it. */
async function* events<Event extends Arrived>(engine: Engine, { first, count, inbox }: Started, signal: AbortSignal | undefined): AsyncGenerator<Event & { index: number }, void> {
  const abort = (): void => inbox.fail(signal?.reason);
  signal?.addEventListener("abort", abort);
  if (signal?.aborted) abort();
  try {
    for (let left = count; left > 0; ) {
      const event = (await inbox.next()) as Event;
      if (event.type !== "text") left--;
      yield { ...event, index: event.id - first };
    }
  } finally {
    signal?.removeEventListener("abort", abort);
    for (let i = 0; i < count; i++) engine.cancel(first + i);
  }
}

/** Starts a request, once it is known that it can be honoured. */
function begin(engine: Engine, request: ChatRequest, signal: AbortSignal | undefined): AsyncGenerator<Indexed, void> {
  signal?.throwIfAborted();
  return events(engine, engine.start(request), signal);
}

/** What an answer is so far: its parts, its tokens and, when it is over, its last event. */
interface Gathered extends Parts {
  ids: number[];
  end?: End;
}

type End = FromWorker & { type: "finish" };

/** What the answers are in all. */
async function whole(events: AsyncGenerator<Indexed, void>): Promise<[Required<Gathered>, ...Required<Gathered>[]]> {
  const answers: Gathered[] = [];
  for await (const event of events) {
    const answer = (answers[event.index] ??= { thought: "", text: "", calls: [], ids: [] });
    answer.thought += event.thought;
    answer.text += event.text;
    answer.calls.push(...event.calls);
    if (event.type === "finish") answer.end = event;
    else answer.ids.push(event.token);
  }
  return answers as [Required<Gathered>, ...Required<Gathered>[]];
}

/** As many as there are, for each its own. */
function each<T, U>([first, ...rest]: [T, ...T[]], of: (value: T, index: number) => U): [U, ...U[]] {
  return [of(first, 0), ...rest.map((value, i) => of(value, i + 1))];
}

/** A call by the name by which its result is sent back: nine letters and digits, since some templates take no other names. */
function named({ name, arguments: values }: Parts["calls"][number]): ToolCall {
  return { id: randomName(9), type: "function", function: { name, arguments: JSON.stringify(values) } };
}

/** What all parts of an answer say. */
function head(engine: Engine, kind: "chatcmpl" | "cmpl"): { id: string; created: number; model: string } {
  return { id: `${kind}-${randomName(24)}`, created: Math.floor(Date.now() / 1000), model: engine.info.name };
}

class ChatCompletions {
  constructor(private readonly engine: Engine) {}

  create(request: ChatRequest & { stream: true }, options?: RequestOptions): Promise<AsyncGenerator<ChatCompletionChunk, void>>;
  create(request: ChatRequest & { stream?: false }, options?: RequestOptions): Promise<ChatCompletion>;
  create(request: ChatRequest, options?: RequestOptions): Promise<ChatCompletion | AsyncGenerator<ChatCompletionChunk, void>>;
  /** Answers a conversation. What it shares with the one before is not computed again. */
  async create(request: ChatRequest, { signal }: RequestOptions = {}): Promise<ChatCompletion | AsyncGenerator<ChatCompletionChunk, void>> {
    const running = begin(this.engine, request, signal);
    const said = head(this.engine, "chatcmpl");
    if (request.stream) return chatChunks(running, request.n ?? 1, said, request.stream_options?.include_usage ?? false);
    const answers = await whole(running);
    const choices = each(answers, ({ thought, text, calls, end }, index) => {
      const message: AnswerMessage = {
        role: "assistant",
        content: text || !calls.length ? text : null,
        ...(thought ? { reasoning_content: thought } : {}),
        ...(calls.length ? { tool_calls: calls.map(named) } : {}),
      };
      return { index, message, finish_reason: reason(end.finish), logprobs: null };
    });
    return { ...said, object: "chat.completion", choices, ...figures(answers.map(({ end }) => end)) };
  }
}

class Completions {
  constructor(private readonly engine: Engine) {}

  create(request: CompletionRequest & { stream: true }, options?: RequestOptions): Promise<AsyncGenerator<Completion, void>>;
  create(request: CompletionRequest & { stream?: false }, options?: RequestOptions): Promise<Completion>;
  create(request: CompletionRequest, options?: RequestOptions): Promise<Completion | AsyncGenerator<Completion, void>>;
  /** Continues a text as it is. */
  async create(request: CompletionRequest, { signal }: RequestOptions = {}): Promise<Completion | AsyncGenerator<Completion, void>> {
    if (typeof request.prompt !== "string") throw new EngineError({ code: "argument", message: "prompt: one text works" });
    const running = begin(this.engine, request, signal);
    const said = head(this.engine, "cmpl");
    if (request.stream) return textChunks(running, said, request.stream_options?.include_usage ?? false);
    const answers = await whole(running);
    const choices = answers.map(({ text, ids, end }, index) => ({ index, text, finish_reason: reason(end.finish), logprobs: null, token_ids: ids }));
    return { ...said, object: "text_completion", choices, ...figures(answers.map(({ end }) => end)) };
  }
}

class EmbeddingsOf {
  constructor(private readonly engine: Engine) {}

  /** Vectors of texts, of a model that was loaded for them. */
  async create(request: EmbeddingRequest, { signal }: RequestOptions = {}): Promise<Embeddings> {
    const texts = textsOf(request);
    signal?.throwIfAborted();
    for await (const { vectors, tokens } of events<Vectors>(this.engine, this.engine.embed(texts), signal)) {
      const width = vectors.length / texts.length;
      const data = texts.map((_, index) => {
        const vector = vectors.subarray(index * width, (index + 1) * width);
        return { object: "embedding" as const, index, embedding: request.encoding_format === "base64" ? base64(vector) : Array.from(vector) };
      });
      return { object: "list", data, model: this.engine.info.name, usage: { prompt_tokens: tokens, total_tokens: tokens } };
    }
    throw new Error("the vectors have not come");
  }
}

/** Numbers as OpenAI's API sends them: 32 bits each, the lowest byte first, whatever the processor's order. */
function base64(vector: Float32Array): string {
  const bytes = new DataView(new ArrayBuffer(vector.length * 4));
  vector.forEach((x, i) => bytes.setFloat32(i * 4, x, true));
  return btoa(Array.from(new Uint8Array(bytes.buffer), (byte) => String.fromCharCode(byte)).join(""));
}

async function* textChunks(events: AsyncGenerator<Indexed, void>, said: ReturnType<typeof head>, usage: boolean): AsyncGenerator<Completion, void> {
  const ids: number[][] = [];
  const ends: End[] = [];
  const chunk = (index: number, text: string, finish_reason: FinishReason | null = null): Completion => {
    const choice = { index, text, finish_reason, logprobs: null, token_ids: ids[index] ?? [] };
    ids[index] = [];
    return { ...said, object: "text_completion", choices: [choice], ...(usage ? { usage: null } : {}) };
  };
  for await (const event of events) {
    const { index, text } = event;
    if (event.type === "text") {
      (ids[index] ??= []).push(event.token);
      if (text) yield chunk(index, text);
    } else {
      ends.push(event);
      yield { ...chunk(index, text, reason(event.finish)), timings: figures(ends).timings };
    }
  }
  if (usage) yield { ...chunk(0, ""), choices: [], usage: figures(ends).usage };
}

async function* chatChunks(events: AsyncGenerator<Indexed, void>, count: number, said: ReturnType<typeof head>, usage: boolean): AsyncGenerator<ChatCompletionChunk, void> {
  /** Of each answer: tokens since its last chunk, and calls so far. */
  const answers = Array.from({ length: count }, () => ({ ids: [] as number[], called: 0 }));
  const ends: End[] = [];
  const chunk = (index: number, delta: ChunkChoice["delta"], finish_reason: FinishReason | null = null): ChatCompletionChunk => {
    const choice = { index, delta, finish_reason, logprobs: null, token_ids: answers[index]?.ids.splice(0) ?? [] };
    return { ...said, object: "chat.completion.chunk", choices: [choice], ...(usage ? { usage: null } : {}) };
  };
  for (const index of answers.keys()) yield chunk(index, { role: "assistant", content: "" });
  for await (const event of events) {
    const { index, thought, text, calls } = event;
    const answer = answers[index]!;
    if (event.type === "text") answer.ids.push(event.token);
    if (thought || text || calls.length) {
      yield chunk(index, {
        ...(thought ? { reasoning_content: thought } : {}),
        ...(text ? { content: text } : {}),
        ...(calls.length ? { tool_calls: calls.map((call) => ({ index: answer.called++, ...named(call) })) } : {}),
      });
    }
    if (event.type === "finish") {
      ends.push(event);
      yield { ...chunk(index, {}, reason(event.finish)), timings: figures(ends).timings };
    }
  }
  if (usage) yield { ...chunk(0, {}), choices: [], usage: figures(ends).usage };
}

function reason(finish: string): FinishReason {
  return finish === "stop" || finish === "tool_calls" ? finish : "length";
}

/** What the answers of a request that are over took together. */
function figures(ends: End[]): { usage: CompletionUsage; timings: Timings } {
  const { prompt, reused } = ends[0]!.usage;
  const generated = ends.reduce((sum, { usage }) => sum + usage.generated, 0);
  const first = Math.min(...ends.map(({ times }) => times.first));
  const rest = Math.max(...ends.map(({ times }) => times.first + times.rest)) - first;
  return {
    usage: {
      prompt_tokens: prompt,
      completion_tokens: generated,
      total_tokens: prompt + generated,
      prompt_tokens_details: { cached_tokens: reused },
    },
    timings: { first_token_ms: first, tokens_per_second: rest > 0 ? ((generated - ends.length) / rest) * 1000 : 0 },
  };
}
