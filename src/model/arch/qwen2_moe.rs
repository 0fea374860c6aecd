//! Qwen2-MoE (Qwen Team 2024): Qwen2 with experts in some layers, beside one that all rows go through.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::moe::Moe;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Divide, Pairing, Score};

pub(super) static ARCH: Arch = Arch {
    model_types: &["qwen2_moe"],
    gguf: &["qwen2moe"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let bias = c.bias("qkv_bias", true)?;
    let moe = Moe::read(c, Score::Softmax, Moe::ffn(c)?)?.normed(c, false, Divide::SumPlus(0.0))?;
    let act = c.activation("hidden_act", Act::Silu)?;
    let shared = Mlp { ffn: c.dim("shared_expert_intermediate_size")?, act, bias: Bias::No };
    let sparse = sparse(c, &moe)?;
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;
    let windows = windows(c)?;
    let dense = if sparse.contains(&false) { Some(Mlp::read(c, act)?) } else { None };

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let plain = Attention { bias, ..Attention::new(heads, Some(rope)) };
    let layers: Vec<_> = windows.into_iter().map(|window| Attention { window, ..plain }).collect();
    let x = net.embed(c.dim("hidden_size")?, 1.0);
    let x = net.decoder_of(x, eps, &layers, 1.0, |net, layer, h| match &dense {
        Some(dense) if !sparse[layer as usize] => Ok(net.gated_mlp("mlp", h, dense)),
        _ => {
            let experts = net.moe(h, &moe)?;
            let shared = net.gated_expert("mlp.shared_expert", "mlp.shared_expert_gate", h, &shared);
            Ok(net.b.add("experts and shared", experts, shared))
        }
    })?;
    net.head(x, Head::PLAIN)
}

/// The window of each layer: none unless `use_sliding_window` says so; then of every other layer below `max_window_layers`,
/// where no list says it.
fn windows(c: &Config<'_>) -> Result<Vec<Option<u32>>> {
    let layers = c.layers()?;
    if !c.flag("use_sliding_window", c.is_gguf())? {
        return c.no_windows(layers);
    }
    let last = c.maybe_int("max_window_layers", 0..=1 << 20)?.unwrap_or(28);
    c.windows(layers, |layer| layer % 2 == 0 && layer < last)
}

/// Which layers have experts: every `decoder_sparse_step`-th, but for those of `mlp_only_layers`. In GGUF files, those with a
/// router.
pub(super) fn sparse(c: &Config<'_>, moe: &Moe) -> Result<Vec<bool>> {
    let layers = c.layers()?;
    if c.is_gguf() {
        return Ok((0..layers).map(|layer| moe.routes(c, layer)).collect());
    }
    let step = c.maybe_int("decoder_sparse_step", 1..=1 << 20)?.unwrap_or(1);
    let dense = c.ints("mlp_only_layers")?;
    Ok((0..layers).map(|layer| (layer + 1).is_multiple_of(step) && !dense.contains(&layer)).collect())
}
