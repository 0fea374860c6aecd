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

/** What a failure of reading a model's files is to those who called. */
export function ofReading(error: unknown): unknown {
  // A browser's own word for a request that failed.
  return error instanceof TypeError ? new EngineError({ code: "network", message: error.message }) : error;
}
