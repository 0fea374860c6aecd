"""What transformers makes of the embedded model, at every position of a text.

    pip install -r requirements.txt transformers==5.23.0
    python reference.py ../../assets/tiny.gguf ../../tests/data/embedded

writes `reference.npz` (ids and float32 logits) and the `config.json` that the
model's safetensors form would have.  check.py does the same in numpy: both
have to give the greedy tokens of `assets/tiny.reference.json`.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from hf import dequantised, hf_config, logits_of, transformer

POSITIONS = 48


def config_of(path):
    fields = GGUFReader(path).fields
    get = lambda key: fields[key].contents()
    return {
        "vocab": len(get("tokenizer.ggml.tokens")),
        "context": get("llama.context_length"),
        "dim": get("llama.embedding_length"),
        "layers": get("llama.block_count"),
        "heads": get("llama.attention.head_count"),
        "kv_heads": get("llama.attention.head_count_kv"),
        "ffn": get("llama.feed_forward_length"),
        "eps": round(get("llama.attention.layer_norm_rms_epsilon"), 12),
        "rope_base": get("llama.rope.freq_base"),
        "bos": get("tokenizer.ggml.bos_token_id"),
        "eos": get("tokenizer.ggml.eos_token_id"),
    }


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("gguf", type=Path)
    ap.add_argument("to", type=Path)
    args = ap.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    config = config_of(args.gguf)
    model = transformer(dequantised(args.gguf), config)
    cases = json.loads(args.gguf.with_suffix(".reference.json").read_text())["cases"]
    for case in cases:
        ids = case["prompt_ids"] + case["greedy_ids"]
        best = logits_of(model, ids[:-1])[len(case["prompt_ids"]) - 1 :].argmax(-1)
        assert best.tolist() == case["greedy_ids"], case["name"]
    ids = (cases[0]["prompt_ids"] + cases[0]["greedy_ids"])[:POSITIONS]
    np.savez_compressed(args.to / "reference.npz", ids=np.array(ids, np.int32), logits=logits_of(model, ids).numpy())
    (args.to / "config.json").write_text(json.dumps(hf_config(config), indent=1) + "\n")


if __name__ == "__main__":
    main()
