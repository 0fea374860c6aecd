//! ERNIE 4.5 (Baidu 2025), dense: Llama with interleaved rotary pairs, and biases everywhere or nowhere.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["ernie4_5"],
    gguf: &["ernie4_5"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let bias = c.bias("use_bias", false)?;
    let mlp = Mlp { bias, ..Mlp::read(c, Act::Silu)? };
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Interleaved)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention { bias, out_bias: bias, ..Attention::new(heads, Some(rope)) };
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let x = net.decoder(x, eps, &vec![attention; c.layers()? as usize], &mlp);
    net.head(x, Head::TIED)
}
