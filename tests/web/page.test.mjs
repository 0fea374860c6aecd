// The package in Chromium, on WebGPU by SwiftShader, and on the processor: node --test tests/web/page.test.mjs, after scripts/build-web.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { asked, fresh, greedy, inIsolatedPage, inPage, limited, piecewise, ranges, reference, SMOLLM2, special, tiny, workersBegin } from "./harness.mjs";
import { elements, scripted } from "./scripted.mjs";

limited("the tests run on SwiftShader", async () => {
  fresh();
  const support = await inPage("(wgslm) => wgslm.checkSupport()");
  assert.deepEqual([support.ok, support.device, support.software], [true, "cpu", true], support.reason);
  assert.match(support.adapter, /swiftshader/i);
  assert.match(support.reason, /only graphics adapter is a program on the processor, .*SwiftShader/i);
});

limited("the tiny model gives the reference's tokens, as text, in a conversation, and from a file", async () => {
  fresh();
  const [story, chat] = reference.cases;
  const got = await inPage(
    `async (wgslm, { story, chat }) => {
      const greedy = ${greedy};
      const engine = await wgslm.createEngine(wgslm.TINY_MODEL, { device: "gpu", numerics: "exact" });
      const first = await greedy(engine, { prompt: story, max_tokens: 24 });
      const message = { role: "user", content: chat };
      const second = await greedy(engine, { messages: [message], max_tokens: 16 });
      const third = await greedy(engine, { messages: [message, { role: "assistant", content: second.text }, message], max_tokens: 4 });
      // Two at once, and one that ends at a string.
      const [a, b] = await Promise.all([greedy(engine, { prompt: story, max_tokens: 6 }), greedy(engine, { prompt: story, max_tokens: 8 })]);
      const whole = await engine.chat.completions.create({ prompt: story, temperature: 0, max_tokens: 24, stop: ["named"] });
      const seeded = async (seed) => (await engine.chat.completions.create({ prompt: story, temperature: 1, max_tokens: 8, seed })).choices[0].message.content;
      const samples = [await seeded(1), await seeded(1), await seeded(2)];
      const refused = await engine.chat.completions.create({ prompt: story, response_format: { type: "json_object" } }).catch((error) => error.code + ": " + error.message);
      const plain = await engine.chat.completions.create({ prompt: story, temperature: 0, max_tokens: 6, response_format: { type: "text" } });
      const untold = await engine.completions.create({ prompt: [story] }).catch((error) => error.code + ": " + error.message);
      const wrong = await engine.chat.completions.create({ prompt: story, temperature: -1 }).catch((error) => error.code + ": " + error.message);
      const left = await engine.dispose();
      const gone = await engine.chat.completions.create({ prompt: story }).catch((error) => error.code);

      // Another engine, from a file that a user would have dropped, in the cache's other precision.
      const blob = await (await fetch(wgslm.TINY_MODEL)).blob();
      const again = await wgslm.createEngine(new File([blob], "dropped.gguf"), { device: "gpu" });
      const fast = await greedy(again, { prompt: story, max_tokens: 12 });
      const leftAgain = await again.dispose();
      return { info: engine.info, first, second, third, a, b, whole, samples, refused, plain, untold, wrong, left, gone, fast, leftAgain };
    }`,
    { story: story.prompt, chat: "Tell me a story about a small fox." },
  );
  const { parameters, ...info } = got.info;
  assert.deepEqual(info, { name: "wgslm-tiny", architecture: "llama", context: 512, task: "answer", chat: true, tools: false, thinks: false, faults: [], smallerCache: null, device: "gpu", threads: 1 });
  assert.ok(parameters > 1e6);
  assert.deepEqual(got.first.ids, story.greedy_ids.slice(0, 24));
  assert.ok(got.first.pieces > 12, "it came in pieces");
  assert.deepEqual(got.first.usage, {
    prompt_tokens: story.prompt_ids.length,
    completion_tokens: 24,
    total_tokens: story.prompt_ids.length + 24,
    prompt_tokens_details: { cached_tokens: 0 },
  });
  assert.deepEqual(got.second.ids, chat.greedy_ids.slice(0, 16));
  assert.ok(got.third.usage.prompt_tokens_details.cached_tokens >= chat.prompt_ids.length + 15, "the first turn is not computed again");
  assert.deepEqual([got.a.ids, got.b.ids], [story.greedy_ids.slice(0, 6), story.greedy_ids.slice(0, 8)]);
  assert.equal(got.whole.choices[0].message.content, got.first.text.split("named")[0]);
  assert.equal(got.whole.choices[0].finish_reason, "stop");
  assert.equal(got.samples[0], got.samples[1]);
  assert.notEqual(got.samples[0], got.samples[2]);
  assert.match(got.refused, /^unsupported: response_format is not supported/);
  assert.equal(got.plain.choices[0].message.content, got.a.text);
  assert.equal(got.untold, "argument: prompt: one text works");
  assert.match(got.wrong, /^argument: temperature: -1; 0 to 100 works/);
  assert.equal(got.left.buffers, 0);
  assert.equal(got.gone, "disposed");
  assert.deepEqual(got.fast.ids, story.greedy_ids.slice(0, 12));
  assert.equal(got.leftAgain.buffers, 0);
  assert.ok(asked.filter(({ path }) => path === "/tiny.gguf").every(({ range }, i, all) => range || i === all.length - 1), "by ranges");
});

limited("the processor gives the reference's tokens, beside others, and stops at once", async (t) => {
  fresh();
  const [story, chat] = reference.cases;
  const prompt = "The lighthouse keeper climbed the spiral stairs every evening at dusk, because";
  const got = await inPage(
    `async (wgslm, { story, chat, prompt, url }) => {
      const greedy = ${greedy};
      const engine = await wgslm.createEngine(wgslm.TINY_MODEL, { numerics: "exact" });
      const first = await greedy(engine, { prompt: story, max_tokens: 24 });
      const message = { role: "user", content: chat };
      const second = await greedy(engine, { messages: [message], max_tokens: 16 });
      const third = await greedy(engine, { messages: [message, { role: "assistant", content: second.text }, message], max_tokens: 4 });
      const four = await Promise.all([6, 8, 10, 12].map((max_tokens) => greedy(engine, { prompt: story, max_tokens })));
      await engine.dispose();
      const larger = await wgslm.createEngine(url, { device: "cpu", numerics: "exact" });
      const words = await greedy(larger, { prompt, max_tokens: 16 });
      // Stopped in the middle of a long prompt, and of an answer.
      const stops = [];
      for (const [text, wait] of [[prompt.repeat(60), 300], [prompt, 600]]) {
        const abort = new AbortController();
        const running = greedy_until(larger, text, abort.signal);
        await new Promise((resume) => setTimeout(resume, wait));
        const began = performance.now();
        abort.abort();
        await running;
        // The next answer begins when the engine is free.
        await larger.chat.completions.create({ prompt: "A", max_tokens: 1, temperature: 0 });
        stops.push(performance.now() - began);
      }
      async function greedy_until(engine, prompt, signal) {
        try { for await (const _ of await engine.chat.completions.create({ prompt, stream: true, temperature: 0 }, { signal })); } catch {}
      }
      const left = await larger.dispose();
      const wrong = await wgslm.createEngine(url, { device: "tpu" }).catch(({ code, message }) => code + ": " + message);
      return { info: engine.info, larger: larger.info.device, first, second, third, four, words, stops, left, wrong };
    }`,
    { story: story.prompt, chat: "Tell me a story about a small fox.", prompt, url: SMOLLM2 },
  );
  assert.deepEqual([got.info.device, got.info.fallback, got.larger], ["cpu", undefined, "cpu"]);
  assert.deepEqual(got.first.ids, story.greedy_ids.slice(0, 24));
  assert.deepEqual(got.second.ids, chat.greedy_ids.slice(0, 16));
  assert.ok(got.third.usage.prompt_tokens_details.cached_tokens >= chat.prompt_ids.length + 15, "the first turn is not computed again");
  assert.deepEqual(got.four.map(({ ids }) => ids), [6, 8, 10, 12].map((n) => story.greedy_ids.slice(0, n)));
  // The first prompt of real-models/smollm2 (golden.npz, greedy_0): the margins of these steps are 0.014 or more.
  assert.deepEqual(got.words.ids.slice(0, 8), [502, 592, 260, 805, 970, 288, 1446, 260]);
  assert.ok(got.stops.every((ms) => ms < 1500), `stopped after ${got.stops} ms`);
  assert.equal(got.left.buffers, 0);
  assert.equal(got.wrong, 'argument: device: "tpu"; "auto", "gpu" and "cpu" work');
  const modules = asked.map(({ path }) => path).filter((path) => path.endsWith(".wasm"));
  assert.deepEqual([...new Set(modules)], ["/wgslm_cpu_relaxed_bg.wasm"], "the other modules are not loaded");
  t.diagnostic(`${got.words.timings.tokens_per_second.toFixed(1)} tokens/s of SmolLM2, stops after ${got.stops.map((ms) => ms.toFixed(0))} ms`);
});

limited("the engine can be made in a worker", async () => {
  fresh();
  const [story] = reference.cases;
  const ids = await inPage(
    `async (_, prompt) => {
      const code = \`import { createEngine, TINY_MODEL } from "\${location.origin}/index.js";
        const engine = await createEngine(TINY_MODEL, { device: "cpu", numerics: "exact" });
        const { choices } = await engine.completions.create({ prompt: \${JSON.stringify(prompt)}, temperature: 0, max_tokens: 12 });
        await engine.dispose();
        postMessage(choices[0].token_ids);\`;
      const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), { type: "module" });
      try {
        return await new Promise((said, failed) => {
          worker.onmessage = ({ data }) => said(data);
          worker.onerror = ({ message }) => failed(new Error(message));
        });
      } finally {
        worker.terminate();
      }
    }`,
    story.prompt,
  );
  assert.deepEqual(ids, story.greedy_ids.slice(0, 12));
});

limited("texts are continued by OpenAI's completions, whole and as a stream", async () => {
  fresh();
  const [story] = reference.cases;
  const got = await inPage(
    `async (wgslm, { story }) => {
      const engine = await wgslm.createEngine(wgslm.TINY_MODEL, { numerics: "exact", device: "cpu" });
      const request = { prompt: story, temperature: 0, max_tokens: 24 };
      const whole = await engine.completions.create(request);
      const parts = [];
      for await (const part of await engine.completions.create({ ...request, stream: true, stream_options: { include_usage: true } })) parts.push(part);
      const penalised = await engine.completions.create({ ...request, frequency_penalty: 2, presence_penalty: 2 });
      const refused = [];
      for (const wrong of [{ echo: true }, { suffix: "x" }, { n: 17 }, { prompt: ["a", "b"] }, { frequency_penalty: 1e9 }]) {
        refused.push(await engine.completions.create({ ...request, ...wrong }).then(() => "taken", ({ message }) => message));
      }
      await engine.dispose();
      return { whole, parts, penalised, refused };
    }`,
    { story: story.prompt },
  );
  const { whole, parts } = got;
  assert.deepEqual([whole.object, whole.choices[0].finish_reason, whole.choices[0].token_ids], ["text_completion", "length", story.greedy_ids.slice(0, 24)]);
  assert.match(whole.id, /^cmpl-/);
  const last = parts.pop();
  assert.deepEqual([last.choices, last.usage], [[], { ...whole.usage, prompt_tokens_details: last.usage.prompt_tokens_details }]);
  assert.equal(parts.map(({ choices }) => choices[0].text).join(""), whole.choices[0].text);
  assert.deepEqual(parts.flatMap(({ choices }) => choices[0].token_ids), whole.choices[0].token_ids);
  assert.deepEqual(parts.map(({ choices }) => choices[0].finish_reason).filter(Boolean), ["length"]);
  assert.ok(parts.every(({ object, id, usage }) => object === "text_completion" && id === parts[0].id && usage === null));
  assert.notDeepEqual(got.penalised.choices[0].token_ids, whole.choices[0].token_ids);
  assert.match(got.refused.join("\n"), /^echo is not supported yet\nsuffix is not supported yet\nn: 17; 1 to 16 work\nprompt: one text works\n.*frequency/);
});

limited("a request has several answers, each as it would be alone", async () => {
  fresh();
  const got = await inPage(
    `async (wgslm, prompt) => {
      const engine = await wgslm.createEngine(wgslm.TINY_MODEL, { numerics: "exact", device: "cpu" });
      const request = { prompt, temperature: 1, max_tokens: 12, seed: 40 };
      const alone = [];
      for (let seed = 40; seed < 45; seed++) alone.push(await engine.completions.create({ ...request, seed }));
      const together = await engine.completions.create({ ...request, n: 5 });
      const texts = [], chat = ["", "", ""];
      let last, roles = 0, timed = 0;
      const options = { stream: true, stream_options: { include_usage: true } };
      for await (const part of await engine.completions.create({ ...request, ...options, n: 5 })) {
        for (const { index, text } of part.choices) texts[index] = (texts[index] ?? "") + text;
        last = part;
      }
      for await (const { choices: [choice], timings } of await engine.chat.completions.create({ ...request, stream: true, n: 3 })) {
        chat[choice.index] += choice.delta.content ?? "";
        roles += choice.delta.role === "assistant";
        timed += timings !== undefined;
      }
      // Left in the middle: all of its answers end, and the next ones are not disturbed.
      for await (const _ of await engine.completions.create({ ...request, max_tokens: 500, stream: true, n: 8 })) break;
      const after = await engine.chat.completions.create({ ...request, n: 2 });
      await engine.dispose();
      return { alone, together, texts, last, chat, roles, timed, after };
    }`,
    reference.cases[0].prompt,
  );
  const alone = got.alone.map(({ choices }) => choices[0]);
  assert.ok(new Set(alone.map(({ text }) => text)).size > 2, "they differ");
  assert.deepEqual(got.together.choices, alone.map((choice, index) => ({ ...choice, index })));
  const { prompt_tokens, completion_tokens } = got.together.usage;
  assert.deepEqual([prompt_tokens, completion_tokens], [got.alone[0].usage.prompt_tokens, got.alone.reduce((sum, { usage }) => sum + usage.completion_tokens, 0)]);
  const texts = alone.map(({ text }) => text);
  assert.deepEqual(got.texts, texts);
  assert.deepEqual([got.last.choices, got.last.usage.completion_tokens], [[], completion_tokens]);
  assert.deepEqual([got.chat, got.roles, got.timed], [texts.slice(0, 3), 3, 3]);
  assert.deepEqual(got.after.choices.map(({ index, message }) => [index, message.content]), texts.slice(0, 2).map((text, i) => [i, text]));
});

limited("models think and call tools, and get the results", async () => {
  for (const device of ["cpu", "gpu"]) {
    fresh();
    special.set("/scripted.gguf", ranges(scripted()));
    const got = await inPage(
      `async (wgslm, device) => {
        const engine = await wgslm.createEngine("/scripted.gguf", { device, keep: false });
        const parameters = { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } };
        const tools = [{ type: "function", function: { parameters, name: "weather", description: "It knows." } }];
        const user = { role: "user", content: [{ type: "text", text: "How is " }, { type: "text", text: "Rome?" }] };
        const request = { messages: [user], tools, temperature: 0, max_tokens: 50 };
        const whole = await engine.chat.completions.create(request);
        const chunks = [];
        for await (const chunk of await engine.chat.completions.create({ ...request, stream: true })) chunks.push(chunk);
        const answer = whole.choices[0].message;
        const result = { role: "tool", tool_call_id: answer.tool_calls[0].id, content: "sunny" };
        const after = await engine.chat.completions.create({ ...request, messages: [user, answer, result] });
        const none = await engine.chat.completions.create({ ...request, tool_choice: "none" });
        const short = await engine.chat.completions.create({ ...request, max_tokens: 6 });
        const refused = [];
        const odd = { role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] };
        for (const wrong of [{ tool_choice: "required" }, { tools: [{}] }, { tools: [{ type: "function", function: { name: "f", strict: true } }] }, { messages: [odd] }, { messages: [{ role: "user", content: null }] }, { reasoning_effort: "much" }]) {
          refused.push(await engine.chat.completions.create({ ...request, ...wrong }).then(() => "taken", ({ code, message }) => code + ": " + message));
        }
        const vectors = await engine.embeddings.create({ input: "a" }).catch(({ code, message }) => code + ": " + message);
        await engine.dispose();
        const without = await wgslm.createEngine(wgslm.TINY_MODEL, { device });
        refused.push(await without.chat.completions.create(request).catch(({ code, message }) => code + ": " + message));
        await without.dispose();
        return { info: engine.info, whole, chunks, after, none, short, refused, vectors };
      }`,
      device,
    );
    assert.deepEqual([got.info.device, got.info.task, got.info.tools, got.info.thinks], [device, "answer", true, true]);
    const { message, finish_reason } = got.whole.choices[0];
    assert.deepEqual([message.reasoning_content, message.content, finish_reason], ["I look.", "Let me see.", "tool_calls"]);
    const read = ({ type, id, function: { name, arguments: values } }) => [type, /^[a-z0-9]{9}$/.test(id), name, JSON.parse(values)];
    const call = ["function", true, "weather", { city: "Rome", days: 2 }];
    assert.deepEqual(message.tool_calls.map(read), [call]);
    const deltas = got.chunks.map(({ choices }) => choices[0].delta);
    const all = (name) => deltas.map((delta) => delta[name] ?? "").join("");
    assert.deepEqual([all("reasoning_content"), all("content")], ["I look.", "Let me see."]);
    assert.deepEqual(deltas.flatMap(({ tool_calls = [] }) => tool_calls).map((one) => [one.index, ...read(one)]), [[0, ...call]]);
    assert.deepEqual(got.chunks.map(({ choices }) => choices[0].finish_reason).filter(Boolean), ["tool_calls"]);
    assert.deepEqual(got.chunks.flatMap(({ choices }) => choices[0].token_ids).length, got.whole.usage.completion_tokens);
    assert.deepEqual(got.after.choices[0].message, { role: "assistant", content: "It is sunny." });
    assert.deepEqual([got.none.choices[0].message.content, got.none.choices[0].finish_reason], ["It is sunny.", "stop"]);
    assert.deepEqual([got.short.choices[0].message.tool_calls, got.short.choices[0].finish_reason], [undefined, "length"], "a call that is cut off is none");
    const expected = [
      /^unsupported: tool_choice: .* auto and none work$/,
      /^argument: tools\[0\]: /,
      /^unsupported: tools\[0\]\.function\.strict/,
      /^argument: messages\[0\]\.content: a part of type "image_url"; text works/,
      /^argument: messages\[0\]\.content: it is null/,
      /^argument: reasoning_effort: "much"/,
      /^unsupported: tools for a model whose chat template knows none/,
    ];
    assert.equal(got.refused.length, expected.length);
    expected.forEach((text, i) => assert.match(got.refused[i], text));
    assert.match(got.vectors, /^unsupported: .*`task: "embed"` works/);
  }
});

limited("texts become vectors, and nothing else where a model was loaded for them", async (t) => {
  for (const device of ["cpu", "gpu"]) {
    fresh();
    special.set("/scripted.gguf", ranges(scripted()));
    const got = await inPage(
      `async (wgslm, device) => {
        const engine = await wgslm.createEngine("/scripted.gguf", { device, keep: false, task: "embed", numerics: "exact" });
        const one = await engine.embeddings.create({ input: "abb" });
        const texts = Array.from({ length: 40 }, (_, i) => "a".repeat(i + 1) + "b");
        const many = await engine.embeddings.create({ input: texts });
        const packed = await engine.embeddings.create({ input: texts.slice(0, 2), encoding_format: "base64" });
        const refused = [];
        for (const wrong of [{ input: [] }, { input: ["a", ""] }, { input: "x".repeat(5000) }, { input: "a", dimensions: 3 }, { input: "a", encoding_format: "hex" }]) {
          refused.push(await engine.embeddings.create(wrong).then(() => "taken", ({ code, message }) => code + ": " + message));
        }
        refused.push(await engine.chat.completions.create({ prompt: "a" }).catch(({ code, message }) => code + ": " + message));
        // One part of the 200 that are aborted. The first time also compiles what it takes.
        const part = Array(20).fill("a".repeat(device === "cpu" ? 200 : 40));
        await engine.embeddings.create({ input: part });
        let began = performance.now();
        await engine.embeddings.create({ input: part });
        const partMs = performance.now() - began;
        const abort = new AbortController();
        const stopped = engine.embeddings.create({ input: Array(200).fill(part).flat() }, { signal: abort.signal }).catch(({ name }) => name);
        setTimeout(() => abort.abort(), 200);
        began = performance.now();
        const name = await stopped;
        await engine.embeddings.create({ input: "a" });
        const ms = performance.now() - began;
        const left = await engine.dispose();
        const task = await wgslm.createEngine(wgslm.TINY_MODEL, { device, task: "sing" }).catch(({ code, message }) => code + ": " + message);
        return { info: engine.info, one, many, packed, refused, partMs, name, ms, left, task };
      }`,
      device,
    );
    assert.deepEqual([got.info.device, got.info.task, got.info.width, got.info.context], [device, "embed", elements, 2048]);
    // The mean of one element a byte, at length 1.
    const expected = (as, bs) => {
      const vector = new Array(elements).fill(0);
      vector["a".charCodeAt(0)] = as / Math.hypot(as, bs);
      vector["b".charCodeAt(0)] = bs / Math.hypot(as, bs);
      return vector;
    };
    const close = (vector, wanted) => {
      assert.equal(vector.length, wanted.length);
      vector.forEach((x, i) => assert.ok(Math.abs(x - wanted[i]) < 1e-6, `${i}: ${x}, ${wanted[i]}`));
    };
    assert.deepEqual([got.one.object, got.one.model, got.one.usage], ["list", "scripted", { prompt_tokens: 3, total_tokens: 3 }]);
    close(got.one.data[0].embedding, expected(1, 2));
    got.many.data.forEach(({ object, index, embedding }, i) => {
      assert.deepEqual([object, index], ["embedding", i]);
      close(embedding, expected(i + 1, 1));
    });
    assert.equal(got.many.data.length, 40);
    assert.equal(got.many.usage.prompt_tokens, 40 * 41 / 2 + 40);
    const unpacked = (text) => Array.from(new Float32Array(new Uint8Array(Buffer.from(text, "base64")).buffer));
    got.packed.data.forEach(({ embedding }, i) => assert.deepEqual(unpacked(embedding), got.many.data[i].embedding));
    const refusals = [/^argument: input: /, /^argument: input\[1\]: /, /^limit: .*5000 tokens/, /^unsupported: dimensions/, /^argument: encoding_format/, /^unsupported: text from a model that gives vectors/];
    assert.equal(got.refused.length, refusals.length);
    refusals.forEach((text, i) => assert.match(got.refused[i], text));
    assert.equal(got.name, "AbortError");
    t.diagnostic(`${device}: after 4,000 texts that were aborted the next came in ${got.ms.toFixed(0)} ms; 20 take ${got.partMs.toFixed(0)} ms`);
    // The steps that had begun when it was aborted, never the 4,000 texts.
    assert.ok(got.ms < 1000 + 10 * got.partMs, "the next one waited for them");
    assert.equal(got.left.buffers, 0);
    assert.match(got.task, /^argument: options: .*`answer` or `embed`/);
  }
});

limited("where a page may share memory, threads of the processor give the same tokens together", async (t) => {
  fresh();
  const [story] = reference.cases;
  const prompt = "The lighthouse keeper climbed the spiral stairs every evening at dusk, because";
  const argument = { story: story.prompt, prompt, url: SMOLLM2 };
  const run = `async (wgslm, { story, prompt, url }) => {
    const greedy = ${greedy};
    const answers = [];
    for (const [source, text, max_tokens, threads] of [[wgslm.TINY_MODEL, story, 24, 3], [url, prompt, 32, undefined], [url, prompt, 32, 1]]) {
      const engine = await wgslm.createEngine(source, { device: "cpu", numerics: "exact", ...(threads ? { threads } : {}) });
      const both = await Promise.all([1, 2].map(() => greedy(engine, { prompt: text, max_tokens })));
      const { memory } = await engine.dispose();
      answers.push({ threads: engine.info.threads, notKept: engine.notKept, ids: both.map(({ ids }) => ids), rate: both[0].timings.tokens_per_second, memory });
    }
    const wrong = await wgslm.createEngine(wgslm.TINY_MODEL, { threads: 0 }).catch(({ code }) => code);
    return { isolated: crossOriginIsolated, cores: navigator.hardwareConcurrency, answers, wrong };
  }`;
  const got = await inIsolatedPage(run, argument);
  const loaded = () => [...new Set(asked.map(({ path }) => path).filter((path) => path.endsWith(".wasm")))].sort();
  assert.equal(got.isolated, true);
  // Once without being kept, once to be kept.
  const requests = asked.filter(({ path }) => path === SMOLLM2).length;
  assert.ok(requests <= 12, `${requests} requests: tensors are read in the file's order`);
  const here = Math.min(got.cores, 8);
  assert.deepEqual(got.answers.map(({ threads }) => threads), [Math.min(3, here), here, 1]);
  assert.deepEqual(got.answers.map(({ notKept }) => notKept), [undefined, undefined, undefined]);
  assert.deepEqual(got.answers[0].ids, Array(2).fill(story.greedy_ids.slice(0, 24)));
  assert.deepEqual(got.answers[1].ids, got.answers[2].ids, "the number of threads changes nothing");
  assert.deepEqual(got.answers[1].ids[0].slice(0, 8), [502, 592, 260, 805, 970, 288, 1446, 260]);
  assert.ok(got.answers.every(({ memory }) => memory > 1e6));
  assert.equal(got.wrong, "argument");
  assert.deepEqual(loaded(), ["/wgslm_cpu_relaxed_bg.wasm", ...(here > 1 ? ["/wgslm_cpu_threads_bg.wasm"] : [])]);
  t.diagnostic(`tokens/s of SmolLM2, two answers at once: ${got.answers.slice(1).map(({ threads, rate }) => `${rate.toFixed(1)} on ${threads}`).join(", ")}`);

  // Without the headers, and where the module for threads is not there.
  const small = `async (wgslm, { story }) => {
    const engine = await wgslm.createEngine(wgslm.TINY_MODEL, { device: "cpu", numerics: "exact", threads: 2 });
    const { ids } = await (${greedy})(engine, { prompt: story, max_tokens: 8 });
    await engine.dispose();
    return { threads: engine.info.threads, ids };
  }`;
  const expected = { threads: 1, ids: story.greedy_ids.slice(0, 8) };
  fresh();
  assert.deepEqual(await inPage(small, argument), expected);
  assert.deepEqual(loaded(), ["/wgslm_cpu_relaxed_bg.wasm"]);
  fresh();
  special.set("/wgslm_cpu_threads_bg.wasm", (_, response) => response.writeHead(404).end());
  assert.deepEqual(await inIsolatedPage(small, argument), expected);
});

limited("a browser without relaxed SIMD gets a module without it, which gives the same tokens", async (t) => {
  fresh();
  const prompt = "The lighthouse keeper climbed the spiral stairs every evening at dusk, because";
  const got = await inPage(
    `async (wgslm, { prompt, url }) => {
      const greedy = ${greedy};
      const answer = async () => {
        const engine = await wgslm.createEngine(url, { device: "cpu" });
        const { ids, timings } = await greedy(engine, { prompt, max_tokens: 32 });
        await engine.dispose();
        return { ids, rate: timings.tokens_per_second };
      };
      const relaxed = await answer();
      // A worker whose browser takes no instruction of it.
      (${workersBegin})("const all = WebAssembly.validate; WebAssembly.validate = (bytes) => bytes.length !== 40 && all(bytes);");
      return { relaxed, plain: await answer() };
    }`,
    { prompt, url: SMOLLM2 },
  );
  assert.deepEqual(got.plain.ids, got.relaxed.ids);
  assert.equal(got.plain.ids.length, 32);
  const modules = [...new Set(asked.map(({ path }) => path).filter((path) => path.endsWith(".wasm")))];
  assert.deepEqual(modules, ["/wgslm_cpu_relaxed_bg.wasm", "/wgslm_cpu_bg.wasm"]);
  assert.ok(WebAssembly.validate(await readFile(new URL("../../web/dist/wgslm_cpu_bg.wasm", import.meta.url)))); // Node.js 20 has none, either
  t.diagnostic(`tokens/s of SmolLM2: ${got.relaxed.rate.toFixed(1)} with relaxed SIMD, ${got.plain.rate.toFixed(1)} without`);
});

limited("a turn computes its new tokens only, whatever was sampled before", async () => {
  fresh();
  const turns = await inPage(
    `async (wgslm) => {
      const engine = await wgslm.createEngine(wgslm.TINY_MODEL, { device: "gpu" });
      const [messages, turns] = [[], []];
      for (const content of ["Tell me a story about a small fox.", "And then?", "Why?", "How does it end?"]) {
        messages.push({ role: "user", content });
        // Hot: sampled ids are often not those that their text is encoded to.
        const { choices, usage, timings } = await engine.chat.completions.create({ messages, temperature: 2, seed: messages.length, max_tokens: 24 });
        messages.push(choices[0].message);
        turns.push({ ...usage, ...timings });
      }
      // Another conversation shares nothing but its beginning.
      const other = await engine.chat.completions.create({ messages: [{ role: "user", content: "A dog ran." }], max_tokens: 1 });
      await engine.dispose();
      return [...turns, other.usage];
    }`,
  );
  const other = turns.pop();
  assert.ok(other.prompt_tokens_details.cached_tokens < 8, "nothing of another conversation is kept");
  const kept = turns.map((turn) => turn.prompt_tokens_details.cached_tokens);
  for (let i = 1; i < turns.length; i++) {
    const before = turns[i - 1].prompt_tokens + turns[i - 1].completion_tokens;
    // The last token of an answer that was cut off has been sampled, not read.
    assert.ok(kept[i] >= before - 1, `turn ${i + 1}: ${kept[i]} of ${before} tokens were kept`);
    assert.ok(turns[i].prompt_tokens - kept[i] < 24, `turn ${i + 1} computed ${turns[i].prompt_tokens - kept[i]} tokens`);
  }
});

limited("SmolLM2 streams from a server to the GPU and gives the reference's tokens", async (t) => {
  fresh();
  // The first prompt of real-models/smollm2 (golden.npz, greedy_0): the margins of these steps are 0.014 or more.
  const prompt = "The lighthouse keeper climbed the spiral stairs every evening at dusk, because";
  const expected = [502, 592, 260, 805, 970, 288, 1446, 260];
  const got = await inPage(
    `async (wgslm, { url, prompt }) => {
      const greedy = ${greedy};
      const began = performance.now();
      const seen = [];
      const engine = await wgslm.createEngine(url, { device: "gpu", numerics: "exact", onProgress: (p) => seen.push(p) });
      const load = performance.now() - began;
      const answer = await greedy(engine, { prompt, max_tokens: ${expected.length} });

      // Stopped at the third token: how long until the caller is free, and until the engine is?
      const abort = new AbortController();
      const stream = await engine.chat.completions.create({ prompt, stream: true, temperature: 0 }, { signal: abort.signal });
      let pieces = 0, stopping, reason;
      try {
        for await (const chunk of stream) {
          if (chunk.choices[0]?.delta.content && ++pieces === 3) setTimeout(() => { stopping = performance.now(); abort.abort(); }, 20);
        }
      } catch (error) {
        reason = error.name;
      }
      const stopped = performance.now() - stopping;
      const left = await engine.dispose();
      const idle = performance.now() - stopping;
      return { load, seen, answer, pieces, reason, stopped, idle, left };
    }`,
    { url: SMOLLM2, prompt },
  );
  assert.deepEqual(got.answer.ids, expected);
  const last = got.seen.filter(({ phase }) => phase === "load").at(-1);
  assert.deepEqual([last.done, last.total], [96_436_224, 96_436_224], "progress counts every byte of the matrices");
  assert.equal(got.reason, "AbortError");
  assert.ok(got.stopped < 300, `stopped after ${got.stopped} ms`);
  assert.equal(got.left.buffers, 0);
  const requests = asked.filter(({ path }) => path === SMOLLM2);
  assert.ok(requests.every(({ range }) => range), "by ranges only");
  assert.ok(requests.length <= 8, `${requests.length} requests: tensors are read in the file's order`);
  assert.ok(got.left.memory < 64 << 20, `${got.left.memory} bytes of WebAssembly memory`);
  const { first_token_ms, tokens_per_second } = got.answer.timings;
  t.diagnostic(
    `loaded in ${(got.load / 1000).toFixed(1)} s by ${requests.length} requests, ${(got.left.memory / 2 ** 20).toFixed(1)} MiB of WebAssembly memory, ` +
      `first token after ${(first_token_ms / 1000).toFixed(2)} s, then ${tokens_per_second.toFixed(2)} tokens/s; ` +
      `stopped in ${got.stopped.toFixed(1)} ms, disposed in ${got.idle.toFixed(0)} ms`,
  );
});

limited("a split model comes from all its files, or from the address of its first part", async () => {
  fresh();
  const names = [1, 2].map((no) => `/split-0000${no}-of-00002.gguf`);
  scripted({ parts: 2 }).forEach((part, i) => special.set(names[i], ranges(part)));
  const got = await inPage(
    `async (wgslm, names) => {
      const files = await Promise.all(names.map(async (name) => {
        const response = await fetch(name, { headers: { range: "bytes=0-" } });
        return new File([await response.blob()], name.slice(1));
      }));
      const says = async (model) => {
        const engine = await wgslm.createEngine(model, { device: "cpu" });
        const { choices } = await engine.chat.completions.create({ messages: [{ role: "user", content: "And tomorrow?" }], temperature: 0 });
        await engine.dispose();
        return choices[0].message.content;
      };
      const fails = (model) => says(model).catch(({ code, message }) => code + ": " + message);
      const plan = await wgslm.models.plan(names[0]);
      const again = async () => (await wgslm.models.plan(names[0])).complete;
      return { said: [await says(files), await says(names[0]), await says(names)], planned: plan.bytes, kept: await again(), one: await fails([files[0]]), swapped: await fails(files.toReversed()) };
    }`,
    names,
  );
  assert.deepEqual(got.said, ["It is sunny.", "It is sunny.", "It is sunny."]);
  assert.equal(got.planned, scripted({ parts: 2 }).reduce((sum, { length }) => sum + length, 0));
  assert.equal(got.kept, true);
  assert.match(got.one, /^malformed: .*split\.count is 2/);
  assert.match(got.swapped, /^malformed: .*split\.no/);
});

limited("of a file of more than 4 GB what is needed is read", async () => {
  const gap = 5 * 2 ** 30;
  const file = scripted({ gap });
  for (const device of ["gpu", "cpu"]) {
    fresh();
    special.set("/large.gguf", piecewise(file));
    const got = await inPage(
      `async (wgslm, device) => {
        const plan = await wgslm.models.plan("/large.gguf");
        const engine = await wgslm.createEngine("/large.gguf", { device, numerics: "exact", keep: false });
        const { choices } = await engine.chat.completions.create({ messages: [{ role: "user", content: "And tomorrow?" }], temperature: 0 });
        const { memory } = await engine.dispose();
        return { bytes: plan.bytes, text: choices[0].message.content, memory };
      }`,
      device,
    );
    assert.deepEqual([got.bytes, got.text], [file.length, "It is sunny."]);
    assert.ok(got.memory < 64 << 20, `${got.memory} bytes of WebAssembly memory`);
    const read = asked.filter(({ path, range }) => path === "/large.gguf" && range).map(({ range }) => range);
    const starts = read.map((range) => Number(/=(\d+)-/.exec(range)[1]));
    assert.ok(starts.some((start) => start > gap), `what lies beyond the gap is read: ${read}`);
  }
});
