// Models that the browser keeps, in Chromium: node --test tests/web/models.test.mjs, after scripts/build-web.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { launch, WEBGPU } from "./chromium.mjs";
import { address, asked, blank, browser, fresh, inPage, limited, ranges, root, special, tiny, wholes, within, workersBegin } from "./harness.mjs";
import { scripted } from "./scripted.mjs";

const SHA256 = () => createHash("sha256").update(tiny).digest("hex");
const of = (path) => asked.filter((request) => request.path === path);
const WORD = `async (engine) => (await engine.chat.completions.create({ prompt: "Once", temperature: 0, max_tokens: 4 })).choices[0].message.content`;

/** Loads a model and says a few words. */
const load = `async (wgslm, { model, options = {} }) => {
  const seen = [];
  const engine = await wgslm.createEngine(model, { ...options, onProgress: (p) => seen.push(p) });
  const text = await (${WORD})(engine);
  await engine.dispose();
  const downloads = seen.filter(({ phase }) => phase === "download").map(({ done }) => done);
  return { text, downloads, notKept: engine.notKept, kept: await wgslm.models.list(), storage: await wgslm.models.storage() };
}`;

/** A hub with one repository. */
function hub(files, more = {}) {
  special.set("/api/models/org/repo/revision/main", (request, response) => {
    const siblings = Object.entries(files).map(([rfilename, { size, sha256 }]) => ({ rfilename, size, lfs: { size, sha256 } }));
    const listed = { sha: "0123456789".repeat(4), siblings, cardData: { license: "apache-2.0" }, ...more };
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(listed));
  });
  for (const [name, { bytes }] of Object.entries(files)) if (bytes) special.set(`/org/repo/resolve/${"0123456789".repeat(4)}/${name}`, ranges(bytes));
}

limited("a model is fetched once, works without the server afterwards, and can be deleted", async () => {
  fresh();
  const page = await blank();
  special.set("/kept.gguf", ranges(tiny));
  const first = await within(page, load, { model: "/kept.gguf" });
  assert.equal(first.notKept, undefined);
  assert.deepEqual(first.downloads, [...first.downloads].sort((a, b) => a - b), "progress never goes back");
  assert.equal(first.downloads.at(-1), tiny.length);
  const [kept] = first.kept;
  assert.deepEqual([kept.name, kept.complete, kept.bytes, kept.downloaded, kept.files[0].sha256], ["kept", true, tiny.length, tiny.length, SHA256()]);

  // The same file by another spelling of its address; the server has none any more.
  special.set("/kept.gguf", (_, response) => response.writeHead(500).end());
  const before = of("/kept.gguf").length;
  const again = await within(page, load, { model: `${address}/kept.gguf` });
  assert.equal(again.text, first.text);
  assert.equal(of("/kept.gguf").length, before, "nothing is asked");

  const left = await within(page, `async (wgslm, id) => ({
    deleted: await wgslm.models.delete(id), again: await wgslm.models.delete("/kept.gguf"), list: await wgslm.models.list(), storage: await wgslm.models.storage() })`, kept.id);
  assert.deepEqual([left.deleted, left.again, left.list], [true, false, []]);
  assert.ok(left.storage.usage < first.storage.usage - tiny.length / 2, `${first.storage.usage} bytes were in use, ${left.storage.usage} are`);
  await page.close();
});

limited("models are kept while the browser collects garbage", async () => {
  fresh();
  const own = await launch([...WEBGPU, "--js-flags=--expose-gc"]);
  try {
    const page = await blank(own);
    special.set("/kept.gguf", ranges(tiny));
    const got = await within(page, `async (wgslm) => {
      setInterval(gc);
      (${workersBegin})("setInterval(gc)");
      const each = [];
      for (let i = 0; i < 12; i++) {
        const engine = await wgslm.createEngine("/kept.gguf", { device: "cpu" });
        await engine.dispose();
        const kept = await wgslm.models.list();
        each.push([engine.notKept, kept.map(({ complete }) => complete), await wgslm.models.delete("/kept.gguf")]);
      }
      return each;
    }`);
    assert.deepEqual(got, Array(12).fill([undefined, [true], true]));
  } finally {
    await own.close();
  }
});

limited("a download goes on after a reload", async () => {
  fresh();
  const page = await blank();
  const halfway = 1_200_000;
  special.set("/half.gguf", ranges(tiny, (response, part, start) => {
    if (part.length < 1000) return response.end(part);
    response.write(part.subarray(0, Math.max(0, halfway - start))); // the rest never comes
  }));
  // Left while it loads: the tab is closed in the middle.
  await within(page, `async (wgslm) => {
    const loading = wgslm.createEngine("/half.gguf", {}).catch(() => {});
    for (;;) {
      const [model] = await wgslm.models.list();
      if (model?.downloaded >= 1 << 20) return;
      await new Promise((resume) => setTimeout(resume, 50));
    }
  }`);
  await page.reload();
  special.set("/half.gguf", ranges(tiny));
  asked.length = 0;
  // What the page that is gone had in hand may still be written: the figure is read when it stays as it is.
  let part;
  for (let last; part === undefined || part.downloaded !== last; await page.waitForTimeout(300)) {
    last = part?.downloaded;
    [part] = await within(page, "(wgslm) => wgslm.models.list()");
  }
  assert.deepEqual([part.complete, part.downloaded >= 1 << 20, part.downloaded <= halfway], [false, true, true]);
  const got = await within(page, load, { model: "/half.gguf" });
  assert.deepEqual([got.kept[0].complete, got.kept[0].files[0].sha256], [true, SHA256()]);
  assert.deepEqual(of("/half.gguf").map(({ range }) => range), ["bytes=0-0", `bytes=${part.downloaded}-`], "only the rest is asked for");
  await page.close();
});

limited("two tabs share one download", async () => {
  fresh();
  const context = await browser.newContext();
  const [one, two] = [await blank(context), await blank(context)];
  let go;
  const waits = new Promise((resume) => (go = resume));
  special.set("/shared.gguf", ranges(tiny, (response, part) => (part.length < 1000 ? response.end(part) : void waits.then(() => response.end(part)))));
  const first = within(one, load, { model: "/shared.gguf" });
  while (of("/shared.gguf").length < 2) await new Promise((resume) => setTimeout(resume, 20));
  const second = within(two, load, { model: "/shared.gguf" });
  const refused = await within(two, `(wgslm) => wgslm.models.delete("/shared.gguf").catch(({ code }) => code)`);
  assert.equal(refused, "in_use");
  go();
  assert.equal((await first).text, (await second).text);
  assert.equal(of("/shared.gguf").length, 2, "asked for by one of them");
  await context.close();
});

for (const [server, answer] of [["a server of ranges", () => ranges(tiny)], ["one of whole files", () => wholes(tiny)]])
limited(`a model that does not fit is loaded all the same, and not kept: from ${server}`, async () => {
  fresh();
  const page = await blank();
  special.set("/large.gguf", answer());
  // Chromium's estimate is made up: it promises more than there is, so that the storage is full in the middle.
  const session = await page.context().newCDPSession(page);
  await session.send("Storage.overrideQuotaForOrigin", { origin: address, quotaSize: 1_600_000 });
  const full = await within(page, load, { model: "/large.gguf" });
  assert.match(full.notKept, /storage is full/);
  assert.deepEqual([full.text.length > 0, full.kept], [true, []]);
  await session.send("Storage.overrideQuotaForOrigin", { origin: address });

  // A browser that says the truth, here and in the worker.
  const little = "navigator.storage.estimate = async () => ({ quota: 5_000_000, usage: 4_500_000 });\n";
  const worker = await readFile(join(root, "web/dist/worker.js"), "utf8");
  special.set("/worker.js", (_, response) => response.writeHead(200, { "content-type": "text/javascript" }).end(little + worker));
  await page.evaluate(little);
  const plan = await within(page, `(wgslm) => wgslm.models.plan("/large.gguf")`);
  assert.deepEqual([plan.bytes, plan.fits, plan.storage.free], [tiny.length, false, 500_000]);
  const small = await within(page, load, { model: "/large.gguf" });
  assert.equal(small.notKept, "it takes 3 MB and the browser's storage has 1 MB left");
  assert.deepEqual([small.text, small.kept], [full.text, []]);
  await page.close();
});

limited("a reference names a file of the hub, which is checked by its SHA-256", async () => {
  fresh();
  const page = await blank();
  const options = { hub: address };
  const file = { bytes: tiny, size: tiny.length, sha256: SHA256() };
  hub({ "README.md": { size: 5 }, "x-Q8_0.gguf": file, "x-F16.gguf": { size: 4e9 }, "mmproj-x-Q4_K_M.gguf": { size: 1 }, "x-IQ1_S.gguf": { size: 1 } });
  const plan = await within(page, `(wgslm, options) => wgslm.models.plan("org/repo", options)`, options);
  assert.deepEqual([plan.name, plan.bytes, plan.license, plan.complete, plan.fits], ["x-Q8_0", tiny.length, "apache-2.0", false, true]);
  const got = await within(page, load, { model: "org/repo:q8_0", options });
  assert.deepEqual([got.kept[0].source, got.kept[0].license], ["org/repo:Q8_0", "apache-2.0"]);
  assert.equal(got.downloads.at(-1), tiny.length);

  // Offline: neither the hub nor the file.
  special.clear();
  asked.length = 0;
  const again = await within(page, `(wgslm, options) => wgslm.models.plan("hf.co/org/repo:Q8_0", options)`, options);
  assert.deepEqual([again.complete, again.kept, again.license], [true, tiny.length, "apache-2.0"]);
  assert.deepEqual(asked.filter(({ path }) => /repo/.test(path)), []);

  const fails = (model) => within(page, `(wgslm, [model, options]) => wgslm.createEngine(model, options).then(() => ({}), ({ code, message }) => ({ code, message }))`, [model, options]);
  hub({ "x-Q8_0.gguf": { ...file, sha256: "0".repeat(64) }, "x-IQ1_S.gguf": { size: 1 } });
  const damaged = await fails("org/repo");
  assert.equal(damaged.code, "corrupted", damaged.message);
  assert.match(damaged.message, /SHA-256 is [0-9a-f]{64}, not 0000/);
  assert.deepEqual(await within(page, "async (wgslm) => (await wgslm.models.list()).map(({ source }) => source)"), ["org/repo:Q8_0"], "a damaged copy is not kept");
  const missing = await fails("org/repo:Q5_0");
  assert.equal(missing.code, "not_found");
  assert.match(missing.message, /has no Q5_0; it has IQ1_S, Q8_0/);
  assert.match((await fails("org/repo:IQ1_S")).message, /IQ1_S .* is not supported; org\/repo also has Q8_0/);
  assert.match((await fails("org/other")).message, /no such repository, or it is private or gated/);
  assert.match((await fails("org/repo:a b")).message, /after the colon stands a quantisation/);
  hub({ "x-Q8_0.gguf": file }, { gated: "manual" });
  assert.match((await fails("org/repo")).message, /is gated/);
  await page.close();
});

limited("a large file is hashed by a worker beside, or without one, to the same", async () => {
  const bytes = scripted({ gap: 20 << 20 });
  const right = createHash("sha256").update(bytes).digest("hex");
  for (const begins of ["", "delete globalThis.Worker;"]) {
    fresh();
    const page = await blank();
    const create = (sha256) => {
      hub({ "x-F32.gguf": { bytes, size: bytes.length, sha256 } });
      return within(
        page,
        `async (wgslm, { hub, begins }) => {
          if (begins) (${workersBegin})(begins);
          const made = await wgslm.createEngine("org/repo", { hub, device: "cpu" }).then((engine) => engine.dispose(), ({ code, message }) => ({ code, message }));
          return { ...made, kept: (await wgslm.models.list()).filter(({ source }) => source === "org/repo").map(({ complete }) => complete) };
        }`,
        { hub: address, begins },
      );
    };
    const wrong = await create("1".repeat(64));
    assert.equal(wrong.code, "corrupted", wrong.message);
    assert.match(wrong.message, new RegExp(`its SHA-256 is ${right}, not 1111`));
    assert.deepEqual(wrong.kept, []);
    const made = await create(right);
    assert.deepEqual([made.buffers, made.kept], [0, [true]], made.message);
    if (!begins) assert.ok(of("/worker.js").length >= 4, "two engines, and a worker beside each");
    await page.close();
  }
});

limited("references are recognised among addresses, as the program does", async () => {
  fresh();
  const got = await inPage(`async () => {
    const { parseReference, choose, spell } = await import("/hub.js");
    const says = (text) => { try { const found = parseReference(text); return found ? spell(found) : "address"; } catch (error) { return "refused"; } };
    const texts = ["o/r", "o/r:q4_0", "o/r@v1:Q4_0", "hf.co/o/r", "https://huggingface.co/o/r/resolve/main/a%20b.gguf?x=1", "hf://o/r/x.gguf",
      "o/r:latest", "models/x.gguf", "./o/r", "/o/r", "a/b/c.gguf", "https://a.test/o/r", "hf.co/o", "hf.co/o/r/../x.gguf", "hf.co/o/r/x.bin", "a--b/c", "hf.co/o/r/blob/main/%zz.gguf"];
    const repo = { repo: "o/r", revision: "main" };
    const parts = ["m-Q4_0-00002-of-00002.gguf", "m-Q4_0-00001-of-00002.gguf", "m-Q8_0.gguf", "m-Q4_K_M-00001-of-00002.gguf"];
    return { says: texts.map(says), usual: choose(repo, parts), split: choose({ ...repo, quant: "Q4_0" }, parts),
      shortest: choose({ ...repo, quant: "Q4_K_XL" }, ["a-UD-Q4_K_XL.gguf", "a-Q4_K_XL.gguf"]) };
  }`);
  assert.deepEqual(got.says, ["o/r", "o/r:Q4_0", "o/r@v1:Q4_0", "o/r", "hf.co/o/r/blob/main/a b.gguf", "hf.co/o/r/blob/main/x.gguf",
    "o/r", "address", "address", "address", "address", "address", "refused", "refused", "refused", "address", "refused"]);
  const both = ["m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"];
  assert.deepEqual([got.usual, got.split, got.shortest], [both, both, ["a-Q4_K_XL.gguf"]]);
});

limited("hostile files end with a typed error, and the worker with them", async () => {
  fresh();
  const got = await inPage(`async (wgslm) => {
    const whole = new Uint8Array(await (await fetch(wgslm.TINY_MODEL)).arrayBuffer());
    const made = { nothing: new Uint8Array(0), short: whole.slice(0, 3), header: whole.slice(0, 24), half: whole.slice(0, whole.length / 2) };
    // Counts and lengths of the header that promise more than there is.
    for (const at of [4, 8, 15, 16, 23, 24, 31]) (made["byte " + at] = whole.slice(0, 60_000))[at] = 0xff;
    const said = {};
    for (const [name, bytes] of Object.entries(made)) {
      said[name] = await wgslm.createEngine(new File([bytes], "x.gguf")).then(() => "loaded", ({ name, code, message }) => [name, code, message]);
    }
    return said;
  }`);
  for (const [name, said] of Object.entries(got)) {
    assert.equal(said[0], "EngineError", `${name}: ${said}`);
    assert.match(said[1], /^(malformed|unsupported|limit|argument|model)$/, `${name}: ${said}`);
    assert.match(said[2], /x\.gguf|GGUF/, name);
  }
});
