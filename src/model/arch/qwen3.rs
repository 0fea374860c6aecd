//! Qwen3 (Yang et al. 2025): Llama with norms of the heads of queries and keys.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net, QkNorm};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["qwen3"],
    gguf: &["qwen3"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp::read(c, Act::Silu)?;
    let bias = c.bias("attention_bias", false)?;
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;
    let windows = super::qwen2::windows(c)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let norms = QkNorm::Heads(eps);
    let plain = Attention { bias, out_bias: bias, norms, ..Attention::new(heads, Some(rope)) };
    let layers: Vec<_> = windows.into_iter().map(|window| Attention { window, ..plain }).collect();
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let x = net.decoder(x, eps, &layers, &mlp);
    net.head(x, Head::PLAIN)
}
