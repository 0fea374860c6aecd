/** Threads for the processor: workers that run the engine's module on the engine's memory. */
import type { ToThread } from "./protocol.js";

/** The module for the processor whose memory threads share, with so many threads, the caller's among them. */
export async function withThreads(count: number): Promise<typeof import("./wgslm_cpu_threads.js")> {
  const module = await import("./wgslm_cpu_threads.js");
  await module.default();
  const [compiled, memory] = module.promise_threads(count) as [WebAssembly.Module, WebAssembly.Memory];
  const lent = (index: number): Promise<unknown> => {
    const worker = new Worker(new URL("./thread.js", import.meta.url), { type: "module" });
    worker.postMessage({ compiled, memory, index } satisfies ToThread);
    // One that does not start is waited for by nobody: the others do its work.
    return new Promise((started) => (worker.onmessage = worker.onerror = started));
  };
  await Promise.all(Array.from({ length: count - 1 }, (_, i) => lent(i + 1)));
  return module;
}
