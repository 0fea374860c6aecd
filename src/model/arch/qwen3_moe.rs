//! Qwen3-MoE (Yang et al. 2025): Qwen3 with experts.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::moe::Moe;
use crate::model::layers::{Attention, Head, Mlp, Net, QkNorm};
use crate::model::program::Program;
use crate::ops::{Act, Divide, Pairing, Score};

pub(super) static ARCH: Arch = Arch {
    model_types: &["qwen3_moe"],
    gguf: &["qwen3moe"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let bias = c.bias("attention_bias", false)?;
    let moe = Moe::read(c, Score::Softmax, Moe::ffn(c)?)?.normed(c, c.is_gguf(), Divide::SumPlus(0.0))?;
    let sparse = super::qwen2_moe::sparse(c, &moe)?;
    let dense = if sparse.contains(&false) { Some(Mlp::read(c, Act::Silu)?) } else { None };
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;
    let windows = windows(c)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let norms = QkNorm::Heads(eps);
    let plain = Attention { bias, out_bias: bias, norms, ..Attention::new(heads, Some(rope)) };
    let layers: Vec<_> = windows.into_iter().map(|window| Attention { window, ..plain }).collect();
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let x = net.decoder_of(x, eps, &layers, 1.0, |net, layer, h| match &dense {
        Some(dense) if !sparse[layer as usize] => Ok(net.gated_mlp("mlp", h, dense)),
        _ => net.moe(h, &moe),
    })?;
    net.head(x, Head::PLAIN)
}

/// The window of each layer: none unless `use_sliding_window` says so; then of all.
fn windows(c: &Config<'_>) -> Result<Vec<Option<u32>>> {
    let layers = c.layers()?;
    if !c.flag("use_sliding_window", c.is_gguf())? {
        return c.no_windows(layers);
    }
    c.windows_everywhere(layers)
}
