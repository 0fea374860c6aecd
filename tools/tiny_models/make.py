"""Tiny random models with golden logits: one folder for each case, made by transformers on the CPU.

    pip install -r requirements.txt
    python make.py OUT                   makes all cases below OUT
    python make.py OUT --only NAME,..    some of them
    python make.py OUT --check           opens each folder afresh, compares with golden.npz, and generates
                                         through transformers' KV cache
    python make.py OUT --table           prints the table of the cases made last, for tests/data/tiny-models/README.md

To add a case: one call of `case` below.  A case that comes out degenerate or
with near-ties takes the next seed.  Other versions may differ in the last
bits, and so may another CPU (exact gelu).
"""
# ruff: noqa: E402, E501 (the environment is set before torch is imported; notes of cases are cells of a table)

import argparse
import copy
import inspect
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("MKL_CBWR", "AVX2")  # the same bits whatever the alignment or the newer CPU
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
warnings.filterwarnings("ignore")
import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

CASES = []
LENGTHS = (1, 24, 70)
N_GREEDY = 64
SAFE = 24  # the first SAFE greedy tokens have a clear margin

S, F, LIN, CONV = "sliding_attention", "full_attention", "linear_attention", "conv"
BASE = dict(
    vocab_size=103,
    hidden_size=32,
    intermediate_size=36,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    tie_word_embeddings=False,
)


def rope(kind="default", theta=10000.0, **kw):
    return dict(rope_type=kind, rope_theta=theta, **kw)


def llama3(theta=10000.0, factor=8.0, orig=48, low=1.0, high=4.0):
    return rope("llama3", theta, factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_position_embeddings=orig)


def yarn(theta=200.0, factor=4.0, orig=32, fast=2.0, slow=0.25, **kw):
    """With heads this small the usual 32 / 1 and theta 1e4 would leave no ramp between the two ends."""
    return rope("yarn", theta, factor=factor, original_max_position_embeddings=orig, beta_fast=fast, beta_slow=slow, **kw)


def case(name, arch, seed, note, kind="causal", drop=(), prompt_len=16, emb=None, fin=1.0, pooling=None, **cfg):
    base = {k: v for k, v in BASE.items() if k not in drop}
    base.update(cfg)
    CASES.append(
        dict(name=name, arch=arch, seed=seed, note=note, kind=kind, prompt_len=prompt_len, emb=emb, fin=fin, pooling=pooling, cfg=base)
    )


def all_cases():
    c = case
    c(
        "llama-rope3",
        "llama",
        11,
        "llama3 rope scaling beyond its original 48, head_dim 20 (32/4=8), GQA 2, tied",
        head_dim=20,
        rope_parameters=llama3(),
        tie_word_embeddings=True,
    )
    c(
        "llama-linear-bias",
        "llama",
        12,
        "linear rope factor 3, biases in attention and MLP, one KV head, vocab 97, rms eps 1e-3",
        vocab_size=97,
        num_key_value_heads=1,
        head_dim=12,
        rope_parameters=rope("linear", factor=3.0),
        attention_bias=True,
        mlp_bias=True,
        rms_norm_eps=1e-3,
    )
    c(
        "llama-mha-odd",
        "llama",
        13,
        "hidden 40, 5 heads = KV heads, intermediate 67, theta 500, gelu, vocab 209",
        vocab_size=209,
        hidden_size=40,
        intermediate_size=67,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=8,
        hidden_act="gelu",
        rope_parameters=rope(theta=500.0),
        num_hidden_layers=2,
    )
    c("mistral-window", "mistral", 14, "window 6 in every layer, head_dim 12, GQA 2", sliding_window=6, head_dim=12, rope_parameters=rope())
    c(
        "ministral-mixed",
        "ministral",
        15,
        "window 5 in layers 0, 2, 3; layer 1 full; GQA 3",
        num_hidden_layers=4,
        num_attention_heads=6,
        head_dim=10,
        layer_types=[S, F, S, S],
        sliding_window=5,
        rope_parameters=rope(theta=2000.0),
    )
    c(
        "mixtral-5x2",
        "mixtral",
        16,
        "5 experts, top 2 (softmax over the chosen), head_dim 12, no window",
        num_local_experts=5,
        num_experts_per_tok=2,
        head_dim=12,
        intermediate_size=24,
        sliding_window=None,
        rope_parameters=rope(theta=1e6),
        num_hidden_layers=2,
    )
    c(
        "qwen2-window",
        "qwen2",
        17,
        "QKV biases, tied, window 8 from layer 1 on (max_window_layers)",
        tie_word_embeddings=True,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
        hidden_size=40,
        num_attention_heads=4,
        rope_parameters=rope(theta=1e6),
        rms_norm_eps=1e-3,
    )
    c(
        "qwen2moe-shared",
        "qwen2_moe",
        18,
        "6 experts top 3, weights not renormalised, gated shared expert of another size, dense every other layer",
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=20,
        shared_expert_intermediate_size=28,
        decoder_sparse_step=2,
        norm_topk_prob=False,
        num_hidden_layers=4,
        rope_parameters=rope(),
    )
    c(
        "qwen3-tied",
        "qwen3",
        19,
        "q/k norm, head_dim 24 (32/4=8), GQA 4, tied, vocab 193",
        head_dim=24,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        vocab_size=193,
        rope_parameters=rope(theta=1e6),
        rms_norm_eps=1e-3,
    )
    c(
        "qwen3moe-norm",
        "qwen3_moe",
        20,
        "8 experts top 3, renormalised, q/k norm, head_dim 12",
        head_dim=12,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        norm_topk_prob=True,
        rope_parameters=rope(theta=1e6),
    )
    c(
        "qwen3next-hybrid",
        "qwen3_next",
        21,
        "3 gated delta net layers to 1 gated full attention, 2 key / 4 value heads of 12 / 10, partial rotary 0.25 of 16, 6 experts top 2 + gated shared, (1+w) norms",
        num_hidden_layers=4,
        head_dim=16,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=12,
        linear_value_head_dim=10,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=20,
        norm_topk_prob=True,
    )
    c(
        "qwen35-hybrid",
        "qwen3_5_text",
        22,
        "gated delta net hybrid, dense MLP, 3:1, separate projections, key heads 2 / value heads 4, conv kernel 4",
        num_hidden_layers=4,
        head_dim=16,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=8,
        linear_value_head_dim=12,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        rms_norm_eps=1e-3,
    )
    c(
        "qwen35moe-hybrid",
        "qwen3_5_moe_text",
        23,
        "gated delta net hybrid with 6 experts top 2 + shared expert, full attention in layers 1 and 2",
        layer_types=[LIN, F, F],
        head_dim=16,
        linear_conv_kernel_dim=3,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=24,
        drop=("intermediate_size",),
    )
    c(
        "gemma-mqa",
        "gemma",
        24,
        "head_dim 20, one KV head, embeddings x sqrt(32), (1+w) norms, tied",
        emb=0.13,
        fin=3.0,
        head_dim=20,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
        num_hidden_layers=2,
    )
    c(
        "gemma2-softcap",
        "gemma2",
        25,
        "attention soft-cap 5, logit soft-cap 8, query_pre_attn_scalar 10 != head_dim 16, window 6 alternating, sandwich norms",
        emb=0.13,
        fin=3.0,
        num_hidden_layers=4,
        head_dim=16,
        query_pre_attn_scalar=10,
        sliding_window=6,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=8.0,
        tie_word_embeddings=True,
        rms_norm_eps=1e-4,
    )
    c(
        "gemma3-local-global",
        "gemma3_text",
        26,
        "window 5 with one global layer in 4, local theta 100, global theta 1e5 with linear factor 4, q/k norm",
        emb=0.13,
        fin=3.0,
        num_hidden_layers=5,
        head_dim=12,
        query_pre_attn_scalar=20,
        sliding_window=5,
        layer_types=[S, S, S, F, S],
        rope_parameters={S: rope(theta=100.0), F: rope("linear", 1e5, factor=4.0)},
        tie_word_embeddings=True,
    )
    c(
        "gemma3n-altup",
        "gemma3n_text",
        27,
        "AltUp 4 streams, LAuReL 6, per-layer embeddings of 8, KV of the last 2 layers shared, activation sparsity 0.6 in layer 0, window 6",
        emb=0.13,
        fin=3.0,
        num_hidden_layers=5,
        head_dim=12,
        layer_types=[S, S, F, S, F],
        sliding_window=6,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=103,
        laurel_rank=6,
        altup_num_inputs=4,
        activation_sparsity_pattern=[0.6, 0.0, 0.0, 0.0, 0.0],
        intermediate_size=40,
        tie_word_embeddings=True,
        final_logit_softcapping=9.0,
    )
    c(
        "gemma4-ple",
        "gemma4_text",
        28,
        "head_dim 12 local / 24 global, proportional rotary 0.5 on global, per-layer embeddings 8, KV shared by the last 2 layers, double-wide MLP there, soft-cap 9",
        emb=0.13,
        fin=3.0,
        num_hidden_layers=5,
        head_dim=12,
        global_head_dim=24,
        layer_types=[S, S, F, S, F],
        sliding_window=6,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=103,
        use_double_wide_mlp=True,
        intermediate_size=40,
        rope_parameters={S: rope(theta=1000.0), F: rope("proportional", 1e5, partial_rotary_factor=0.5)},
        tie_word_embeddings=True,
        final_logit_softcapping=9.0,
    )
    c(
        "phi3-longrope",
        "phi3",
        29,
        "longrope: original 32, short factors for T <= 32 and long ones beyond, fused QKV and gate-up",
        hidden_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        original_max_position_embeddings=32,
        rope_parameters=rope(
            "longrope",
            short_factor=[1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
            long_factor=[1.0, 1.5, 2.5, 4.0, 6.0, 9.0],
            original_max_position_embeddings=32,
        ),
        prompt_len=40,
        num_hidden_layers=2,
    )
    c(
        "phi2-parallel",
        "phi",
        30,
        "parallel residual with one LayerNorm, biases everywhere incl. head, partial rotary 0.4 of 10 (hidden 40 / 4 heads)",
        hidden_size=40,
        num_key_value_heads=4,
        partial_rotary_factor=0.4,
        layer_norm_eps=1e-4,
    )
    c(
        "gpt2-odd",
        "gpt2",
        31,
        "n_inner 77, hidden 36 in 3 heads, vocab 101, learned positions, Conv1D weights",
        drop=tuple(BASE),
        vocab_size=101,
        n_positions=160,
        n_embd=36,
        n_layer=3,
        n_head=3,
        n_inner=77,
        bos_token_id=1,
        eos_token_id=2,
    )
    c(
        "gptneox-parallel",
        "gpt_neox",
        32,
        "parallel residual with two LayerNorms, rotary 0.25 of head 16, interleaved QKV weight, exact gelu",
        drop=("num_key_value_heads",),
        hidden_size=32,
        num_attention_heads=2,
        intermediate_size=80,
        rope_parameters=rope(partial_rotary_factor=0.25),
        use_parallel_residual=True,
    )
    c(
        "starcoder2-window",
        "starcoder2",
        33,
        "LayerNorm with bias, biases everywhere, window 6, GQA 4, tied",
        hidden_size=40,
        num_attention_heads=4,
        num_key_value_heads=1,
        sliding_window=6,
        tie_word_embeddings=True,
        use_bias=True,
        rope_parameters=rope(theta=1e5),
    )
    c(
        "stablelm-partial",
        "stablelm",
        34,
        "partial rotary 0.25 of 16, QKV biases, LayerNorm with bias",
        num_attention_heads=2,
        num_key_value_heads=2,
        partial_rotary_factor=0.25,
        use_qkv_bias=True,
    )
    c("olmo2-postnorm", "olmo2", 35, "norm after each block, q/k norm over the whole projection, GQA 2", rope_parameters=rope(theta=5e5))
    c(
        "olmo3-window",
        "olmo3",
        36,
        "post-norm, window 7 in 3 of 4 layers; yarn on the full layers only",
        num_hidden_layers=4,
        sliding_window=7,
        layer_types=[S, S, S, F],
        rope_parameters={S: rope(theta=300.0), F: yarn(theta=300.0, factor=8.0, attention_factor=1.2)},
    )
    c(
        "olmoe-clip",
        "olmoe",
        37,
        "8 experts top 3, not renormalised, clip_qkv 1.5, q/k norm over the whole projection",
        num_experts=8,
        num_experts_per_tok=3,
        intermediate_size=16,
        clip_qkv=1.5,
        norm_topk_prob=False,
        num_hidden_layers=2,
    )
    c(
        "granite-multipliers",
        "granite",
        38,
        "embedding 3, residual 0.6, attention 0.11, logits / 1.7; tied; attention bias",
        emb=0.13,
        fin=4.0,
        embedding_multiplier=3.0,
        residual_multiplier=0.6,
        attention_multiplier=0.11,
        logits_scaling=1.7,
        tie_word_embeddings=True,
        attention_bias=True,
    )
    c(
        "granitemoe-6x2",
        "granitemoe",
        39,
        "6 experts top 2, all four multipliers",
        emb=0.13,
        fin=3.0,
        num_local_experts=6,
        num_experts_per_tok=2,
        intermediate_size=20,
        embedding_multiplier=2.0,
        residual_multiplier=0.5,
        attention_multiplier=0.2,
        logits_scaling=0.6,
        tie_word_embeddings=True,
        num_hidden_layers=2,
    )
    c(
        "granitehybrid-nope",
        "granitemoehybrid",
        40,
        "Mamba-2 x3 + one attention without position encoding, experts 6 top 2 + shared MLP, chunk 16",
        num_hidden_layers=4,
        layer_types=[LIN, LIN, F, LIN],
        num_local_experts=6,
        num_experts_per_tok=2,
        intermediate_size=16,
        shared_intermediate_size=28,
        position_embedding_type=None,
        mamba_n_heads=8,
        mamba_n_groups=2,
        mamba_d_state=10,
        mamba_d_head=8,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_chunk_size=16,
        embedding_multiplier=2.0,
        residual_multiplier=0.6,
        attention_multiplier=0.25,
        logits_scaling=0.7,
        tie_word_embeddings=True,
    )
    c(
        "smollm3-nope",
        "smollm3",
        41,
        "no rope in layers 1 and 3, tied, GQA 4",
        num_hidden_layers=4,
        num_key_value_heads=1,
        no_rope_layers=[1, 0, 1, 0],
        tie_word_embeddings=True,
        rope_parameters=rope(theta=5e4),
    )
    c(
        "cohere2-interleaved",
        "cohere2",
        42,
        "parallel block, LayerNorm without bias, interleaved rope on window-5 layers only, full layer without rope, logit_scale 0.7",
        num_hidden_layers=4,
        layer_types=[S, S, F, S],
        sliding_window=5,
        logit_scale=0.7,
        tie_word_embeddings=True,
        hidden_size=40,
    )
    c(
        "glm4-sandwich",
        "glm4",
        43,
        "sandwich norms, interleaved partial rotary 0.5, QKV biases, fused gate-up, head_dim 12",
        head_dim=12,
        partial_rotary_factor=0.5,
        attention_bias=True,
        num_hidden_layers=2,
        rms_norm_eps=1e-3,
    )
    c(
        "glm4moe-groups",
        "glm4_moe",
        44,
        "sigmoid router with correction bias, 8 experts in 4 groups (2 kept), top 3, scale 1.8, shared expert, dense layer 0, q/k norm, partial rotary 0.5",
        head_dim=12,
        partial_rotary_factor=0.5,
        n_routed_experts=8,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        n_shared_experts=1,
        first_k_dense_replace=1,
        routed_scaling_factor=1.8,
        norm_topk_prob=True,
        use_qk_norm=True,
        attention_bias=True,
    )
    c(
        "deepseek2-groups",
        "deepseek_v2",
        45,
        "MLA with q_lora 20, kv_lora 16, nope 12 + rope 8, v 10; softmax group-limited routing 8 experts / 4 groups / top 3, 2 shared, dense layer 0, scale 1.3",
        num_key_value_heads=4,
        q_lora_rank=20,
        kv_lora_rank=16,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        v_head_dim=10,
        n_routed_experts=8,
        n_shared_experts=2,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        routed_scaling_factor=1.3,
        rms_norm_eps=1e-3,
    )
    c(
        "deepseek3-yarn",
        "deepseek_v3",
        46,
        "MLA, yarn with mscale 1.0 / mscale_all_dim 0.8 beyond original 32, sigmoid routing with bias, 8 experts / 4 groups / 2 kept / top 3, scale 2.5, dense layer 0",
        num_key_value_heads=4,
        q_lora_rank=20,
        kv_lora_rank=16,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        v_head_dim=10,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        rope_parameters=yarn(factor=4.0, orig=32, slow=0.3, mscale=1.0, mscale_all_dim=0.8),
    )
    c(
        "gptoss-sinks",
        "gpt_oss",
        47,
        "attention sinks, window 6 alternating, yarn without truncation, clamped gated experts with biases, 6 experts top 3, head_dim 12",
        num_hidden_layers=4,
        head_dim=12,
        sliding_window=6,
        num_local_experts=6,
        num_experts_per_tok=3,
        intermediate_size=16,
        swiglu_limit=2.0,
        rope_parameters=yarn(theta=150.0, factor=8.0, orig=40, fast=4.0, slow=0.5, truncate=False),
    )
    c(
        "lfm2-shortconv",
        "lfm2",
        48,
        "short convolutions (kernel 3) with one attention layer in 4, q/k norm, adjusted feed-forward size, tied",
        num_hidden_layers=4,
        layer_types=[CONV, CONV, F, CONV],
        intermediate_size=72,
        block_multiple_of=8,
        block_ffn_dim_multiplier=1.0,
        conv_L_cache=3,
        tie_word_embeddings=True,
    )
    c(
        "lfm2moe-bias",
        "lfm2_moe",
        49,
        "short convolution hybrid, 1 dense layer, then 6 experts top 2 with sigmoid and expert bias, scale 1.4",
        num_hidden_layers=4,
        layer_types=[CONV, F, CONV, CONV],
        num_dense_layers=1,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
        routed_scaling_factor=1.4,
        tie_word_embeddings=True,
    )
    c(
        "falconh1-multipliers",
        "falcon_h1",
        50,
        "attention and Mamba-2 in parallel in every layer, every multiplier different, 2 groups, chunk 16",
        head_dim=12,
        mamba_d_ssm=48,
        mamba_n_heads=6,
        mamba_d_head=8,
        mamba_n_groups=2,
        mamba_d_state=10,
        mamba_d_conv=4,
        mamba_chunk_size=16,
        mamba_rms_norm=False,
        lm_head_multiplier=0.8,
        embedding_multiplier=1.6,
        mlp_multipliers=[0.9, 0.7],
        key_multiplier=0.6,
        attention_out_multiplier=0.9,
        attention_in_multiplier=1.2,
        ssm_multipliers=[0.8, 1.1, 0.9, 1.2, 0.7],
        ssm_in_multiplier=1.3,
        ssm_out_multiplier=0.75,
        num_hidden_layers=2,
    )
    c(
        "mamba2-groups",
        "mamba2",
        51,
        "2 groups, state 12, 4 heads of 16, chunk 16, gated RMS norm, no attention",
        drop=("intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
        num_heads=4,
        head_dim=16,
        state_size=12,
        expand=2,
        n_groups=2,
        chunk_size=16,
        conv_kernel=4,
    )
    c(
        "nemotronh-pattern",
        "nemotron_h",
        52,
        "pattern Mamba-2, MoE, attention (no rope), MLP, Mamba-2; relu^2; 6 experts top 2 sigmoid with bias, shared expert, scale 1.5",
        drop=("num_hidden_layers",),
        layers_block_type=[LIN, "moe", F, "mlp", LIN],
        head_dim=12,
        mamba_num_heads=6,
        mamba_head_dim=8,
        n_groups=2,
        ssm_state_size=10,
        chunk_size=16,
        conv_kernel=4,
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
        moe_shared_expert_intermediate_size=24,
        routed_scaling_factor=1.5,
    )
    c(
        "exaone4-hybrid",
        "exaone4",
        53,
        "post-norm, q/k norm, window 6 in 3 of 4 layers with rope, full layer without rope",
        num_hidden_layers=4,
        head_dim=12,
        sliding_window=6,
        layer_types=[S, S, S, F],
        rope_parameters=rope(theta=1e5),
    )
    c(
        "ernie45-interleaved",
        "ernie4_5",
        54,
        "interleaved rope, biases, head_dim 12, tied",
        head_dim=12,
        use_bias=True,
        tie_word_embeddings=True,
        rope_parameters=rope(theta=5e5),
    )
    c(
        "ernie45moe-shared",
        "ernie4_5_moe",
        55,
        "dense layer 0, 6 experts top 2 with correction bias, 1 shared expert, tied",
        moe_num_experts=6,
        moe_k=2,
        moe_intermediate_size=16,
        moe_num_shared_experts=1,
        moe_layer_start_index=1,
        moe_layer_interval=1,
        tie_word_embeddings=True,
    )
    c(
        "seedoss-bias",
        "seed_oss",
        56,
        "QKV bias on, output bias off, head_dim 20",
        head_dim=20,
        attention_bias=True,
        attention_out_bias=False,
        rope_parameters=rope(theta=1e6),
        num_hidden_layers=2,
        rms_norm_eps=1e-3,
    )
    c(
        "hunyuan-alpha",
        "hunyuan_v1_dense",
        57,
        "q/k norm after rope, dynamic rope with fixed alpha 50, head_dim 12, tied",
        head_dim=12,
        tie_word_embeddings=True,
        rope_parameters=rope("dynamic", alpha=50.0, factor=1.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0),
        num_hidden_layers=2,
    )
    c(
        "bitnet-subnorm",
        "bitnet",
        58,
        "sub-norms before the output and down projections, relu^2; weights are plain float32 here (real files: ternary, 8-bit activations)",
        tie_word_embeddings=True,
        rope_parameters=rope(theta=5e5),
        num_hidden_layers=2,
    )
    c(
        "bert-cls",
        "bert",
        59,
        "token types, learned positions, exact gelu, head 10; pooled: CLS (and mean)",
        kind="embed",
        pooling="cls",
        drop=("num_key_value_heads", "tie_word_embeddings"),
        hidden_size=40,
        layer_norm_eps=1e-12,
    )
    c(
        "bert-rerank",
        "bert",
        60,
        "cross-encoder with one label, pooler tanh, token types 0/1",
        kind="rerank",
        drop=("num_key_value_heads", "tie_word_embeddings"),
        hidden_size=36,
        num_attention_heads=3,
        num_labels=1,
    )
    c(
        "nomicbert-rope",
        "nomic_bert",
        61,
        "encoder with rope, gated MLP, post-norm, no biases; pooled: mean",
        kind="embed",
        pooling="mean",
        drop=("num_key_value_heads", "tie_word_embeddings"),
        hidden_size=40,
        rope_parameters=rope(theta=1000.0),
        num_hidden_layers=2,
        layer_norm_eps=1e-3,
    )
    c(
        "modernbert-local",
        "modernbert",
        62,
        "local_attention 8 (half on each side) in 2 of 3 layers, local theta 100 / global 16000, no first norm, GeGLU; pooled: CLS",
        kind="embed",
        pooling="cls",
        drop=("num_key_value_heads", "tie_word_embeddings"),
        hidden_size=40,
        num_hidden_layers=4,
        local_attention=8,
        cls_token_id=1,
        sep_token_id=2,
        rope_parameters={F: rope(theta=16000.0), S: rope(theta=100.0)},
    )
    c(
        "qwen3-embedding",
        "qwen3",
        63,
        "decoder as embedder, keys without the 'model.' prefix; pooled: last token",
        kind="embed",
        pooling="last",
        head_dim=12,
        tie_word_embeddings=True,
        rope_parameters=rope(theta=1e6),
        num_hidden_layers=2,
        rms_norm_eps=1e-3,
    )
    c(
        "embeddinggemma",
        "gemma3_text",
        64,
        "bidirectional attention, window 6 (3 each side + itself), pooled: mean, then two Dense layers (32 -> 56 -> 32) as sentence-transformers folders",
        kind="embed",
        pooling="mean+dense",
        num_hidden_layers=4,
        head_dim=12,
        query_pre_attn_scalar=14,
        sliding_window=6,
        layer_types=[S, F, S, S],
        use_bidirectional_attention=True,
        rope_parameters={S: rope(theta=100.0), F: rope(theta=1e5)},
        tie_word_embeddings=True,
    )


def build_config(c):
    cfg = copy.deepcopy(c["cfg"])
    return AutoConfig.for_model(c["arch"], **cfg)


def auto_class(kind, arch=""):
    return {"causal": AutoModelForCausalLM, "embed": AutoModel, "rerank": AutoModelForSequenceClassification}[kind]


def new_model(c, cfg, **kw):
    cls = auto_class(c["kind"], c["arch"])
    return cls.from_config(cfg, **kw) if hasattr(cls, "from_config") else cls._from_config(cfg, **kw)


def set_eager(model):
    try:
        model.set_experts_implementation("eager")
    except Exception:
        pass
    with torch.no_grad():  # fresh, aligned memory: a mapped file's alignment changes the last bits
        for p in model.parameters():
            p.data = p.data.clone(memory_format=torch.contiguous_format)
    return model.eval()


def randomise(model, seed, emb=None, fin=1.0):
    """Every parameter and persistent buffer by its role; nothing keeps its default value."""
    g = torch.Generator().manual_seed(seed)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    out = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    tied = out is not None and id(out.weight) in embeddings
    conv1d_gpt2 = {id(m.weight) for m in model.modules() if type(m).__name__ == "Conv1D"}
    state = dict(model.named_parameters())
    persistent = set(model.state_dict().keys())
    for n, b in model.named_buffers():
        if n in persistent and b.is_floating_point():
            state[n] = b
    with torch.no_grad():
        for n in sorted(state):
            p = state[n]
            leaf = n.rsplit(".", 1)[-1]
            r = torch.randn(p.shape, generator=g, dtype=torch.float32)
            u = torch.rand(p.shape, generator=g, dtype=torch.float32)
            const = p.numel() > 0 and bool((p == p.flatten()[0]).all())
            if leaf == "A_log":
                v = torch.log(0.3 + 3.7 * u)
            elif leaf == "dt_bias":
                v = 0.7 * r
            elif leaf == "D":
                v = 1 + 0.3 * r
            elif leaf == "sinks":
                v = 1.0 * r
            elif leaf in ("e_score_correction_bias", "expert_bias") or "e_score_correction_bias" in n:
                v = 0.25 * r
            elif leaf in ("alpha_p", "alpha_n"):
                v = 0.5 + 0.3 * r
            elif leaf in ("beta", "eps") and p.numel() == 1:
                v = p.clone()
            elif leaf == "bias" or leaf.endswith("_bias") or leaf.endswith(".b"):
                v = 0.25 * r
            elif p.dim() <= 1:  # norms and scales: around their neutral value, which the fresh model holds
                zero = const and float(p.flatten()[0] if p.numel() else 0) == 0
                v = 0.2 * r if zero else p * (1 + 0.2 * r)
                if n in ("model.norm.weight", "model.final_layernorm.weight"):
                    v = v + (fin - 1) if zero else v * fin
            elif id(p) in embeddings:
                std = emb if emb is not None else (1.8 / p.shape[-1] ** 0.5 if tied else 0.8)
                v = std * r
            elif "conv" in n and p.dim() == 3:
                v = 0.5 * r
            elif "norm" in n:
                v = 1 + 0.2 * r
            else:
                fan_in = p.shape[-1]
                if id(p) in conv1d_gpt2:
                    fan_in = p.shape[0]
                if p.dim() == 3 and type(model).__name__.startswith("GptOss"):
                    fan_in = p.shape[1]
                k = 1.3
                if any(t in n for t in (".gate.weight", "router", "shared_expert_gate")) and p.dim() == 2 and "gate_proj" not in n:
                    k = 2.5
                elif out is not None and p is out.weight:
                    k = 2.0
                elif any(t in n for t in ("q_proj", "k_proj", "qkv", "query", "key", "Wqkv", "c_attn")):
                    k = 1.5
                v = k / fan_in**0.5 * r
            p.copy_(v.to(p.dtype))
    return model


def make_ids(c, vocab):
    g = torch.Generator().manual_seed(1000 + c["seed"])
    seqs = [torch.randint(3, vocab, (n,), generator=g) for n in LENGTHS]
    prompt = torch.randint(3, vocab, (c["prompt_len"],), generator=g)
    return seqs, prompt


def forward(model, ids, **kw):
    if "use_cache" in inspect.signature(model.forward).parameters:
        kw["use_cache"] = False
    with torch.no_grad():
        return model(input_ids=ids[None], **kw)


def token_types(ids):
    t = torch.zeros_like(ids)
    t[len(ids) // 2 + 1 :] = 1
    return t


def run(model, c, ids):
    """The compared output for one sequence: logits [T, V], or last hidden states, or rerank logit."""
    if c["kind"] == "causal":
        return forward(model, ids).logits[0].float()
    if c["kind"] == "rerank":
        return forward(model, ids, token_type_ids=token_types(ids)[None]).logits[0].float()
    kw = {"token_type_ids": torch.zeros_like(ids)[None]} if c["arch"] in ("bert", "nomic_bert") else {}
    return forward(model, ids, **kw).last_hidden_state[0].float()


def find_layers(model):
    best = None
    for n, m in model.named_modules():
        if isinstance(m, torch.nn.ModuleList) and n.rsplit(".", 1)[-1] in ("layers", "h", "layer", "blocks") and len(m):
            if best is None:
                best = m
    return best


def hidden_states(model, c, ids):
    layers, rec, hooks = find_layers(model), {}, []

    def first(_m, a, k):
        rec["hidden_0"] = (a[0] if a else k["hidden_states"]).detach()

    def after(i):
        def f(_m, _a, o):
            rec[f"hidden_{i + 1}"] = (o[0] if isinstance(o, tuple) else o).detach()

        return f

    hooks.append(layers[0].register_forward_pre_hook(first, with_kwargs=True))
    for i, layer in enumerate(layers):
        hooks.append(layer.register_forward_hook(after(i)))
    out = model.get_output_embeddings() if c["kind"] == "causal" else None
    if out is not None:
        hooks.append(out.register_forward_pre_hook(lambda _m, a: rec.__setitem__("hidden_norm", a[0].detach())))
    run(model, c, ids)
    for h in hooks:
        h.remove()

    def drop_batch(t):
        return t[:, 0] if t.dim() == 4 else t[0] if t.dim() == 3 else t

    return {k: drop_batch(v).float().numpy() for k, v in rec.items()}


def greedy(model, c, prompt, n=N_GREEDY):
    ids, toks, margins = prompt.clone(), [], []
    for _ in range(n):
        last = forward(model, ids).logits[0, -1].float()
        top = torch.topk(last, 2)
        toks.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        ids = torch.cat([ids, top.indices[:1]])
    return toks, margins


def kl(a, b):
    """KL(a || b) per row, in float64."""
    a = torch.log_softmax(a.double(), -1)
    b = torch.log_softmax(b.double(), -1)
    return (a.exp() * (a - b)).sum(-1)


def compare(c, ref, got):
    d = max(float((r.double() - g.double()).abs().max()) for r, g in zip(ref, got))
    if c["kind"] != "causal":
        return d, None, None
    k = torch.cat([kl(r, g) for r, g in zip(ref, got)])
    return d, float(k.mean()), float(k.max())


def pooled(c, h, dense=None):
    if c["pooling"] == "cls":
        v = h[0]
    elif c["pooling"] == "last":
        v = h[-1]
    else:
        v = h.mean(0)
        if dense is not None:
            v = dense[1] @ (dense[0] @ v)
    return v / v.norm()


def quality(model, c, seqs, ref):
    """Reasons to reject this seed; f16-rounded weights show near-ties of routers and chaos."""
    bad = []
    for r in ref:
        if not torch.isfinite(r).all():
            return ["not finite"]
    if c["kind"] == "causal":
        std = float(torch.cat(ref).std(-1).mean())
        if not 0.5 <= std <= 12:
            bad.append(f"logit std {std:.2f}")
        half = copy.deepcopy(model)
        with torch.no_grad():
            for p in half.parameters():
                p.copy_(p.half().float())
        d, mean, mx = compare(c, ref, [run(half, c, s) for s in seqs])
        c["f16_kl"] = (mean, mx)
        if mean > 1e-4 or mx > 5e-3:
            bad.append(f"f16 weights KL mean {mean:.1e} max {mx:.1e}")
    if c["kind"] == "embed":
        e = [pooled(c, r) for r in ref]
        if max(float(e[i] @ e[j]) for i in range(3) for j in range(i)) > 0.95:
            bad.append("embeddings alike")
    return bad


def hub_config(d, cfg):
    """The same configuration with the field names that most published folders use (before transformers 5)."""
    h = json.loads((d / "config.json").read_text())
    rp = h.pop("rope_parameters", None)
    if not rp or any(isinstance(v, dict) for v in rp.values()):
        if h["model_type"] == "gemma3_text" and rp:
            h["rope_local_base_freq"] = rp["sliding_attention"]["rope_theta"]
            full = dict(rp["full_attention"])
            h["rope_theta"] = full.pop("rope_theta")
            h["rope_scaling"] = full if full["rope_type"] != "default" else None
        elif h["model_type"] == "olmo3" and rp:
            full = dict(rp["full_attention"])
            h["rope_theta"] = full.pop("rope_theta")
            h["rope_scaling"] = full if full["rope_type"] != "default" else None
        elif h["model_type"] == "modernbert" and rp:
            h["global_rope_theta"], h["local_rope_theta"] = rp["full_attention"]["rope_theta"], rp["sliding_attention"]["rope_theta"]
        else:
            return None
    else:
        rp = dict(rp)
        neox = h["model_type"] == "gpt_neox"
        h["rotary_emb_base" if neox else "rope_theta"] = rp.pop("rope_theta", 10000.0)
        if "partial_rotary_factor" in rp:
            h["rotary_pct" if neox else "partial_rotary_factor"] = rp.pop("partial_rotary_factor")
        h["rope_scaling"] = rp if rp.get("rope_type", "default") != "default" else None
        if h["rope_scaling"] and h["rope_scaling"]["rope_type"] == "dynamic":
            h["rope_scaling"]["type"] = h["rope_scaling"].pop("rope_type")
    for k in ("num_experts", "n_routed_experts"):
        if (
            "num_local_experts" in h
            and h["model_type"] in ("qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe", "lfm2_moe", "kimi_linear")
            and k == "num_experts"
        ):
            h["num_experts"] = h.pop("num_local_experts")
        if "num_local_experts" in h and h["model_type"] in ("deepseek_v2", "deepseek_v3", "glm4_moe", "dots1") and k == "n_routed_experts":
            h[k] = h.pop("num_local_experts")
    if "dtype" in h:
        h["torch_dtype"] = h.pop("dtype")
    h["transformers_version"] = "4.57.0"
    return h


def write_hub_config(c, d, model, seqs, ref):
    """Writes config.hub.json where it gives the same bits."""
    h = hub_config(d, model.config)
    if h is None:
        return None
    variants = [h]
    if "layer_types" in h:  # older folders derive it from a pattern field
        variants.insert(0, {k: v for k, v in h.items() if k != "layer_types"})
    why = None
    for h in variants:
        with tempfile.TemporaryDirectory() as t:
            t = Path(t)
            shutil.copy(d / "model.safetensors", t)
            (t / "config.json").write_text(json.dumps(h))
            try:
                m = set_eager(auto_class(c["kind"], c["arch"]).from_pretrained(t, attn_implementation="eager", dtype=torch.float32))
                why = all(torch.equal(run(m, c, s), r) for s, r in zip(seqs, ref))
            except Exception as e:
                why = f"refused: {str(e)[:100]}"
        if why is True:
            (d / "config.hub.json").write_text(json.dumps(h, indent=1, sort_keys=True) + "\n")
            break
    return why


def make(c, out):
    torch.manual_seed(0)
    cfg = build_config(c)
    vocab = cfg.vocab_size
    best = None
    for attempt in range(40):
        seed = c["seed"] + 1000 * attempt
        model = set_eager(new_model(c, cfg, attn_implementation="eager", dtype=torch.float32))
        randomise(model, seed, c["emb"], c["fin"])
        model.float()
        seqs, prompt = make_ids(c, vocab)
        ref = [run(model, c, s) for s in seqs]
        bad = quality(model, c, seqs, ref)
        g = None
        if c["kind"] == "causal" and not bad:
            g = greedy(model, c, prompt)
            if min(g[1][:SAFE]) < 0.01 or min(g[1]) < 0.001:
                bad.append(f"greedy margin {min(g[1][:SAFE]):.4f} / {min(g[1]):.4f}")
            elif len(set(g[0])) < 8:
                bad.append("greedy repeats")
        score = 0 if not bad else 2 if g is None else 1
        if (
            best is None
            or score < (0 if not best[1] else 2 if best[4] is None else 1)
            or (score == 1 and len(set(g[0])) > len(set(best[4][0])))
        ):
            best = (model, bad, seed, ref, g, c.get("f16_kl"))
        if not bad:
            break
    model, bad, seed, ref, g, f16 = best
    if g is None and c["kind"] == "causal":
        g = greedy(model, c, prompt)
    d = out / c["name"]
    d.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(d)
    gen = d / "generation_config.json"
    if gen.exists():
        gen.unlink()
    # What is on disk is the truth: opened again for the golden values.
    model = set_eager(auto_class(c["kind"], c["arch"]).from_pretrained(d, attn_implementation="eager", dtype=torch.float32))
    again = [run(model, c, s) for s in seqs]
    if not all(torch.equal(a, b) for a, b in zip(again, ref)):
        raise RuntimeError("differs after save and load by %g" % max(float((a - b).abs().max()) for a, b in zip(again, ref)))
    arr = {}
    dense = None
    if c["pooling"] == "mean+dense":
        gd = torch.Generator().manual_seed(seed + 7)
        h = cfg.hidden_size
        dense = [torch.randn(56, h, generator=gd) / h**0.5, torch.randn(h, 56, generator=gd) / 56**0.5]
        write_sentence_transformers(d, dense, h)
    for i, (s, r) in enumerate(zip(seqs, ref)):
        arr[f"ids_{i}"] = s.numpy().astype(np.int32)
        if c["kind"] == "embed":
            arr[f"last_hidden_{i}"] = r.numpy()
            arr[f"pooled_{i}"] = pooled(c, r, dense).numpy()
        else:
            arr[f"logits_{i}"] = r.numpy()
        if c["kind"] == "rerank":
            arr[f"token_types_{i}"] = token_types(s).numpy().astype(np.int32)
    if c["kind"] == "causal":
        arr.update(prompt=prompt.numpy().astype(np.int32), greedy=np.array(g[0], np.int32), greedy_margin=np.array(g[1], np.float32))
    arr.update(hidden_states(model, c, seqs[1]))
    np.savez_compressed(d / "golden.npz", **arr)
    hub = write_hub_config(c, d, model, seqs, ref)
    rep = dict(
        name=c["name"],
        arch=c["arch"],
        note=c["note"],
        kind=c["kind"],
        seed=seed,
        warn=bad,
        f16_kl=f16,
        hub_config=hub,
        params=sum(p.numel() for p in model.parameters()),
        layers=len(find_layers(model)),
        sizes={f.name: f.stat().st_size for f in sorted(d.rglob("*")) if f.is_file()},
        logit_std=float(torch.cat(ref).std(-1).mean()) if c["kind"] == "causal" else None,
        greedy_distinct=len(set(g[0])) if g else None,
        greedy_min=[min(g[1][:SAFE]), min(g[1])] if g else None,
    )
    # Natural float32 noise: another attention kernel, and the same model in float64.
    try:
        m2 = set_eager(auto_class(c["kind"], c["arch"]).from_pretrained(d, attn_implementation="sdpa", dtype=torch.float32))
        rep["sdpa"] = compare(c, ref, [run(m2, c, s) for s in seqs])
    except Exception as e:
        rep["sdpa"] = str(e)[:80]
    try:
        m3 = copy.deepcopy(model).double()
        rep["f64"] = compare(c, ref, [run(m3, c, s) for s in seqs])
    except Exception as e:
        rep["f64"] = str(e)[:80]
    return rep


def write_sentence_transformers(d, dense, h):
    mods = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Dense", "Dense"), ("4_Normalize", "Normalize")]
    (d / "modules.json").write_text(
        json.dumps([dict(idx=i, name=str(i), path=p, type=f"sentence_transformers.models.{t}") for i, (p, t) in enumerate(mods)], indent=1)
        + "\n"
    )
    (d / "1_Pooling").mkdir(exist_ok=True)
    (d / "1_Pooling/config.json").write_text(
        json.dumps(
            dict(
                word_embedding_dimension=h,
                pooling_mode_cls_token=False,
                pooling_mode_mean_tokens=True,
                pooling_mode_max_tokens=False,
                pooling_mode_lasttoken=False,
                include_prompt=True,
            )
        )
        + "\n"
    )
    for i, w in enumerate(dense):
        p = d / f"{i + 2}_Dense"
        p.mkdir(exist_ok=True)
        (p / "config.json").write_text(
            json.dumps(
                dict(in_features=w.shape[1], out_features=w.shape[0], bias=False, activation_function="torch.nn.modules.linear.Identity")
            )
            + "\n"
        )
        save_file({"linear.weight": w.contiguous()}, p / "model.safetensors")


def check(c, out):
    """In a fresh process: the largest difference to the golden values, then greedy through the KV cache."""
    d = out / c["name"]
    z = np.load(d / "golden.npz")
    model = set_eager(auto_class(c["kind"], c["arch"]).from_pretrained(d, attn_implementation="eager", dtype=torch.float32))
    key = "last_hidden_%d" if c["kind"] == "embed" else "logits_%d"
    found = [run(model, c, torch.from_numpy(z[f"ids_{i}"]).long()).numpy() for i in range(len(LENGTHS))]
    res = max(float(np.abs(a - z[key % i]).max()) for i, a in enumerate(found))
    cached = None
    if c["kind"] == "causal":
        try:
            p = torch.from_numpy(z["prompt"]).long()[None]
            o = model.generate(
                p,
                attention_mask=torch.ones_like(p),
                max_new_tokens=N_GREEDY,
                min_new_tokens=N_GREEDY,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            o = o[0, p.shape[1] :].numpy()
            same = o == z["greedy"]
            cached = int(len(same) if same.all() else same.argmin())
        except Exception as e:
            cached = repr(e)[:120]
    return res, cached


def table(reports):
    def f(x):
        return "%.0e" % x if isinstance(x, float) else "-"

    columns = [
        "name",
        "architecture (`model_type`)",
        "unusual in the configuration",
        "seed",
        "params",
        "hub form",
        "noise: max abs, mean KL (sdpa)",
        "max abs (float64 weights)",
    ]
    rows = [columns, ["---"] * len(columns)]
    for r in reports:
        s, n64 = r["sdpa"], r["f64"]
        s = f"{f(s[0])}, {f(s[1])}" if isinstance(s, (list, tuple)) else "no sdpa path"
        n64 = f(n64[0]) if isinstance(n64, (list, tuple)) else "-"
        hub = "yes" if r["hub_config"] is True else "-"
        rows.append([r["name"], r["arch"], r["note"], r["seed"], r["params"], hub, s, n64])
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out", type=Path)
    ap.add_argument("--only", default="")
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--table", action="store_true")
    ap.add_argument(
        "--report", type=Path, default=None, help="folder for the JSON reports that --table reads (default: in the temporary folder)"
    )
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    all_cases()
    only = set(filter(None, a.only.split(",")))
    rdir = a.report or Path(tempfile.gettempdir()) / "tiny-model-reports"
    failed = 0
    if a.table:
        made = [(c, rdir / f"{c['name']}.json") for c in CASES]
        print(table([{**json.loads(path.read_text()), "note": c["note"]} for c, path in made if path.exists()]))
        return
    rdir.mkdir(parents=True, exist_ok=True)
    for c in CASES:
        if only and c["name"] not in only:
            continue
        t = time.time()
        try:
            if a.check:
                gap, cached = check(c, a.out)
                failed += not gap < 1e-4 or cached not in (None, N_GREEDY)
                print(f"{c['name']:24} {f'off by {gap:.0e}' if gap else 'bits equal'}  cached greedy: {cached}", flush=True)
                continue
            r = make(c, a.out)
            (rdir / f"{c['name']}.json").write_text(json.dumps(r))
            size, seconds = sum(r["sizes"].values()) // 1024, time.time() - t
            noise = f"sdpa {r['sdpa']}  f64 {r['f64']}  f16 {r['f16_kl']}"
            print(f"{c['name']:24} {size:4} KB  seed {r['seed']:6}  {noise}  {r['warn'] or ''} {seconds:.0f} s", flush=True)
        except Exception as e:
            failed += 1
            print(f"{c['name']:24} FAILED {type(e).__name__}: {str(e)[:300]}", flush=True)
            if os.environ.get("TRACE"):
                traceback.print_exc()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
