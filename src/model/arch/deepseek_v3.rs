//! DeepSeek-V3 (2024) and R1: latent attention, experts in groups chosen by sigmoids with a bias.

use super::Arch;
use crate::Result;
use crate::model::config::keys::Keys;
use crate::model::config::{Bias, Config};
use crate::model::layers::latent::Latent;
use crate::model::layers::moe::Moe;
use crate::model::layers::{Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

/// Keys of V2 and V3 in GGUF files.
pub(super) const GGUF_KEYS: Keys = &[
    ("rope.dimension_count", "qk_rope_head_dim"),
    ("attention.key_length", "qk_head_dim"),
    ("attention.key_length_mla", "qk_head_dim_mla"),
    ("attention.value_length_mla", "v_head_dim_mla"),
    ("rope.scaling.yarn_log_multiplier", "yarn_log_multiplier"),
];

/// Tensors of V2 and V3.
pub(super) const TENSORS: Keys = &[
    ("model.layers.{}.self_attn.q_a_proj", "blk.{}.attn_q_a"),
    ("model.layers.{}.self_attn.q_a_layernorm", "blk.{}.attn_q_a_norm"),
    ("model.layers.{}.self_attn.q_b_proj", "blk.{}.attn_q_b"),
    ("model.layers.{}.self_attn.kv_a_proj_with_mqa", "blk.{}.attn_kv_a_mqa"),
    ("model.layers.{}.self_attn.kv_a_layernorm", "blk.{}.attn_kv_a_norm"),
    ("model.layers.{}.self_attn.kv_b_proj", "blk.{}.attn_kv_b"),
    ("model.layers.{}.self_attn.k_b_proj", "blk.{}.attn_k_b"),
    ("model.layers.{}.self_attn.v_b_proj", "blk.{}.attn_v_b"),
];

pub(super) static ARCH: Arch = Arch {
    model_types: &["deepseek_v3"],
    gguf: &["deepseek2"],
    keys: &[],
    gguf_keys: GGUF_KEYS,
    tensors: TENSORS,
    embedding: "model.embed_tokens.weight",
    build,
};

/// GGUF files call V2 and V3 the same; the scores of experts distinguish them.
fn build(c: &Config<'_>) -> Result<Program> {
    const SIGMOID: u32 = 2;
    if c.is_gguf() && c.maybe_int("expert_gating_func", 0..=3)? != Some(SIGMOID) {
        return super::deepseek_v2::build(c);
    }
    if c.text("scoring_func")?.is_some_and(|score| score != "sigmoid") {
        return Err(c.wrong("scoring_func", "sigmoid"));
    }
    if c.text("topk_method")?.is_some_and(|method| method != "noaux_tc") {
        return Err(c.wrong("topk_method", "noaux_tc"));
    }
    let pairing = if c.flag("rope_interleave", true)? { Pairing::Interleaved } else { Pairing::Neox };
    decoder(c, pairing, Moe::with_sigmoids(c)?)
}

/// The program, given how experts are chosen.
pub(super) fn decoder(c: &Config<'_>, pairing: Pairing, moe: Moe) -> Result<Program> {
    let eps = c.eps("rms_norm_eps")?;
    let attention = Latent::read(c, pairing)?;
    // Those of V3 have none.
    let bias = if c.names.arch.name() == "deepseek_v2" || c.is_gguf() { c.bias("mlp_bias", false)? } else { Bias::No };
    let dense = Mlp { bias, ..Mlp::read(c, Act::Silu)? };
    let shared = Mlp { ffn: moe.shared(c)?, ..dense };
    let first = c.maybe_int("first_k_dense_replace", 0..=1 << 20)?.unwrap_or(0);

    let mut net = Net::new(c)?;
    let rope = attention.rotary(&mut net);
    let mut x = net.embed(c.dim("hidden_size")?, 1.0);
    for layer in 0..c.layers()? {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let h = net.rms_norm("input_layernorm", x, eps);
        let h = net.latent_attention(h, &attention, rope)?;
        x = net.b.add("attention residual", x, h);

        let h = net.rms_norm("post_attention_layernorm", x, eps);
        let h = match layer < first {
            true => net.gated_mlp("mlp", h, &dense),
            false => net.moe_and_shared(h, &moe, &shared)?,
        };
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, Head::PLAIN)
}
