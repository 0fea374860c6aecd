/** The engine as a page sees it: a worker behind promises and iterators. */
import { check, type ChatCompletion, type ChatCompletionChunk, type ChatRequest, type ChunkChoice, type CompletionUsage, type FinishReason, type Timings } from "./openai.js";
import type { EngineOptions, Failure, FromWorker, Leftovers, ModelInfo, Parts, Times, ToWorker, Usage } from "./protocol.js";

export interface Progress {
  /** The self-test of the GPU; weights on their way to it, in bytes; kernels. */
  phase: "test" | "load" | "compile";
  done: number;
  total: number;
}

export interface CreateOptions extends EngineOptions {
  onProgress?: (progress: Progress) => void;
  /** Ends the download, and frees all there is. */
  signal?: AbortSignal;
}

/** A GGUF file: its address, or the file itself; or all parts of a split one, in order. */
export type ModelSource = string | URL | Blob | (string | URL | Blob)[];

/** An error of the engine's. `code` says to programs what `message` says to people. */
export class EngineError extends Error {
  readonly code: string;
  constructor({ code, message }: Failure) {
    super(message);
    this.name = "EngineError";
    this.code = code;
  }
}

/** An answer that was asked for: its number, and where its events arrive. */
interface Started {
  id: number;
  inbox: Inbox;
}

type AnswerEvent = FromWorker & { type: "text" | "finish" };

/** Where the events of an answer arrive, and wait to be read. */
class Inbox {
  #events: AnswerEvent[] = [];
  #failure: unknown;
  #wake: (() => void) | undefined;

  push(event: AnswerEvent): void {
    this.#events.push(event);
    this.#wake?.();
  }

  fail(error: unknown): void {
    this.#failure ??= error;
    this.#wake?.();
  }

  async next(): Promise<AnswerEvent> {
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
  const { onProgress, signal, ...rest } = options;
  signal?.throwIfAborted();
  const whole = (part: string | URL | Blob) => (part instanceof Blob ? part : new URL(part, document.baseURI).href);
  const parts: Parts = (Array.isArray(model) ? model : [model]).map(whole);
  const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  // Ending the worker ends its downloads and frees its device.
  let abort = (): void => {};
  try {
    const info = await new Promise<ModelInfo>((loaded, failed) => {
      abort = () => failed(signal?.reason);
      signal?.addEventListener("abort", abort);
      worker.onerror = (event) => failed(new EngineError({ code: "internal", message: event.message || "the worker did not start" }));
      worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
        if (data.type === "progress") onProgress?.({ phase: data.phase, done: data.done, total: data.total });
        else if (data.type === "loaded") loaded(data.info);
        else if (data.type === "error") failed(new EngineError(data.error));
      };
      worker.postMessage({ type: "load", parts, options: rest } satisfies ToWorker);
    });
    return new Engine(worker, info);
  } catch (error) {
    worker.terminate();
    throw error;
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

export class Engine {
  readonly chat = { completions: new Completions(this) };
  #answers = new Map<number, Inbox>();
  #disposed: ((left: Leftovers) => void) | undefined;
  #left: Promise<Leftovers> | undefined;
  #last = 0;
  #gone: EngineError | undefined;

  /** @internal */
  constructor(private readonly worker: Worker, readonly info: ModelInfo) {
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
    if (this.#gone) throw this.#gone;
    const id = ++this.#last;
    const inbox = new Inbox();
    this.#answers.set(id, inbox);
    this.#post({ type: "create", id, request });
    return { id, inbox };
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

class Completions {
  constructor(private readonly engine: Engine) {}

  create(request: ChatRequest & { stream: true }, options?: RequestOptions): Promise<AsyncGenerator<ChatCompletionChunk, void>>;
  create(request: ChatRequest & { stream?: false }, options?: RequestOptions): Promise<ChatCompletion>;
  create(request: ChatRequest, options?: RequestOptions): Promise<ChatCompletion | AsyncGenerator<ChatCompletionChunk, void>>;
  /** Answers a conversation. What it shares with the one before is not computed again. */
  async create(request: ChatRequest, options: RequestOptions = {}): Promise<ChatCompletion | AsyncGenerator<ChatCompletionChunk, void>> {
    check(request);
    options.signal?.throwIfAborted();
    const head = { id: `chatcmpl-${crypto.randomUUID()}`, created: Math.floor(Date.now() / 1000), model: this.engine.info.name };
    const events = this.#events(this.engine.start(request), options.signal);
    if (request.stream) return chunks(events, head, request.stream_options?.include_usage ?? false);
    let content = "";
    for await (const event of events) {
      content += event.text;
      if (event.type === "finish") {
        const choice = { index: 0, message: { role: "assistant", content }, finish_reason: reason(event.finish), logprobs: null } as const;
        return { ...head, object: "chat.completion", choices: [choice], ...figures(event.usage, event.times) };
      }
    }
    throw new Error("the answer has no end");
  }

  /** The events of an answer; leaving the loop early ends it. */
  async *#events({ id, inbox }: Started, signal: AbortSignal | undefined): AsyncGenerator<AnswerEvent, void> {
    const abort = (): void => inbox.fail(signal?.reason);
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    try {
      for (;;) {
        const event = await inbox.next();
        yield event;
        if (event.type === "finish") return;
      }
    } finally {
      signal?.removeEventListener("abort", abort);
      this.engine.cancel(id);
    }
  }
}

type Head = Pick<ChatCompletionChunk, "id" | "created" | "model">;

async function* chunks(events: AsyncGenerator<AnswerEvent, void>, head: Head, usage: boolean): AsyncGenerator<ChatCompletionChunk, void> {
  let ids: number[] = [];
  const chunk = (delta: ChunkChoice["delta"], finish_reason: FinishReason | null = null): ChatCompletionChunk => {
    const choice = { index: 0, delta, finish_reason, logprobs: null, token_ids: ids };
    ids = [];
    return { ...head, object: "chat.completion.chunk", choices: [choice], ...(usage ? { usage: null } : {}) };
  };
  yield chunk({ role: "assistant", content: "" });
  for await (const event of events) {
    if (event.type === "text") ids.push(event.token);
    if (event.text) yield chunk({ content: event.text });
    if (event.type === "finish") {
      const { usage: counts, timings } = figures(event.usage, event.times);
      yield { ...chunk({}, reason(event.finish)), timings };
      if (usage) yield { ...chunk({}), choices: [], usage: counts };
    }
  }
}

function reason(finish: string): FinishReason {
  return finish === "stop" ? "stop" : "length";
}

function figures(usage: Usage, times: Times): { usage: CompletionUsage; timings: Timings } {
  const { prompt, reused, generated } = usage;
  return {
    usage: {
      prompt_tokens: prompt,
      completion_tokens: generated,
      total_tokens: prompt + generated,
      prompt_tokens_details: { cached_tokens: reused },
    },
    timings: { first_token_ms: times.first, tokens_per_second: times.rest > 0 ? ((generated - 1) / times.rest) * 1000 : 0 },
  };
}
