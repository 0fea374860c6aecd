//! OLMo 2 (Team OLMo 2024): norms after each block instead of before, and of all queries and keys.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net, QkNorm};
use crate::model::program::Program;
use crate::ops::{Act, Pairing, ValueId};

pub(super) static ARCH: Arch = Arch {
    model_types: &["olmo2"],
    gguf: &["olmo2"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    // A window in a GGUF file of this name is OLMo 3's.
    let layers = c.layers()?;
    let windows =
        if c.is_gguf() { c.windows(layers, |layer| (layer + 1) % 4 != 0)? } else { vec![None; layers as usize] };
    with_windows(c, windows)
}

/// The program of a model whose layers may have sliding windows; those that do rotate without scaling.
pub(super) fn with_windows(c: &Config<'_>, windows: Vec<Option<u32>>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp::read(c, Act::Silu)?;
    let bias = c.bias("attention_bias", false)?;
    let everywhere = Rotary::of_full(c, heads.head_dim, Pairing::Neox)?;
    let nearby = if windows.iter().any(Option::is_some) {
        let theta = c.maybe_float("rope_parameters.rope_theta", 1e-3..=1e15)?.unwrap_or(5e5);
        Rotary::of_window(c, heads.head_dim, Pairing::Neox, theta)?
    } else {
        everywhere.clone()
    };

    let mut net = Net::new(c)?;
    let ropes = [net.rotary(&everywhere), net.rotary(&nearby)];
    let norms = QkNorm::Whole(eps);
    let mut x = net.embed(c.dim("hidden_size")?, 1.0);
    for (layer, window) in (0..).zip(windows) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let plain = Attention::new(heads, Some(ropes[usize::from(window.is_some())]));
        x = self::layer(&mut net, x, eps, &Attention { bias, out_bias: bias, norms, window, ..plain }, &mlp);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, Head::PLAIN)
}

/// A layer with norms after attention and feed-forward.
pub(super) fn layer(net: &mut Net<'_>, x: ValueId, eps: f32, attention: &Attention, mlp: &Mlp) -> ValueId {
    let h = net.self_attention(x, attention);
    let h = net.rms_norm("post_attention_layernorm", h, eps);
    let x = net.b.add("attention residual", x, h);

    let h = net.gated_mlp("mlp", x, mlp);
    let h = net.rms_norm("post_feedforward_layernorm", h, eps);
    net.b.add("mlp residual", x, h)
}
