/** Language models in the browser, on WebGPU or the processor. */
export { checkSupport, type Device, type Support } from "./support.js";
export { createEngine, TINY_MODEL, type CreateOptions, type Engine, type Progress, type RequestOptions } from "./engine.js";
export { EngineError } from "./error.js";
export { models, type ModelOptions, type ModelSource, type Plan } from "./models.js";
export type { KeptModel, Manifest, Storage } from "./store.js";
export type { RemoteFile } from "./hub.js";
export type { DeviceState, EngineOptions, Leftovers, ModelInfo } from "./protocol.js";
export type * from "./openai.js";
