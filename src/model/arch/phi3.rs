//! Phi-3 (Abdin et al. 2024): Llama with q, k and v in one tensor, gate and up in another, and LongRoPE.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["phi3"],
    gguf: &["phi3"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[
        ("model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"),
        ("model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let dim = c.dim("hidden_size")?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp::read(c, Act::Silu)?;
    let windows = c.windows_everywhere(c.layers()?)?;
    let rotary = Rotary::read_part(c, heads.head_dim, Pairing::Neox, 1.0)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let mut x = net.embed(dim, 1.0);
    for (layer, window) in (0..).zip(windows) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let attention = Attention { window, ..Attention::new(heads, Some(rope)) };
        let h = net.rms_norm("input_layernorm", x, eps);
        let q = net.linear_part("self_attn.qkv_proj", h, 0, heads.q(), attention.bias);
        let k = net.linear_part("self_attn.qkv_proj", h, heads.q(), heads.kv(), attention.bias);
        let v = net.linear_part("self_attn.qkv_proj", h, heads.q() + heads.kv(), heads.kv(), attention.bias);
        let h = net.attention(q, k, v, &attention);
        let h = net.linear("self_attn.o_proj", h, dim, attention.out_bias);
        x = net.b.add("attention residual", x, h);

        let h = net.rms_norm("post_attention_layernorm", x, eps);
        let h = net.stacked_mlp("mlp", h, &mlp);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, Head::PLAIN)
}
