/** Whether this browser can run models, and what to do where it cannot. */

export interface Support {
  ok: boolean;
  /** What is missing. */
  reason?: string;
  /** What a person can do about it. */
  advice?: string;
  /** The adapter that models will run on, as the browser names it. */
  adapter?: string;
  /** The processor pretends to be a GPU: slow. */
  software?: boolean;
}

/** Asks the browser for a WebGPU adapter. Nothing is downloaded. */
export async function checkSupport(): Promise<Support> {
  if (typeof WebAssembly !== "object" || typeof Worker !== "function") {
    return { ok: false, reason: "This browser has no WebAssembly or no workers.", advice: "Any browser of the last years has them." };
  }
  if (!globalThis.isSecureContext) {
    return { ok: false, reason: "WebGPU is there on secure pages only.", advice: "Open this page over https, or from localhost." };
  }
  if (!navigator.gpu) return { ok: false, reason: "This browser has no WebGPU.", advice: advice() };
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (!adapter) return { ok: false, reason: "WebGPU is there, but it found no graphics adapter.", advice: advice() };
  const { vendor, architecture, device, description } = adapter.info;
  const name = description || [vendor, architecture, device].filter(Boolean).join(" ") || "unnamed adapter";
  return { ok: true, adapter: name, software: adapter.info.isFallbackAdapter || /swiftshader|llvmpipe|warp/i.test(name) };
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
