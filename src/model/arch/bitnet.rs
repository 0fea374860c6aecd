//! BitNet b1.58 (Wang et al. 2023): Llama with norms before the last projection of each block. The weights are plain numbers
//! here: packed ternary ones come with `quantization_config`, or with scales in GGUF files, and are refused.

use super::Arch;
use crate::Error;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["bitnet"],
    gguf: &["bitnet"],
    keys: &[],
    gguf_keys: &[("hidden_activation", "hidden_act")],
    tensors: &[
        ("model.layers.{}.self_attn.attn_sub_norm", "blk.{}.attn_sub_norm"),
        ("model.layers.{}.mlp.ffn_sub_norm", "blk.{}.ffn_sub_norm"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let dim = c.dim("hidden_size")?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp::read(c, Act::Relu2)?;
    let bias = c.bias("attention_bias", false)?;
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;
    if c.names.file.find("blk.0.attn_q.scale").is_some() {
        return Err(Error::unsupported("ternary weights with scales in a bitnet model", "plain weights work"));
    }

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention::new(heads, Some(rope));
    let mut x = net.embed(dim, 1.0);
    for layer in 0..c.layers()? {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let h = net.rms_norm("input_layernorm", x, eps);
        let q = net.linear("self_attn.q_proj", h, heads.q(), bias);
        let k = net.linear("self_attn.k_proj", h, heads.kv(), bias);
        let v = net.linear("self_attn.v_proj", h, heads.kv(), bias);
        let h = net.attention(q, k, v, &attention);
        let h = net.rms_norm("self_attn.attn_sub_norm", h, eps);
        let h = net.linear("self_attn.o_proj", h, dim, bias);
        x = net.b.add("attention residual", x, h);

        let h = net.rms_norm("post_attention_layernorm", x, eps);
        let gate = net.linear("mlp.gate_proj", h, mlp.ffn, mlp.bias);
        let up = net.linear("mlp.up_proj", h, mlp.ffn, mlp.bias);
        let h = net.gated(gate, up, mlp.act);
        let h = net.rms_norm("mlp.ffn_sub_norm", h, eps);
        let h = net.linear("mlp.down_proj", h, dim, mlp.bias);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, Head::TIED)
}
