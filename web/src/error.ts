import type { Failure } from "./protocol.js";

/** An error of the engine's. `code` says to programs what `message` says to people. */
export class EngineError extends Error {
  readonly code: string;
  constructor({ code, message }: Failure) {
    super(message);
    this.name = "EngineError";
    this.code = code;
  }
}
