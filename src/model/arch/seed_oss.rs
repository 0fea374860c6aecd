//! Seed-OSS (ByteDance Seed 2025): Llama with biases of queries, keys and values.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["seed_oss"],
    gguf: &["seed_oss"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm")],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp { bias: c.bias("mlp_bias", false)?, ..Mlp::read(c, Act::Silu)? };
    let (bias, out_bias) = (c.bias("attention_bias", true)?, c.bias("attention_out_bias", false)?);
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention { bias, out_bias, ..Attention::new(heads, Some(rope)) };
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let x = net.decoder(x, eps, &vec![attention; c.layers()? as usize], &mlp);
    net.head(x, Head::PLAIN)
}
