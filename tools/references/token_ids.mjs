// Ids of the texts of tests/data/tokens/texts.json by llama.cpp, for the vocabularies that scripts/fetch-test-data fetches.
//
//   npm install --prefix tools/references      # node-llama-cpp, with its compiled llama.cpp
//   node tools/references/token_ids.mjs
//
// Writes tests/data/tokens/llama.cpp/NAME.json, in the form that token_ids.py has.
import fs from "node:fs";
import { homedir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { getLlama } from "node-llama-cpp";

const folder = path.join(path.dirname(fileURLToPath(import.meta.url)), "../../tests/data/tokens");
const cache = process.env.WGSLM_TEST_DATA || path.join(process.env.XDG_CACHE_HOME || path.join(homedir(), ".cache"), "wgslm-test-data");
const texts = JSON.parse(fs.readFileSync(path.join(folder, "texts.json")));
const llama = await getLlama({ gpu: false, build: "never", skipDownload: true, progressLogs: false, maxThreads: 1, logLevel: "error" });
fs.mkdirSync(path.join(folder, "llama.cpp"), { recursive: true });
for (const name of ["llama-spm", "gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "refact"]) {
  const model = await llama.loadModel({ modelPath: path.join(cache, `vocab-gguf/ggml-vocab-${name}.gguf`), vocabOnly: true });
  const lines = texts.map((text) => {
    const [ids, special] = [false, true].map((parsed) => Array.from(model._model.tokenize(text, parsed)));
    return JSON.stringify(`${ids}` === `${special}` ? { ids } : { ids, special });
  });
  fs.writeFileSync(path.join(folder, `llama.cpp/${name}.json`), `[\n${lines.join(",\n")}\n]\n`);
  console.log(`${name}: ${lines.length} texts`);
  await model.dispose();
}
process.exit(0);
