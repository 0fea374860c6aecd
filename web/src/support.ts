/** Whether this browser can run models, on what, and what to do where it cannot. */

/** What models run on: a GPU through WebGPU, or the processor. */
export type Device = "gpu" | "cpu";

export interface Support {
  ok: boolean;
  /** What models run on by default: graphics hardware, and the processor where there is none. */
  device?: Device;
  /** What is missing: for models at all, or for graphics hardware. */
  reason?: string;
  /** What a person can do about it. */
  advice?: string;
  /** The graphics adapter, as the browser names it. */
  adapter?: string;
  /** The adapter is a program on the processor, slower than the processor by itself. */
  software?: boolean;
}

/** Threads beyond which small models get no faster, and large ones do not fit into WebAssembly's memory. */
const MOST_THREADS = 8;

/**
 * Threads that may compute on the processor: more than one where the page is cross-origin isolated, since only such may share memory, and
 * the browser has relaxed SIMD, as the module for threads needs.
 */
export function threadsHere(): number {
  return globalThis.crossOriginIsolated && WebAssembly.validate(RELAXED) ? Math.min(navigator.hardwareConcurrency || 1, MOST_THREADS) : 1;
}

/** The module that computes on a device: there is one for GPUs, and three for the processor with more and more of WebAssembly's features. */
export function moduleOf(device: Device, threads: number): "wgslm" | "wgslm_cpu" | "wgslm_cpu_relaxed" | "wgslm_cpu_threads" {
  if (device === "gpu") return "wgslm";
  if (threads > 1) return "wgslm_cpu_threads";
  return WebAssembly.validate(RELAXED) ? "wgslm_cpu_relaxed" : "wgslm_cpu";
}

/** The least module with an instruction on vectors: `() => i8x16.splat(0)`, looked at by `i8x16.popcnt`. */
const VECTORS = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11]);
/** One with an instruction of relaxed SIMD: three such vectors, and `i32x4.relaxed_dot_i8x16_i7x16_add_s` of them. */
const RELAXED = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 19, 1, 17, 0, 65, 0, 253, 15, 65, 0, 253, 15, 65, 0, 253, 15, 253, 147, 2, 11,
]);

/** Asks the browser what it has. Nothing is downloaded. */
export async function checkSupport(): Promise<Support> {
  if (typeof WebAssembly !== "object" || typeof Worker !== "function" || !WebAssembly.validate(VECTORS)) {
    return { ok: false, reason: "This browser has no WebAssembly with vectors (SIMD), or no workers.", advice: "Any browser of the last years has them." };
  }
  const cpu = { ok: true, device: "cpu" } as const;
  if (!globalThis.isSecureContext) {
    return { ...cpu, reason: "WebGPU is there on secure pages only.", advice: "Open this page over https, or from localhost." };
  }
  if (!navigator.gpu) return { ...cpu, reason: "This browser has no WebGPU.", advice: advice() };
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (!adapter) return { ...cpu, reason: "WebGPU is there, but it found no graphics adapter.", advice: advice() };
  const { vendor, architecture, device, description } = adapter.info;
  const name = description || [vendor, architecture, device].filter(Boolean).join(" ") || "unnamed adapter";
  if (adapter.info.isFallbackAdapter || /swiftshader|llvmpipe|warp/i.test(name)) {
    return { ...cpu, adapter: name, software: true, reason: `The only graphics adapter is a program on the processor, ${name}.`, advice: advice() };
  }
  return { ok: true, device: "gpu", adapter: name, software: false };
}

function advice(): string {
  const agent = navigator.userAgent;
  if (/Firefox\//.test(agent)) {
    return "Firefox has WebGPU on Windows and on Macs; elsewhere set dom.webgpu.enabled in about:config, or use Chrome.";
  }
  if (/Chrome\//.test(agent)) {
    return /Linux/.test(agent) && !/Android/.test(agent)
      ? "On Linux, switch on chrome://flags/#enable-unsafe-webgpu and chrome://flags/#enable-vulkan, then restart the browser."
      : "Update the browser, and see that hardware acceleration is on in its settings (chrome://gpu says why if it is not).";
  }
  if (/Safari\//.test(agent)) return "Safari has WebGPU from version 26 on.";
  return "Chrome, Edge, Safari 26 and Firefox on Windows have it.";
}
