//! Granite 3 (IBM 2024): Llama with four multipliers.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::Act;

pub(super) static ARCH: Arch = Arch {
    model_types: &["granite"],
    gguf: &["granite"],
    keys: &[],
    gguf_keys: &[("logit_scale", "logits_scaling")],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp { bias: c.bias("mlp_bias", false)?, ..Mlp::read(c, Act::Silu)? };
    let bias = c.bias("attention_bias", false)?;
    let scale = c.factor("attention_multiplier")?;
    let residual = c.factor("residual_multiplier")?;
    let head = Head { scale: 1.0 / c.factor("logits_scaling")?, ..Head::PLAIN };
    let rotary = Rotary::read(c, heads.head_dim, Rotary::reordered(c))?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention { bias, out_bias: bias, scale, ..Attention::new(heads, Some(rope)) };
    let x = net.embed(c.dim("hidden_size")?, c.factor("embedding_multiplier")?);
    let x = net.scaled_decoder(x, eps, &vec![attention; c.layers()? as usize], &mlp, residual);
    net.head(x, head)
}
