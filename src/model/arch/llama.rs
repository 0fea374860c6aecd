//! Llama (Touvron et al. 2023), and all that keeps to its form: SmolLM2, TinyLlama, Yi, …

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::layers::{Net, Rotary};
use crate::model::program::Program;
use crate::ops::{Act, Mask, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["llama"],
    gguf: &["llama"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let ffn = c.dim("intermediate_size")?;
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let act = c.activation("hidden_act", Act::Silu)?;
    let attention_bias = c.bias("attention_bias", false)?;
    let mlp_bias = c.bias("mlp_bias", false)?;
    // The converter to GGUF reorders the rows of q and k so that pairs are neighbours.
    let pairing = if c.is_gguf() { Pairing::Interleaved } else { Pairing::Neox };
    let rotary = Rotary::read(c, heads.head_dim, pairing)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let group = net.b.group();
    let mut x = net.embed(dim, 1.0);
    for layer in 0..layers {
        net.b.layer(layer, format!("model.layers.{layer}."));

        let h = net.rms_norm("input_layernorm", x, eps);
        let q = net.linear("self_attn.q_proj", h, heads.q(), attention_bias);
        let k = net.linear("self_attn.k_proj", h, heads.kv(), attention_bias);
        let v = net.linear("self_attn.v_proj", h, heads.kv(), attention_bias);
        let q = net.b.rope("q", q, heads.head_dim, rope);
        let k = net.b.rope("k", k, heads.head_dim, rope);
        let h = net.attention(q, k, v, heads, group, Mask::Causal);
        let h = net.linear("self_attn.o_proj", h, dim, attention_bias);
        x = net.b.add("attention residual", x, h);

        let h = net.rms_norm("post_attention_layernorm", x, eps);
        let gate = net.linear("mlp.gate_proj", h, ffn, mlp_bias);
        let up = net.linear("mlp.up_proj", h, ffn, mlp_bias);
        let gate = net.b.act("act", gate, act);
        let h = net.b.mul("gated", gate, up);
        let h = net.linear("mlp.down_proj", h, dim, mlp_bias);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, false)
}
