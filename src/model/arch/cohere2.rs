//! Command R7B (Cohere 2024): attention and feed-forward side by side after one norm; only layers with a window rotate.

use super::Arch;
use crate::Result;
use crate::model::config::keys;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["cohere2"],
    gguf: &["cohere2"],
    keys: &[],
    gguf_keys: keys::EVERY_NTH,
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("layer_norm_eps")?;
    let mlp = Mlp::read(c, Act::Silu)?;
    let bias = c.bias("attention_bias", false)?;
    let windows = c.windows(c.layers()?, |layer| (layer + 1) % 4 != 0)?;
    let head = Head { scale: c.factor("logit_scale")?, ..Head::TIED };
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Interleaved)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let mut x = net.embed(c.dim("hidden_size")?, 1.0);
    for (layer, window) in (0..).zip(windows) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let plain = Attention::new(heads, window.map(|_| rope));
        let attention = Attention { bias, out_bias: bias, window, ..plain };
        let normed = net.layer_norm("input_layernorm", x, eps, Bias::No);
        let h = net.self_attention(normed, &attention);
        x = net.b.add("attention residual", x, h);

        let h = net.gated_mlp("mlp", normed, &mlp);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.layer_norm("model.norm", x, eps, Bias::No);
    net.head(x, head)
}
