//! StarCoder2 (Lozhkov et al. 2024): layer norms, biases, a plain feed-forward, a window.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["starcoder2"],
    gguf: &["starcoder2"],
    keys: &[("norm_epsilon", "layer_norm_eps")],
    gguf_keys: &[],
    tensors: &[("model.layers.{}.mlp.c_fc", "blk.{}.ffn_up"), ("model.layers.{}.mlp.c_proj", "blk.{}.ffn_down")],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("layer_norm_eps")?;
    let bias = c.bias("use_bias", true)?;
    let mlp = Mlp { bias, ..Mlp::read(c, Act::GeluTanh)? };
    let windows = c.windows_everywhere(c.layers()?)?;
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let mut x = net.embed(c.dim("hidden_size")?, 1.0);
    for (layer, window) in (0..).zip(windows) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let attention = Attention { bias, out_bias: bias, window, ..Attention::new(heads, Some(rope)) };
        let h = net.layer_norm("input_layernorm", x, eps, Bias::Yes);
        let h = net.self_attention(h, &attention);
        x = net.b.add("attention residual", x, h);

        let h = net.layer_norm("post_attention_layernorm", x, eps, Bias::Yes);
        let h = net.plain_mlp("mlp.c_fc", "mlp.c_proj", h, &mlp);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.layer_norm("model.norm", x, eps, Bias::Yes);
    net.head(x, Head::TIED)
}
