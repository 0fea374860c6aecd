/** A worker that computes for another's engine until that ends, and with it this one. */
import type { ToThread } from "./protocol.js";
import { initSync, lend_thread } from "./wgslm_cpu_threads.js";

const scope = self as unknown as DedicatedWorkerGlobalScope;

scope.onmessage = ({ data: { compiled, memory, index } }: MessageEvent<ToThread>) => {
  initSync({ module: compiled, memory });
  scope.postMessage("started");
  lend_thread(index);
};
