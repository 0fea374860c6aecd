//! Mixtral (Jiang et al. 2024): Mistral with experts, the weights of those chosen adding up to 1.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::moe::Moe;
use crate::model::layers::{Attention, Head, Net};
use crate::model::program::Program;
use crate::ops::Score;

pub(super) static ARCH: Arch = Arch {
    model_types: &["mixtral"],
    gguf: &["llama"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

/// GGUF files of `llama` with experts are built here, too.
pub(super) fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let moe = Moe::read(c, Score::Softmax, c.dim("intermediate_size")?)?;
    let (router, experts) = ("block_sparse_moe.gate", "block_sparse_moe.experts");
    let moe = Moe { router, experts, parts: ["w1", "w3", "w2"], ..moe }.summing_to_one();
    let rotary = Rotary::read(c, heads.head_dim, Rotary::reordered(c))?;
    let windows = c.windows_everywhere(c.layers()?)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let plain = Attention::new(heads, Some(rope));
    let layers: Vec<_> = windows.into_iter().map(|window| Attention { window, ..plain }).collect();
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let x = net.decoder_of(x, eps, &layers, 1.0, |net, _, h| net.moe(h, &moe))?;
    net.head(x, Head::PLAIN)
}
