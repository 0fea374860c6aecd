//! OLMoE (Muennighoff et al. 2024): experts, and norms of all queries and of all keys.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::moe::Moe;
use crate::model::layers::{Attention, Head, Net, QkNorm};
use crate::model::program::Program;
use crate::ops::{Divide, Pairing, Score};

pub(super) static ARCH: Arch = Arch {
    model_types: &["olmoe"],
    gguf: &["olmoe"],
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
    let clip = c.maybe_float("clip_qkv", 1e-6..=1e30)?.map(|clip| clip as f32);
    let ffn = c.dim("intermediate_size")?;
    let moe = Moe::read(c, Score::Softmax, ffn)?.normed(c, false, Divide::SumPlus(0.0))?;
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let norms = QkNorm::Whole(eps);
    let attention = Attention { bias, out_bias: bias, norms, clip, ..Attention::new(heads, Some(rope)) };
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let layers = vec![attention; c.layers()? as usize];
    let x = net.decoder_of(x, eps, &layers, 1.0, |net, _, h| net.moe(h, &moe))?;
    net.head(x, Head::PLAIN)
}
