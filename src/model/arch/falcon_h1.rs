//! Falcon-H1 (Zuo et al. 2025): attention and Mamba-2 side by side in every layer, with factors everywhere.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::recurrent::Mamba;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Pairing};

pub(super) static ARCH: Arch = Arch {
    model_types: &["falcon_h1"],
    gguf: &["falcon-h1"],
    // GGUF files of other models have a key for the embeddings' factor; these do not, so it has a name of its own here.
    keys: &[("mamba_d_ssm", "mamba_inner"), ("embedding_multiplier", "embedding_factor")],
    gguf_keys: &[],
    tensors: &[
        ("model.final_layernorm", "output_norm"),
        ("model.layers.{}.mamba.in_proj", "blk.{}.ssm_in"),
        ("model.layers.{}.mamba.conv1d", "blk.{}.ssm_conv1d"),
        ("model.layers.{}.mamba.dt_bias", "blk.{}.ssm_dt.bias"),
        ("model.layers.{}.mamba.A_log", "blk.{}.ssm_a"),
        ("model.layers.{}.mamba.D", "blk.{}.ssm_d"),
        ("model.layers.{}.mamba.norm", "blk.{}.ssm_norm"),
        ("model.layers.{}.mamba.out_proj", "blk.{}.ssm_out"),
        ("model.layers.{}.pre_ff_layernorm.weight", "blk.{}.ffn_norm"),
        ("model.layers.{}.feed_forward.gate_proj", "blk.{}.ffn_gate"),
        ("model.layers.{}.feed_forward.up_proj", "blk.{}.ffn_up"),
        ("model.layers.{}.feed_forward.down_proj", "blk.{}.ffn_down"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

/// The converter to GGUF multiplies the factors into the weights: there they are all 1.
fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let heads = c.heads()?;
    let eps = c.eps("rms_norm_eps")?;
    let bias = c.bias("attention_bias", false)?;
    let mlp = Mlp { bias: c.bias("mlp_bias", false)?, ..Mlp::read(c, Act::Silu)? };
    let out_bias = c.bias("projectors_bias", false)?;
    let [gate_by, down_by] = c.factors("mlp_multipliers")?;
    let mut mamba = Mamba::read(c)?;
    (mamba.factors, mamba.act) = (c.factors("ssm_multipliers")?, mlp.act);
    let [ssm_in, ssm_out] = [c.factor("ssm_in_multiplier")?, c.factor("ssm_out_multiplier")?];
    let [attention_in, attention_out] = [c.factor("attention_in_multiplier")?, c.factor("attention_out_multiplier")?];
    let by_key = c.factor("key_multiplier")?;
    let normed = if c.is_gguf() {
        c.names.find("model.layers.0.mamba.norm.weight").is_some()
    } else {
        c.flag("mamba_rms_norm", false)?
    };
    let norm_first = normed && c.flag("mamba_norm_before_gate", !c.is_gguf())?;
    let head = Head { scale: c.factor("lm_head_multiplier")?, ..Head::PLAIN };
    let rotary = Rotary::read(c, heads.head_dim, Pairing::Neox)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let plain = Attention::new(heads, Some(rope));
    // A factor on the keys multiplies the scores.
    let attention = Attention { bias, out_bias: bias, scale: plain.scale * by_key, ..plain };
    let mut x = net.embed(dim, c.factor("embedding_factor")?);
    for layer in 0..layers {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let normal = net.rms_norm("input_layernorm", x, eps);

        let h = net.scaled("mamba in", normal, ssm_in);
        let [y, z] = net.mamba("mamba", h, &mamba);
        let mut h = y;
        if norm_first {
            h = net.group_norm("mamba.norm", h, mamba.groups, eps);
        }
        h = net.silu_gated(h, z);
        if normed && !norm_first {
            h = net.group_norm("mamba.norm", h, mamba.groups, eps);
        }
        let h = net.linear("mamba.out_proj", h, dim, out_bias);
        let recurrent = net.scaled("mamba out", h, ssm_out);

        let h = net.scaled("attention in", normal, attention_in);
        let h = net.self_attention(h, &attention);
        let h = net.scaled("attention out", h, attention_out);
        let h = net.b.add("mixed", recurrent, h);
        x = net.b.add("mixer residual", x, h);

        let h = net.rms_norm("pre_ff_layernorm", x, eps);
        let gate = net.linear("feed_forward.gate_proj", h, mlp.ffn, mlp.bias);
        let gate = net.scaled("gate", gate, gate_by);
        let up = net.linear("feed_forward.up_proj", h, mlp.ffn, mlp.bias);
        let h = net.gated(gate, up, mlp.act);
        let h = net.linear("feed_forward.down_proj", h, dim, mlp.bias);
        let h = net.scaled("down", h, down_by);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.final_layernorm", x, eps);
    net.head(x, head)
}
