//! Gemma 3 (Gemma Team 2025): most layers have a sliding window and rotate by a smaller theta; norms before and after each
//! block. EmbeddingGemma (2025) is the same with bidirectional attention.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::keys;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net, QkNorm};
use crate::model::program::Program;
use crate::ops::{Act, Pairing, Pooling};

pub(super) static ARCH: Arch = Arch {
    model_types: &["gemma3_text", "gemma3"],
    gguf: &["gemma3", "gemma-embedding"],
    keys: keys::OF_FULL,
    gguf_keys: keys::EVERY_NTH,
    tensors: &[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"),
        ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp::read(c, Act::GeluTanh)?;
    let bias = c.bias("attention_bias", false)?;
    let scale = super::gemma2::scale(c, &heads, 62)?;
    let head = Head { softcap: c.softcap("final_logit_softcapping")?, ..Head::TIED };
    let bidirectional = c.flag("use_bidirectional_attention", false)? || c.is_gguf() && !c.flag("is_causal", true)?;
    let windows = c.windows(layers, |layer| (layer + 1) % 6 != 0)?;
    let everywhere = Rotary::of_full(c, heads.head_dim, Pairing::Neox)?;
    let nearby = Rotary::of_window(c, heads.head_dim, Pairing::Neox, 1e4)?;

    let mut net = Net::new(c)?;
    if !c.is_gguf() {
        net.norms_zero_centred();
    }
    let ropes = [net.rotary(&everywhere), net.rotary(&nearby)];
    let norms = QkNorm::Heads(eps);
    let mut x = net.embed(dim, (dim as f32).sqrt());
    for (layer, window) in (0..).zip(windows) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let rope = Some(ropes[usize::from(window.is_some())]);
        let plain = Attention::new(heads, rope);
        let attention = Attention { bias, out_bias: bias, norms, window, bidirectional, scale, ..plain };
        x = super::gemma2::layer(&mut net, x, eps, &attention, &mlp);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    if bidirectional { net.embedding(x, Pooling::Mean) } else { net.head(x, head) }
}
