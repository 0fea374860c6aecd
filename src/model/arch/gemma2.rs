//! Gemma 2 (Gemma Team 2024): norms before and after each block, soft caps, a window in every other layer.

use super::Arch;
use crate::Result;
use crate::model::config::keys;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Config, Heads};
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing, ValueId};

pub(super) static ARCH: Arch = Arch {
    model_types: &["gemma2"],
    gguf: &["gemma2"],
    keys: &[],
    gguf_keys: keys::EVERY_NTH,
    tensors: &[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"),
        ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp::read(c, Act::GeluTanh)?;
    let bias = c.bias("attention_bias", false)?;
    let scale = scale(c, &heads, 46)?;
    let softcap = c.softcap("attn_logit_softcapping")?;
    let head = Head { softcap: c.softcap("final_logit_softcapping")?, ..Head::TIED };
    let windows = c.windows(layers, |layer| layer % 2 == 0)?;
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;

    let mut net = Net::new(c)?;
    if !c.is_gguf() {
        net.norms_zero_centred();
    }
    let rope = net.rotary(&rotary);
    let plain = Attention { bias, out_bias: bias, scale, softcap, ..Attention::new(heads, Some(rope)) };
    let mut x = net.embed(dim, (dim as f32).sqrt());
    for (layer, window) in (0..).zip(windows) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        x = self::layer(&mut net, x, eps, &Attention { window, ..plain }, &mlp);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, head)
}

/// Factor on the scores: `query_pre_attn_scalar^-1/2`. GGUF files do not have it: there it is the head's size, but in the
/// largest model (27B, known by its number of layers) the width by the number of heads.
pub(super) fn scale(c: &Config<'_>, heads: &Heads, largest: u32) -> Result<f32> {
    if let Some(scale) = c.maybe_float("attention_multiplier", 1e-6..=1e6)? {
        return Ok(scale as f32);
    }
    let scalar = match c.maybe_float("query_pre_attn_scalar", 1e-6..=1e6)? {
        None if c.is_gguf() && c.layers()? == largest => f64::from(c.dim("hidden_size")? / heads.heads),
        scalar => scalar.unwrap_or(heads.head_dim.into()),
    };
    Ok(scalar.powf(-0.5) as f32)
}

/// A layer with norms before and after attention and feed-forward.
pub(super) fn layer(net: &mut Net<'_>, x: ValueId, eps: f32, attention: &Attention, mlp: &Mlp) -> ValueId {
    let h = net.rms_norm("input_layernorm", x, eps);
    let h = net.self_attention(h, attention);
    let h = net.rms_norm("post_attention_layernorm", h, eps);
    let x = net.b.add("attention residual", x, h);

    let h = net.rms_norm("pre_feedforward_layernorm", x, eps);
    let h = net.gated_mlp("mlp", h, mlp);
    let h = net.rms_norm("post_feedforward_layernorm", h, eps);
    net.b.add("mlp residual", x, h)
}
