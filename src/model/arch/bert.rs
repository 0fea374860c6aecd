//! BERT (Devlin et al. 2018): an encoder. Learned positions and token types, a norm after each block; as an embedder, or,
//! with a classifier of one label, as a reranker of pairs of texts.

use super::Arch;
use crate::Result;
use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Net};
use crate::model::program::Program;
use crate::ops::{Act, Index, Pooling};

pub(super) static ARCH: Arch = Arch {
    model_types: &["bert"],
    gguf: &["bert"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[
        ("bert.embeddings.word_embeddings", "token_embd"),
        ("bert.embeddings.position_embeddings", "position_embd"),
        ("bert.embeddings.token_type_embeddings", "token_types"),
        ("bert.embeddings.LayerNorm", "token_embd_norm"),
        ("bert.encoder.layer.{}.attention.self.query", "blk.{}.attn_q"),
        ("bert.encoder.layer.{}.attention.self.key", "blk.{}.attn_k"),
        ("bert.encoder.layer.{}.attention.self.value", "blk.{}.attn_v"),
        ("bert.encoder.layer.{}.attention.output.dense", "blk.{}.attn_output"),
        ("bert.encoder.layer.{}.attention.output.LayerNorm", "blk.{}.attn_output_norm"),
        ("bert.encoder.layer.{}.intermediate.dense", "blk.{}.ffn_up"),
        ("bert.encoder.layer.{}.output.dense", "blk.{}.ffn_down"),
        ("bert.encoder.layer.{}.output.LayerNorm", "blk.{}.layer_output_norm"),
        ("bert.pooler.dense", "cls"),
        ("classifier", "cls.output"),
    ],
    embedding: "bert.embeddings.word_embeddings.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let ffn = c.dim("intermediate_size")?;
    let heads = c.heads_of_hidden()?;
    let eps = c.eps("layer_norm_eps")?;
    let act = c.activation("hidden_act", Act::GeluErf)?;
    let context = c.context()?;
    let types = c.types("bert.embeddings.token_type_embeddings.weight")?;
    c.needs_bidirectional()?;

    let attention = Attention { bidirectional: true, ..Attention::new(heads, None) };
    let mut net = Net::new(c)?;
    let words = net.embed(dim, 1.0);
    let types = net.b.embed("bert.embeddings.token_type_embeddings.weight", Index::Type, types, dim, 1.0);
    let x = net.b.add("words and types", words, types);
    let positions = net.b.embed("bert.embeddings.position_embeddings.weight", Index::Position(0), context, dim, 1.0);
    let x = net.b.add("embeddings", x, positions);
    let mut x = net.layer_norm("bert.embeddings.LayerNorm", x, eps, Bias::Yes);
    for layer in 0..layers {
        net.b.layer(layer, format!("bert.encoder.layer.{layer}."));

        let q = net.linear("attention.self.query", x, heads.q(), Bias::Yes);
        let k = net.linear("attention.self.key", x, heads.kv(), Bias::Yes);
        let v = net.linear("attention.self.value", x, heads.kv(), Bias::Yes);
        let h = net.attention(q, k, v, &attention);
        let h = net.linear("attention.output.dense", h, dim, Bias::Yes);
        let h = net.b.add("attention residual", x, h);
        x = net.layer_norm("attention.output.LayerNorm", h, eps, Bias::Yes);

        let h = net.linear("intermediate.dense", x, ffn, Bias::Yes);
        let h = net.b.act("act", h, act);
        let h = net.linear("output.dense", h, dim, Bias::Yes);
        let h = net.b.add("mlp residual", x, h);
        x = net.layer_norm("output.LayerNorm", h, eps, Bias::Yes);
    }
    net.b.end_layers();
    match c.rows("classifier.weight") {
        Some(_) => net.score(x, "bert.pooler.dense", "classifier"),
        None => net.embedding(x, Pooling::Mean),
    }
}
