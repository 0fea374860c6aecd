//! Nemotron-H (NVIDIA 2025): every layer is one of Mamba-2, attention, a feed-forward layer, or experts.

use super::Arch;
use crate::model::config::Config;
use crate::model::layers::moe::{Gating, Moe};
use crate::model::layers::recurrent::Mamba;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Divide, GroupScore, Score};
use crate::{Error, Result};

pub(super) static ARCH: Arch = Arch {
    model_types: &["nemotron_h"],
    gguf: &["nemotron_h", "nemotron_h_moe"],
    keys: &[
        ("layers_block_type", "layer_types"),
        ("layer_norm_epsilon", "rms_norm_eps"),
        ("mamba_num_heads", "mamba_n_heads"),
        ("mamba_head_dim", "mamba_d_head"),
        ("n_groups", "mamba_n_groups"),
        ("ssm_state_size", "mamba_d_state"),
        ("conv_kernel", "mamba_d_conv"),
        ("use_bias", "mamba_proj_bias"), // which transformers reads, and not the other
        ("mamba_proj_bias", "unused_mamba_proj_bias"),
        ("mamba_dt_min", "time_step_min"),
        ("use_conv_bias", "mamba_conv_bias"),
        ("mamba_hidden_act", "mamba_act"),
        ("mlp_hidden_act", "hidden_act"),
        ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
    ],
    gguf_keys: &[
        ("moe_latent_size", "moe_latent_size"),
        // llama.cpp asks for both.
        ("attention.layer_norm_epsilon", "rms_norm_eps"),
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ],
    tensors: &[
        ("backbone.embeddings", "token_embd"),
        ("backbone.layers.{}.norm", "blk.{}.attn_norm"),
        ("backbone.layers.{}.mixer.in_proj", "blk.{}.ssm_in"),
        ("backbone.layers.{}.mixer.conv1d", "blk.{}.ssm_conv1d"),
        ("backbone.layers.{}.mixer.dt_bias", "blk.{}.ssm_dt.bias"),
        ("backbone.layers.{}.mixer.A_log", "blk.{}.ssm_a"),
        ("backbone.layers.{}.mixer.D", "blk.{}.ssm_d"),
        ("backbone.layers.{}.mixer.norm", "blk.{}.ssm_norm"),
        ("backbone.layers.{}.mixer.out_proj", "blk.{}.ssm_out"),
        ("backbone.layers.{}.mixer.q_proj", "blk.{}.attn_q"),
        ("backbone.layers.{}.mixer.k_proj", "blk.{}.attn_k"),
        ("backbone.layers.{}.mixer.v_proj", "blk.{}.attn_v"),
        ("backbone.layers.{}.mixer.o_proj", "blk.{}.attn_output"),
        ("backbone.layers.{}.mixer.up_proj", "blk.{}.ffn_up"),
        ("backbone.layers.{}.mixer.down_proj", "blk.{}.ffn_down"),
        ("backbone.layers.{}.mixer.gate", "blk.{}.ffn_gate_inp"),
        ("backbone.layers.{}.mixer.gate.e_score_correction_bias", "blk.{}.exp_probs_b.bias"),
        ("backbone.layers.{}.mixer.experts.{}.up_proj", "blk.{}.ffn_up_exps"),
        ("backbone.layers.{}.mixer.experts.{}.down_proj", "blk.{}.ffn_down_exps"),
        ("backbone.layers.{}.mixer.shared_experts.up_proj", "blk.{}.ffn_up_shexp"),
        ("backbone.layers.{}.mixer.shared_experts.down_proj", "blk.{}.ffn_down_shexp"),
        ("backbone.norm_f", "output_norm"),
    ],
    embedding: "backbone.embeddings.weight",
    build,
};

/// What a layer is.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

fn build(c: &Config<'_>) -> Result<Program> {
    let kinds = kinds(c)?;
    let dim = c.dim("hidden_size")?;
    let eps = c.eps("rms_norm_eps")?;
    let act = c.activation("hidden_act", Act::Relu2)?;
    let mamba = Mamba::read(c)?.with_least_time_step(c)?;
    let heads = c.hybrid_heads()?;
    let attention = Attention::new(heads, None);
    let each = kinds.contains(&Kind::Mlp).then(|| c.per_layer("intermediate_size", kinds.len() as u32, 0..=1 << 20));
    let ffn = each.transpose()?.into_iter().flatten().max().unwrap_or(0); // GGUF files have 0 for layers of other kinds
    let mlp = Mlp { ffn, act, bias: c.bias("mlp_bias", false)? };
    let experts = kinds.contains(&Kind::Experts).then(|| experts(c, mlp)).transpose()?;
    c.without_effect(&["num_experts", "n_shared_experts", "routed_scaling_factor"]); // of models without experts

    let mut net = Net::new(c)?;
    let mut x = net.embed(dim, 1.0);
    for (layer, kind) in (0..).zip(kinds) {
        net.b.layer(layer, format!("backbone.layers.{layer}."));
        let normal = net.rms_norm("norm", x, eps);
        let h = match (kind, &experts) {
            (Kind::Mamba, _) => net.mamba_mixer("mixer", normal, &mamba, eps),
            (Kind::Attention, _) => net.attention_of("mixer", normal, &attention),
            (Kind::Experts, Some((moe, shared))) => {
                let chosen = net.moe(normal, moe)?;
                let h = net.plain_mlp("mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj", normal, shared);
                net.b.add("experts and shared", chosen, h)
            }
            _ => net.plain_mlp("mixer.up_proj", "mixer.down_proj", normal, &mlp),
        };
        x = net.b.add("residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("backbone.norm_f", x, eps);
    net.head(x, Head { own: true, ..Head::PLAIN })
}

/// What each layer is: in GGUF files, what there are tensors for.
fn kinds(c: &Config<'_>) -> Result<Vec<Kind>> {
    let layers = c.layers()?;
    if c.is_gguf() {
        let there =
            |layer: u32, name: &str| c.names.find(&format!("backbone.layers.{layer}.mixer.{name}.weight")).is_some();
        let kind = |layer| match ["in_proj", "q_proj", "gate"].map(|name| there(layer, name)) {
            [true, ..] => Kind::Mamba,
            [_, true, _] => Kind::Attention,
            [_, _, true] => Kind::Experts,
            _ => Kind::Mlp,
        };
        return Ok((0..layers).map(kind).collect());
    }
    let word = c.text("hybrid_override_pattern")?.map(|word| word.chars().map(String::from).collect());
    let named = c.layer_types(layers)?.or(word).filter(|kinds| kinds.len() == layers as usize);
    let kind = |kind: &String| match kind.as_str() {
        "linear_attention" | "mamba" | "M" => Some(Kind::Mamba),
        "full_attention" | "attention" | "*" => Some(Kind::Attention),
        "mlp" | "-" => Some(Kind::Mlp),
        "moe" | "E" => Some(Kind::Experts),
        _ => None,
    };
    let kinds = named.and_then(|named| named.iter().map(kind).collect());
    kinds.ok_or_else(|| c.wrong("layer_types", "linear_attention, full_attention, mlp or moe for each layer"))
}

/// The experts, and what all rows go through.
fn experts(c: &Config<'_>, mlp: Mlp) -> Result<(Moe, Mlp)> {
    if c.maybe_int("moe_latent_size", 1..=u32::MAX)?.is_some() {
        return Err(Error::unsupported("moe_latent_size in a nemotron_h model", "experts of the stream's size work"));
    }
    c.maybe_int("expert_gating_func", 2..=2)?; // a sigmoid
    c.maybe_int("n_shared_experts", 1..=1)?; // of a size of its own
    let mut moe = Moe::read(c, Score::Sigmoid, Moe::ffn(c)?)?.normed(c, true, Divide::SumPlus(1e-20))?;
    (moe.router, moe.experts) = ("mixer.gate", "mixer.experts");
    (moe.choice_bias, moe.gating) = (Some("mixer.gate.e_score_correction_bias"), Gating::None(mlp.act));
    moe.route.groups = Moe::groups(c, GroupScore::TwoBest)?;
    moe.route.scale = c.factor("routed_scaling_factor")?;
    Ok((moe, Mlp { ffn: c.dim("shared_expert_intermediate_size")?, ..mlp }))
}
