"""Random models of ordinary sizes, with reference logits by transformers: for compare.py, and nothing to commit.

    pip install torch==2.15.0 transformers==5.23.0 numpy
    python tools/llama_cpp/ordinary.py OUT [--only NAME,..]

Hyper-parameters are such that llama.cpp computes the same: it has windows, norms and scales of its own for some families
(COMPATIBILITY.md).
"""

import argparse
import pathlib

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS = 24
BASE = dict(
    vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    head_dim=64, max_position_embeddings=1024, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
)
FULL, WINDOW, LINEAR, CONV = "full_attention", "sliding_attention", "linear_attention", "conv"
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128)
DELTA = dict(
    linear_conv_kernel_dim=4, linear_key_head_dim=64, linear_value_head_dim=64, linear_num_key_heads=2, linear_num_value_heads=4,
    shared_expert_intermediate_size=128, layer_types=[LINEAR, LINEAR, LINEAR, FULL],
)


def rope(kind="default", theta=1e4, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=256)
CASES = {
    "llama": dict(rope_parameters=rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)),
    "llama-128": dict(arch="llama", hidden_size=1024, num_attention_heads=8, num_hidden_layers=2, head_dim=128, rope_parameters=YARN),
    "ministral3": dict(sliding_window=None, rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1, beta_fast=32.0, beta_slow=1.0)),
    "qwen2": dict(use_sliding_window=False),
    "qwen3": dict(head_dim=128),
    "qwen3_moe": EXPERTS | dict(norm_topk_prob=True),
    "mixtral": dict(num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    "gemma2": dict(query_pre_attn_scalar=64, sliding_window=16, tie_word_embeddings=True),
    "gemma3_text": dict(num_hidden_layers=7, query_pre_attn_scalar=64, sliding_window=16, tie_word_embeddings=True),
    "phi3": dict(rope_parameters=rope("longrope", short_factor=[1.0 + i / 32 for i in range(32)], long_factor=[1.0 + i / 4 for i in range(32)], original_max_position_embeddings=8), original_max_position_embeddings=8, sliding_window=None),
    "granite": dict(embedding_multiplier=6.0, attention_multiplier=0.1, residual_multiplier=0.5, logits_scaling=2.0),
    "granitemoehybrid": dict(num_local_experts=8, num_experts_per_tok=2, shared_intermediate_size=128, layer_types=["mamba", "mamba", "attention", "mamba"], mamba_n_heads=8, mamba_d_head=64, mamba_n_groups=1, mamba_d_state=64, embedding_multiplier=6.0, attention_multiplier=0.1, residual_multiplier=0.5, position_embedding_type=None),
    "deepseek_v3": dict(head_dim=32, num_key_value_heads=4, q_lora_rank=192, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, moe_intermediate_size=128, n_group=4, topk_group=2, first_k_dense_replace=1, routed_scaling_factor=2.5, rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=1.0)),
    "gpt_oss": dict(num_local_experts=8, num_experts_per_tok=2, intermediate_size=128, sliding_window=16, rope_parameters=rope(theta=150000.0)),
    "falcon_h1": dict(mamba_d_ssm=512, mamba_n_heads=8, mamba_d_head=64, mamba_n_groups=2, mamba_d_state=64, mamba_rms_norm=False, lm_head_multiplier=0.8, embedding_multiplier=1.6, mlp_multipliers=[0.9, 0.7], key_multiplier=0.6, attention_out_multiplier=0.9, attention_in_multiplier=1.2, ssm_multipliers=[0.8, 1.1, 0.9, 1.2, 0.7], ssm_in_multiplier=1.3, ssm_out_multiplier=0.75),
    "nemotron_h": dict(layers_block_type=[LINEAR, "moe", FULL, "moe"], mamba_num_heads=8, mamba_head_dim=64, n_groups=2, ssm_state_size=64, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=128, moe_shared_expert_intermediate_size=128, routed_scaling_factor=1.5),
    "lfm2": dict(layer_types=[CONV, FULL, CONV, CONV], tie_word_embeddings=True),
    "lfm2_moe": dict(layer_types=[CONV, FULL, CONV, CONV], num_dense_layers=1, routed_scaling_factor=1.0, tie_word_embeddings=True, **EXPERTS),
    "mamba2": dict(num_key_value_heads=None, num_heads=8, head_dim=64, expand=2, n_groups=1, state_size=64),
    "qwen3_next": DELTA | EXPERTS,
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA | EXPERTS,
    "olmo2": {},
    "cohere2": dict(sliding_window=16, logit_scale=0.5, tie_word_embeddings=True),
    "glm4": dict(rope_parameters=rope(partial_rotary_factor=0.5)),
    "exaone4": dict(sliding_window=None, layer_types=[FULL] * 4),
    "smollm3": dict(no_rope_layers=[1, 1, 1, 0]),
    "starcoder2": dict(sliding_window=None),
    "gemma3n_text": dict(num_hidden_layers=25, layer_types=[WINDOW, WINDOW, WINDOW, WINDOW, FULL] * 5, sliding_window=16, num_kv_shared_layers=5, hidden_size_per_layer_input=256, vocab_size_per_layer_input=1024, laurel_rank=64, activation_sparsity_pattern=[0.95] * 10 + [0.0] * 15, tie_word_embeddings=True),
}


def rounded(p):
    """The nearest that Q8_0 has: such weights lose nothing there."""
    if p.shape[-1] % 32:
        return p
    blocks = p.reshape(-1, 32)
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).half().float()
    return ((blocks / scale).round() * scale).reshape(p.shape)


def model_of(name, seed):
    settings = dict(CASES[name])
    config = AutoConfig.for_model(settings.pop("arch", name), **(BASE | settings))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.ndim < 2:
                p += 0.1 * torch.randn_like(p)
            else:
                table = 0.1 if config.tie_word_embeddings else 1.0
                gain = 4.0 if "lm_head" in key else 1.5  # so that one token stands out, and attention sees some rows more than others
                p.copy_(rounded(torch.randn_like(p) * (table if "embed" in key else gain / p.shape[-1] ** 0.5)))
        for key, b in model.named_buffers():
            if "correction_bias" in key or "expert_bias" in key:
                b += 0.05 * torch.randn_like(b)
    return model


@torch.no_grad()
def make(name, out):
    model = model_of(name, seed=sum(map(ord, name)))
    ids = torch.from_numpy(np.random.default_rng(1).integers(3, 1024, 70))
    text = ids[:16]
    logits, sampled, margins = model(ids[None]).logits[0], [], []
    for _ in range(TOKENS):
        top = torch.topk(model(text[None]).logits[0, -1].float(), 2)
        sampled.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        text = torch.cat([text, top.indices[:1]])
    model.save_pretrained(out / name)
    arrays = dict(ids_0=ids.numpy(), logits_0=logits.float().numpy(), prompt=ids[:16].numpy(), greedy=np.array(sampled), greedy_margin=np.array(margins))
    np.savez(out / name / "golden.npz", **arrays)
    print(f"{name}: {sum(p.numel() for p in model.parameters())} weights, logits deviate by {float(logits.std(-1).mean()):.2f}, {len(set(sampled))} tokens", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for name in filter(None, options.only.split(",")) if options.only else CASES:
        make(name, options.out)


main()
