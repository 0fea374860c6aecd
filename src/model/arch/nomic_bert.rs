//! Nomic's BERT (Nussbaum et al. 2024): an encoder with rotary positions and a gated feed-forward part, without biases.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Net};
use crate::model::program::Program;
use crate::ops::{Act, Index, Pairing, Pooling};

pub(super) static ARCH: Arch = Arch {
    model_types: &["nomic_bert"],
    gguf: &["nomic-bert"],
    keys: &[
        ("n_embd", "hidden_size"),
        ("n_layer", "num_hidden_layers"),
        ("n_head", "num_attention_heads"),
        ("n_inner", "intermediate_size"),
        ("n_positions", "max_position_embeddings"),
        ("layer_norm_epsilon", "layer_norm_eps"),
        ("activation_function", "hidden_act"),
        ("rotary_emb_fraction", "rope_parameters.partial_rotary_factor"),
        ("qkv_proj_bias", "qkv_bias"),
        ("mlp_fc1_bias", "mlp_bias"),
        ("mlp_fc2_bias", "use_bias"),
        ("causal", "is_causal"),
    ],
    gguf_keys: &[],
    tensors: &[
        ("bert.embeddings.word_embeddings", "token_embd"),
        ("bert.embeddings.token_type_embeddings", "token_types"),
        ("bert.emb_ln", "token_embd_norm"),
        ("bert.encoder.layers.{}.attn.Wqkv", "blk.{}.attn_qkv"),
        ("bert.encoder.layers.{}.attn.out_proj", "blk.{}.attn_output"),
        ("bert.encoder.layers.{}.norm1", "blk.{}.attn_output_norm"),
        ("bert.encoder.layers.{}.mlp.fc11", "blk.{}.ffn_up"),
        ("bert.encoder.layers.{}.mlp.fc12", "blk.{}.ffn_gate"),
        ("bert.encoder.layers.{}.mlp.fc2", "blk.{}.ffn_down"),
        ("bert.encoder.layers.{}.norm2", "blk.{}.layer_output_norm"),
    ],
    embedding: "bert.embeddings.word_embeddings.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let ffn = c.dim("intermediate_size")?;
    let heads = c.heads()?;
    let eps = c.eps("layer_norm_eps")?;
    let swiglu = c.text("hidden_act")? == Some("swiglu");
    let act = if swiglu { Act::Silu } else { c.activation("hidden_act", Act::Silu)? };
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;
    let types = c.types("bert.embeddings.token_type_embeddings.weight")?;
    c.needs_bidirectional()?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention { bidirectional: true, ..Attention::new(heads, Some(rope)) };
    let words = net.embed(dim, 1.0);
    let types = net.b.embed("bert.embeddings.token_type_embeddings.weight", Index::Type, types, dim, 1.0);
    let x = net.b.add("embeddings", words, types);
    let mut x = net.layer_norm("bert.emb_ln", x, eps, Bias::Yes);
    for layer in 0..layers {
        net.b.layer(layer, format!("bert.encoder.layers.{layer}."));

        let q = net.linear_part("attn.Wqkv", x, 0, heads.q(), Bias::No);
        let k = net.linear_part("attn.Wqkv", x, heads.q(), heads.kv(), Bias::No);
        let v = net.linear_part("attn.Wqkv", x, heads.q() + heads.kv(), heads.kv(), Bias::No);
        let h = net.attention(q, k, v, &attention);
        let h = net.linear("attn.out_proj", h, dim, Bias::No);
        let h = net.b.add("attention residual", x, h);
        x = net.layer_norm("norm1", h, eps, Bias::Yes);

        let gate = net.linear("mlp.fc12", x, ffn, Bias::No);
        let up = net.linear("mlp.fc11", x, ffn, Bias::No);
        let gate = net.b.act("act", gate, act);
        let h = net.b.mul("gated", gate, up);
        let h = net.linear("mlp.fc2", h, dim, Bias::No);
        let h = net.b.add("mlp residual", x, h);
        x = net.layer_norm("norm2", h, eps, Bias::Yes);
    }
    net.b.end_layers();
    net.embedding(x, Pooling::Mean)
}
