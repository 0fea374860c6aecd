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
const TOKENS = 24; // as many as greedy.mjs compares
const CLOSE = 0.05; // behind a step whose two best logits are closer, texts may go separate ways

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

/** The gap between the two best logits of each generated token, from the float32 file that `wgslm logits` writes. */
function margins(path, rows) {
  const file = readFileSync(path);
  const header = 10 + file.readUInt16LE(8);
  const vocab = (file.length - header) / 4 / rows;
  const logits = new Float32Array(file.buffer.slice(file.byteOffset + header, file.byteOffset + file.length));
  return Array.from({ length: TOKENS }, (_, i) => {
    const first = (rows - TOKENS + i) * vocab;
    let [best, second] = [-Infinity, -Infinity];
    for (const logit of logits.subarray(first, first + vocab)) {
      if (logit > best) [best, second] = [logit, best];
      else if (logit > second) second = logit;
    }
    return best - second;
  });
}

/** Whether llama.cpp goes the same way with a file. */
function llama(gguf) {
  const answer = JSON.parse(run(wgslm, "run", "-m", gguf, "--device", "cpu", "--temp", "0", "-n", String(TOKENS), "--raw", "--json", PROMPT));
  const { prompt_ids: prompt, ids: greedy } = answer;
  const ids = [...prompt, ...greedy].slice(0, -1);
  run(wgslm, "logits", "-m", gguf, "--device", "cpu", "--ids", ids.join(","), "-o", at("logits.npy"));
  const margin = margins(at("logits.npy"), ids.length);
  writeFileSync(at("case.json"), JSON.stringify({ name: gguf, gguf, prompt, greedy, margin }));
  const lines = run(process.execPath, fileURLToPath(new URL("greedy.mjs", import.meta.url)), at("case.json")).trim().split("\n");
  const found = lines.find((line) => /^(ok|differs|failed)/.test(line)) ?? lines.at(-1);
  const differs = /^differs at token (\d+)/.exec(found);
  if (!differs) return found === "ok" ? "the same" : found;
  const close = margin.findIndex((gap) => gap < CLOSE);
  const token = Number(differs[1]);
  return close >= 0 && close <= token ? `the same up to token ${token}, margin ${margin[token].toFixed(3)}` : `DIFFERS at token ${token}, margin ${margin[token].toFixed(3)}`;
}

const base = at("F32.gguf");
run(wgslm, "convert", source, "-t", "F32", "--requantize", "--force", "-o", base);
const measure = (gguf, ...more) => JSON.parse(run(wgslm, "perplexity", "-m", gguf, "--device", "cpu", "--chunks", option.chunks, "--json", ...more));
measure(base, "-f", text, "--kl-divergence-base", at("base.logits"));
console.log("| type | MB | perplexity | KL divergence from F32 | same top token | llama.cpp |\n| --- | ---: | ---: | ---: | ---: | --- |");
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
    llama(gguf),
  ];
  console.log(`| ${cells.join(" | ")} |`);
  if (type !== "F32") rmSync(gguf);
}
