//! ERNIE 4.5 (Baidu 2025) with experts, chosen by probabilities with a bias, beside some that all rows go through.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::moe::Moe;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Divide, Pairing, Score};

pub(super) static ARCH: Arch = Arch {
    model_types: &["ernie4_5_moe"],
    gguf: &["ernie4_5-moe"],
    keys: &[
        ("moe_k", "num_experts_per_tok"),
        ("moe_num_shared_experts", "n_shared_experts"),
        ("moe_layer_start_index", "first_k_dense_replace"),
    ],
    gguf_keys: &[("interleave_moe_layer_step", "moe_layer_interval")],
    tensors: &[("model.layers.{}.mlp.moe_statics.e_score_correction_bias", "blk.{}.exp_probs_b.bias")],
    embedding: "model.embed_tokens.weight",
    build,
};

/// The last layer with experts.
const END: &str = "moe_layer_end_index";

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let bias = c.bias("use_bias", false)?;
    let dense = Mlp { bias, ..Mlp::read(c, Act::Silu)? };
    let least = c.maybe_float("moe_norm_min", 0.0..=1.0)?.unwrap_or(1e-12) as f32;
    let mut moe = Moe::read(c, Score::Softmax, Moe::ffn(c)?)?;
    moe.route.divide = Divide::SumAtLeast(least);
    moe.choice_bias = Some("mlp.moe_statics.e_score_correction_bias");
    let shared = Mlp { ffn: moe.shared(c)?, bias: if c.is_gguf() { Bias::IfPresent } else { bias }, ..dense };
    // Every `every`-th layer has experts, from `first` to `last`.
    let layers = c.layers()?;
    let every = c.maybe_int("moe_layer_interval", 1..=1 << 20)?.unwrap_or(1);
    let first = c.maybe_int("first_k_dense_replace", 0..=1 << 20)?.unwrap_or(1);
    // -1 stands for the last layer.
    let last = match c.value(END) {
        Some(value) if value.is("-1") => None,
        _ => c.maybe_int(END, 0..=1 << 20)?,
    };
    c.without_effect(&[END]);
    let last = last.unwrap_or(layers);
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Interleaved)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let attention = Attention { bias, out_bias: bias, ..Attention::new(heads, Some(rope)) };
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let x = net.decoder_of(x, eps, &vec![attention; layers as usize], 1.0, |net, layer, h| {
        match (first..=last).contains(&layer) && (layer + 1).is_multiple_of(every) {
            true => net.moe_and_shared(h, &moe, &shared),
            false => Ok(net.gated_mlp("mlp", h, &dense)),
        }
    })?;
    net.head(x, Head { bias, ..Head::TIED })
}
