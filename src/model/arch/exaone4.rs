//! EXAONE 4 (LG AI Research 2025): norms after each block; where layers see windows, only those rotate.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::keys;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net, QkNorm};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["exaone4"],
    gguf: &["exaone4"],
    keys: &[],
    gguf_keys: keys::EVERY_NTH,
    tensors: &[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp::read(c, Act::Silu)?;
    let windows = c.windows(c.layers()?, |layer| (layer + 1) % 4 != 0)?;
    // GGUF files have the window only where some layer sees it.
    let hybrid = c.maybe_int("sliding_window", 0..=1 << 30)?.is_some_and(|window| window > 0);
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let norms = QkNorm::Heads(eps);
    let mut x = net.embed(c.dim("hidden_size")?, 1.0);
    for (layer, window) in (0..).zip(windows) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let rope = (window.is_some() || !hybrid).then_some(rope);
        let attention = Attention { norms, window, ..Attention::new(heads, rope) };
        x = super::olmo2::layer(&mut net, x, eps, &attention, &mlp);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, Head::PLAIN)
}
