//! GLM-4.5 (GLM Team 2025): experts in groups, chosen by sigmoids with a bias, beside one that all rows go through.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::moe::Moe;
use crate::model::layers::{Attention, Head, Mlp, Net, QkNorm};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["glm4_moe"],
    gguf: &["glm4moe"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.eh_proj", "blk.{}.nextn.eh_proj"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let bias = c.bias("attention_bias", false)?;
    let moe = Moe::with_sigmoids(c)?;
    let dense = Mlp::read(c, Act::Silu)?;
    let shared = Mlp { ffn: moe.shared(c)?, bias: Bias::No, ..dense };
    let first = c.maybe_int("first_k_dense_replace", 0..=1 << 20)?.unwrap_or(1);
    let rotary = Rotary::read_part(c, heads.head_dim, Pairing::Neox, 1.0)?;
    // The multi-token prediction layers past the last are not run; GGUF files count them.
    let predicts = |layer| c.names.find(&format!("model.layers.{layer}.eh_proj.weight")).is_some();
    let all = c.layers()?;
    let layers = if c.is_gguf() { (0..all).find(|&layer| predicts(layer)).unwrap_or(all) } else { all };
    let normed = match c.is_gguf() {
        true => c.names.find("model.layers.0.self_attn.q_norm.weight").is_some(),
        false => c.flag("use_qk_norm", false)?,
    };
    let norms = if normed { QkNorm::Heads(eps) } else { QkNorm::None };

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention { bias, norms, ..Attention::new(heads, Some(rope)) };
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let layers = vec![attention; layers as usize];
    let x = net.decoder_of(x, eps, &layers, 1.0, |net, layer, h| match layer < first {
        true => Ok(net.gated_mlp("mlp", h, &dense)),
        false => net.moe_and_shared(h, &moe, &shared),
    })?;
    net.head(x, Head::PLAIN)
}
