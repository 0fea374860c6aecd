//! Qwen2 (Yang et al. 2024): Llama with biases of queries, keys and values, and windows in its later layers.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["qwen2"],
    gguf: &["qwen2"],
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
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;
    let windows = windows(c)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let plain = Attention { bias: Bias::Yes, ..Attention::new(heads, Some(rope)) };
    let layers: Vec<_> = windows.into_iter().map(|window| Attention { window, ..plain }).collect();
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let x = net.decoder(x, eps, &layers, &mlp);
    net.head(x, Head::PLAIN)
}

/// The window of each layer, in Qwen2 and Qwen3: none unless `use_sliding_window` says so; then from layer
/// `max_window_layers` on, where no list says it.
pub(super) fn windows(c: &Config<'_>) -> Result<Vec<Option<u32>>> {
    let layers = c.layers()?;
    if !c.flag("use_sliding_window", c.is_gguf())? {
        return c.no_windows(layers);
    }
    let first = c.maybe_int("max_window_layers", 0..=1 << 20)?.unwrap_or(28);
    c.windows(layers, |layer| layer >= first)
}
