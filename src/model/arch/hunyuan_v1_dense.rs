//! Hunyuan (Tencent 2025), dense: Llama that normalises the heads of queries and keys after their rotation.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["hunyuan_v1_dense"],
    gguf: &["hunyuan-dense"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[
        ("model.layers.{}.self_attn.query_layernorm", "blk.{}.attn_q_norm"),
        ("model.layers.{}.self_attn.key_layernorm", "blk.{}.attn_k_norm"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let dim = c.dim("hidden_size")?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp::read(c, Act::Silu)?;
    let bias = c.bias("attention_bias", false)?;
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention::new(heads, None);
    let mut x = net.embed(dim, 1.0);
    for layer in 0..c.layers()? {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let h = net.rms_norm("input_layernorm", x, eps);
        let q = net.linear("self_attn.q_proj", h, heads.q(), bias);
        let k = net.linear("self_attn.k_proj", h, heads.kv(), bias);
        let v = net.linear("self_attn.v_proj", h, heads.kv(), bias);
        let q = net.b.rope("q", q, heads.head_dim, rope);
        let k = net.b.rope("k", k, heads.head_dim, rope);
        let q = net.head_norm("self_attn.query_layernorm", q, heads.head_dim, eps);
        let k = net.head_norm("self_attn.key_layernorm", k, heads.head_dim, eps);
        let h = net.attention(q, k, v, &attention);
        let h = net.linear("self_attn.o_proj", h, dim, bias);
        x = net.b.add("attention residual", x, h);

        let h = net.rms_norm("post_attention_layernorm", x, eps);
        let h = net.gated_mlp("mlp", h, &mlp);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, Head::PLAIN)
}
