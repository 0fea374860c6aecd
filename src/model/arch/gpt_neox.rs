//! GPT-NeoX (Black et al. 2022) and Pythia: attention and feed-forward side by side, each after a norm of its own.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::model::program::Runs;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["gpt_neox"],
    gguf: &["gptneox"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[
        ("gpt_neox.embed_in", "token_embd"),
        ("gpt_neox.layers.{}.input_layernorm", "blk.{}.attn_norm"),
        ("gpt_neox.layers.{}.attention.query_key_value", "blk.{}.attn_qkv"),
        ("gpt_neox.layers.{}.attention.dense", "blk.{}.attn_output"),
        ("gpt_neox.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
        ("gpt_neox.layers.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"),
        ("gpt_neox.layers.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"),
        ("gpt_neox.final_layer_norm", "output_norm"),
        ("embed_out", "output"),
    ],
    embedding: "gpt_neox.embed_in.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads_of_hidden()?;
    let dim = c.dim("hidden_size")?;
    let eps = c.eps("layer_norm_eps")?;
    let mlp = Mlp { bias: Bias::Yes, ..Mlp::read(c, Act::GeluErf)? };
    let bias = c.bias("attention_bias", true)?;
    let parallel = c.flag("use_parallel_residual", true)?;
    let rotary = Rotary::read_part(c, heads.head_dim, Pairing::Neox, 1.0)?;
    // Folders have q, k and v head by head; the converter to GGUF puts each in one piece.
    let (next, runs) = match c.is_gguf() {
        true => (heads.q(), Runs::ONE),
        false => (heads.head_dim, Runs { run: heads.head_dim, skip: 2 * heads.head_dim }),
    };

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention::new(heads, Some(rope));
    let mut x = net.embed(dim, 1.0);
    for layer in 0..c.layers()? {
        net.b.layer(layer, format!("gpt_neox.layers.{layer}."));
        let h = net.layer_norm("input_layernorm", x, eps, Bias::Yes);
        let [q, k, v] =
            [0, 1, 2].map(|i| net.linear_runs("attention.query_key_value", h, i * next, heads.q(), runs, bias));
        let h = net.attention(q, k, v, &attention);
        let h = net.linear("attention.dense", h, dim, bias);
        let sum = net.b.add("attention residual", x, h);

        let h = net.layer_norm("post_attention_layernorm", if parallel { x } else { sum }, eps, Bias::Yes);
        let h = net.plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", h, &mlp);
        x = net.b.add("mlp residual", sum, h);
    }
    net.b.end_layers();
    let x = net.layer_norm("gpt_neox.final_layer_norm", x, eps, Bias::Yes);
    net.head(x, Head { name: "embed_out", ..Head::PLAIN })
}
