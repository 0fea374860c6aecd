/** What the page and the worker send each other. */
import type { Wanted } from "./download.js";
import type { RemoteFile } from "./hub.js";
import type { Device } from "./support.js";

/** What has become of the GPU. */
export type DeviceState =
  /** It is gone; the model is loaded again after so many seconds. */
  | { state: "lost"; reason: string; seconds: number }
  /** The model is there again. */
  | { state: "restored" };

export interface EngineOptions {
  /** Positions of context; at most the model's. Default 4096. For vectors, tokens of a text; default what the model is meant for. */
  context?: number;
  /** `embed`: vectors of texts, of a model that was made for answers, too. Default: what the model was made for. */
  task?: "answer" | "embed";
  /** `fast` (16-bit cache, the default) or `exact`. */
  numerics?: "fast" | "exact";
  /**
   * Whether the GPU's kernels are tested on known data before the model is loaded; what was passed is remembered by the origin's cache.
   * Default true, but for software adapters: a GPU that computes wrongly is refused (`miscomputed`), or used without what is wrong
   * (`ModelInfo.faults`).
   */
  selfTest?: boolean;
}

export interface ModelInfo {
  name: string;
  architecture: string;
  parameters: number;
  context: number;
  /** What it does: `chat.completions` and `completions`, or `embeddings`. */
  task: "answer" | "embed";
  /** Numbers of a vector. */
  width?: number;
  /** Whether the model has a chat template. */
  chat: boolean;
  /** Whether its template knows tools. */
  tools: boolean;
  /** Whether its template knows thoughts. */
  thinks: boolean;
  /** Features of the GPU that compute wrongly and are not used. */
  faults: string[];
  /** What the KV cache holds, where all of it does not fit on the GPU. */
  smallerCache: string | null;
  /** What it runs on. */
  device: Device;
  /** Threads that may compute on the processor; 1 where the page may not share memory, and on a GPU. */
  threads: number;
  /** Why it does not run on the GPU that was to be used: what was wrong there. */
  fallback?: string;
}

export interface Usage {
  prompt: number;
  reused: number;
  generated: number;
}

export interface Failure {
  code: string;
  message: string;
}

export type ToWorker =
  /**
   * `keep`: what the browser is to keep of a model; its files are the parts. `fallback`: a GPU that does not work is left for the
   * processor.
   */
  | { type: "load"; parts: (RemoteFile | Blob)[]; keep?: Wanted; device: Device; fallback: boolean; threads: number; options: EngineOptions }
  /** `request`: what `forEngine` makes of one. */
  | { type: "create"; id: number; request: object }
  | { type: "embed"; id: number; texts: string[] }
  | { type: "cancel"; id: number }
  | { type: "dispose" };

/** What a worker that lends its thread is made of; `index` from 1 on. */
export interface ToThread {
  compiled: WebAssembly.Module;
  memory: WebAssembly.Memory;
  index: number;
}

/** What became certain of an answer. */
export interface Parts {
  thought: string;
  text: string;
  calls: { name: string; arguments: object }[];
}

export type FromWorker =
  | { type: "progress"; phase: "download" | "test" | "load" | "compile"; done: number; total: number }
  | { type: "loaded"; info: ModelInfo; notKept?: string }
  | { type: "device"; state: DeviceState }
  | ({ type: "text"; id: number; token: number } & Parts)
  | ({ type: "finish"; id: number; finish: string; usage: Usage; times: Times } & Parts)
  | { type: "vectors"; id: number; vectors: Float32Array; tokens: number }
  | { type: "error"; id?: number; error: Failure }
  | { type: "disposed"; left: Leftovers };

/** What an engine that was freed leaves behind. */
export interface Leftovers {
  /** Buffers on the GPU that are alive: 0. */
  buffers: number;
  /** Bytes of WebAssembly memory, which never shrinks: the most that was in use, and now goes with the worker. */
  memory: number;
}

/** Milliseconds. */
export interface Times {
  /** From the request to its first token. */
  first: number;
  /** From there to the last. */
  rest: number;
}
