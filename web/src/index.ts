/** Language models in the browser, on WebGPU. */
export { checkSupport, type Support } from "./support.js";
export { createEngine, EngineError, type CreateOptions, type Engine, type ModelSource, type Progress, type RequestOptions } from "./engine.js";
export type { EngineOptions, Leftovers, ModelInfo } from "./protocol.js";
export type * from "./openai.js";

/** The small model that comes with the package: it tells short stories. */
export const TINY_MODEL: string = new URL("./tiny.gguf", import.meta.url).href;
