// Runs a GGUF file in llama.cpp: the logits of a text, and the tokens that it goes on with. Called by compare.py; needs node-llama-cpp.
//
//   node greedy.mjs CASE.json ANSWER.json
//
// Case: {"gguf", "ids": [a text], "prompt": [another one], "tokens": how many to sample, "vulkan": whether on a GPU}.
// Answer: {"logits": [a row for each of ids], "sampled": [ids]} or {"failed": why}.
import fs from "node:fs";
import { getLlama } from "node-llama-cpp";

const one = JSON.parse(fs.readFileSync(process.argv[2]));
const answer = (value) => fs.writeFileSync(process.argv[3], JSON.stringify(value));
const messages = [];
const logger = (_level, message) => messages.push(message.trim());
const llama = await getLlama({ gpu: one.vulkan ? "vulkan" : false, build: "never", skipDownload: true, progressLogs: false, maxThreads: 1, logLevel: "warn", logger });
try {
  const model = await llama.loadModel({ modelPath: one.gguf, gpuLayers: one.vulkan ? 999 : 0 });
  const keys = { experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32" };
  const context = await model.createContext({ contextSize: 512, batchSize: 512, threads: 1, flashAttention: false, ...keys });
  // Ids go in and come out as they are, below the package's chat interface.
  const inner = context._ctx;
  const sampler = new llama._bindings.AddonSampler(model._model);
  sampler.applyConfig({ temperature: 0 });

  /** Appends tokens; gives the next token and the logits of each of `wanted`. */
  const step = async (position, tokens, wanted) => {
    inner.initBatch(tokens.length);
    const places = inner.addToBatch(0, position, Uint32Array.from(tokens), Uint32Array.from(wanted));
    await inner.decodeBatch();
    const rows = [];
    let next;
    for (let i = 0; i < wanted.length; i++) {
      const [token, , , pairs] = await inner.sampleToken(places[i] ?? wanted[i], sampler, false, false, true);
      const row = [];
      for (let j = 0; j < pairs.length; j += 2) row[pairs[j]] = pairs[j + 1];
      rows.push(row);
      next = Math.max(0, token); // -1 for an end, here token 0
    }
    return [next, rows];
  };

  inner.disposeSequence(0);
  const [, logits] = await step(0, one.ids, one.ids.map((_, i) => i));
  inner.disposeSequence(0);
  const sampled = [];
  let [position, tokens] = [0, one.prompt];
  while (sampled.length < one.tokens) {
    const [token] = await step(position, tokens, [tokens.length - 1]);
    position += tokens.length;
    sampled.push(token);
    tokens = [token];
  }
  answer({ logits, sampled });
} catch (error) {
  const why = messages.find((message) => message.includes("error loading")) ?? `${error}`;
  answer({ failed: why });
}
process.exit(0);
