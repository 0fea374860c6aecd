//! Gemma 4 (Gemma Team 2026), dense: embeddings for each layer, heads of two sizes, and later layers that see the keys and
//! values of earlier ones.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config, Heads};
use crate::model::layers::shared::{PerLayer, Sharing};
use crate::model::layers::{Attention, Head, Mlp, Net, QkNorm};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["gemma4_text", "gemma4"],
    gguf: &["gemma4"],
    keys: &[],
    gguf_keys: &[
        ("attention.key_length", "global_head_dim"),
        ("attention.key_length_swa", "head_dim"),
        ("attention.value_length", "global_v_head_dim"),
        ("attention.value_length_swa", "v_head_dim"),
    ],
    tensors: &[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"),
        ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
        ("model.layers.{}.layer_scalar", "blk.{}.layer_output_scale.weight"),
        ("model.layers.{}.per_layer_input_gate", "blk.{}.inp_gate"),
        ("model.layers.{}.per_layer_projection", "blk.{}.proj"),
        ("model.layers.{}.post_per_layer_input_norm", "blk.{}.post_norm"),
        ("model.embed_tokens_per_layer", "per_layer_token_embd"),
        ("model.per_layer_model_projection", "per_layer_model_proj"),
        ("model.per_layer_projection_norm", "per_layer_proj_norm"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let eps = c.eps("rms_norm_eps")?;
    let act = c.activation("hidden_act", Act::GeluTanh)?;
    let bias = c.bias("attention_bias", false)?;
    let head = Head { softcap: c.softcap("final_logit_softcapping")?, ..Head::TIED };
    let mut windows = c.windows(layers, |layer| (layer + 1) % 6 != 0)?;
    if let Some(last) = windows.last_mut().filter(|_| !c.is_gguf()) {
        *last = None; // whatever the list says
    }
    let heads = heads(c, &windows)?;
    let mut sharing = Sharing::read(c, layers)?;
    let ffn = c.per_layer("intermediate_size", layers, 1..=1 << 20)?;
    let wide = c.flag("use_double_wide_mlp", false)? && !c.is_gguf(); // whose files have the widths
    let keys_are_values = c.flag("attention_k_eq_v", false)?;
    let inside = c.maybe_int("hidden_size_per_layer_input", 0..=1 << 20)?.unwrap_or(0);

    let mut net = Net::new(c)?;
    let mut x = net.embed(dim, (dim as f32).sqrt());
    let mut own = None;
    if inside > 0 {
        own = Some(PerLayer::new(&mut net, c, x, layers, inside, act, eps)?);
    }
    // Folders have it also where no layer slides.
    if !c.is_gguf() {
        Rotary::of_window(c, heads[0].head_dim, Pairing::Neox, 1e4)?;
    }
    for (layer, (window, heads)) in (0..).zip(windows.into_iter().zip(heads)) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let rotary = match window {
            Some(_) => Rotary::of_window(c, heads.head_dim, Pairing::Neox, 1e4)?,
            None => Rotary::of_full(c, heads.head_dim, Pairing::Neox)?,
        };
        let plain = Attention::new(heads, Some(net.rotary(&rotary)));
        let norms = QkNorm::Heads(eps);
        let attention = Attention { bias, out_bias: bias, norms, window, scale: 1.0, ..plain };
        let h = net.rms_norm("input_layernorm", x, eps);
        let values = net.b.tensor("self_attn.v_proj.weight");
        let same = if c.is_gguf() { c.names.find(&values).is_none() } else { keys_are_values && window.is_none() };
        let h = sharing.attention(c, &mut net, layer, h, &attention, eps, same)?;
        let h = net.rms_norm("post_attention_layernorm", h, eps);
        x = net.b.add("attention residual", x, h);

        let times = if wide && layer >= sharing.first { 2 } else { 1 };
        let h = net.rms_norm("pre_feedforward_layernorm", x, eps);
        let h = net.gated_mlp("mlp", h, &Mlp { ffn: times * ffn[layer as usize], act, bias: Bias::No });
        let h = net.rms_norm("post_feedforward_layernorm", h, eps);
        x = net.b.add("mlp residual", x, h);

        if let Some(own) = &own {
            let h = own.block(&mut net, layer, x);
            x = net.b.add("per-layer residual", x, h);
        }
        let scalar = net.b.vector("layer_scalar", 1);
        x = net.b.weigh("layer_scalar", x, scalar);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, head)
}

/// The heads of each layer: full attention may have other heads than a sliding window.
fn heads(c: &Config<'_>, windows: &[Option<u32>]) -> Result<Vec<Heads>> {
    const MOST: u32 = 1 << 12;
    let heads = c.int("num_attention_heads", 1..=MOST)?;
    let kv_heads = c.per_layer("num_key_value_heads", windows.len() as u32, 1..=heads)?;
    let near = c.int("head_dim", 1..=MOST)?;
    // Where layers are listed, what is not listed of them is as in the others.
    let listed = c.has_table("per_layer_config");
    let full = c.maybe_int("global_head_dim", 1..=MOST)?.unwrap_or(512);
    let full = if listed { near } else { full };
    for (key, dim) in [("v_head_dim", near), ("global_v_head_dim", full)] {
        if c.maybe_int(key, 0..=u32::MAX)?.is_some_and(|v| v != dim) {
            return Err(c.wrong(key, &format!("{dim}, the length of keys,")));
        }
    }
    // Read whatever the model; it counts only where the values are the keys.
    let full_kv = c.maybe_int("num_global_key_value_heads", 1..=heads)?;
    let full_kv = if c.flag("attention_k_eq_v", false)? && !listed { full_kv } else { None };
    let layer = |(layer, window): (usize, &Option<u32>)| {
        let (kv_heads, head_dim) = match window {
            Some(_) => (kv_heads[layer], near),
            None => (full_kv.unwrap_or(kv_heads[layer]), full),
        };
        let own = |name: &str, most| c.maybe_int(&format!("per_layer_config.{layer}.{name}"), 1..=most);
        let kv_heads = own("num_key_value_heads", heads)?.unwrap_or(kv_heads);
        let head_dim = own("head_dim", MOST)?.unwrap_or(head_dim);
        if !heads.is_multiple_of(kv_heads) {
            return Err(c.wrong("num_key_value_heads", &format!("a divisor of {heads}, the number of query heads,")));
        }
        Ok(Heads { heads, kv_heads, head_dim })
    };
    windows.iter().enumerate().map(layer).collect()
}
