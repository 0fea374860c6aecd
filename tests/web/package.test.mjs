// The package as npm packs it, in a clean folder, without and with bundlers, in Chromium: node --test tests/web/package.test.mjs,
// after scripts/build-web.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before } from "node:test";
import { serve } from "../../web/serve.mjs";
import { browser, limited, root } from "./harness.mjs";

const tools = join(root, "tests/web/bundlers/node_modules");
const typescript = join(root, "web/node_modules/typescript/bin/tsc");
/** A program's folder, away from the repository: nothing of it can be found by accident. */
let clean;

const run = (program, ...options) => execFileSync(process.execPath, [program, ...options], { cwd: clean, encoding: "utf8", env: { ...process.env, NODE_ENV: "production" } });

before(() => {
  clean = mkdtempSync(join(tmpdir(), "wgslm-package-"));
  const packed = JSON.parse(execFileSync("npm", ["pack", join(root, "web"), "--json", "--ignore-scripts", "--pack-destination", clean], { encoding: "utf8", cwd: clean }));
  writeFileSync(join(clean, "package.json"), JSON.stringify({ private: true, type: "module" }));
  execFileSync("npm", ["install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", join(clean, packed[0].filename)], { cwd: clean });
  copyFileSync(join(root, "tests/web/bundlers/app.ts"), join(clean, "app.ts"));
  const options = { target: "ES2022", module: "ES2022", moduleResolution: "bundler", strict: true, exactOptionalPropertyTypes: true, lib: ["ES2022", "DOM", "DOM.AsyncIterable"], types: [], skipLibCheck: false };
  writeFileSync(join(clean, "tsconfig.json"), JSON.stringify({ compilerOptions: options, files: ["app.ts"] }));
});

after(() => rmSync(clean, { recursive: true, force: true }));

const own = () => join(clean, "node_modules/@wgslm/web/dist");
const page = (script) => `<!doctype html><link rel="icon" href="data:,"><title></title>${script}`;

/** Opens what was built, on each device and on threads, and waits for what the program says. */
async function says(folder) {
  const context = await browser.newContext();
  try {
    for (const [device, isolated] of [["cpu", false], ["cpu", true], ["gpu", false]]) await saysOn(context, folder, device, isolated);
  } finally {
    await context.close();
  }
}

async function saysOn(context, folder, device, isolated) {
  const server = await serve({ folder, isolated });
  try {
    const opened = await context.newPage();
    await opened.goto(`http://127.0.0.1:${server.address().port}/?device=${device}`);
    await opened.waitForFunction(() => document.title, null, { timeout: 120_000 });
    const [ok, adapter, used, threads, bytes, text, buffers] = JSON.parse(await opened.title());
    const cores = await opened.evaluate(() => navigator.hardwareConcurrency);
    const expected = [true, "string", device, isolated ? Math.min(cores, 2) : 1, true, 0];
    assert.deepEqual([ok, adapter, used, threads, bytes > 1e6, buffers], expected, await opened.title());
    assert.ok(text.length > 4, text);
    await opened.close();
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

limited("the package holds what it needs and nothing of the page", () => {
  const files = readdirSync(own());
  for (const name of ["index.js", "index.d.ts", "worker.js", "wgslm_bg.wasm", "wgslm_cpu_bg.wasm", "wgslm_cpu_relaxed_bg.wasm", "wgslm_cpu_threads_bg.wasm", "thread.js", "tiny.gguf"]) assert.ok(files.includes(name), name);
  assert.deepEqual(files.filter((name) => /demo|chats|markdown|\.html|\.css|service-worker|models\.json|files\.json/.test(name)), []);
  for (const name of ["LICENSE-MIT", "LICENSE-APACHE", "../README.md"]) assert.ok(readFileSync(join(own(), name), "utf8").length > 1000, name);
  assert.deepEqual(readdirSync(join(clean, "node_modules")).filter((name) => !name.startsWith(".")), ["@wgslm"], "no dependencies");
});

limited("its types are strict, and a page without a bundler uses it by an import map", async () => {
  run(typescript, "--outDir", "plain");
  mkdirSync(join(clean, "plain/wgslm"));
  for (const name of readdirSync(own())) copyFileSync(join(own(), name), join(clean, "plain/wgslm", name));
  writeFileSync(join(clean, "plain/index.html"), page(`<script type="importmap">{"imports":{"@wgslm/web":"/wgslm/index.js"}}</script><script type="module" src="app.js"></script>`));
  await says(join(clean, "plain"));
});

limited("its README's page works as it is written, on a server that knows files and no more", async () => {
  const [, written] = /^```html\n(.+?)^```/ms.exec(readFileSync(join(own(), "../README.md"), "utf8"));
  writeFileSync(join(clean, "index.html"), written);
  const server = spawn("python3", ["-u", "-m", "http.server", "0", "--bind", "127.0.0.1"], { cwd: clean, stdio: ["ignore", "pipe", "ignore"] });
  const opened = await browser.newPage();
  try {
    const [said] = await once(server.stdout, "data");
    const [origin] = /http:[^ )]+/.exec(said);
    opened.on("pageerror", (error) => assert.fail(`the page threw ${error}`));
    await opened.goto(origin);
    await opened.waitForFunction(() => document.querySelector("#story").textContent.length > 100, null, { timeout: 120_000 });
  } finally {
    await opened.close();
    server.kill();
  }
});

limited("Vite builds it without a plugin", async () => {
  writeFileSync(join(clean, "index.html"), page(`<script type="module" src="/app.ts"></script>`));
  // A worker that is a module, and top-level await.
  writeFileSync(join(clean, "vite.config.mjs"), `export default { worker: { format: "es" }, build: { target: "es2022", outDir: "vite", assetsInlineLimit: 0 }, logLevel: "error" };`);
  run(join(tools, "vite/bin/vite.js"), "build");
  await says(join(clean, "vite"));
});

limited("webpack builds it without a loader", async () => {
  run(typescript, "--outDir", "plain");
  writeFileSync(
    join(clean, "webpack.config.mjs"),
    `export default { mode: "production", entry: "./plain/app.js", experiments: { outputModule: true }, output: { path: ${JSON.stringify(join(clean, "webpack"))}, filename: "app.js", module: true }, target: ["web", "es2022"], performance: { hints: false }, resolve: { modules: [${JSON.stringify(join(clean, "node_modules"))}] } };`,
  );
  run(join(tools, "webpack-cli/bin/cli.js"), "build", "--config", "webpack.config.mjs");
  writeFileSync(join(clean, "webpack/index.html"), page(`<script type="module" src="app.js"></script>`));
  await says(join(clean, "webpack"));
});

limited("esbuild builds it, with the workers as entries and five files beside them", async () => {
  execFileSync(join(tools, "esbuild/bin/esbuild"), ["app.ts", "worker=@wgslm/web/worker", "thread=@wgslm/web/thread", "--bundle", "--format=esm", "--target=es2022", "--minify", "--outdir=esbuild", "--log-level=error"], { cwd: clean });
  for (const name of ["wgslm_bg.wasm", "wgslm_cpu_bg.wasm", "wgslm_cpu_relaxed_bg.wasm", "wgslm_cpu_threads_bg.wasm", "tiny.gguf"]) copyFileSync(join(own(), name), join(clean, "esbuild", name));
  writeFileSync(join(clean, "esbuild/index.html"), page(`<script type="module" src="app.js"></script>`));
  await says(join(clean, "esbuild"));
});
