//! Phi-1 to Phi-2 (Li et al. 2023): attention and feed-forward side by side after one layer norm, biases everywhere.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["phi"],
    gguf: &["phi2"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[
        ("model.layers.{}.self_attn.dense", "blk.{}.attn_output"),
        ("model.layers.{}.mlp.fc1", "blk.{}.ffn_up"),
        ("model.layers.{}.mlp.fc2", "blk.{}.ffn_down"),
        ("model.final_layernorm", "output_norm"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let dim = c.dim("hidden_size")?;
    let eps = c.eps("layer_norm_eps")?;
    let mlp = Mlp { bias: Bias::Yes, ..Mlp::read(c, Act::GeluTanh)? };
    let rotary = Rotary::read_part(c, heads.head_dim, Pairing::Neox, 1.0)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention::new(heads, Some(rope));
    let mut x = net.embed(dim, 1.0);
    for layer in 0..c.layers()? {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let h = net.layer_norm("input_layernorm", x, eps, Bias::Yes);
        let q = net.linear("self_attn.q_proj", h, heads.q(), Bias::Yes);
        let k = net.linear("self_attn.k_proj", h, heads.kv(), Bias::Yes);
        let v = net.linear("self_attn.v_proj", h, heads.kv(), Bias::Yes);
        let a = net.attention(q, k, v, &attention);
        let a = net.linear("self_attn.dense", a, dim, Bias::Yes);
        x = net.b.add("attention residual", x, a);

        let h = net.plain_mlp("mlp.fc1", "mlp.fc2", h, &mlp);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.layer_norm("model.final_layernorm", x, eps, Bias::Yes);
    net.head(x, Head { bias: Bias::Yes, ..Head::PLAIN })
}
