"""Writes the configurations that were once read wrong, with references: tests/data/configurations.

    python fixtures.py ../../tests/data/configurations

A folder each: `config.json` as a person would write it, `config.saved.json`, `config.full.json` and `config.old.json` (see
`fuzz.py`) where they say the same, the weights in float32, and `golden.npz` with 24 `ids` and `logits` computed in float64.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

import fields
import fuzz

TOKENS = 24
BASE = dict(vocab_size=50, hidden_size=16, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64)
ROUTED = dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=8)
LATENT = dict(
    BASE, num_key_value_heads=2, kv_lora_rank=6, q_lora_rank=None, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=6,
    n_shared_experts=1, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=8, first_k_dense_replace=1,
)  # fmt: skip
MAMBA = dict(mamba_n_heads=4, mamba_n_groups=1, mamba_d_state=6, mamba_expand=2, mamba_chunk_size=16)
FULL, SLIDING, CONV, LINEAR = fields.F, fields.S, fields.CONV, fields.LIN
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)

# Name: (architecture, what was wrong is in the name, configuration)
CASES = {
    "ernie-head-bias": ("ernie4_5_moe", dict(BASE, moe_num_experts=3, moe_k=2, moe_intermediate_size=8, moe_num_shared_experts=1, use_bias=True)),
    "qwen3moe-windows": ("qwen3_moe", dict(BASE, **ROUTED, head_dim=8, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen2moe-windows": ("qwen2_moe", dict(BASE, **ROUTED, shared_expert_intermediate_size=8, num_hidden_layers=4, use_sliding_window=True, sliding_window=5, max_window_layers=3)),
    "granitehybrid-without-experts": ("granitemoehybrid", dict(BASE, **MAMBA, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=10, layer_types=[LINEAR, FULL])),
    "ministral3-default-rotation": ("ministral3", dict(BASE, head_dim=8)),
    "nemotronh-default-layers": ("nemotron_h", dict({k: v for k, v in BASE.items() if k != "num_hidden_layers"}, head_dim=8, mamba_num_heads=2, mamba_head_dim=6, n_groups=1, ssm_state_size=4, chunk_size=16, n_routed_experts=3, num_experts_per_tok=2, moe_intermediate_size=8, moe_shared_expert_intermediate_size=8, time_step_min=0.3)),
    "exaone4-no-layer-slides": ("exaone4", dict(BASE, layer_types=[FULL, FULL])),
    "gemma3-rope-theta": ("gemma3_text", dict(BASE, head_dim=8, num_hidden_layers=3, sliding_window=5, layer_types=[SLIDING, FULL, SLIDING], rope_theta=500.0, query_pre_attn_scalar=8)),
    "gemma4-last-layer-is-full": ("gemma4_text", dict(BASE, head_dim=8, global_head_dim=8, hidden_size_per_layer_input=0, vocab_size_per_layer_input=50, sliding_window=5, layer_types=[SLIDING, SLIDING])),
    "olmo3-rotation-of-full-layers": ("olmo3", dict(BASE, sliding_window=5, layer_types=[SLIDING, FULL], rope_theta=500.0, rope_scaling=YARN)),
    "glm4-default-part": ("glm4", dict(BASE, head_dim=8)),
    "phi-default-part": ("phi", dict(BASE)),
    "lfm2-all-attend": ("lfm2", dict(BASE, block_multiple_of=4, layer_types=[FULL, FULL])),
    "lfm2-tie-embedding": ("lfm2", dict(BASE, block_multiple_of=4, layer_types=[CONV, FULL], tie_embedding=False)),
    "deepseek2-biases": ("deepseek_v2", dict(LATENT, mlp_bias=True)),
    "deepseek2-greedy-beside-groups": ("deepseek_v2", dict(LATENT, n_group=3, topk_group=1)),
    "llama-older-table": ("llama", dict(BASE, rope_parameters=dict(rope_type="default", rope_theta=70.0), rope_scaling=dict(type="linear", factor=2.0))),
}


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    fuzz.TOKENS = TOKENS
    out = Path(sys.argv[1])
    out.mkdir(exist_ok=True)
    for name, (arch, cfg) in CASES.items():
        with tempfile.TemporaryDirectory() as work:
            case = fuzz.Case(arch, cfg, 1, Path(work))
            folder = out / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            shutil.copy(case.folder / "saved" / "model.safetensors", folder)
            np.savez_compressed(folder / "golden.npz", ids=case.ids.numpy().astype(np.int32), logits=case.reference.numpy().astype(np.float32))
            forms = [form for form, _ in case.forms()]
            for form in forms:
                config = json.loads((case.folder / form / "config.json").read_text())
                file = "config.json" if form == "given" else f"config.{form}.json"
                (folder / file).write_text(json.dumps(config, indent=1) + "\n")
            size = sum(f.stat().st_size for f in folder.iterdir())
            print(f"{name:32} {case.noise:.0e} {size:7} {' '.join(forms)}")


if __name__ == "__main__":
    main()
