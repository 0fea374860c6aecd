// Runs GGUF files in llama.cpp and compares its greedy tokens with a reference's. Called by compare.py; needs node-llama-cpp.
//
//   node greedy.mjs CASE.json     {"name", "gguf", "prompt": [ids], "greedy": [ids], "margin": [gap between best and second logit]}
import fs from "node:fs";
import { getLlama } from "node-llama-cpp";

const one = JSON.parse(fs.readFileSync(process.argv[2]));
const TOKENS = 24; // the references' margins are wide for so many
const llama = await getLlama({ gpu: false, build: "never", skipDownload: true, progressLogs: false, maxThreads: 1, logLevel: "error" });
try {
  const model = await llama.loadModel({ modelPath: one.gguf, gpuLayers: 0 });
  const context = await model.createContext({ contextSize: 512, batchSize: 512, threads: 1, flashAttention: false });
  // Ids go in and come out as they are, below the package's chat interface.
  const inner = context._ctx;
  const sampler = new llama._bindings.AddonSampler(model._model);
  sampler.applyConfig({ temperature: 0 });
  inner.disposeSequence(0);
  const drawn = [];
  let [position, tokens] = [0, one.prompt];
  while (drawn.length < TOKENS) {
    inner.initBatch(tokens.length);
    const logits = inner.addToBatch(0, position, Uint32Array.from(tokens), Uint32Array.of(tokens.length - 1));
    await inner.decodeBatch();
    position += tokens.length;
    const token = Math.max(0, await inner.sampleToken(logits[0] ?? tokens.length - 1, sampler)); // -1 for an end, here token 0
    drawn.push(token);
    tokens = [token];
  }
  const first = drawn.findIndex((token, i) => token !== one.greedy[i]);
  console.log(first < 0 ? "ok" : `differs at token ${first}, where the margin is ${one.margin[first]}`);
} catch (error) {
  console.log(`failed: ${error}`);
}
process.exit(0);
