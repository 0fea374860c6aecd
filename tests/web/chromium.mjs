// Chromium without a window, on SwiftShader.
import { createRequire } from "node:module";

const { chromium } = createRequire(new URL("../../web/", import.meta.url))("playwright-core");

export const PLAIN = ["--no-sandbox", "--disable-dev-shm-usage"];
export const WEBGPU = [...PLAIN, "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];

/** Starts Debian's Chromium, or the program that CHROMIUM names; `without` some of Playwright's own arguments. */
export function launch(args = WEBGPU, without = []) {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args, ignoreDefaultArgs: without });
}
