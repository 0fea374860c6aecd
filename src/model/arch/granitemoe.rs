//! Granite 3 with experts (IBM 2024): Granite, whose router weights are a softmax over the chosen logits alone.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::moe::Moe;
use crate::model::layers::{Attention, Head, Net};
use crate::model::program::Program;
use crate::ops::Score;

pub(super) static ARCH: Arch = Arch {
    model_types: &["granitemoe"],
    gguf: &["granitemoe"],
    keys: &[],
    gguf_keys: &[("logit_scale", "logits_scaling")],
    tensors: &[
        ("model.layers.{}.block_sparse_moe.router.layer", "blk.{}.ffn_gate_inp"),
        ("model.layers.{}.block_sparse_moe.experts.{}.gate_proj", "blk.{}.ffn_gate_exps"),
        ("model.layers.{}.block_sparse_moe.experts.{}.up_proj", "blk.{}.ffn_up_exps"),
        ("model.layers.{}.block_sparse_moe.experts.{}.down_proj", "blk.{}.ffn_down_exps"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let bias = c.bias("attention_bias", false)?;
    let moe = Moe::read(c, Score::SoftmaxOfChosen, c.dim("intermediate_size")?)?;
    let (router, experts) = ("block_sparse_moe.router.layer", "block_sparse_moe.experts");
    let moe = Moe { router, experts, ..moe };
    let scale = c.factor("attention_multiplier")?;
    let residual = c.factor("residual_multiplier")?;
    let head = Head { scale: 1.0 / c.factor("logits_scaling")?, ..Head::PLAIN };
    let rotary = Rotary::read(c, heads.head_dim, Rotary::reordered(c))?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention { bias, out_bias: bias, scale, ..Attention::new(heads, Some(rope)) };
    let x = net.embed(c.dim("hidden_size")?, c.factor("embedding_multiplier")?);
    let layers = vec![attention; c.layers()? as usize];
    let x = net.decoder_of(x, eps, &layers, residual, |net, _, h| net.moe(h, &moe))?;
    net.head(x, head)
}
