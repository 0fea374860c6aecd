//! StableLM (Bellagente et al. 2024): Llama with layer norms and a part of each head rotated; some models with attention and
//! feed-forward side by side.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["stablelm"],
    gguf: &["stablelm"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("layer_norm_eps")?;
    let mlp = Mlp::read(c, Act::Silu)?;
    let bias = c.bias("use_qkv_bias", false)?;
    let rotary = Rotary::read_part(c, heads.head_dim, Pairing::Neox, 1.0)?;
    // GGUF files of models with one norm a layer have no tensor for the other, whatever the key says.
    let said = c.flag("use_parallel_residual", false)?;
    let parallel = if c.is_gguf() { c.names.file.find("blk.0.ffn_norm.weight").is_none() } else { said };
    if c.names.file.find("blk.0.attn_q_norm.weight").is_some() {
        return Err(c.wrong("qk_layernorm", "false, no norms of queries and keys,"));
    }

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention { bias, ..Attention::new(heads, Some(rope)) };
    let mut x = net.embed(c.dim("hidden_size")?, 1.0);
    for layer in 0..c.layers()? {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let normed = net.layer_norm("input_layernorm", x, eps, Bias::Yes);
        let h = net.self_attention(normed, &attention);
        x = net.b.add("attention residual", x, h);

        let h = if parallel { normed } else { net.layer_norm("post_attention_layernorm", x, eps, Bias::Yes) };
        let h = net.gated_mlp("mlp", h, &mlp);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.layer_norm("model.norm", x, eps, Bias::Yes);
    net.head(x, Head::PLAIN)
}
