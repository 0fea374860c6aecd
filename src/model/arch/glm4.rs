//! GLM-4 (GLM Team 2024): norms before and after each block; half of each head rotates, in interleaved pairs.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["glm4"],
    gguf: &["glm4"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[
        ("model.layers.{}.post_self_attn_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.post_mlp_layernorm", "blk.{}.post_ffw_norm"),
        ("model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp::read(c, Act::Silu)?;
    let bias = c.bias("attention_bias", false)?;
    let rotary = Rotary::read_part(c, heads.head_dim, Pairing::Interleaved, 1.0)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention { bias, ..Attention::new(heads, Some(rope)) };
    let mut x = net.embed(c.dim("hidden_size")?, 1.0);
    for layer in 0..c.layers()? {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let h = net.rms_norm("input_layernorm", x, eps);
        let h = net.self_attention(h, &attention);
        let h = net.rms_norm("post_self_attn_layernorm", h, eps);
        x = net.b.add("attention residual", x, h);

        let h = net.rms_norm("post_attention_layernorm", x, eps);
        let h = net.stacked_mlp("mlp", h, &mlp);
        let h = net.rms_norm("post_mlp_layernorm", h, eps);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, Head::PLAIN)
}
