// wgslm beside llama.cpp, alternating, on the same files: see scripts/bench-peers.
//
// A round runs each side once as a process of its own, which reads the model, warms up and measures; the order changes from
// round to round. A round's ratio compares the two medians of that round. The table has the median of the rounds' ratios with
// the lowest and the highest. Speeds are medians over rounds.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
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
    list: { type: "boolean", default: false },
  },
});
const real = join(process.env.WGSLM_TEST_DATA || join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "wgslm-test-data"), "models");
const rounds = Number(option.rounds ?? (option.quick ? 3 : 5));
const say = (text) => process.stderr.isTTY && process.stderr.write(`\r\x1b[K${text}`);

/** llama.cpp's own programs, where they are installed: $LLAMA_CPP is what stands before their names, a folder or a command. */
const native = (name) => {
  const before = process.env.LLAMA_CPP ?? "";
  const words = before.split(" ").filter(Boolean);
  const [command, ...args] = before.endsWith("/") ? [join(before, name)] : [...words, name];
  const found = spawnSync(command, [...args, "--help"], { encoding: "utf8" });
  return found.status === 0 ? [command, ...args] : null;
};
const llamaBench = native("llama-bench");
const llamaBatchedBench = native("llama-batched-bench");

/**
 * What is measured. A case is a file of the test models, or a shape and a type; threads to be tried; lengths of prompts and of
 * what is generated, at depths; how many neighbours keep a core busy; how many sequences run at once. Its name begins with the name of its group.
 */
const cpu = option.quick ? { prompt: [64], generate: [16] } : { prompt: [512], generate: [64] };
const vulkan = option.quick ? { prompt: [32], generate: [4] } : { prompt: [128], generate: [8] };
const types = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS"];
const common = ["Q4_0", "Q4_K_M", "Q8_0"];
const floats = ["F32", "F16", "BF16"];
const kinds = ["moe", "latent", "hybrid", "delta", "recurrent", "windows", "sinks", "learned-positions"];
const group = (group, cases) => cases.map((one) => ({ device: "cpu", threads: [1, 2], ...cpu, ...one, group }));
const cases = [
  ...group("real", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"].map((file) => ({ file }))),
  ...group("formats", types.map((type) => ({ shape: "160M", type }))),
  ...group("floats", floats.map((type) => ({ shape: "160M", type }))),
  ...(option.quick ? [] : group("1B", [...common, "Q6_K", "F16", "BF16"].map((type) => ({ shape: "Llama-3.2-1B", type, generate: [32] })))),
  // Of other formats, answers alone: they are what waits for memory.
  ...(option.quick ? [] : group("1B", types.filter((type) => ![...common, "Q6_K"].includes(type)).map((type) => ({ shape: "Llama-3.2-1B", type, prompt: [], generate: [32] })))),
  ...group("long", [...types, ...floats].map((type) => ({ shape: "160M", type, prompt: [2048], generate: [], threads: [2] }))),
  ...group("depth", [4096, ...(option.quick ? [] : [16_384 - 512])].map((depth) => ({ shape: "160M", type: "Q4_K_M", depth, threads: [2] }))),
  ...group("kinds", kinds.map((shape) => ({ shape, type: "Q4_K_M" }))),
  ...group("kinds", ["moe", "latent", "windows", "sinks", "learned-positions"].map((shape) => ({ shape, type: "Q4_K_M", depth: 2048, threads: [2] }))),
  ...group("neighbours", [0, 1, 2].map((neighbours) => ({ shape: "160M", type: "Q4_K_M", neighbours, threads: [1, 2, 8] }))),
  ...group("embed", [...["F32", "F16", "Q8_0"].map((type) => ({ shape: "encoder", type })), { file: "all-MiniLM-L6-v2", python: true }].map((one) => ({ ...one, texts: option.quick ? 200 : 1000 }))),
  ...group("parallel", [{ shape: "160M", type: "Q4_0" }, { file: "SmolLM2-135M-Instruct.Q4_1.gguf" }].map((one) => ({ ...one, parallel: [1, 4, 16], prompt: [128], generate: [128], threads: [2] }))),
  ...group("vulkan", common.map((type) => ({ shape: "160M", type, device: "vulkan", threads: [null], ...vulkan }))),
];

function run(command, args, env = {}) {
  const done = spawnSync(command, args, { encoding: "utf8", env: { ...process.env, ...env }, maxBuffer: 1 << 26 });
  if (done.status !== 0) throw new Error(`${basename(command)} ${args.join(" ")}: ${done.error ?? done.stderr}`);
  return done.stdout;
}

/** Runs something while so many processes keep a core busy each. */
function beside(neighbours, body) {
  const busy = Array.from({ length: neighbours ?? 0 }, () => spawn(process.execPath, ["-e", "for (;;);"], { stdio: "ignore" }));
  try {
    return body();
  } finally {
    busy.forEach((one) => one.kill("SIGKILL"));
  }
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

/** Tests of `llama-bench`: of all that were made, the same names as wgslm's. */
function llamaNative(one, n) {
  const [command, ...before] = llamaBench;
  const list = (lengths) => (lengths.length ? lengths.join(",") : "0");
  const lengths = ["-p", list(one.prompt), "-n", list(one.generate), "-d", String(one.depth ?? 0), "-r", "3"];
  let tests = [];
  try {
    tests = JSON.parse(run(command, [...before, "-m", path(one), "-t", String(n), "-ngl", "0", ...lengths, "-o", "json"]));
  } catch (error) {
    // It may not have the model; ours is measured all the same.
    console.error(`\n${String(error.message).split("\n").filter(Boolean).slice(-2).join(" ")}`);
    return undefined;
  }
  return tests.map((test) => ({
    test: `${test.n_gen ? `tg${test.n_gen}` : `pp${test.n_prompt}`}${test.n_depth ? ` @ d${test.n_depth}` : ""}`,
    samples_ts: test.samples_ts,
    version: `llama-bench ${test.build_number} (${test.build_commit}), ${test.backends}`,
  }));
}

/** The same of `llama-batched-bench`, which generates where its prompts end. */
function llamaBatched(one, n) {
  const [[prompt], [generate]] = [one.prompt, one.generate];
  const most = Math.max(...one.parallel);
  const lengths = ["-npp", String(prompt), "-ntg", String(generate), "-npl", one.parallel.join(","), "-c", String(most * (prompt + generate)), "-b", "2048"];
  const [command, ...before] = llamaBatchedBench;
  const out = run(command, [...before, "-m", path(one), "-t", String(n), "-ngl", "0", ...lengths, "--output-format", "jsonl"]);
  const runs = out.split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
  const times = (pl) => (pl > 1 ? ` x${pl}` : "");
  return runs.flatMap(({ pl, speed_pp, speed_tg }) => [
    { test: `pp${prompt}${times(pl)}`, samples_ts: [speed_pp], version: "llama-batched-bench" },
    { test: `tg${generate} @ d${prompt}${times(pl)}`, samples_ts: [speed_tg] },
  ]);
}

function llama(one, n) {
  if (one.parallel) return llamaBatchedBench ? llamaBatched(one, n) : undefined;
  if (one.device === "cpu" && llamaBench) return llamaNative(one, n);
  const tests = [];
  for (const [option, lengths] of [["--prompt", one.prompt], ["--generate", one.generate]]) {
    for (const length of lengths) tests.push(...llamaInNode(one, n, option, length));
  }
  return tests;
}

function llamaInNode(one, n, kind, length) {
  const args = [fileURLToPath(new URL("llama.mjs", import.meta.url)), path(one), "--device", one.device, "--threads", String(n ?? 1)];
  const other = kind === "--prompt" ? "--generate" : "--prompt";
  const lengths = [kind, String(length), other, "0", "--depth", String(one.depth ?? 0), "--repetitions", one.device === "cpu" ? "3" : "1"];
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
  if (one.parallel) {
    const bench = ["bench", "-m", path(one), ...device, "--parallel", one.parallel.join(","), "-r", "1", "-o", "json"];
    const [[prompt], [generate]] = [one.prompt, one.generate];
    const prompts = JSON.parse(run(option.wgslm, [...bench, "-p", String(prompt), "-n", "0"]));
    return [...prompts, ...JSON.parse(run(option.wgslm, [...bench, "-p", "0", "-n", String(generate), "-d", String(prompt)]))];
  }
  const list = (lengths) => (lengths.length ? lengths.join(",") : "0");
  const lengths = ["-p", list(one.prompt), "-n", list(one.generate), "-d", String(one.depth ?? 0), "-r", one.device === "cpu" ? "3" : "1"];
  return JSON.parse(run(option.wgslm, ["bench", "-m", path(one), ...device, ...lengths, "-o", "json"]));
}

const median = (numbers) => {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

/** Texts a second over lines of text, of whole processes; where the peer is Python, its loading is spared. */
function texts(one, n) {
  const lines = Array.from({ length: one.texts }, (_, i) => Array.from({ length: 26 }, (_, j) => "word".slice((i + j) % 3) + ((i * 31 + j * 7) % 97)).join(" ").slice(0, 158));
  const [ours, theirs] = ["jsonl", "txt"].map((end) => join(option.folder, `texts-${one.texts}.${end}`));
  path(one);
  writeFileSync(ours, lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  writeFileSync(theirs, lines.join("\n"));
  const timed = (command, args) => {
    const started = process.hrtime.bigint();
    run(command, args);
    return [{ test: `${one.texts} texts`, samples_ts: [one.texts / (Number(process.hrtime.bigint() - started) / 1e9)] }];
  };
  const inLlama = () => {
    const peer = native("llama-embedding");
    return peer && timed(peer[0], [...peer.slice(1), "-m", path(one), "-t", String(n), "-f", theirs, "--pooling", "mean", "--embd-output-format", "array", "-b", "2048", "-ub", "2048", "-ngl", "0"]);
  };
  const inPython = () => {
    const [command, ...args] = (process.env.PYTHON || "python3").split(" ");
    const there = spawnSync(command, [...args, "-c", "import sentence_transformers"]).status === 0;
    return there ? JSON.parse(run(command, [...args, fileURLToPath(new URL("texts.py", import.meta.url)), path(one), String(n), theirs])) : null;
  };
  return {
    wgslm: () => timed(option.wgslm, ["embed", "-m", path(one), "--device", "cpu", "--threads", String(n), "-i", ours]),
    llama: one.python ? inPython : inLlama,
  };
}

const rows = [];
const versions = new Set();
for (const one of cases) {
  for (const n of one.threads) {
    const model = `${one.file?.replace(/\.gguf$/, "") ?? `${one.shape} ${one.type}`}${one.neighbours === undefined ? "" : `, ${one.neighbours} neighbours`}`;
    const name = `${one.group}: ${model} ${one.device}${n ? ` ${n}` : ""}`;
    if (option.list) {
      console.log(name);
      continue;
    }
    if (option.only.some((word) => !name.toLowerCase().includes(word.toLowerCase()))) continue;
    // The adapter of ours that llama.cpp names, too.
    let [adapter, device] = ["", "CPU"];
    if (one.device === "vulkan") {
      device = llama({ ...one, prompt: [1], generate: [] }, n)[0].device;
      adapter = adapters.find((own) => own.name === device)?.device;
      if (!adapter) throw new Error(`llama.cpp runs on ${device}; wgslm has ${adapters.map((own) => own.name).join(", ") || "no adapter"}`);
    }
    const tests = new Map();
    for (let round = 0; round < rounds; round++) {
      say(`${name}: round ${round + 1} of ${rounds}`);
      const sides = one.texts ? texts(one, n) : { wgslm: () => wgslm(one, n, adapter), llama: () => llama(one, n) };
      const order = round % 2 ? ["llama", "wgslm"] : ["wgslm", "llama"];
      const found = Object.fromEntries(order.map((side) => [side, beside(one.neighbours, sides[side])]));
      versions.add(found.llama?.[0].version ?? "llama.cpp");
      for (const own of found.wgslm) {
        // llama.cpp may lack a model that we have.
        const peer = found.llama?.find(({ test }) => test === own.test) ?? { samples_ts: [NaN] };
        const samples = tests.get(own.test) ?? { wgslm: [], llama: [], read: [], bandwidth: [] };
        samples.wgslm.push(median(own.samples_ts));
        samples.llama.push(median(peer.samples_ts));
        samples.read.push((own.bytes_per_token ?? NaN) * median(own.samples_ts));
        samples.bandwidth.push(own.bandwidth ?? NaN);
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
if (!option.list && rows.length === 0) throw new Error(`no case has ${option.only.join(" and ")} in its name; --list prints the names`);

const number = (x) => (Number.isNaN(x) ? "-" : x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));
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
