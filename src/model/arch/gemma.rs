//! Gemma (Gemma Team 2024): Llama with scaled embeddings and a gate of GELU.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["gemma"],
    gguf: &["gemma"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let dim = c.dim("hidden_size")?;
    let eps = c.eps("rms_norm_eps")?;
    let mut mlp = Mlp::read(c, Act::GeluTanh)?;
    if mlp.act == Act::GeluErf {
        mlp.act = Act::GeluTanh; // what the first folders call "gelu"
    }
    let bias = c.bias("attention_bias", false)?;
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;

    let mut net = Net::new(c)?;
    if !c.is_gguf() {
        net.norms_zero_centred();
    }
    let rope = net.rotary(&rotary);
    let attention = Attention { bias, out_bias: bias, ..Attention::new(heads, Some(rope)) };
    let x = net.embed(dim, (dim as f32).sqrt());
    let x = net.decoder(x, eps, &vec![attention; c.layers()? as usize], &mlp);
    net.head(x, Head::TIED)
}
