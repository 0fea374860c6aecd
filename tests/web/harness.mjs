// What the tests of the package and of its page share: a server that is watched, an empty page, a greedy answer.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { pipeline, Readable } from "node:stream";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { serve } from "../../web/serve.mjs";
import { launch } from "./chromium.mjs";

export const root = fileURLToPath(new URL("../../", import.meta.url));
const models = join(process.env.WGSLM_TEST_DATA || join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "wgslm-test-data"), "models");
export const shots = join(process.env.CARGO_TARGET_DIR ?? join(root, "target"), "screenshots");
export const SMOLLM2 = "/models/SmolLM2-135M-Instruct.Q4_1.gguf";

/** A test that does not hang. Three times what the longest took on two slow cores under load. */
export const limited = (name, run) => test(name, { timeout: 600_000 }, run);

export let server, browser, address, tiny, reference;
/** The same server, whose pages may share memory between threads. */
let isolated;
/** What the server was asked for since the last test began, and what it answers in its own way: by path, or `*` for all. */
export let asked, special;

before(async () => {
  tiny = await readFile(join(root, "assets/tiny.gguf"));
  reference = JSON.parse(await readFile(join(root, "assets/tiny.reference.json"), "utf8"));
  const first = (path, request, response) => {
    asked.push({ path, range: request.headers.range, request, response });
    const answer = special.get(path) ?? special.get("*");
    answer?.(request, response);
    return answer !== undefined;
  };
  server = await serve({ folder: join(root, "web/dist"), models, first });
  isolated = await serve({ folder: join(root, "web/dist"), models, first, isolated: true });
  address = `http://127.0.0.1:${server.address().port}`;
  browser = await launch();
  fresh();
  const { adapter } = await inPage("(wgslm) => wgslm.checkSupport()");
  assert.match(adapter, /swiftshader/i);
});

after(async () => {
  await browser?.close();
  for (const each of [server, isolated]) {
    each?.closeAllConnections();
    each?.close();
  }
});

/** Runs `run` in an empty page, with the package as `wgslm` and `argument`. */
export function inPage(run, argument) {
  return inPageOf(address, run, argument);
}

/** The same in a page that may share memory. */
export function inIsolatedPage(run, argument) {
  return inPageOf(`http://127.0.0.1:${isolated.address().port}`, run, argument);
}

async function inPageOf(origin, run, argument) {
  const page = await blank(browser, origin);
  try {
    return await within(page, run, argument);
  } finally {
    await page.close();
  }
}

/** Runs `run` in a page that is open. */
export function within(page, run, argument) {
  return page.evaluate(`import("/index.js").then(wgslm => (${run})(wgslm, ${JSON.stringify(argument)}))`);
}

export async function blank(context = browser, origin = address) {
  [asked, special] = [asked ?? [], special ?? new Map()];
  special.set("/blank.html", (_, response) => response.writeHead(200, { "content-type": "text/html" }).end("<!doctype html>"));
  const page = await context.newPage();
  page.on("pageerror", (error) => assert.fail(`the page threw ${error}`));
  await page.goto(`${origin}/blank.html`);
  asked.length = 0;
  return page;
}

export function fresh() {
  [asked, special] = [[], new Map()];
}

/** Answers range requests from `bytes`; `send` writes the body. */
export function ranges(bytes, send = (response, part) => response.end(part)) {
  return rangesOf(bytes, (response, start, last) => send(response, bytes.subarray(start, last + 1), start));
}

/** Answers range requests from what is too large to be in memory. */
export function piecewise(file) {
  return rangesOf(file, (response, start, last) => {
    const pieces = function* () {
      for (let at = start; at <= last; at += 1 << 20) yield file.subarray(at, Math.min(at + (1 << 20), last + 1));
    };
    pipeline(Readable.from(pieces()), response, () => {});
  });
}

/** Answers range requests of a file; `send` writes the body, from the first byte to the last. */
function rangesOf(file, send) {
  return (request, response) => {
    const [, from, end] = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range);
    const [start, last] = [Number(from), Math.min(end ? Number(end) : Infinity, file.length - 1)];
    response.writeHead(206, { "content-range": `bytes ${start}-${last}/${file.length}`, "content-length": last + 1 - start, "cache-control": "no-store" });
    send(response, start, last);
  };
}

/** Answers with all of `bytes`, whatever is asked for; `send` writes the body. */
export function wholes(bytes, send = (response) => response.end(bytes)) {
  return (request, response) => {
    response.writeHead(200, { "content-length": bytes.length, "cache-control": "no-store" });
    send(response, request);
  };
}

/**
 * A page that can be hidden, which those of Playwright never are: another one is brought to the front. `run` gives what an
 * expression is in the page.
 */
export async function tab(browser, url) {
  const session = await browser.newBrowserCDPSession();
  const { targetId } = await session.send("Target.createTarget", { url });
  const { sessionId } = await session.send("Target.attachToTarget", { targetId, flatten: false });
  const waiting = new Map();
  session.on("Target.receivedMessageFromTarget", ({ message }) => {
    const { id, result, error } = JSON.parse(message);
    waiting.get(id)?.(error ?? result);
    waiting.delete(id);
  });
  let last = 0;
  const send = (method, params = {}) =>
    new Promise((resolve) => {
      waiting.set(++last, resolve);
      session.send("Target.sendMessageToTarget", { sessionId, message: JSON.stringify({ id: last, method, params }) });
    });
  const run = async (expression) => {
    const { result, exceptionDetails, message } = await send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    const threw = exceptionDetails?.exception?.description ?? exceptionDetails?.text ?? message;
    assert.equal(threw, undefined, expression);
    return result.value;
  };
  const until = async (condition, limit) => {
    const began = performance.now();
    while (!(await run(condition))) {
      assert.ok(performance.now() - began < limit, `after ${limit} ms it is not so that ${condition}`);
      await new Promise((resume) => setTimeout(resume, 100));
    }
    return performance.now() - began;
  };
  return { run, until, front: () => send("Page.bringToFront") };
}

/** In a page: workers that are started from now on begin with `code`. */
export const workersBegin = `(code) => {
  const Plain = Worker;
  globalThis.Worker = class extends Plain {
    constructor(url, options) {
      const script = (text) => URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
      super(script("import " + JSON.stringify(script(code)) + "; import " + JSON.stringify(String(url)) + ";"), options);
    }
  };
}`;

/** Ids of a greedy continuation. `numerics: "exact"` and temperature 0, as the references were made. */
export const greedy = `async (engine, request) => {
  const ids = [];
  const stream = await engine.chat.completions.create({ ...request, temperature: 0, stream: true, stream_options: { include_usage: true } });
  let text = "", pieces = 0, usage, timings;
  for await (const chunk of stream) {
    const piece = chunk.choices[0]?.delta.content;
    if (piece) pieces++, text += piece;
    usage = chunk.usage ?? usage;
    timings = chunk.timings ?? timings;
    ids.push(...(chunk.choices[0]?.token_ids ?? []));
  }
  return { ids, text, pieces, usage, timings };
}`;
