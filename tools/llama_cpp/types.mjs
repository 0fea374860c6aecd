// What each type of weights costs: a model is converted to every type that `wgslm convert` writes, its perplexity on a text and its
// divergence from the F32 file are measured, and llama.cpp continues a prompt with each file. BENCHMARKS.md has the table.
//
//   npm install --prefix tools/llama_cpp node-llama-cpp
//   node tools/llama_cpp/types.mjs WGSLM MODEL.gguf TEXT [--chunks 20] [--types Q8_0,Q4_K_M,…] [--folder FOLDER]
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const TYPES = "F32,BF16,F16,Q8_0,Q6_K,Q5_K_M,Q5_1,Q5_K_S,Q5_0,Q4_1,Q4_K_M,Q4_K_S,IQ4_NL,Q4_0,IQ4_XS,Q3_K_L,Q3_K_M,Q3_K_S,Q2_K";
const PROMPT = "The lighthouse keeper climbed the spiral stairs every evening at dusk, because";
const TOKENS = 24;

const { values: option, positionals } = parseArgs({
  allowPositionals: true,
  options: { chunks: { type: "string", default: "20" }, types: { type: "string", default: TYPES }, folder: { type: "string", default: join(tmpdir(), "wgslm-types") } },
});
const [wgslm, source, text] = positionals;
mkdirSync(option.folder, { recursive: true });
const at = (name) => join(option.folder, name);

function run(command, ...args) {
  const done = spawnSync(command, args, { encoding: "utf8", maxBuffer: 1 << 26 });
  if (done.status !== 0) throw new Error(`${command} ${args.join(" ")}: ${done.error ?? done.stderr}`);
  return done.stdout;
}

/** The logits of each of `ids`. */
function logits(gguf, numerics, ids) {
  run(wgslm, "logits", "-m", gguf, "--device", "cpu", "--numerics", numerics, "--ids", ids.join(","), "-o", at("logits.npy"));
  const file = readFileSync(at("logits.npy")); // float32, after a header
  const header = 10 + file.readUInt16LE(8);
  const all = new Float32Array(file.buffer.slice(file.byteOffset + header, file.byteOffset + file.length));
  const vocab = all.length / ids.length;
  return ids.map((_, row) => all.subarray(row * vocab, (row + 1) * vocab));
}

/** The gap between a row's two best logits. */
function margin(row) {
  let [best, second] = [-Infinity, -Infinity];
  for (const logit of row) {
    if (logit > best) [best, second] = [logit, best];
    else if (logit > second) second = logit;
  }
  return best - second;
}

/** The mean over rows of the squared difference by the row's variance. */
function nmse(got, expected) {
  const rows = expected.map((row, i) => {
    const mean = row.reduce((sum, x) => sum + x, 0) / row.length;
    let [error, spread] = [0, 0];
    row.forEach((x, j) => ((error += (got[i][j] - x) ** 2), (spread += (x - mean) ** 2)));
    return error / spread;
  });
  return rows.reduce((sum, x) => sum + x, 0) / rows.length;
}

/** Runs a file in llama.cpp: on the CPU with activations of 8 bits, on a GPU (or what stands in for one) in f32. */
function llama(gguf, vulkan, ids, prompt, tokens) {
  writeFileSync(at("case.json"), JSON.stringify({ gguf, ids, prompt, tokens, vulkan }));
  run(process.execPath, fileURLToPath(new URL("greedy.mjs", import.meta.url)), at("case.json"), at("answer.json"));
  const answer = JSON.parse(readFileSync(at("answer.json"), "utf8"));
  if (answer.failed) throw new Error(answer.failed);
  return answer;
}

/** Whether llama.cpp reads a file as we do: where its tokens leave the exact ones, and the errors of 8-bit activations on both sides. */
function compare(gguf) {
  const answer = JSON.parse(run(wgslm, "run", "-m", gguf, "--device", "cpu", "--numerics", "exact", "--temp", "0", "-n", String(TOKENS), "--raw", "--json", PROMPT));
  const { prompt_ids: prompt, ids: greedy } = answer;
  const ids = [...prompt, ...greedy].slice(0, -1);
  const exact = logits(gguf, "exact", ids);
  const { sampled } = llama(gguf, true, ids.slice(0, 1), prompt, TOKENS);
  const token = greedy.findIndex((id, i) => id !== sampled[i]);
  const way = token < 0 ? "the same" : `until token ${token}, gap ${margin(exact[prompt.length - 1 + token]).toFixed(3)}`;
  const errors = [llama(gguf, false, ids, prompt, 0).logits, logits(gguf, "fast", ids)].map((rows) => nmse(rows, exact).toExponential(1));
  return [way, ...errors];
}

// llama.cpp's Vulkan backend: any adapter, and no fewer bits than f32.
Object.assign(process.env, { GGML_VK_VISIBLE_DEVICES: "0", GGML_VK_DISABLE_F16: "1", GGML_VK_DISABLE_INTEGER_DOT_PRODUCT: "1" });
const base = at("F32.gguf");
run(wgslm, "convert", source, "-t", "F32", "--requantize", "--force", "-o", base);
const measure = (gguf, ...more) => JSON.parse(run(wgslm, "perplexity", "-m", gguf, "--device", "cpu", "--chunks", option.chunks, "--json", ...more));
measure(base, "-f", text, "--kl-divergence-base", at("base.logits"));
console.log("| type | MB | perplexity | KL divergence from F32 | same top token | llama.cpp's tokens | NMSE of its CPU | of ours |\n| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |");
for (const type of option.types.split(",")) {
  const gguf = at(`${type}.gguf`);
  if (type !== "F32") run(wgslm, "convert", base, "-t", type, "--force", "-o", gguf);
  const found = measure(gguf, "--kl-divergence-base", at("base.logits"), "--kl-divergence");
  const { perplexity, perplexity_error, kl_divergence: kl, same_top } = found;
  const cells = [
    type,
    (statSync(gguf).size / 1e6).toFixed(1),
    `${perplexity.toFixed(3)} ± ${perplexity_error.toFixed(3)}`,
    `${kl.mean.toFixed(5)} ± ${kl.error.toFixed(5)}`,
    `${(100 * same_top.mean).toFixed(1)} %`,
    ...compare(gguf),
  ];
  console.log(`| ${cells.join(" | ")} |`);
  if (type !== "F32") rmSync(gguf);
}
