//! Gemma 3n (Gemma Team 2025): four streams of which a layer works on one and corrects all (AltUp, Baykal et al. 2023),
//! low-rank residuals (LAuReL, Menghani et al. 2024), embeddings for each layer, later layers that see the keys and values of
//! earlier ones.

use super::Arch;
use crate::Result;
use crate::model::config::keys;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::altup::{self, AltUp};
use crate::model::layers::shared::{PerLayer, Sharing};
use crate::model::layers::{Attention, Head, Net, QkNorm};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["gemma3n_text", "gemma3n"],
    gguf: &["gemma3n"],
    keys: keys::OF_FULL,
    gguf_keys: &[
        keys::EVERY_NTH[0],
        ("altup.num_inputs", "altup_num_inputs"),
        ("altup.active_idx", "altup_active_idx"),
        ("activation_sparsity_scale", "activation_sparsity_scale"),
    ],
    tensors: &[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"),
        ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
        ("model.layers.{}.altup.correction_coefs", "blk.{}.altup_correct_coef"),
        ("model.layers.{}.altup.correct_output_scale", "blk.{}.altup_correct_scale.weight"),
        ("model.layers.{}.altup.prediction_coefs", "blk.{}.altup_predict_coef"),
        ("model.layers.{}.altup.modality_router", "blk.{}.altup_router"),
        ("model.layers.{}.altup.router_norm", "blk.{}.altup_router_norm"),
        ("model.layers.{}.laurel.linear_left", "blk.{}.laurel_l"),
        ("model.layers.{}.laurel.linear_right", "blk.{}.laurel_r"),
        ("model.layers.{}.laurel.post_laurel_norm", "blk.{}.laurel_post_norm"),
        ("model.layers.{}.per_layer_input_gate", "blk.{}.inp_gate"),
        ("model.layers.{}.per_layer_projection", "blk.{}.proj"),
        ("model.layers.{}.post_per_layer_input_norm", "blk.{}.post_norm"),
        ("model.embed_tokens_per_layer", "per_layer_token_embd"),
        ("model.per_layer_model_projection", "per_layer_model_proj"),
        ("model.per_layer_projection_norm", "per_layer_proj_norm"),
        ("model.altup_projections", "altup_proj"),
        ("model.altup_unembed_projections", "altup_unembd_proj"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let act = c.activation("hidden_act", Act::GeluTanh)?;
    let bias = c.bias("attention_bias", false)?;
    let head = Head { softcap: c.softcap("final_logit_softcapping")?, ..Head::TIED };
    let windows = c.windows(layers, |layer| (layer + 1) % 5 != 0)?;
    let mut sharing = Sharing::read(c, layers)?;
    let ffn = c.per_layer("intermediate_size", layers, 1..=1 << 20)?;
    let sparsity = sparsity(c, layers)?;
    let rank = c.names.find("model.layers.0.laurel.linear_left.weight").map_or(1, |left| left.rows() as u32);
    let rank = c.maybe_dim("laurel_rank")?.unwrap_or(rank);
    let inside = c.dim("hidden_size_per_layer_input")?;
    let altup = AltUp::read(c, dim, eps)?;
    let scaled = c.flag("altup_correct_scale", true)?;
    let ropes =
        [Rotary::of_full(c, heads.head_dim, Pairing::Neox)?, Rotary::of_window(c, heads.head_dim, Pairing::Neox, 1e4)?];

    let mut net = Net::new(c)?;
    let ropes = ropes.map(|rotary| net.rotary(&rotary));
    let x = net.embed(dim, (dim as f32).sqrt());
    let own = PerLayer::new(&mut net, c, x, layers, inside, act, eps)?;
    let mut x = altup.streams(&mut net, c, x);
    for (layer, window) in (0..).zip(windows) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let mut streams = altup.predict(&mut net, x);
        let active = streams[altup.active];
        let normed = net.rms_norm("input_layernorm", active, eps);
        let low = net.linear("laurel.linear_left", normed, rank, Bias::No);
        let low = net.linear("laurel.linear_right", low, dim, Bias::No);
        let low = net.rms_norm("laurel.post_laurel_norm", low, eps);
        let low = net.b.add("laurel", normed, low);
        let plain = Attention::new(heads, Some(ropes[usize::from(window.is_some())]));
        let norms = QkNorm::Heads(eps);
        let attention = Attention { bias, out_bias: bias, norms, window, scale: 1.0, ..plain };
        let y = sharing.attention(c, &mut net, layer, normed, &attention, eps, false)?;
        let y = net.rms_norm("post_attention_layernorm", y, eps);
        let y = net.b.add("attention residual", active, y);
        let y = net.b.add("attention and laurel", y, low);
        let sum = net.b.scale("attention and laurel", y, std::f32::consts::FRAC_1_SQRT_2);

        let y = net.rms_norm("pre_feedforward_layernorm", sum, eps);
        let mut gate = net.linear("mlp.gate_proj", y, ffn[layer as usize], Bias::No);
        if let Some(by) = sparsity[layer as usize] {
            gate = net.b.sparsify("gate", gate, by);
        }
        let up = net.linear("mlp.up_proj", y, ffn[layer as usize], Bias::No);
        let y = net.gated(gate, up, act);
        let y = net.linear("mlp.down_proj", y, dim, Bias::No);
        let y = net.rms_norm("post_feedforward_layernorm", y, eps);
        let y = net.b.add("mlp residual", sum, y);

        altup.correct(&mut net, &mut streams, y);
        let mut first = streams[altup.active];
        if scaled {
            let by = net.b.vector("altup.correct_output_scale", dim);
            first = net.b.weigh("corrected", first, by);
        }
        let y = own.block(&mut net, layer, first);
        for stream in &mut streams[1..] {
            *stream = net.b.add("per-layer residual", *stream, y);
        }
        x = altup::side_by_side(&mut net, &streams);
    }
    net.b.end_layers();
    let x = altup.merge(&mut net, c, x);
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, head)
}

/// For each layer, how many standard deviations above the mean of its gate an element must lie to be kept. Of normally
/// distributed elements, `activation_sparsity_pattern` is the fraction that is not. GGUF files have the deviations.
fn sparsity(c: &Config<'_>, layers: u32) -> Result<Vec<Option<f32>>> {
    if c.is_gguf() {
        let scales = c.maybe_numbers("activation_sparsity_scale", layers)?;
        let scales = scales.unwrap_or(vec![f64::NEG_INFINITY; layers as usize]);
        return Ok(scales.into_iter().map(|by| by.is_finite().then_some(by as f32)).collect());
    }
    let key = "activation_sparsity_pattern";
    let first = if layers > 10 { 10 } else { 0 };
    let plain = || (0..layers).map(|layer| if layer < first { 0.95 } else { 0.0 }).collect();
    let parts = c.maybe_numbers(key, layers)?.unwrap_or_else(plain);
    if parts.iter().any(|part| !(0.0..1.0).contains(part)) {
        return Err(c.wrong(key, "a list of fractions from 0 to below 1"));
    }
    Ok(parts.into_iter().map(|part| (part > 0.0).then(|| altup::quantile(part) as f32)).collect())
}
