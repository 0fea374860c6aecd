//! SmolLM3 (Hugging Face 2025): Llama without rotary positions in some layers.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::Act;

pub(super) static ARCH: Arch = Arch {
    model_types: &["smollm3"],
    gguf: &["smollm3"],
    keys: &[],
    // llama.cpp does not read these: there every fourth layer does not rotate, as in the published model.
    gguf_keys: &[("no_rope_layers", "no_rope_layers"), ("no_rope_layer_interval", "no_rope_layer_interval")],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp { bias: c.bias("mlp_bias", false)?, ..Mlp::read(c, Act::Silu)? };
    let bias = c.bias("attention_bias", false)?;
    let rotary = Rotary::read(c, heads.head_dim, Rotary::reordered(c))?;
    let rotates = match c.maybe_flags("no_rope_layers", layers)? {
        Some(flags) => flags, // 1 for a layer that rotates, whatever the name says
        None => {
            let interval = c.maybe_int("no_rope_layer_interval", 1..=1 << 20)?.unwrap_or(4);
            (1..=layers).map(|layer| layer % interval != 0).collect()
        }
    };
    let windows = if c.flag("use_sliding_window", false)? {
        c.windows(layers, |layer| !rotates[layer as usize])?
    } else {
        c.no_windows(layers)?
    };

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let plain = Attention { bias, out_bias: bias, ..Attention::new(heads, None) };
    let layer = |(rotates, window): (bool, _)| Attention { rope: rotates.then_some(rope), window, ..plain };
    let layers: Vec<_> = rotates.into_iter().zip(windows).map(layer).collect();
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let x = net.decoder(x, eps, &layers, &mlp);
    net.head(x, Head::TIED)
}
