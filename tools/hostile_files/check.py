"""Holds tests/data/hostile against readers of others: python3 tools/hostile_files/check.py [FOLDER]

make.py needs only Python; this needs `pip install -r tools/hostile_files/requirements.txt`.
What is sound must be read by gguf, safetensors, tokenizers and Jinja2. A forward pass in numpy must give the same
logits for every file that claims it, and logits that are not finite where a weight is not.
"""

import json
import re
import sys
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment

import tiny_llama as llama
from gguf_cases import model_pairs
from make import FOLDER, all_cases

IDS = [llama.BOS, 261, 270, 300]


def read_gguf(paths):
    """The tensors of a model, in f64, and the keys of its first file."""
    readers = [gguf.GGUFReader(path) for path in paths]
    tensors = {t.name: t.data.astype(np.float64) for reader in readers for t in reader.tensors}
    return tensors, readers[0].fields


def read_folder(path):
    """The same of a model folder, under GGUF's names and in its row order."""
    index = path.parent / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else [path.name]
    stored = {}
    for file in files:
        stored |= safetensors.numpy.load_file(path.parent / file)
    names = {folder: gguf for gguf, folder in llama.FOLDER_NAMES.items()}
    tensors = {}
    for name, data in stored.items():
        layer, role = re.fullmatch(r"model\.(?:layers\.(\d)\.)?(.+?)(?:\.weight)?", name).groups()
        if role not in names:
            continue
        role, data = names[role], data.astype(np.float64)
        if role in ("attn_q", "attn_k"):
            order = llama.gguf_rows(len(data), llama.HEADS if role == "attn_q" else llama.KV_HEADS)
            data = data[np.argsort(order)]
        tensors[(f"blk.{layer}." if layer else "") + role + ".weight"] = data
    return tensors


def logits(tensors):
    """llama's forward pass over IDS, as the papers have it."""

    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight

    def rope(x):  # (tokens, heads, head_dim), pairs of neighbours
        angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, llama.HEAD_DIM, 2) / llama.HEAD_DIM)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = x[..., ::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    x = tensors["token_embd.weight"][IDS]
    rows = len(IDS)
    for layer in range(llama.LAYERS):
        w = {name.split(".")[2]: data for name, data in tensors.items() if name.startswith(f"blk.{layer}.")}
        y = norm(x, w["attn_norm"])
        q = rope((y @ w["attn_q"].T).reshape(rows, llama.HEADS, -1))
        k, v = ((y @ w[name].T).reshape(rows, llama.KV_HEADS, -1) for name in ("attn_k", "attn_v"))
        k, v = (np.repeat(t, llama.HEADS // llama.KV_HEADS, axis=1) for t in (rope(k), v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(llama.HEAD_DIM)
        scores = np.where(np.tri(rows, dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", scores, v).reshape(rows, -1) @ w["attn_output"].T
        y = norm(x, w["ffn_norm"])
        gate = y @ w["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w["ffn_up"].T)) @ w["ffn_down"].T
    return norm(x, tensors["output_norm.weight"]) @ tensors["token_embd.weight"].T


def check_models(folder, cases):
    """Every GGUF file and folder that is a model by its case. Returns how many files were read, by reader."""
    counts, results = {}, {}
    expected = llama.Weights()
    for case in cases:
        file, kind = case["file"], case["kind"]
        if kind not in ("gguf", "safetensors") or case["expect"] not in ("ok", "nan"):
            continue
        paths = [folder / part for part in case.get("parts", [file]) if not part.endswith(".json")]
        counts[kind] = counts.get(kind, 0) + len(paths)
        if kind == "safetensors" and case["stage"] == "container":
            safetensors.numpy.load_file(paths[0])
            continue
        tensors, fields = read_gguf(paths) if kind == "gguf" else (read_folder(paths[0]), {})
        if case["stage"] in ("container", "tokenizer"):
            continue
        tokens = len(tensors["token_embd.weight"])
        for key, _, content in model_pairs(tokens) if kind == "gguf" and file != "g-ok-names.gguf" else []:
            read = fields[key].contents()
            if isinstance(content, tuple):
                content = [e.decode() if isinstance(e, bytes) else e for e in content[1]]
            assert np.array_equal(read, np.float32(content) if isinstance(content, float) else content), (file, key)
        for name, (shape, values) in expected.for_vocabulary(tokens).items():
            changed = tensors[name][tensors[name] != np.reshape(values, shape)]
            assert changed.size == 0 or case["expect"] == "nan" and not np.isfinite(changed).any(), (file, name)
        with np.errstate(all="ignore"):
            results[file] = logits(tensors)
    for case in cases:
        if case["file"] in results:
            ours = results[case["file"]]
            assert np.isfinite(ours).all() == (case["expect"] == "ok"), case["file"]
            if "same_as" in case:
                assert np.array_equal(ours, results[case["same_as"]]), case["file"]
    counts["numpy"] = len(results)
    return counts


def check_tokenizers(folder, cases):
    sound = [case["file"] for case in cases if case["kind"] == "tokenizer" and case["expect"] == "ok"]
    for file in sound:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / file))
        assert tokenizer.decode(tokenizer.encode("the and").ids) == "the and"
    return {"tokenizers": len(sound)}


def check_templates(folder, index):
    sound = [case for case in index["cases"] if case["kind"] == "template" and case["expect"] == "ok"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    for case in sound:
        template = environment.from_string((folder / case["file"]).read_text())
        assert template.render(**index["template_context"]) == case["output"], case["file"]
    return {"jinja2": len(sound)}


def main(folder):
    index = json.loads((folder / "index.json").read_text())
    made = all_cases()
    assert index["cases"] == made.cases
    for name, data in made.files.items():
        assert (folder / name).read_bytes() == data, f"{name} is not what make.py makes"
    cases = index["cases"]
    counts = check_models(folder, cases) | check_tokenizers(folder, cases) | check_templates(folder, index)
    print(", ".join(f"{reader}: {count} files" for reader, count in counts.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
