// wgslm beside llama.cpp, alternating, on the same files: see scripts/bench-peers.
//
// A round runs each side once as a process of its own, which reads the model, warms up and measures; the order changes from
// round to round. A round's ratio compares the two medians of that round. The table has the median of the rounds' ratios with
// the lowest and the highest. Speeds are medians over rounds.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync } from "node:fs";
import { homedir, loadavg } from "node:os";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values: option } = parseArgs({
  options: {
    wgslm: { type: "string" },
    folder: { type: "string" },
    quick: { type: "boolean", default: false },
    json: { type: "boolean", default: false },
    only: { type: "string", multiple: true, default: [] },
    rounds: { type: "string" },
  },
});
const real = join(process.env.WGSLM_TEST_DATA || join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "wgslm-test-data"), "models");
const rounds = Number(option.rounds ?? (option.quick ? 3 : 5));
const say = (text) => process.stderr.isTTY && process.stderr.write(`\r\x1b[K${text}`);

/** What is measured: a file of the test models, or a shape and a type; tokens of a prompt and generated ones. */
const cpu = option.quick ? { prompt: 64, generate: 16 } : { prompt: 128, generate: 64 };
const vulkan = option.quick ? { prompt: 32, generate: 4 } : { prompt: 128, generate: 8 };
const files = ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"];
const types = ["Q4_0", "Q4_K_M", "Q8_0"];
const of = (shape) => types.map((type) => ({ shape, type }));
const cases = [
  ...[...files.map((file) => ({ file })), ...of("160M")].map((one) => ({ ...one, device: "cpu", ...cpu })),
  ...(option.quick ? [] : of("Llama-3.2-1B")).map((one) => ({ ...one, device: "cpu", prompt: 64, generate: 16 })),
  ...of("160M").map((one) => ({ ...one, device: "vulkan", ...vulkan })),
];
const threads = { cpu: [1, 2], vulkan: [null] };

function run(command, args, env = {}) {
  const done = spawnSync(command, args, { encoding: "utf8", env: { ...process.env, ...env }, maxBuffer: 1 << 26 });
  if (done.status !== 0) throw new Error(`${basename(command)} ${args.join(" ")}: ${done.error ?? done.stderr}`);
  return done.stdout;
}

/** The path of a case's file, which is written if it is a shape. */
function path({ file, shape, type }) {
  if (file) {
    if (!existsSync(join(real, file))) throw new Error(`${join(real, file)} is missing: scripts/test fetches it`);
    return join(real, file);
  }
  const written = join(option.folder, `${shape}.${type}.gguf`);
  mkdirSync(option.folder, { recursive: true });
  if (!existsSync(written)) run(option.wgslm, ["convert", "--shape", shape, "-t", type, "-o", written]);
  return written;
}

/** Software adapters must be asked for; where there is a real one, llama.cpp finds it. */
const adapters = JSON.parse(run(option.wgslm, ["devices", "--json"])).filter(({ device }) => device !== "cpu");
const software = adapters.length > 0 && adapters.every(({ kind }) => kind === "software");
const llamaEnv = software ? { GGML_VK_VISIBLE_DEVICES: process.env.GGML_VK_VISIBLE_DEVICES ?? "0" } : {};

function llama(one, n) {
  const args = [fileURLToPath(new URL("llama.mjs", import.meta.url)), path(one), "--device", one.device, "--threads", String(n ?? 1)];
  const lengths = ["--prompt", String(one.prompt), "--generate", String(one.generate), "--repetitions", one.device === "cpu" ? "3" : "1"];
  const tests = JSON.parse(run(process.execPath, [...args, ...lengths], one.device === "vulkan" ? llamaEnv : {}));
  if (one.device === "vulkan") {
    const { device, offloaded } = tests[0];
    const [there, all] = offloaded.split(" of ");
    if (!device || there !== all) throw new Error(`llama.cpp fell back to the CPU: ${offloaded} layers on ${device || "no GPU"}; nothing is compared`);
  }
  return tests;
}

function wgslm(one, n, adapter) {
  const device = one.device === "cpu" ? ["--device", "cpu", "-t", String(n)] : ["--device", adapter];
  const lengths = ["-p", String(one.prompt), "-n", String(one.generate), "-r", one.device === "cpu" ? "3" : "1"];
  return JSON.parse(run(option.wgslm, ["bench", "-m", path(one), ...device, ...lengths, "-o", "json"]));
}

const median = (numbers) => {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

const rows = [];
const versions = new Set();
for (const one of cases) {
  for (const n of threads[one.device]) {
    const model = one.file?.replace(/\.gguf$/, "") ?? `${one.shape} ${one.type}`;
    const name = `${model} ${one.device}${n ? ` ${n}` : ""}`;
    if (option.only.some((word) => !name.toLowerCase().includes(word.toLowerCase()))) continue;
    // The adapter of ours that llama.cpp names, too.
    let [adapter, device] = ["", "CPU"];
    if (one.device === "vulkan") {
      device = llama({ ...one, prompt: 1, generate: 1 }, n)[0].device;
      adapter = adapters.find((own) => own.name === device)?.device;
      if (!adapter) throw new Error(`llama.cpp runs on ${device}; wgslm has ${adapters.map((own) => own.name).join(", ") || "no adapter"}`);
    }
    const tests = new Map();
    for (let round = 0; round < rounds; round++) {
      say(`${name}: round ${round + 1} of ${rounds}`);
      const sides = { wgslm: () => wgslm(one, n, adapter), llama: () => llama(one, n) };
      const order = round % 2 ? ["llama", "wgslm"] : ["wgslm", "llama"];
      const found = Object.fromEntries(order.map((side) => [side, sides[side]()]));
      versions.add(found.llama[0].version);
      for (const own of found.wgslm) {
        const peer = found.llama.find(({ test }) => test === own.test);
        const samples = tests.get(own.test) ?? { wgslm: [], llama: [], read: [], bandwidth: [] };
        samples.wgslm.push(median(own.samples_ts));
        samples.llama.push(median(peer.samples_ts));
        samples.read.push(own.bytes_per_token * median(own.samples_ts));
        samples.bandwidth.push(own.bandwidth);
        tests.set(own.test, samples);
      }
    }
    for (const [test, { wgslm, llama, read, bandwidth }] of tests) {
      const ratios = wgslm.map((rate, i) => rate / llama[i]);
      rows.push({ model, device, threads: n, test, wgslm, llama, ratios, read, bandwidth });
    }
  }
}
say("");

const number = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));
const rates = (side) => `${number(median(side))} (${number(Math.min(...side))} - ${number(Math.max(...side))})`;
if (option.json) {
  console.log(JSON.stringify({ peers: [...versions], rounds, load: loadavg()[0], results: rows }, null, 2));
} else {
  const lines = [["model", "device", "threads", "test", "wgslm t/s", "llama.cpp t/s", "ratio", "read"], Array(8).fill("---")];
  for (const { model, device, threads, test, wgslm, llama, ratios, read, bandwidth } of rows) {
    const share = test.startsWith("tg") ? `${((100 * median(read)) / median(bandwidth)).toFixed(0)} % of ${(median(bandwidth) / 1e9).toFixed(1)} GB/s` : "";
    lines.push([model, device, threads ?? "", test, rates(wgslm), rates(llama), `**${median(ratios).toFixed(2)}** (${Math.min(...ratios).toFixed(2)} - ${Math.max(...ratios).toFixed(2)})`, share]);
  }
  console.log(lines.map((cells) => `| ${cells.join(" | ")} |`).join("\n"));

  // Each side at the number of threads that suits it.
  const best = new Map();
  for (const row of rows.filter((row) => row.threads)) {
    const key = `${row.model} | ${row.test}`;
    const other = best.get(key) ?? { wgslm: row, llama: row };
    const better = (side) => (median(row[side]) > median(other[side][side]) ? row : other[side]);
    best.set(key, { wgslm: better("wgslm"), llama: better("llama") });
  }
  if (best.size > 0) {
    console.log("\n| model | test | wgslm, threads | llama.cpp, threads | ratio |\n| --- | --- | --- | --- | --- |");
    for (const [key, { wgslm, llama }] of best) {
      const [ours, theirs] = [median(wgslm.wgslm), median(llama.llama)];
      console.log(`| ${key} | ${number(ours)}, ${wgslm.threads} | ${number(theirs)}, ${llama.threads} | **${(ours / theirs).toFixed(2)}** |`);
    }
  }
  console.log(`\n${[...versions].join(", ")}; ${rounds} rounds; load ${loadavg()[0].toFixed(1)}`);
}
