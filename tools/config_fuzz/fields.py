"""What the fields of the configuration classes are sampled from.

`sizes` makes the smallest configuration of an architecture; `domain` gives the values of one more field.  A field of a
class that is neither sampled nor listed in `HARMLESS` is an error: a new version of transformers shows here what is new.
"""

import dataclasses
import random

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

S, F, LIN, CONV = "sliding_attention", "full_attention", "linear_attention", "conv"

# Every architecture of src/model/arch, by its first `model_type`.
CAUSAL = """bitnet cohere2 deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4 falcon_h1 gemma gemma2 gemma3_text
gemma3n_text gemma4_text glm4 glm4_moe gpt2 gpt_neox gpt_oss granite granitemoe granitemoehybrid hunyuan_v1_dense lfm2
lfm2_moe llama mamba2 ministral ministral3 mistral mixtral nemotron_h olmo2 olmo3 olmoe phi phi3 qwen2 qwen2_moe qwen3
qwen3_5_text qwen3_5_moe_text qwen3_moe qwen3_next seed_oss smollm3 stablelm starcoder2""".split()
ENCODERS = "bert modernbert nomic_bert".split()

# Without effect on logits or vectors in float32: training, generation, speed, heads of other tasks.
HARMLESS = {
    name: values
    for names, values in {
        "attention_dropout attention_probs_dropout_prob attn_pdrop embd_pdrop resid_pdrop hidden_dropout"
        " hidden_dropout_prob residual_dropout embedding_dropout mlp_dropout classifier_dropout": [0.0, 0.3],
        "initializer_range initializer_cutoff_factor router_aux_loss_coef router_jitter_noise": [0.25],
        "use_cache output_router_logits use_mamba_kernels deterministic_flash_attn reorder_and_upcast_attn": [True, False],
        "rescale_prenorm_residual residual_in_fp32 decoder_bias": [True, False],
        "time_step_min time_step_max time_step_floor": [0.01],
        "pretraining_tp num_logits_to_keep": [1, 2],
        "chunk_size mamba_chunk_size": [1, 8, 64],
        "classifier_bias sparse_prediction summary_proj_to_labels summary_use_proj": [True, False],
        "classifier_activation": ["gelu", "relu"],
        "classifier_pooling": ["cls", "mean"],
        "summary_type": ["last", "cls_index"],
        "summary_activation": [None, "tanh"],
        "summary_first_dropout": [0.1],
        "sparse_pred_ignore_index": [-1],
        "mamba_ssm_cache_dtype": ["float32"],
        "moe_shared_expert_overlap": [True, False],
        "mtp_layers_block_type": [None],
        "num_mtp_layers num_nextn_predict_layers": [0],
        "time_step_rank": ["auto", 3],
        "bos_token_id eos_token_id pad_token_id cls_token_id sep_token_id eod_token_id": [None, 3],
    }.items()
    for name in names.split()
}

# Except here: what bounds the time steps.
EFFECT = {("nemotron_h", "time_step_min")}

ACTS = "silu gelu gelu_pytorch_tanh gelu_new gelu_fast relu relu2 swish quick_gelu tanh sigmoid".split()
FACTORS = [0.3, 0.9, 1.7, 2]


def heads(r, most=6):
    """Heads, their size, and a width that they divide: sizes of heads are even, as rotation wants them."""
    n = r.choice([h for h in (1, 2, 3, 4, 6) if h <= most])
    dim = r.choice([8, 12, 16])
    return n, dim, n * dim if n * dim >= 16 else 2 * n * dim


def divisor(r, n):
    return r.choice([d for d in range(1, n + 1) if n % d == 0])


def plain(r):
    n, _, hidden = heads(r)
    return dict(
        vocab_size=r.randint(50, 110),
        hidden_size=hidden,
        intermediate_size=r.randint(10, 40),
        num_hidden_layers=r.choice([1, 2, 2, 3, 4, 5]),
        num_attention_heads=n,
        num_key_value_heads=divisor(r, n),
        max_position_embeddings=r.choice([64, 100, 256]),
    )


def with_head_dim(r):
    return dict(plain(r), head_dim=r.choice([8, 12, 16, 20]))


def experts(r, count="num_experts", inside="moe_intermediate_size"):
    n = r.randint(2, 8)
    return {count: n, "num_experts_per_tok": r.randint(1, n), inside: r.randint(6, 20)}


def grouped(r):
    per, groups = r.randint(2, 3), r.randint(1, 3)
    kept = r.randint(1, groups)
    return dict(
        n_routed_experts=per * groups,
        n_group=groups,
        topk_group=kept,
        num_experts_per_tok=r.randint(1, kept * per),
        moe_intermediate_size=r.randint(6, 20),
        first_k_dense_replace=r.randint(0, 2),
    )


def latent(r):
    base = plain(r)
    base.update(
        num_key_value_heads=base["num_attention_heads"],
        kv_lora_rank=r.randint(6, 20),
        q_lora_rank=r.choice([None, 10, 20]),
        qk_nope_head_dim=r.choice([6, 12]),
        qk_rope_head_dim=r.choice([4, 8]),
        v_head_dim=r.choice([6, 10, 20]),
    )
    return base


def mamba(r, base):
    """Falcon-H1's and Granite's names."""
    n = r.choice([2, 4, 8])
    while base["hidden_size"] * 2 % n:
        n //= 2
    return dict(
        mamba_n_heads=n,
        mamba_n_groups=divisor(r, n),
        mamba_d_state=r.randint(4, 12),
        mamba_expand=2,
        mamba_chunk_size=16,
    )


def delta(r):
    keys = r.choice([1, 2, 3])
    return dict(
        linear_num_key_heads=keys,
        linear_num_value_heads=keys * r.choice([1, 2, 3]),
        linear_key_head_dim=r.choice([6, 8, 12]),
        linear_value_head_dim=r.choice([6, 8, 10]),
        head_dim=r.choice([8, 16, 24]),
    )


def without(d, *names):
    return {k: v for k, v in d.items() if k not in names}


def sizes(arch, r):
    """The fields that make a model of the architecture small."""
    if arch in ("deepseek_v2", "deepseek_v3"):
        return dict(latent(r), n_shared_experts=r.randint(1, 2), **grouped(r))
    if arch == "glm4_moe":
        return dict(with_head_dim(r), n_shared_experts=r.randint(1, 2), **grouped(r))
    if arch == "ernie4_5_moe":
        few = r.randint(2, 6)
        return dict(plain(r), moe_num_experts=few, moe_k=r.randint(1, few), moe_intermediate_size=r.randint(6, 20), moe_num_shared_experts=r.randint(0, 2))
    if arch == "gpt2":
        n, _, hidden = heads(r)
        return dict(vocab_size=r.randint(50, 110), n_positions=r.choice([64, 100]), n_embd=hidden, n_layer=r.randint(1, 4), n_head=n)
    if arch == "gpt_neox":
        return without(plain(r), "num_key_value_heads")
    if arch == "gpt_oss":
        return dict(with_head_dim(r), **experts(r, "num_local_experts", "intermediate_size"))
    if arch == "mixtral":
        return dict(plain(r), **experts(r, "num_local_experts", "intermediate_size"))
    if arch == "granitemoe":
        return dict(plain(r), **experts(r, "num_local_experts", "intermediate_size"))
    if arch == "granitemoehybrid":
        base = plain(r)
        base.update(experts(r, "num_local_experts", "intermediate_size"))
        return dict(base, shared_intermediate_size=r.randint(8, 30), **mamba(r, base))
    if arch == "falcon_h1":
        base = with_head_dim(r)
        base.update(mamba(r, base))
        return dict(base, mamba_d_ssm=base["mamba_n_heads"] * r.choice([6, 8, 10]))
    if arch == "mamba2":
        n = r.choice([2, 4])
        dim = r.choice([8, 12])
        return dict(
            vocab_size=r.randint(50, 110),
            hidden_size=n * dim // 2,
            num_hidden_layers=r.randint(1, 4),
            num_heads=n,
            head_dim=dim,
            state_size=r.randint(4, 12),
            n_groups=divisor(r, n),
            chunk_size=16,
        )
    if arch == "nemotron_h":
        base = without(with_head_dim(r), "num_hidden_layers")
        n = r.choice([2, 4])
        few = r.randint(2, 6)
        return dict(
            base,
            mamba_num_heads=n,
            mamba_head_dim=r.choice([6, 8]),
            n_groups=divisor(r, n),
            ssm_state_size=r.randint(4, 12),
            chunk_size=16,
            n_routed_experts=few,
            num_experts_per_tok=r.randint(1, few),
            moe_intermediate_size=r.randint(6, 20),
            moe_shared_expert_intermediate_size=r.randint(6, 24),
        )
    if arch in ("qwen2_moe",):
        return dict(plain(r), shared_expert_intermediate_size=r.randint(6, 24), **experts(r))
    if arch == "qwen3_moe":
        return dict(with_head_dim(r), **experts(r))
    if arch in ("qwen3_next", "qwen3_5_moe_text"):
        base = dict(plain(r), shared_expert_intermediate_size=r.randint(6, 24), **experts(r), **delta(r))
        return base if arch == "qwen3_next" else without(base, "intermediate_size")
    if arch == "qwen3_5_text":
        return dict(plain(r), **delta(r))
    if arch in ("gemma3n_text", "gemma4_text"):
        base = with_head_dim(r)
        own = dict(hidden_size_per_layer_input=r.choice([4, 8]), vocab_size_per_layer_input=base["vocab_size"])
        if arch == "gemma3n_text":
            layers = r.randint(2, 6)
            return dict(base, num_hidden_layers=layers, laurel_rank=r.randint(3, 8), num_kv_shared_layers=0, **own)
        base["num_hidden_layers"] = r.choice([1, 2, 3, 6, 11])
        return dict(base, global_head_dim=r.choice([8, 16, 24]), **own)
    if arch == "lfm2":
        return dict(plain(r), block_multiple_of=r.choice([4, 8]))
    if arch == "lfm2_moe":
        base = dict(plain(r), **experts(r))
        layers = base["num_hidden_layers"]
        return dict(base, num_dense_layers=r.randint(0, layers), layer_types=[r.choice([F, CONV]) for _ in range(layers)])
    if arch == "olmoe":
        return dict(plain(r), **experts(r, inside="intermediate_size"))
    if arch in ENCODERS:
        n, _, hidden = heads(r)
        base = without(plain(r), "num_key_value_heads")
        return dict(base, hidden_size=hidden, num_attention_heads=n)
    named = any(f.name == "head_dim" and isinstance(f.default, int) for f in dataclasses.fields(CONFIG_MAPPING[arch]))
    return with_head_dim(r) if named else plain(r)


def layers_of(cfg):
    return cfg.get("num_hidden_layers") or cfg.get("n_layer") or 2


def kinds(arch):
    """What the layers of an architecture may be."""
    if arch in ("granitemoehybrid", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        return [LIN, F]
    if arch in ("lfm2", "lfm2_moe"):
        return [CONV, F]
    return [S, F]


def layer_types(arch, r, cfg):
    n = layers_of(cfg)
    if arch == "nemotron_h":
        return [r.choice([LIN, "moe", F, "mlp"]) for _ in range(r.randint(1, 5))]
    if arch == "granitemoehybrid" and r.random() < 0.3:  # as older folders call them
        return [r.choice(["mamba", "attention"]) for _ in range(n)]
    return [r.choice(kinds(arch)) for _ in range(n)]


def of_layers(values):
    return lambda r, cfg: [r.choice(values) for _ in range(layers_of(cfg))]


def eps(r, cfg):
    return r.choice([1e-5, 1e-6, 1e-3, 0.1, 1e-12])


def choice(*values):
    return lambda r, cfg: r.choice(values)


def multipliers(n):
    return lambda r, cfg: r.choice([None, [r.choice(FACTORS) for _ in range(n)]])


def dense_layers(r, cfg):
    return r.choice([None, [], [0], [layers_of(cfg) - 1], [0, 1]])


def activation(*usual):
    return lambda r, cfg: r.choice(list(usual) + ACTS)


# The sampled fields, whatever the architecture; some architectures have their own below.
FIELDS = {
    "rope_parameters": None,  # see `rope`
    "layer_types": None,
    "layers_block_type": None,
    "hidden_act": activation("silu", "gelu_pytorch_tanh"),
    "hidden_activation": activation("gelu_pytorch_tanh", "silu"),
    "activation_function": activation("gelu_new"),
    "mlp_hidden_act": activation("relu2", "silu"),
    "mamba_hidden_act": activation("silu"),
    "rms_norm_eps": eps,
    "layer_norm_eps": eps,
    "layer_norm_epsilon": eps,
    "norm_eps": eps,
    "norm_epsilon": eps,
    "head_dim": choice(None, 8, 12, 16, 20, 6),
    "num_key_value_heads": lambda r, cfg: r.choice([None, divisor(r, cfg.get("num_attention_heads", 1))]),
    "sliding_window": choice(None, 1, 3, 7, 16, 4096),
    "max_window_layers": choice(0, 1, 2, 28),
    "attn_logit_softcapping": choice(None, 1.5, 5.0),
    "final_logit_softcapping": choice(None, 2.0, 9.0),
    "query_pre_attn_scalar": choice(7, 24, 256),
    "attention_multiplier": choice(*FACTORS),
    "embedding_multiplier": choice(*FACTORS),
    "residual_multiplier": choice(*FACTORS),
    "logits_scaling": choice(*FACTORS),
    "logit_scale": choice(*FACTORS),
    "attention_in_multiplier": choice(*FACTORS),
    "attention_out_multiplier": choice(*FACTORS),
    "key_multiplier": choice(*FACTORS),
    "lm_head_multiplier": choice(*FACTORS),
    "ssm_in_multiplier": choice(*FACTORS),
    "ssm_out_multiplier": choice(*FACTORS),
    "mlp_multipliers": multipliers(2),
    "ssm_multipliers": multipliers(5),
    "clip_qkv": choice(None, 0.7, 2.0),
    "routed_scaling_factor": choice(*FACTORS),
    "moe_norm_min": choice(1e-12, 0.5, 0.9),
    "moe_layer_start_index": choice(0, 1, 2),
    "moe_layer_end_index": choice(-1, 0, 1, 2),
    "moe_layer_interval": choice(1, 2),
    "decoder_sparse_step": choice(1, 2, 3),
    "mlp_only_layers": dense_layers,
    "moe_latent_size": choice(None, 6),
    "top_k_experts": choice(None, 2),
    "topk_method": choice("greedy", "group_limited_greedy"),
    "first_k_dense_replace": choice(0, 1, 9),
    "no_rope_layers": lambda r, cfg: r.choice([None, of_layers([0, 1])(r, cfg)]),
    "no_rope_layer_interval": choice(1, 2, 3, 4),
    "position_embedding_type": choice(None, "rope", "nope", "absolute"),
    "n_inner": choice(None, 13, 50),
    "type_vocab_size": choice(1, 2, 3),
    "local_attention": choice(2, 4, 6, 64),
    "original_max_position_embeddings": choice(16, 32, 64),
    "mamba_d_conv": choice(2, 3, 4),
    "conv_kernel": choice(2, 3, 4),
    "linear_conv_kernel_dim": choice(2, 3, 4),
    "conv_L_cache": choice(2, 3, 5),
    "mamba_d_head": choice("auto"),
    "mamba_d_ssm": choice(None),
    "time_step_min": choice(0.001, 0.3),
    "time_step_limit": choice([0.0, float("inf")], [0.2, 0.8], [0.0, 0.5]),
    "expand": choice(2),
    "block_ffn_dim_multiplier": choice(1.0, 1.3, 0.7),
    "full_attn_idxs": lambda r, cfg: r.choice([None, [], [0], [layers_of(cfg) - 1]]),
    "sliding_window_pattern": choice(1, 2, 3, 4),
    "use_bidirectional_attention": choice(None, False, True),
    "altup_num_inputs": choice(1, 2, 3, 4),
    "altup_active_idx": choice(0, 1),
    "altup_coef_clip": choice(120.0, 0.1),
    "num_kv_shared_layers": choice(0, 1, 2, 3),
    "activation_sparsity_pattern": lambda r, cfg: r.choice([None, of_layers([0.0, 0.4, 0.9])(r, cfg)]),
    "intermediate_size": of_layers([8, 14, 30]),
    "swiglu_limit": choice(0.5, 7.0),
    "swiglu_alpha": choice(1.702, 0.8),
    "moe_num_shared_experts": choice(0, 1, 2),
    "n_shared_experts": choice(1, 2, 3),
    "n_group": choice(None, 1),
    "topk_group": choice(None, 1),
    "num_local_experts": choice(0, None),
    "num_experts": choice(None, 2),
    "moe_intermediate_size": choice(None, 8),
    "hidden_size_per_layer_input": choice(0, 6),
}

# Which of them may be sampled again although `sizes` has them, by architecture.
AGAIN = {
    "gemma3n_text": ["intermediate_size", "num_kv_shared_layers"],
    "gemma4_text": ["hidden_size_per_layer_input"],
    "granitemoehybrid": ["num_local_experts"],
    "falcon_h1": ["mamba_d_ssm"],
    "lfm2_moe": ["layer_types"],
    "nemotron_h": [],
    "deepseek_v2": ["n_group", "topk_group"],
    "*": ["num_key_value_heads", "head_dim", "first_k_dense_replace", "n_shared_experts"],
}

# What published folders have beside the fields of the class: older names, and what transformers reads although the class
# does not declare it.
EXTRA = {
    "*": {
        "head_dim": choice(8, 12, 16),
        "is_causal": choice(True, False),
        "partial_rotary_factor": choice(0.25, 0.5, 0.75),
        "rope_theta": choice(100.0, 5e5),
        "sliding_window": choice(None, 3, 7),
        "quantization_config": lambda r, cfg: r.choice(
            [
                {"quant_method": "gptq", "bits": 4, "group_size": 128},
                {"quant_method": "bitnet", "quantization_mode": "online", "linear_class": "autobitlinear"},
                {"quant_method": "fp8", "weight_block_size": [128, 128]},
            ]
        ),
        "per_layer_config": lambda r, cfg: {str(r.randrange(layers_of(cfg))): {"rms_norm_eps": 0.5}},
        "rope_scaling": lambda r, cfg: rope_flat(r, cfg, dims_of(cfg)),
        "attention_chunk_size": choice(4),
        "scale_depth": choice(1.4),
    },
    "cohere2": {"sliding_window_pattern": choice(1, 2, 3)},
    "gemma3_text": {"sliding_window_pattern": choice(1, 2, 3), "rope_local_base_freq": choice(50.0)},
    "gemma4_text": {"num_global_key_value_heads": lambda r, cfg: divisor(r, cfg["num_attention_heads"]), "global_head_dim": choice(8, 12)},
    "modernbert": {"global_attn_every_n_layers": choice(1, 2), "global_rope_theta": choice(700.0), "local_rope_theta": choice(50.0)},
    "qwen3_next": {"full_attention_interval": choice(1, 2, 3)},
    "qwen3_5_text": {"full_attention_interval": choice(1, 2, 3)},
    "qwen3_5_moe_text": {"full_attention_interval": choice(1, 2, 3)},
    "qwen3_moe": {"max_window_layers": choice(0, 1, 2)},
    "nemotron_h": {"hybrid_override_pattern": lambda r, cfg: "".join(r.choice("ME*-") for _ in range(r.randint(1, 5)))},
    "lfm2": {"tie_embedding": choice(True, False), "block_ff_dim": choice(30, 60)},
    "lfm2_moe": {"tie_embedding": choice(True, False)},
    "gpt_neox": {"rotary_pct": choice(0.25, 0.5, 1.0), "rotary_emb_base": choice(500)},
    "ministral3": {"layer_types": of_layers([S, F])},
    "mistral": {"layer_types": of_layers([S, F])},
}


def rope_flat(r, cfg, dims):
    """One set of rotary parameters; `dims`: elements of a head that would rotate."""
    theta = r.choice([None, 30.0, 500.0, 1e4, 1e6])
    kind = r.choice("default default linear linear dynamic yarn yarn yarn llama3 llama3 longrope longrope proportional".split())
    rope = {r.choice(["rope_type"] * 4 + ["type"]): kind}
    if theta is not None:
        rope["rope_theta"] = theta
    part = r.choice([None, None, None, 0.5, 0.25, 0.75])
    if part is not None:
        rope["partial_rotary_factor"] = part
        dims = int(dims * part)
    if kind in ("linear", "dynamic", "yarn", "llama3"):
        rope["factor"] = r.choice([1.0, 2.0, 4, 8.0])
    original = r.choice([None, 16, 24, 32])
    if original and kind in ("yarn", "llama3", "longrope"):
        rope["original_max_position_embeddings"] = original
    if kind == "llama3":
        rope.update(low_freq_factor=r.choice([1.0, 0.5]), high_freq_factor=r.choice([4.0, 2.0]))
    if kind == "yarn":
        for name, values in {
            "beta_fast": [2.0, 32, None],
            "beta_slow": [0.25, 1, None],
            "attention_factor": [0.8, 1.3],
            "mscale": [0.7, 1.0, 0.0],
            "mscale_all_dim": [0.5, 1.0, 0.0],
            "truncate": [True, False],
        }.items():
            if r.random() < 0.35:
                rope[name] = r.choice(values)
    if kind == "longrope":
        rope["short_factor"] = [r.choice([1.0, 1.5, 2]) for _ in range(dims // 2)]
        rope["long_factor"] = [r.choice([1.0, 3.0, 8]) for _ in range(dims // 2)]
        if r.random() < 0.4:
            rope["attention_factor"] = r.choice([0.9, 1.2])
        if r.random() < 0.4:
            rope["factor"] = r.choice([2.0, 4.0])
    if kind == "proportional" and r.random() < 0.5:
        rope["factor"] = 2.0
    if kind == "dynamic" and r.random() < 0.5:
        rope["alpha"] = r.choice([2.0, 50.0])
    return rope


def dims_of(cfg):
    """Elements of a head that rotate at most."""
    return cfg.get("qk_rope_head_dim") or cfg.get("head_dim") or cfg.get("hidden_size", 32) // cfg.get("num_attention_heads", 2)


def rope(arch, r, cfg):
    dims = dims_of(cfg)
    nested = arch in ("gemma3_text", "gemma3n_text", "gemma4_text", "olmo3", "modernbert")
    if nested and r.random() < 0.85:
        full = rope_flat(r, cfg, cfg.get("global_head_dim", dims))
        near = rope_flat(r, cfg, dims) if r.random() < 0.3 else dict(rope_type="default", rope_theta=r.choice([50.0, 1e4]))
        both = {F: full, S: near}
        if r.random() < 0.15:
            del both[r.choice([F, S])]
        return both
    flat = rope_flat(r, cfg, dims)
    if arch == "ministral3" and r.random() < 0.7:
        flat["llama_4_scaling_beta"] = r.choice([0.0, 0.1, 0.4])
        flat.setdefault("original_max_position_embeddings", r.choice([8, 16]))
    return flat


def declared(arch):
    """The fields of the class."""
    import transformers

    base = {f.name for f in dataclasses.fields(transformers.PretrainedConfig)}
    return {f.name: f for f in dataclasses.fields(CONFIG_MAPPING[arch]) if f.name not in base}


def candidates(arch):
    """The fields that are sampled beside the sizes: name to a function of the generator and the configuration so far."""
    fixed = set(sizes(arch, random.Random(0)))
    again = set(AGAIN["*"]) | set(AGAIN.get(arch, []))
    found = {}
    for name, field in declared(arch).items():
        if name in fixed and name not in again:
            continue
        if name in HARMLESS and (arch, name) not in EFFECT:
            found[name] = choice(*HARMLESS[name])
        elif name in ("layer_types", "layers_block_type"):
            found[name] = lambda r, cfg: layer_types(arch, r, cfg)
        elif name == "rope_parameters":
            found[name] = lambda r, cfg: rope(arch, r, cfg)
        elif name == "use_bidirectional_attention" and arch == "gemma4_text":
            found[name] = choice(None, "vision", "all")
        elif name == "mamba_d_head":
            found[name] = FIELDS[name]
        elif name in FIELDS:
            found[name] = FIELDS[name]
        elif isinstance(field.default, bool):
            found[name] = choice(True, False)
        elif name not in fixed:
            raise SystemExit(f"{arch}: no values for the field {name} ({field.type}, by default {field.default!r})")
    for extra in (EXTRA["*"], EXTRA.get(arch, {})):
        found.update({name: values for name, values in extra.items() if name not in found and name not in fixed})
    return found


def sample(arch, r, must):
    """A configuration that has the field `must`, if it is a name: what a person would write."""
    cfg = sizes(arch, r)
    fields = candidates(arch)
    # Extras and what has no effect are rarer: most of the samples are of what changes a model.
    weight = lambda name: 0.08 if name in EXTRA["*"] else 0.15 if name in HARMLESS else 1.0
    count = min(len(fields), r.choice([0, 1, 1, 2, 2, 3, 5, 8]))
    names = sorted(fields, key=lambda name: -(r.random() ** (1 / weight(name))))[:count]
    names = [name for name in ([must] if must else []) + names if name in fields]
    # What others depend on comes first.
    for name in sorted(dict.fromkeys(names), key=lambda name: (name in ("rope_parameters", "rope_scaling"), names.index(name))):
        cfg[name] = fields[name](r, cfg)
    if cfg.get("sliding_window_pattern") == 1 and arch == "exaone4":
        cfg["sliding_window_pattern"] = 4
    return cfg
