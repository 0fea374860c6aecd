"""Do the GGUF files that `wgslm convert` writes say the same in llama.cpp?

Converts each model of a folder and compares llama.cpp's logits for a text, and the tokens that it goes on with, with the
reference's in `golden.npz`. COMPATIBILITY.md lists what came of it. Keys and values are kept as f32.

    cargo build && npm install --prefix tools/llama_cpp node-llama-cpp && pip install numpy
    python tools/llama_cpp/compare.py tests/data/tiny-models target/debug/wgslm
    python tools/llama_cpp/ordinary.py /tmp/ordinary            # models of ordinary sizes
    python tools/llama_cpp/compare.py /tmp/ordinary target/debug/wgslm --type Q8_0
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np

TOKENS = 24  # the references' margins are wide for so many
NEAR = 0.05  # a margin between two tokens that rounding can turn


def tokenizer(vocab):
    """llama.cpp runs no model without a vocabulary: words that nobody uses."""
    words = {f"t{i}": i for i in range(vocab)}
    model = {"type": "WordPiece", "unk_token": "t0", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": words}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model}


def nmse(got, expected):
    """The mean over rows of the squared difference by the row's variance."""
    spread = (expected - expected.mean(-1, keepdims=True)) ** 2
    return float((((got - expected) ** 2).sum(-1) / spread.sum(-1)).mean())


def check(folder, wgslm, kind, work):
    golden = np.load(folder / "golden.npz")
    if "greedy" not in golden:
        return "no logits"
    longest = max(int(name.removeprefix("logits_")) for name in golden if name.startswith("logits_"))
    ids, logits, greedy, margin = (golden[name] for name in (f"ids_{longest}", f"logits_{longest}", "greedy", "greedy_margin"))
    copy = work / "model"  # llama.cpp takes some names for a reason to look for tokens
    shutil.copytree(folder, copy)
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer(logits.shape[-1])))
    gguf, case, answer = work / "model.gguf", work / "case.json", work / "answer.json"
    done = subprocess.run([wgslm, "convert", copy, "-o", gguf, "-t", kind], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    case.write_text(json.dumps({"gguf": str(gguf), "ids": ids.tolist(), "prompt": golden["prompt"].tolist(), "tokens": TOKENS}))
    script = pathlib.Path(__file__).parent / "greedy.mjs"
    done = subprocess.run(["node", script, case, answer], capture_output=True, text=True, timeout=300)
    if not answer.exists():
        return f"crashed: {(done.stdout + done.stderr).strip()[-200:]}"
    answer = json.loads(answer.read_text())
    if "failed" in answer:
        return f"failed: {answer['failed']}"
    same = next((i for i in range(TOKENS) if answer["sampled"][i] != greedy[i]), TOKENS)
    sure = next((i for i in range(TOKENS) if margin[i] < NEAR), TOKENS)
    judged = "ok" if same >= sure else f"differs where the margin is {margin[same]:.2f}"
    return f"{judged}; {same} of {TOKENS} tokens (margins below {NEAR} from {sure} on); NMSE {nmse(np.array(answer['logits']), logits):.1e}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("wgslm", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--type", default="F32")
    parser.add_argument("--only", default="", help="names, with commas between")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    for folder in sorted(path for path in options.models.iterdir() if path.is_dir() and (not only or path.name in only)):
        with tempfile.TemporaryDirectory() as work:
            print(f"{folder.name}: {check(folder, options.wgslm, options.type, pathlib.Path(work))}", flush=True)


main()
