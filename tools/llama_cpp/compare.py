"""Do the GGUF files that `wgslm convert` writes say the same in llama.cpp?

Converts every tiny model of the shared test data to F32 and compares llama.cpp's 24 greedy tokens with the reference's.
COMPATIBILITY.md lists what came of it.

    cargo build && npm install --prefix tools/llama_cpp node-llama-cpp && pip install numpy
    python tools/llama_cpp/compare.py ../shared/data/tiny-models target/debug/wgslm
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np


def tokenizer(vocab):
    """llama.cpp runs no model without a vocabulary: words that nobody uses."""
    words = {f"t{i}": i for i in range(vocab)}
    model = {"type": "WordPiece", "unk_token": "t0", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": words}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model}


def check(folder, wgslm, work):
    golden = np.load(folder / "golden.npz")
    if "greedy" not in golden:
        return "no logits"
    copy = work / folder.name
    shutil.copytree(folder, copy)
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer(golden["logits_0"].shape[-1])))
    gguf = work / f"{folder.name}.gguf"
    done = subprocess.run([wgslm, "convert", copy, "-o", gguf, "-t", "F32"], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    case = {"name": folder.name, "gguf": str(gguf), "prompt": golden["prompt"].tolist(), "greedy": golden["greedy"].tolist(), "margin": golden["greedy_margin"].tolist()}
    path = work / f"{folder.name}.json"
    path.write_text(json.dumps(case))
    script = pathlib.Path(__file__).parent / "greedy.mjs"
    done = subprocess.run(["node", script, path], capture_output=True, text=True, timeout=120)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    answer = [line for line in lines if line.startswith(("ok", "differs", "failed"))]
    return (answer or lines or ["no answer"])[-1]


def main():
    models, wgslm = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as work:
        for folder in sorted(path for path in models.iterdir() if path.is_dir()):
            print(f"{folder.name}: {check(folder, wgslm, pathlib.Path(work))}", flush=True)


main()
