// The kernel tests in Chromium, on SwiftShader: node --test tests/web/kernels.test.mjs, after scripts/build-web --tests.
//
// The cases are those of tests/device/kernels, compiled to WebAssembly; natively they run on more adapters, in more forms.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { serve } from "../../web/serve.mjs";
import { launch, PLAIN } from "./chromium.mjs";

/** Whole models take a minute on a quiet core. */
const LONGEST = 300_000;

/** A server of the cases, and of an empty page for them. */
function serveCases() {
  const blank = (path, _, response) => path === "/blank.html" && response.writeHead(200, { "content-type": "text/html" }).end('<!doctype html><link rel="icon" href="data:,">');
  return serve({ folder: fileURLToPath(new URL("dist", import.meta.url)), first: blank });
}

/** A page of a browser with the cases on a device. Errors that it prints or throws are added to `said`. */
async function open(browser, address, said) {
  const page = await browser.newPage();
  const failed = new Promise((_, reject) => {
    const say = (error) => reject(new Error(said[said.push(error) - 1]));
    page.on("console", (message) => message.type() === "error" && say(message.text()));
    page.on("pageerror", (error) => say(String(error)));
  });
  failed.catch(() => {}); // it may come before a case waits for it
  await page.goto(`${address}/blank.html`);
  const opening = page.evaluate(`import("/kernels.js").then(async ({ default: init, Kernels }) => {
    await init();
    window.kernels = await Kernels.open();
    const { architecture } = (await navigator.gpu.requestAdapter({ powerPreference: "high-performance" })).info;
    return { adapter: architecture, count: kernels.count(), modules: JSON.parse(Kernels.modules()) };
  })`);
  // A panic of Rust's does not end its promise, but it prints its message.
  const opened = await Promise.race([opening, failed]);
  const run = async (index) => {
    let timer;
    const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error("it did not end")), LONGEST)));
    const result = page.evaluate(`kernels.run(${index}).then(JSON.parse)`);
    try {
      return await Promise.race([result, failed, late]);
    } catch (error) {
      assert.fail(`case ${index}: ${error.message}`);
    } finally {
      clearTimeout(timer);
    }
  };
  return { ...opened, run };
}

test("every module of every kernel agrees with the oracle", { timeout: 2_400_000 }, async (t) => {
  const server = await serveCases();
  const [browsers, said] = [[], []];
  try {
    for (const _ of ["the first", "the second"]) browsers.push(await launch());
    const pages = await Promise.all(browsers.map((browser) => open(browser, `http://127.0.0.1:${server.address().port}`, said)));
    const { adapter, count, modules } = pages[0];
    for (const page of pages) assert.match(page.adapter, /swiftshader/i);
    assert.ok(count > 150 && modules.length > 80, `${count} cases, ${modules.length} modules`);

    const [kernels, seen, wrong, times] = [new Map(), new Set(), [], []];
    // Most of the time SwiftShader compiles, on one core, so two browsers share the cases; and neighbours share kernels, which a
    // browser compiles once, so one begins with the first case and the other with the last.
    let [first, last] = [0, count - 1];
    const work = async (page, next) => {
      while (first <= last) {
        const began = performance.now();
        const { name, distance, bound, modules } = await page.run(next());
        times.push([(performance.now() - began) / 1e3, name]);
        if (distance === null || distance > bound) wrong.push(`${name}: ${distance} > ${bound}`);
        for (const module of modules) {
          seen.add(module);
          const [kernel] = module.split(" ");
          const row = kernels.get(kernel) ?? { cases: 0, modules: new Set(), worst: 0 };
          row.cases++;
          row.modules.add(module);
          row.worst = Math.max(row.worst, bound > 0 ? distance / bound : distance);
          kernels.set(kernel, row);
        }
      }
    };
    await Promise.all([work(pages[0], () => first++), work(pages[1], () => last--)]);
    assert.equal(times.length, count);
    t.diagnostic(`${count} cases on ${adapter}; the worst distance is given in bounds`);
    for (const [name, { cases, modules, worst }] of kernels) {
      t.diagnostic(`${name.padEnd(13)}${String(cases).padStart(4)} cases ${String(modules.size).padStart(4)} modules   ${worst.toPrecision(2)}`);
    }
    for (const [seconds, name] of times.sort((a, b) => b[0] - a[0]).slice(0, 10)) t.diagnostic(`${seconds.toFixed(1)} s: ${name}`);
    assert.deepEqual(wrong, []);
    assert.deepEqual(modules.filter((module) => !seen.has(module)), [], "modules that no case ran");
    assert.deepEqual(said, []);
  } finally {
    await Promise.all(browsers.map((browser) => browser.close()));
    server.closeAllConnections();
    server.close();
  }
});

test("the processor's products and whole models agree with the oracle", { timeout: 600_000 }, async (t) => {
  const server = await serveCases();
  // No WebGPU is needed.
  const browser = await launch(PLAIN);
  try {
    /** What the code gives, run with `init` and `Kernels` in a page of its own. */
    const inPage = async (code) => {
      const page = await browser.newPage();
      const failed = new Promise((_, reject) => page.on("console", (message) => message.type() === "error" && reject(new Error(message.text()))));
      failed.catch(() => {});
      await page.goto(`http://127.0.0.1:${server.address().port}/blank.html`);
      return Promise.race([page.evaluate(`import("/kernels.js").then(async ({ default: init, Kernels }) => { ${code} })`), failed]);
    };
    const { products, models } = await inPage("await init(); return { products: Kernels.products(), models: JSON.parse(await Kernels.on_processor()) };");
    assert.ok(products > 150 && models.length > 40, `${products} products, ${models.length} models`);
    // What browsers without relaxed SIMD get.
    const plain = "/kernels_plain_bg.wasm";
    assert.equal(await inPage(`await init({ module_or_path: "${plain}" }); return Kernels.products();`), products);
    // Node.js 20 has no relaxed SIMD, either.
    assert.ok(WebAssembly.validate(await readFile(new URL(`dist${plain}`, import.meta.url))));
    const wrong = models.filter(({ distance, bound }) => !(distance <= bound));
    assert.deepEqual(wrong, []);
    t.diagnostic(`${products} products, ${models.length} models; the worst has ${Math.max(...models.map(({ distance, bound }) => distance / bound)).toPrecision(2)} of its bound`);
  } finally {
    await browser.close();
    server.closeAllConnections();
    server.close();
  }
});
