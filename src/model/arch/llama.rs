//! Llama (Touvron et al. 2023), and all models of the same form: SmolLM2, TinyLlama, Yi, …

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::Act;

pub(super) static ARCH: Arch = Arch {
    model_types: &["llama"],
    gguf: &["llama"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    // Mixtral's GGUF files are called the same.
    if c.is_gguf() && c.maybe_int("num_experts", 0..=u32::MAX)?.is_some_and(|experts| experts > 0) {
        return super::mixtral::build(c);
    }
    // A window in a GGUF file of this name is Mistral's.
    let layers = c.layers()?;
    let windows = if c.is_gguf() { c.windows(layers, |_| true)? } else { vec![None; layers as usize] };
    with_windows(c, &windows)
}

/// The program of a model whose layers see windows.
pub(super) fn with_windows(c: &Config<'_>, windows: &[Option<u32>]) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp { bias: c.bias("mlp_bias", false)?, ..Mlp::read(c, Act::Silu)? };
    let bias = c.bias("attention_bias", false)?;
    let rotary = Rotary::read(c, heads.head_dim, Rotary::reordered(c))?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let plain = Attention { bias, out_bias: bias, ..Attention::new(heads, Some(rope)) };
    let layers: Vec<_> = windows.iter().map(|&window| Attention { window, ..plain }).collect();
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let x = net.decoder(x, eps, &layers, &mlp);
    net.head(x, Head::PLAIN)
}
