// The official client in JavaScript against a server with the embedded model: client.mjs http://127.0.0.1:PORT KEY.

import assert from "node:assert/strict";
import OpenAI from "openai";

const [, , address, key] = process.argv;
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: key, maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me about a dog." }];
const limits = { model: "tiny", max_tokens: 24, seed: 7 };
let cases = 0;

function same(found, expected, name) {
  cases += 1;
  assert.deepEqual(found, expected, name);
}

async function fails(kind, status, run, words) {
  cases += 1;
  await assert.rejects(run, (error) => {
    assert.ok(error instanceof kind, `${error}`);
    assert.equal(error.status, status);
    assert.ok(error.message.includes(words), error.message);
    return true;
  });
}

const models = await client.models.list();
same(models.data.map((model) => model.id), ["tiny"], "models");
same((await client.models.retrieve("tiny")).id, "tiny", "model");

for (const temperature of [0, 0.7, 1.5]) {
  for (const n of [1, 2]) {
    const options = { ...limits, messages, temperature, n };
    const whole = await client.chat.completions.create(options);
    const texts = whole.choices.map((choice) => choice.message.content);
    same(texts.length, n, "choices");
    const stream = await client.chat.completions.create({ ...options, stream: true, stream_options: { include_usage: true } });
    const said = Array(n).fill("");
    let [usage, roles, ends] = [null, 0, 0];
    for await (const chunk of stream) {
      usage = chunk.usage ?? usage;
      for (const choice of chunk.choices) {
        said[choice.index] += choice.delta.content ?? "";
        roles += choice.delta.role === "assistant" ? 1 : 0;
        ends += choice.finish_reason ? 1 : 0;
      }
    }
    same(said, texts, "streamed text");
    same([roles, ends], [n, n], "roles and ends");
    same(usage.completion_tokens, whole.usage.completion_tokens, "usage");
  }
}

// The client's own collector of a stream.
const whole = await client.chat.completions.create({ ...limits, messages });
const runner = client.chat.completions.stream({ ...limits, messages });
same((await runner.finalChatCompletion()).choices[0].message.content, whole.choices[0].message.content, "collected");

const logprobs = await client.chat.completions.create({ ...limits, messages, logprobs: true, top_logprobs: 3 });
const content = logprobs.choices[0].logprobs.content;
same(content.every((token) => token.top_logprobs.length === 3 && token.logprob <= 0), true, "logprobs");

const text = await client.completions.create({ ...limits, prompt: "Once upon a time", n: 2 });
same(text.choices.length, 2, "texts");
let streamed = "";
for await (const chunk of await client.completions.create({ ...limits, prompt: "Once upon a time", stream: true })) {
  streamed += chunk.choices[0]?.text ?? "";
}
same(streamed, text.choices[0].text, "a streamed text");

const response = await client.responses.create({ model: "tiny", input: "Tell me about a dog.", max_output_tokens: 24 });
same(response.output_text.length > 0, true, "a response");
let deltas = "";
let final = null;
const events = await client.responses.create({ model: "tiny", input: "A dog", max_output_tokens: 24, stream: true });
for await (const event of events) {
  if (event.type === "response.output_text.delta") deltas += event.delta;
  if (event.type === "response.completed" || event.type === "response.incomplete") final = event.response;
}
same(final.output[0].content[0].text, deltas, "a streamed response");

// A client that goes.
const stopped = await client.chat.completions.create({ ...limits, max_tokens: 400, messages, stream: true });
for await (const _ of stopped) {
  stopped.controller.abort();
  break;
}
same(stopped.controller.signal.aborted, true, "stopped");

const ask = (more) => () => client.chat.completions.create({ ...limits, messages, ...more });
await fails(OpenAI.NotFoundError, 404, ask({ model: "other" }), "other");
await fails(OpenAI.BadRequestError, 400, ask({ temperature: -1 }), "temperature");
await fails(OpenAI.BadRequestError, 400, ask({ top_p: 2 }), "top_p");
await fails(OpenAI.BadRequestError, 400, ask({ n: 0 }), "n");
await fails(OpenAI.BadRequestError, 400, ask({ response_format: { type: "json_object" } }), "response_format");
await fails(OpenAI.BadRequestError, 400, ask({ messages: [] }), "messages");
await fails(OpenAI.BadRequestError, 400, () => client.embeddings.create({ model: "tiny", input: "a" }), "vectors");
const stranger = new OpenAI({ baseURL: `${address}/v1`, apiKey: "wrong", maxRetries: 0 });
await fails(OpenAI.AuthenticationError, 401, () => stranger.models.list(), "");

console.log(`${cases} cases`);
