// What fails under the package in Chromium, and what it does then: adapters, files, connections, the GPU's process.
// node --test tests/web/faults.test.mjs, after scripts/build-web.
import assert from "node:assert/strict";
import { request as ask } from "node:http";
import { launch } from "./chromium.mjs";
import { address, asked, blank, fresh, greedy, inPage, limited, piecewise, ranges, reference, server, special, tiny, wholes, within, workersBegin } from "./harness.mjs";
import { scripted } from "./scripted.mjs";

limited("a GPU that does not work is left for the processor, unless it was asked for", async () => {
  fresh();
  const got = await inPage(`async (wgslm) => {
    // An adapter that looks like hardware, in the page alone: the worker's has what it has.
    const real = GPU.prototype.requestAdapter;
    GPU.prototype.requestAdapter = async function (...options) {
      const adapter = await real.apply(this, options);
      Object.defineProperty(adapter, "info", { value: { description: "hardware", isFallbackAdapter: false } });
      return adapter;
    };
    const support = await wgslm.checkSupport();
    const works = await wgslm.createEngine(wgslm.TINY_MODEL);
    const { device } = works.info;
    await works.dispose();
    // A worker in which there is no adapter.
    (${workersBegin})("navigator.gpu.requestAdapter = async () => null;");
    const asked = await wgslm.createEngine(wgslm.TINY_MODEL, { device: "gpu" }).catch(({ code }) => code);
    const engine = await wgslm.createEngine(wgslm.TINY_MODEL);
    const { choices } = await engine.chat.completions.create({ prompt: "Once", temperature: 0, max_tokens: 4 });
    await engine.dispose();
    return { support, device, asked, info: engine.info, text: choices[0].message.content };
  }`);
  assert.deepEqual([got.support.device, got.support.adapter, got.device, got.asked], ["gpu", "hardware", "gpu", "device"]);
  assert.equal(got.info.device, "cpu");
  assert.match(got.info.fallback, /adapter/);
  assert.ok(got.text.length > 3);
});

limited("the adapter is tested before a model is loaded, once", async (t) => {
  fresh();
  const got = await inPage(
    `async (wgslm) => {
      const kept = async () => {
        const cache = await caches.open("wgslm");
        return Promise.all((await cache.keys()).map(async (key) => (await cache.match(key)).text()));
      };
      const load = async (options) => {
        const phases = [];
        const began = performance.now();
        const engine = await wgslm.createEngine(wgslm.TINY_MODEL, { device: "gpu", ...options, onProgress: ({ phase }) => phases.push(phase) });
        const ms = performance.now() - began;
        await engine.dispose();
        return { phases: [...new Set(phases)], ms, faults: engine.info.faults, kept: await kept() };
      };
      return [await load({}), await load({ selfTest: true }), await load({ selfTest: true })];
    }`,
  );
  const [untested, tested, again] = got;
  assert.deepEqual(untested.phases, ["load", "compile"]);
  assert.deepEqual(untested.kept, [""]);
  assert.deepEqual(tested.phases, ["test", "load", "compile"]);
  assert.deepEqual([tested.faults, tested.kept.length], [[], 1]);
  // The families that the model uses, and samples.
  for (const family of ["rotary Q8_0", "learned F32", "samples"]) assert.match(tested.kept[0], new RegExp(`\t${family}`));
  assert.deepEqual(again.kept, tested.kept);
  assert.ok(again.ms < tested.ms, `${again.ms} ms, ${tested.ms} with the test`);
  t.diagnostic(`loaded in ${untested.ms.toFixed(0)} ms untested, ${tested.ms.toFixed(0)} ms tested, ${again.ms.toFixed(0)} ms the next time`);
});

limited("what cannot be loaded is said clearly", async () => {
  fresh();
  special.set("/cut.gguf", ranges(tiny.subarray(0, 1_000_000)));
  special.set("/text.gguf", ranges(Buffer.from("<html>Not a model, but a page that says so.</html>".repeat(100))));
  special.set("/empty.gguf", (_, response) => response.writeHead(416, { "content-range": "bytes */0" }).end());
  special.set("/unknown.gguf", (_, response) => response.writeHead(200).end(tiny)); // as long as it turns out to be
  special.set("/changed.gguf", (request, response) => {
    const bytes = request.headers.range === "bytes=0-0" ? tiny : tiny.subarray(0, 1_900_000);
    ranges(bytes)(request, response);
  });
  const names = ["cut", "text", "empty", "unknown", "changed", "missing"];
  const got = await inPage(
    `async (wgslm, names) => {
      const fails = (model) => wgslm.createEngine(model).then(() => ({}), ({ code, message }) => ({ code, message }));
      const said = {};
      for (const name of names) said[name] = await fails("/" + name + ".gguf");
      said.file = await fails(new File([new Uint8Array(5000)], "zeros.gguf"));
      said.nobody = await fails("http://127.0.0.1:9/model.gguf");
      const unplanned = (model) => wgslm.models.plan(model).then(() => ({}), (error) => ({ code: error.code, message: error.message, typed: error instanceof wgslm.EngineError }));
      said.planned = [await unplanned("http://127.0.0.1:9/model.gguf"), await unplanned("/unknown.gguf"), await unplanned("ftp://a/b.gguf")];
      return said;
    }`,
    names,
  );
  const matches = (name, code, message) => {
    assert.equal(got[name].code, code, `${name}: ${got[name].message}`);
    assert.match(got[name].message, message);
  };
  matches("cut", "malformed", /cut\.gguf.*(beyond|end)/);
  matches("text", "malformed", /text\.gguf.*GGUF/);
  matches("empty", "network", /empty\.gguf.*416/);
  matches("unknown", "network", /neither answers range requests nor says how long/);
  matches("changed", "network", /206 with bytes .* was expected/);
  matches("missing", "network", /404/);
  matches("file", "malformed", /zeros\.gguf.*GGUF/);
  matches("nobody", "network", /127\.0\.0\.1:9/);
  assert.deepEqual(got.planned.map(({ code, typed }) => [code, typed]), [["network", true], ["network", true], ["argument", true]], JSON.stringify(got.planned));
});

limited("a model that WebAssembly cannot hold is refused before it is downloaded", async () => {
  fresh();
  const file = scripted({ layers: 2, inner: 2 ** 20 });
  assert.ok(file.length > 7e9);
  special.set("/large.gguf", piecewise(file));
  const planned = await inPage(`async (wgslm) => [await wgslm.models.plan("/large.gguf"), await wgslm.models.plan(wgslm.TINY_MODEL)]`);
  assert.deepEqual(planned.map(({ fitsProcessor }) => fitsProcessor), [false, true]);
  for (const keep of [true, false]) {
    const { code, message, kept } = await inPage(
      `async (wgslm, keep) => {
        const error = await wgslm.createEngine("/large.gguf", { device: "cpu", keep }).catch((error) => error);
        return { code: error.code, message: error.message, kept: await wgslm.models.list() };
      }`,
      keep,
    );
    assert.equal(code, "limit", message);
    assert.match(message, /the weights: needs 69\d\d MiB of memory.*smaller model/);
    // What came beside the header may be of use to a GPU.
    assert.ok(kept.every(({ downloaded }) => downloaded < 100e6), JSON.stringify(kept));
  }
});

limited("a connection that breaks is taken up where it broke", async () => {
  fresh();
  let broken = 0;
  special.set("/breaks.gguf", ranges(tiny, (response, part) => {
    if (part.length < 700_000) return response.end(part);
    broken++;
    response.write(part.subarray(0, 600_000), () => setTimeout(() => response.destroy(), 50));
  }));
  const ids = await inPage(
    `async (wgslm, prompt) => {
      const engine = await wgslm.createEngine("/breaks.gguf", { device: "gpu", numerics: "exact" });
      const { ids } = await (${greedy})(engine, { prompt, max_tokens: 8 });
      await engine.dispose();
      return ids;
    }`,
    reference.cases[0].prompt,
  );
  assert.deepEqual(ids, reference.cases[0].greedy_ids.slice(0, 8));
  assert.ok(broken >= 2, `it broke ${broken} times`);
});

limited("a server that only gives whole files gives them once, whether they are kept or not", async () => {
  fresh();
  special.set("/plain.gguf", wholes(tiny));
  let broken = false;
  special.set("/breaks-once.gguf", wholes(tiny, (response, request) => {
    if (broken || request.headers.range) return response.end(tiny);
    broken = true;
    response.write(tiny.subarray(0, 600_000), () => setTimeout(() => response.destroy(), 50));
  }));
  const answers = (name, keep, times = 1) =>
    inPage(
      `async (wgslm, { name, keep, times, prompt }) => {
        let done = 0;
        const onProgress = (progress) => progress.phase === "download" && (done = progress.done);
        const said = [];
        for (let i = 0; i < times; i++) {
          const engine = await wgslm.createEngine(name, { device: "cpu", numerics: "exact", keep, onProgress });
          said.push((await (${greedy})(engine, { prompt, max_tokens: 8 })).ids);
          await engine.dispose();
        }
        return { said, done };
      }`,
      { name, keep, times, prompt: reference.cases[0].prompt },
    );
  const expected = (times) => ({ said: Array(times).fill(reference.cases[0].greedy_ids.slice(0, 8)), done: tiny.length });
  const fetched = () => asked.filter(({ path, range }) => path.endsWith(".gguf") && !range).length;
  assert.deepEqual(await answers("/plain.gguf", false), expected(1));
  assert.equal(fetched(), 1, "not kept");
  assert.deepEqual(await answers("/plain.gguf", true, 2), expected(2));
  assert.equal(fetched(), 1, "kept: the second time the browser has it");
  assert.deepEqual(await answers("/breaks-once.gguf", true), expected(1));
  assert.equal(fetched(), 2, "from its beginning again");
  // One that breaks at the same place each time is not asked forever.
  special.set("/breaks.gguf", wholes(tiny, (response, request) => {
    if (request.headers.range) return response.end(tiny);
    response.write(tiny.subarray(0, 600_000), () => setTimeout(() => response.destroy(), 50));
  }));
  const failed = await inPage(`(wgslm) => wgslm.createEngine("/breaks.gguf", { device: "cpu" }).then(() => "opened", ({ code }) => code)`);
  assert.equal(failed, "network");
  assert.equal(fetched(), 4, "three times again");
});

limited("a download can be aborted", async () => {
  fresh();
  let closed;
  const gone = new Promise((resolve) => (closed = resolve));
  special.set("/slow.gguf", ranges(tiny, (response, part) => {
    if (part.length < 1000) return response.end(part);
    response.on("close", () => closed(Date.now()));
    response.write(part.subarray(0, 800_000)); // enough for the header and some tensors; the rest never comes
  }));
  const got = await inPage(
    `async (wgslm) => {
      const abort = new AbortController();
      const loading = wgslm.createEngine("/slow.gguf", { signal: abort.signal, onProgress: () => setTimeout(() => abort.abort(), 50) });
      let aborted;
      abort.signal.addEventListener("abort", () => (aborted = performance.now()));
      const error = await loading.then(() => undefined, (error) => error);
      const before = await wgslm.createEngine("/slow.gguf", { signal: AbortSignal.abort() }).catch((error) => error.name);
      return { name: error?.name, ms: performance.now() - aborted, before };
    }`,
  );
  assert.equal(got.name, "AbortError");
  assert.equal(got.before, "AbortError");
  assert.ok(got.ms < 300, `${got.ms} ms`);
  await gone;
});

limited("a malformed address is refused, and the server goes on", async () => {
  fresh();
  // Not by fetch, which rewrites an address first.
  const status = (path) =>
    new Promise((resolve, reject) => {
      const { port } = server.address();
      ask({ host: "127.0.0.1", port, path }, (response) => resolve(response.resume().statusCode)).on("error", reject).end();
    });
  for (const path of ["/%zz", "/%", "/%c3%28", "//"]) assert.equal(await status(path), 400, path);
  assert.equal(await status("/%00"), 404);
  assert.equal(await status("/%2e%2e/package.json"), 404);
  assert.equal(await status("/index.html"), 200);
});

/**
 * Runs something with a page whose `engine` answers on a GPU, and whose `states` are those of the device; with what `say()` says there,
 * and what ends the GPU's process.
 */
async function losingGpu(run) {
  fresh();
  // Chromium keeps WebGPU from a site that has lost it twice, for minutes: from none of the other tests' pages.
  const own = await launch();
  try {
    const page = await blank(own);
    const session = await own.newBrowserCDPSession();
    const first = await within(page, `async (wgslm) => {
      window.states = [];
      window.engine = await wgslm.createEngine(wgslm.TINY_MODEL, { device: "gpu", onDevice: (state) => states.push(state) });
      window.say = async () => (await engine.chat.completions.create({ prompt: "Once", temperature: 0, max_tokens: 4 })).choices[0].message.content;
      return say();
    }`);
    await run(page, first, () => session.send("Browser.crashGpuProcess"));
  } finally {
    await own.close();
  }
}

limited("a GPU that is lost while nothing is asked is opened again at once", () =>
  losingGpu(async (page, first, crash) => {
    await crash();
    await page.waitForFunction("states.length === 2", null, { timeout: 60_000 });
    const states = await page.evaluate("states");
    assert.deepEqual(states.map(({ state, seconds }) => [state, seconds]), [["lost", 0], ["restored", undefined]]);
    assert.match(states[0].reason, /device was lost/);
    assert.equal(await page.evaluate("say()"), first);
    assert.equal(await page.evaluate("states.length"), 2, "it was lost once");
    assert.equal(await page.evaluate("engine.dispose().then(({ buffers }) => buffers)"), 0);
  }));

limited("a GPU process that crashes is opened again, and what had not begun is answered", (t) =>
  losingGpu(async (page, first, crash) => {
    await crash();
    const began = Date.now();
    assert.equal(await page.evaluate("say()"), first, "asked after the crash, answered by the next device");
    t.diagnostic(`answered ${((Date.now() - began) / 1000).toFixed(1)} s after the crash`);
    assert.deepEqual(await page.evaluate("states.splice(0).map(({ state, seconds }) => [state, seconds])"), [["lost", 0], ["restored", undefined]]);

    // In the middle of an answer, whose text cannot be taken back; and for a second time, so that there is a wait.
    await page.evaluate(`(async () => {
      const stream = await engine.chat.completions.create({ prompt: "Once", temperature: 0, max_tokens: 400, stream: true });
      let pieces = 0, begun;
      const some = new Promise((resume) => (begun = resume));
      window.ended = (async () => { try { for await (const _ of stream) if (++pieces === 5) begun(); } catch ({ code }) { return code; } })();
      await some;
    })()`);
    await crash();
    assert.equal(await page.evaluate("ended"), "device_lost");
    const [{ state, seconds, reason }] = await page.evaluate("states");
    assert.deepEqual([state, seconds], ["lost", 2]);
    assert.match(reason, /device was lost/);
    const disposed = await page.evaluate("(async () => { const began = performance.now(); await engine.dispose(); return performance.now() - began; })()");
    assert.ok(disposed < 1500, `disposed in ${disposed} ms, while it waits`);
  }));
