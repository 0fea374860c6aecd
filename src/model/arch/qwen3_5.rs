//! Qwen3.5 (Qwen Team 2026): gated delta nets, gated attention in every fourth layer, dense feed-forward layers.

use super::Arch;
use crate::Result;
use crate::model::config::{Bias, Config};
use crate::model::layers::delta_net::{GGUF_KEYS, Hybrid};
use crate::model::layers::{Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, ValueId};

pub(super) static ARCH: Arch = Arch {
    model_types: &["qwen3_5_text", "qwen3_5"],
    gguf: &["qwen35"],
    keys: &[],
    gguf_keys: GGUF_KEYS,
    tensors: TENSORS,
    embedding: "model.embed_tokens.weight",
    build,
};

pub(super) const TENSORS: super::Keys = &[
    ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
    ("model.layers.{}.linear_attn.in_proj_qkv", "blk.{}.attn_qkv"),
    ("model.layers.{}.linear_attn.in_proj_z", "blk.{}.attn_gate"),
    ("model.layers.{}.linear_attn.in_proj_b", "blk.{}.ssm_beta"),
    ("model.layers.{}.linear_attn.in_proj_a", "blk.{}.ssm_alpha"),
    ("model.layers.{}.linear_attn.conv1d", "blk.{}.ssm_conv1d"),
    ("model.layers.{}.linear_attn.dt_bias", "blk.{}.ssm_dt.bias"),
    ("model.layers.{}.linear_attn.A_log", "blk.{}.ssm_a"),
    ("model.layers.{}.linear_attn.norm", "blk.{}.ssm_norm"),
    ("model.layers.{}.linear_attn.out_proj", "blk.{}.ssm_out"),
];

fn build(c: &Config<'_>) -> Result<Program> {
    // The converter to GGUF reorders the value heads.
    let hybrid = Hybrid::read(c, c.is_gguf())?;
    let mlp = Mlp::read(c, Act::Silu)?;

    let (mut net, rope) = hybrid.start(c)?;
    let mut x = net.embed(hybrid.dim, 1.0);
    for layer in 0..hybrid.attends.len() {
        x = hybrid.mixer(&mut net, (layer, x, rope), |net, h| project(&hybrid, net, h));
        let h = net.rms_norm("post_attention_layernorm", x, hybrid.eps);
        let h = net.gated_mlp("mlp", h, &mlp);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, hybrid.eps);
    net.head(x, Head::PLAIN)
}

/// Queries, keys, values, gate, beta and decay of a delta net.
pub(super) fn project(hybrid: &Hybrid, net: &mut Net<'_>, x: ValueId) -> [ValueId; 6] {
    let (keys, values) = (hybrid.keys(), hybrid.values());
    let [q, k, v] = [(0, keys), (keys, keys), (2 * keys, values)]
        .map(|(start, n)| net.linear_part("linear_attn.in_proj_qkv", x, start, n, Bias::No));
    let gate = net.linear("linear_attn.in_proj_z", x, values, Bias::No);
    let beta = net.linear("linear_attn.in_proj_b", x, hybrid.heads, Bias::No);
    let decay = net.linear("linear_attn.in_proj_a", x, hybrid.heads, Bias::No);
    [q, k, v, gate, beta, decay]
}
