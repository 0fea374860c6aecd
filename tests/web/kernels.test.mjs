// The kernel tests in Chromium, on SwiftShader: node --test tests/web/kernels.test.mjs, after scripts/build-web --tests.
//
// The cases are those of tests/kernels.rs, compiled to WebAssembly; natively they run on more adapters, in more forms.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { serve } from "../../web/serve.mjs";
import { launch } from "./chromium.mjs";

test("every module of every kernel agrees with the oracle", { timeout: 1_500_000 }, async (t) => {
  const blank = (path, _, response) => path === "/blank.html" && response.writeHead(200, { "content-type": "text/html" }).end('<!doctype html><link rel="icon" href="data:,">');
  const server = await serve({ folder: fileURLToPath(new URL("dist", import.meta.url)), first: blank });
  const browser = await launch();
  try {
    const page = await browser.newPage();
    const said = [];
    page.on("console", (message) => message.type() === "error" && said.push(message.text()));
    page.on("pageerror", (error) => said.push(String(error)));
    await page.goto(`http://127.0.0.1:${server.address().port}/blank.html`);
    const { adapter, count, modules } = await page.evaluate(`import("/kernels.js").then(async ({ default: init, Kernels }) => {
      await init();
      window.kernels = await Kernels.open();
      const { architecture } = (await navigator.gpu.requestAdapter({ powerPreference: "high-performance" })).info;
      return { adapter: architecture, count: kernels.count(), modules: JSON.parse(Kernels.modules()) };
    })`);
    assert.match(adapter, /swiftshader/i);
    assert.ok(count > 150 && modules.length > 80, `${count} cases, ${modules.length} modules`);

    // A panic of Rust's does not end its promise: then a case takes too long.
    const run = `(index) => Promise.race([
      kernels.run(index).then(JSON.parse),
      new Promise((_, reject) => setTimeout(() => reject(new Error("it did not end")), 60_000)),
    ])`;
    const [kernels, seen, wrong, times] = [new Map(), new Set(), [], []];
    for (let index = 0; index < count; index++) {
      const began = performance.now();
      const result = await page.evaluate(`(${run})(${index})`).catch((error) => assert.fail(`case ${index}: ${error.message}\n${said.join("\n")}`));
      const { name, distance, bound } = result;
      times.push([(performance.now() - began) / 1e3, name]);
      if (distance === null || distance > bound) wrong.push(`${name}: ${distance} > ${bound}`);
      for (const module of result.modules) {
        seen.add(module);
        const [kernel] = module.split(" ");
        const row = kernels.get(kernel) ?? { cases: 0, modules: new Set(), worst: 0 };
        row.cases++;
        row.modules.add(module);
        row.worst = Math.max(row.worst, bound > 0 ? distance / bound : distance);
        kernels.set(kernel, row);
      }
    }
    t.diagnostic(`${count} cases on ${adapter}; the worst distance is given in bounds`);
    for (const [name, { cases, modules, worst }] of kernels) {
      t.diagnostic(`${name.padEnd(13)}${String(cases).padStart(4)} cases ${String(modules.size).padStart(4)} modules   ${worst.toPrecision(2)}`);
    }
    for (const [seconds, name] of times.sort((a, b) => b[0] - a[0]).slice(0, 10)) t.diagnostic(`${seconds.toFixed(1)} s: ${name}`);
    assert.deepEqual(wrong, []);
    assert.deepEqual(modules.filter((module) => !seen.has(module)), [], "modules that no case ran");
    assert.deepEqual(said, []);
  } finally {
    await browser.close();
    server.closeAllConnections();
    server.close();
  }
});
