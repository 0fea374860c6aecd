//! Names of hyper-parameters: what the keys of each kind of file are called here, and which of them no model may ignore.
//!
//! Here a hyper-parameter has the name that it has in most `config.json` files. Rotary parameters have the form that
//! newer ones give them: `rope_parameters.rope_theta`.

/// A name in a file, and the name here.
pub(in crate::model) type Keys = &'static [(&'static str, &'static str)];

/// GGUF keys after the architecture's prefix: `llama.block_count`.
pub(in crate::model) const GGUF: Keys = &[
    ("vocab_size", "vocab_size"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("block_count", "num_hidden_layers"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.value_length", "v_head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("attention.sliding_window_pattern", "sliding_window_pattern"),
    ("attention.scale", "attention_multiplier"),
    ("attention.clamp_kqv", "clip_qkv"),
    ("attention.max_alibi_bias", "alibi_bias_max"),
    ("attention.causal", "is_causal"),
    ("pooling_type", "pooling_type"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("logit_scale", "logit_scale"),
    ("residual_scale", "residual_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("use_parallel_residual", "use_parallel_residual"),
    ("swin_norm", "swin_norm"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.shared_kv_layers", "num_kv_shared_layers"),
    ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
    ("attention.temperature_scale", "attention_temperature"),
    ("ssm.conv_kernel", "mamba_d_conv"),
    ("ssm.group_count", "mamba_n_groups"),
    ("ssm.inner_size", "mamba_inner"),
    ("ssm.state_size", "mamba_d_state"),
    ("ssm.time_step_rank", "mamba_n_heads"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("expert_gating_func", "expert_gating_func"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("rope.freq_base", "rope_parameters.rope_theta"),
    ("rope.freq_base_swa", "rope_parameters.sliding_attention.rope_theta"),
    ("rope.dimension_count", "rotary_dim"),
    ("rope.dimension_count_swa", "rotary_dim_swa"),
    ("rope.scale_linear", "rope_scale_linear"),
    ("rope.scaling.type", "rope_parameters.rope_type"),
    ("rope.scaling.factor", "rope_parameters.factor"),
    ("rope.scaling.attn_factor", "rope_parameters.attention_factor"),
    ("rope.scaling.original_context_length", "rope_parameters.original_max_position_embeddings"),
    ("rope.scaling.yarn_beta_fast", "rope_parameters.beta_fast"),
    ("rope.scaling.yarn_beta_slow", "rope_parameters.beta_slow"),
];

/// Whether the head is the embedding table. GGUF files of models that have neither say that it is not.
pub(in crate::model) const TIED: &str = "tie_word_embeddings";

/// For architectures whose window pattern llama.cpp reads as one number (every n-th layer has full attention), not as flags.
pub(in crate::model) const EVERY_NTH: Keys = &[("attention.sliding_window_pattern", "sliding_window_pattern")];

/// Other names of keys in `config.json` files. One that ends in a dot stands for all keys inside.
pub(in crate::model) const FOLDER: Keys = &[
    ("rope_parameters.type", "rope_parameters.rope_type"),
    ("rope_parameters.full_attention.type", "rope_parameters.full_attention.rope_type"),
    ("rope_parameters.sliding_attention.type", "rope_parameters.sliding_attention.rope_type"),
    ("rope_scaling.type", "rope_parameters.rope_type"),
    ("rope_scaling.", "rope_parameters."),
    ("rope_theta", "rope_parameters.rope_theta"),
    ("rope_local_base_freq", "rope_parameters.sliding_attention.rope_theta"),
    ("rotary_emb_base", "rope_parameters.rope_theta"),
    ("partial_rotary_factor", "rope_parameters.partial_rotary_factor"),
    ("rotary_pct", "rope_parameters.partial_rotary_factor"),
    ("hidden_activation", "hidden_act"),
    ("num_local_experts", "num_experts"),
    ("n_routed_experts", "num_experts"),
    ("moe_num_experts", "num_experts"),
];

/// Names that count even where a file has the usual one, too (LFM2).
pub(in crate::model) const STRONGER: &[&str] = &["tie_embedding", "block_ff_dim"];

/// Older names of rotary parameters where each kind of layers has its own.
pub(in crate::model) const OF_FULL: Keys = &[
    ("rope_theta", "rope_parameters.full_attention.rope_theta"),
    ("rope_scaling.type", "rope_parameters.full_attention.rope_type"),
    ("rope_scaling.", "rope_parameters.full_attention."),
];

/// Hyper-parameters that change the arithmetic, and the values with which they do not.
///
/// An architecture that does not ask for one of these runs only models where it is absent, null, or has such a value.
/// A list is judged by its elements.
pub(in crate::model) const ARITHMETIC: &[(&str, &[&str])] = &[
    ("add_cross_attention", &["false"]),
    ("alibi", &["false"]),
    ("alibi_bias_max", &["0"]),
    ("attention_bias", &["false"]),
    ("attention_multiplier", &[]),
    ("attention_out_bias", &["false"]),
    ("attention_temperature", &["0"]),
    ("attn_logit_softcapping", &["0"]),
    ("clip_qkv", &[]),
    ("embedding_multiplier", &["1"]),
    ("enable_moe_block", &["false"]),
    ("final_logit_softcapping", &["0"]),
    ("expert_gating_func", &["1"]),
    ("hidden_act", &[]),
    ("is_causal", &["true"]),
    ("is_decoder", &["false"]),
    ("kv_lora_rank", &["0"]),
    ("layer_types", &["full_attention"]),
    ("logit_scale", &["1"]),
    ("logits_scaling", &["1"]),
    ("mamba_d_state", &["0"]),
    ("mlp_bias", &["false"]),
    ("moe_layer_freq", &["1"]),
    ("multi_query", &["false"]),
    ("n_shared_experts", &["0"]),
    ("num_experts", &["0"]),
    ("num_key_value_heads", &[]),
    ("num_kv_shared_layers", &["0"]),
    ("parallel_attn", &["false"]),
    ("per_layer_config", &[]),
    ("position_embedding_type", &["absolute"]),
    ("prenorm", &["false"]),
    ("q_lora_rank", &["0"]),
    ("qk_layernorm", &["false"]),
    ("qkv_bias", &["false"]),
    ("query_pre_attn_scalar", &[]),
    ("residual_multiplier", &["1"]),
    ("rope_parameters.partial_rotary_factor", &["1"]),
    ("rope_parameters.rope_theta", &[]),
    ("rope_parameters.rope_type", &["default"]),
    ("rope_scale_linear", &["1"]),
    ("rotary_dim", &[]),
    ("rotary_emb_interleaved", &["false"]),
    ("rotary_emb_scale_base", &[]),
    ("rotary_scaling_factor", &[]),
    ("routed_scaling_factor", &["1"]),
    ("scale_attn_by_inverse_layer_idx", &["false"]),
    ("scale_attn_weights", &["true"]),
    ("scoring_func", &[]),
    ("sliding_window", &["0"]),
    ("swin_norm", &["false"]),
    ("tie_word_embeddings", &[]),
    ("topk_method", &[]),
    ("use_bias", &["false"]),
    ("use_bidirectional_attention", &["false", "vision"]),
    ("use_parallel_residual", &["false"]),
    ("use_qk_norm", &["false"]),
    ("use_qkv_bias", &["false"]),
    ("use_sliding_window", &["false"]),
    ("v_head_dim", &[]),
];

/// Those of them that change logits only.
pub(in crate::model) const OF_LOGITS: &[&str] =
    &["final_logit_softcapping", "logit_scale", "logits_scaling", "tie_word_embeddings"];

/// Tables that say how the weights of a folder are packed, or are to be rounded before they are used: nothing here does.
pub(in crate::model) const QUANTIZED: &[&str] = &["quantization_config", "compression_config", "quantization"];

/// What `table` makes of a name.
pub(in crate::model) fn translate(table: Keys, name: &str) -> Option<String> {
    table.iter().find_map(|(from, to)| match name.strip_prefix(from) {
        Some("") => Some((*to).to_owned()),
        Some(rest) if from.ends_with('.') => Some(format!("{to}{rest}")),
        _ => None,
    })
}

/// The name that `table` makes `key` of, for messages about what is missing.
pub(in crate::model) fn original(table: Keys, key: &str) -> Option<&'static str> {
    table.iter().find(|(_, to)| *to == key).map(|(from, _)| *from)
}
