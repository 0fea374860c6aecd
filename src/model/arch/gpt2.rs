//! GPT-2 (Radford et al. 2019): learned positions, layer norms, one matrix for q, k and v.

use super::Arch;
use crate::Result;
use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Head, Net};
use crate::model::program::Program;
use crate::ops::{Act, Index};

pub(super) static ARCH: Arch = Arch {
    model_types: &["gpt2"],
    gguf: &["gpt2"],
    keys: &[
        ("n_embd", "hidden_size"),
        ("n_layer", "num_hidden_layers"),
        ("n_head", "num_attention_heads"),
        ("n_inner", "intermediate_size"),
        ("n_positions", "max_position_embeddings"),
        ("layer_norm_epsilon", "layer_norm_eps"),
        ("activation_function", "hidden_act"),
    ],
    gguf_keys: &[],
    tensors: &[
        ("transformer.wte", "token_embd"),
        ("transformer.wpe", "position_embd"),
        ("transformer.h.{}.ln_1", "blk.{}.attn_norm"),
        ("transformer.h.{}.attn.c_attn", "blk.{}.attn_qkv"),
        ("transformer.h.{}.attn.c_proj", "blk.{}.attn_output"),
        ("transformer.h.{}.ln_2", "blk.{}.ffn_norm"),
        ("transformer.h.{}.mlp.c_fc", "blk.{}.ffn_up"),
        ("transformer.h.{}.mlp.c_proj", "blk.{}.ffn_down"),
        ("transformer.ln_f", "output_norm"),
    ],
    embedding: "transformer.wte.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let ffn = c.maybe_dim("intermediate_size")?.unwrap_or(4 * dim);
    let heads = c.heads_of_hidden()?;
    let eps = c.eps("layer_norm_eps")?;
    let act = c.activation("hidden_act", Act::GeluTanh)?;
    let context = c.context()?;

    let mut net = Net::new(c)?;
    let attention = Attention::new(heads, None);
    let tokens = net.embed(dim, 1.0);
    let positions = net.b.embed("transformer.wpe.weight", Index::Position(0), context, dim, 1.0);
    let mut x = net.b.add("embeddings", tokens, positions);
    // Folders hold the transposes of the matrices: in PyTorch they are 1×1 convolutions.
    net.b.transposed(!c.is_gguf());
    for layer in 0..layers {
        net.b.layer(layer, format!("transformer.h.{layer}."));

        let h = net.layer_norm("ln_1", x, eps, Bias::Yes);
        let q = net.linear_part("attn.c_attn", h, 0, heads.q(), Bias::Yes);
        let k = net.linear_part("attn.c_attn", h, heads.q(), heads.kv(), Bias::Yes);
        let v = net.linear_part("attn.c_attn", h, heads.q() + heads.kv(), heads.kv(), Bias::Yes);
        let h = net.attention(q, k, v, &attention);
        let h = net.linear("attn.c_proj", h, dim, Bias::Yes);
        x = net.b.add("attention residual", x, h);

        let h = net.layer_norm("ln_2", x, eps, Bias::Yes);
        let h = net.linear("mlp.c_fc", h, ffn, Bias::Yes);
        let h = net.b.act("act", h, act);
        let h = net.linear("mlp.c_proj", h, dim, Bias::Yes);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.transposed(false);
    net.b.end_layers();
    let x = net.layer_norm("transformer.ln_f", x, eps, Bias::Yes);
    net.head(x, Head::TIED)
}
