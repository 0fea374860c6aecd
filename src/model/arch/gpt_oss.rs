//! gpt-oss (OpenAI 2025): sinks, windows in every other layer, experts with biases and a clamped activation.

use super::Arch;
use crate::model::config::keys;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::moe::{Gating, Moe};
use crate::model::layers::{Attention, Head, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing, Score};
use crate::{Error, Result};

pub(super) static ARCH: Arch = Arch {
    model_types: &["gpt_oss"],
    gguf: &["gpt-oss"],
    keys: &[],
    gguf_keys: &[keys::EVERY_NTH[0], ("swiglu_alpha", "swiglu_alpha"), ("swiglu_limit", "swiglu_limit")],
    tensors: &[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.self_attn.sinks", "blk.{}.attn_sinks.weight"),
        ("model.layers.{}.mlp.router", "blk.{}.ffn_gate_inp"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let bias = c.bias("attention_bias", true)?;
    let ffn = c.maybe_part("moe_intermediate_size")?.map_or_else(|| c.part("intermediate_size"), Ok)?;
    let mut moe = Moe::read(c, Score::SoftmaxOfChosen, ffn)?;
    let alpha = c.maybe_float("swiglu_alpha", 0.0..=1e6)?.unwrap_or(1.702) as f32;
    let limit = c.maybe_float("swiglu_limit", 1e-6..=1e30)?.unwrap_or(7.0) as f32;
    if c.activation("hidden_act", Act::Silu)? != Act::Silu {
        return Err(c.wrong("hidden_act", "silu"));
    }
    if c.names.find("model.layers.0.mlp.experts.gate_up_proj_blocks").is_some() {
        return Err(Error::unsupported("a safetensors folder with experts in MXFP4", "a GGUF file of the model works"));
    }
    moe.gating = Gating::Clamped { alpha, limit };
    (moe.router, moe.router_bias, moe.bias) = ("mlp.router", Bias::Yes, Bias::Yes);
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;
    let windows = c.windows(c.layers()?, |layer| layer % 2 == 0)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let sinks = Some("self_attn.sinks");
    let plain = Attention { bias, out_bias: bias, sinks, ..Attention::new(heads, Some(rope)) };
    let layers: Vec<_> = windows.into_iter().map(|window| Attention { window, ..plain }).collect();
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let x = net.decoder_of(x, eps, &layers, 1.0, |net, _, h| net.moe(h, &moe))?;
    net.head(x, Head::PLAIN)
}
