// Runs the tests of `wgslm bench` in llama.cpp (node-llama-cpp's prebuilt binaries), a JSON array of the same names on stdout:
//
//   node llama.mjs MODEL.gguf --device cpu|vulkan [--threads 2] [--prompt 512] [--generate 128] [--depth 0] [--repetitions 5]
//
// It calls the package's inner context, below its chat interface, so its version is pinned. A time spans the batch, decoding and one
// greedy sample, which waits for the device; wgslm's includes the same. One run before each test does not count.
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { getLlama } from "node-llama-cpp";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    device: { type: "string", default: "cpu" },
    threads: { type: "string", default: "1" },
    prompt: { type: "string", default: "512" },
    generate: { type: "string", default: "128" },
    depth: { type: "string", default: "0" },
    repetitions: { type: "string", default: "5" },
  },
});
const [path] = positionals;
const [threads, prompt, generate, depth, repetitions] = ["threads", "prompt", "generate", "depth", "repetitions"].map((name) => Number(values[name]));
const vulkan = values.device === "vulkan";

const llama = await getLlama({
  gpu: vulkan ? "vulkan" : false,
  build: "never",
  skipDownload: true,
  progressLogs: false,
  logLevel: "error",
  maxThreads: threads,
  vramPadding: 0,
});
const model = await llama.loadModel({ modelPath: path, gpuLayers: vulkan ? "max" : 0, ignoreMemorySafetyChecks: true, useMmap: true });
const context = await model.createContext({
  contextSize: Math.max(256, depth + Math.max(prompt, generate) + 8),
  batchSize: Math.max(prompt, depth, 1),
  threads: { ideal: threads, min: threads },
  sequences: 1,
  flashAttention: "auto",
  ignoreMemorySafetyChecks: true,
});
const inner = context._ctx;
inner.setThreads(threads);
const sampler = new llama._bindings.AddonSampler(model._model);
sampler.applyConfig({ temperature: 0 });

/** Tokens of any kind: what they say does not matter. */
const ids = (n) => Uint32Array.from({ length: n }, (_, i) => 3 + ((i * 7919) % 400));

async function decode(position, tokens) {
  inner.initBatch(tokens.length);
  const logits = inner.addToBatch(0, position, tokens, Uint32Array.of(tokens.length - 1));
  await inner.decodeBatch();
  await inner.sampleToken(logits[0] ?? tokens.length - 1, sampler);
}

const kinds = {
  pp: (n) => decode(depth, ids(n)),
  tg: async (n) => {
    for (let i = 0; i < n; i++) await decode(depth + i, ids(1));
  },
};
const results = [];
const devices = vulkan ? await llama.getGpuDeviceNames() : [];
for (const [kind, n] of [["pp", prompt], ["tg", generate]]) {
  if (n === 0) continue;
  const samples = [];
  for (let i = -1; i < repetitions; i++) {
    // What follows the depth is removed; the rest is read once.
    if (results.length === 0 && i < 0) {
      inner.disposeSequence(0);
      if (depth > 0) await decode(0, ids(depth));
    } else if (depth > 0) inner.removeTokenCellsFromSequence(0, depth, -1);
    else inner.disposeSequence(0);
    const began = process.hrtime.bigint();
    await kinds[kind](i < 0 && kind === "tg" ? 1 : n);
    if (i >= 0) samples.push((n * 1e9) / Number(process.hrtime.bigint() - began));
  }
  results.push({
    model: basename(path),
    backend: vulkan ? "vulkan" : "CPU",
    device: devices[0] ?? "",
    offloaded: vulkan ? `${model.gpuLayers} of ${model.fileInsights.totalLayers}` : "",
    n_threads: threads,
    test: `${kind}${n}${depth > 0 ? ` @ d${depth}` : ""}`,
    samples_ts: samples,
  });
}
const versions = (file) => JSON.parse(readFileSync(fileURLToPath(import.meta.resolve("node-llama-cpp")).replace(/dist\/index\.js$/, file)));
const version = `llama.cpp ${versions("llama/binariesGithubRelease.json").release} (node-llama-cpp ${versions("package.json").version})`;
console.log(JSON.stringify(results.map((result) => ({ version, ...result }))));
process.exit(0);
