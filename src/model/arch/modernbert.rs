//! ModernBERT (Warner et al. 2024): an encoder with norms before each block, rotary positions, a gated feed-forward part, and
//! in most layers a bidirectional sliding window.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing, Pooling};

pub(super) static ARCH: Arch = Arch {
    model_types: &["modernbert"],
    gguf: &["modern-bert"],
    keys: &[
        ("norm_eps", "layer_norm_eps"),
        ("local_attention", "sliding_window"),
        ("sliding_window", "half_window"),
        ("global_rope_theta", "rope_parameters.full_attention.rope_theta"),
        ("local_rope_theta", "rope_parameters.sliding_attention.rope_theta"),
    ],
    gguf_keys: &[
        ("attention.sliding_window_pattern", "global_attn_every_n_layers"),
        ("hidden_activation", "hidden_act"),
    ],
    tensors: &[
        ("model.embeddings.tok_embeddings", "token_embd"),
        ("model.embeddings.norm", "token_embd_norm"),
        ("model.layers.{}.attn_norm", "blk.{}.attn_norm"),
        ("model.layers.{}.attn.Wqkv", "blk.{}.attn_qkv"),
        ("model.layers.{}.attn.Wo", "blk.{}.attn_output"),
        ("model.layers.{}.mlp_norm", "blk.{}.ffn_norm"),
        ("model.layers.{}.mlp.Wi", "blk.{}.ffn_up"),
        ("model.layers.{}.mlp.Wo", "blk.{}.ffn_down"),
        ("model.final_norm", "output_norm"),
    ],
    embedding: "model.embeddings.tok_embeddings.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let ffn = c.dim("intermediate_size")?;
    let heads = c.heads()?;
    let eps = c.eps("layer_norm_eps")?;
    let act = c.activation("hidden_act", Act::GeluErf)?;
    let (attention_bias, mlp_bias) = (c.bias("attention_bias", false)?, c.bias("mlp_bias", false)?);
    let norm_bias = c.bias("norm_bias", false)?;
    let every = c.maybe_int("global_attn_every_n_layers", 1..=1 << 16)?.unwrap_or(3);
    if !c.is_gguf() && c.maybe_int("half_window", 0..=u32::MAX)?.is_some() {
        return Err(c.wrong("half_window", "local_attention, which counts both sides of a token,"));
    }
    let windows = c.windows(layers, |layer| layer % every != 0)?;
    let everywhere = Rotary::of_full(c, heads.head_dim, Pairing::Neox)?;
    let nearby = Rotary::of_window(c, heads.head_dim, Pairing::Neox, 1e4)?;
    let pooling = match c.text("classifier_pooling")? {
        None | Some("cls") => Pooling::Cls,
        Some("mean") => Pooling::Mean,
        Some(_) => return Err(c.wrong("classifier_pooling", "cls or mean")),
    };
    c.needs_bidirectional()?;

    let mut net = Net::new(c)?;
    let ropes = [net.rotary(&everywhere), net.rotary(&nearby)];
    let x = net.embed(dim, 1.0);
    let mut x = net.layer_norm("model.embeddings.norm", x, eps, norm_bias);
    for (layer, window) in (0..).zip(windows) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let rope = Some(ropes[usize::from(window.is_some())]);
        let attention = Attention { window, bidirectional: true, ..Attention::new(heads, rope) };

        // The embeddings are normed already.
        let h = if layer == 0 { x } else { net.layer_norm("attn_norm", x, eps, norm_bias) };
        let q = net.linear_part("attn.Wqkv", h, 0, heads.q(), attention_bias);
        let k = net.linear_part("attn.Wqkv", h, heads.q(), heads.kv(), attention_bias);
        let v = net.linear_part("attn.Wqkv", h, heads.q() + heads.kv(), heads.kv(), attention_bias);
        let h = net.attention(q, k, v, &attention);
        let h = net.linear("attn.Wo", h, dim, attention_bias);
        x = net.b.add("attention residual", x, h);

        let h = net.layer_norm("mlp_norm", x, eps, norm_bias);
        let gate = net.linear_part("mlp.Wi", h, 0, ffn, mlp_bias);
        let up = net.linear_part("mlp.Wi", h, ffn, ffn, mlp_bias);
        let h = net.gated(gate, up, act);
        let h = net.linear("mlp.Wo", h, dim, mlp_bias);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.layer_norm("model.final_norm", x, eps, norm_bias);
    net.embedding(x, pooling)
}
