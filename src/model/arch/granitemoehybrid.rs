//! Granite 4 (IBM 2025): Mamba-2 in most layers, attention in some, experts beside a feed-forward layer for all rows.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::moe::Moe;
use crate::model::layers::recurrent::Mamba;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Score, ValueId};

pub(super) static ARCH: Arch = Arch {
    model_types: &["granitemoehybrid"],
    gguf: &["granitehybrid"],
    keys: &[("layers_block_type", "layer_types")],
    gguf_keys: &[
        ("logit_scale", "logits_scaling"),
        ("rope.scaling.finetuned", "use_rope"),
        ("expert_shared_feed_forward_length", "shared_intermediate_size"),
    ],
    tensors: &[
        ("model.layers.{}.mamba.in_proj", "blk.{}.ssm_in"),
        ("model.layers.{}.mamba.conv1d", "blk.{}.ssm_conv1d"),
        ("model.layers.{}.mamba.dt_bias", "blk.{}.ssm_dt.bias"),
        ("model.layers.{}.mamba.A_log", "blk.{}.ssm_a"),
        ("model.layers.{}.mamba.D", "blk.{}.ssm_d"),
        ("model.layers.{}.mamba.norm", "blk.{}.ssm_norm"),
        ("model.layers.{}.mamba.out_proj", "blk.{}.ssm_out"),
        ("model.layers.{}.block_sparse_moe.router.layer", "blk.{}.ffn_gate_inp"),
        ("model.layers.{}.block_sparse_moe.experts.{}.gate_proj", "blk.{}.ffn_gate_exps"),
        ("model.layers.{}.block_sparse_moe.experts.{}.up_proj", "blk.{}.ffn_up_exps"),
        ("model.layers.{}.block_sparse_moe.experts.{}.down_proj", "blk.{}.ffn_down_exps"),
        ("model.layers.{}.shared_mlp.gate", "blk.{}.ffn_gate_shexp"),
        ("model.layers.{}.shared_mlp.up", "blk.{}.ffn_up_shexp"),
        ("model.layers.{}.shared_mlp.output_linear", "blk.{}.ffn_down_shexp"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let eps = c.eps("rms_norm_eps")?;
    let attends: Vec<bool> = match c.layer_types(layers)? {
        Some(types) => {
            let known = |kind: &String| match kind.as_str() {
                "full_attention" | "attention" => Some(true),
                "linear_attention" | "mamba" => Some(false),
                _ => None,
            };
            let kinds: Option<_> = types.iter().map(known).collect();
            kinds.ok_or_else(|| c.wrong("layer_types", "a list of linear_attention and full_attention"))?
        }
        None if c.is_gguf() => c.attending(layers)?,
        None => vec![false; layers as usize],
    };
    let heads = c.hybrid_heads()?;
    let bias = c.bias("attention_bias", false)?;
    let scale = c.factor("attention_multiplier")?;
    let rotates = match c.text("position_embedding_type")? {
        None | Some("nope") => c.is_gguf() && c.flag("use_rope", true)?,
        Some("rope") => true,
        Some(_) => return Err(c.wrong("position_embedding_type", "rope, nope or null")),
    };
    let act = c.activation("hidden_act", Act::Silu)?;
    let mut mamba = Mamba::read(c)?;
    mamba.act = act;
    let moe = match c.maybe_int("num_experts", 0..=1 << 12)? {
        None | Some(0) => None,
        Some(_) => {
            let moe = Moe::read(c, Score::SoftmaxOfChosen, c.dim("intermediate_size")?)?;
            let (router, experts) = ("block_sparse_moe.router.layer", "block_sparse_moe.experts");
            Some(Moe { router, experts, ..moe })
        }
    };
    // In GGUF files it is not called shared if it is alone.
    let alone = c.is_gguf() && moe.is_none();
    let ffn = c.dim(if alone { "intermediate_size" } else { "shared_intermediate_size" })?;
    let shared = Mlp { ffn, act, bias: Bias::No };
    let by = c.factor("residual_multiplier")?;
    let head = Head { scale: 1.0 / c.factor("logits_scaling")?, ..Head::PLAIN };

    let mut net = Net::new(c)?;
    let rope = if rotates {
        let rotary = Rotary::read(c, heads.head_dim, Rotary::reordered(c))?;
        Some(net.rotary(&rotary))
    } else {
        c.without_effect(&["rope_parameters.rope_theta", "rope_parameters.rope_type", "rotary_dim"]);
        None
    };
    let attention = Attention { bias, out_bias: bias, scale, ..Attention::new(heads, rope) };
    let mut x = net.embed(dim, c.factor("embedding_multiplier")?);
    for (layer, attends) in (0..).zip(attends) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let h = net.rms_norm("input_layernorm", x, eps);
        let h = if attends { net.self_attention(h, &attention) } else { net.mamba_mixer("mamba", h, &mamba, eps) };
        let h = net.scaled("mixer", h, by);
        x = net.b.add("mixer residual", x, h);

        let normal = net.rms_norm("post_attention_layernorm", x, eps);
        let mut h = match (alone, c.is_gguf()) {
            (true, _) => net.gated_mlp("mlp", normal, &shared),
            (false, apart) => for_all(&mut net, normal, &shared, apart),
        };
        if let Some(moe) = &moe {
            let experts = net.moe(normal, moe)?;
            h = net.b.add("experts and shared", experts, h);
        }
        let h = net.scaled("mlp", h, by);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, head)
}

/// The feed-forward layer for all rows: folders hold gate and up as one matrix.
fn for_all(net: &mut Net<'_>, x: ValueId, mlp: &Mlp, apart: bool) -> ValueId {
    let dim = net.b.width(x);
    let [gate, up] = if apart {
        ["shared_mlp.gate", "shared_mlp.up"].map(|name| net.linear(name, x, mlp.ffn, mlp.bias))
    } else {
        [0, mlp.ffn].map(|start| net.linear_part("shared_mlp.input_linear", x, start, mlp.ffn, mlp.bias))
    };
    let h = net.gated(gate, up, mlp.act);
    net.linear("shared_mlp.output_linear", h, dim, mlp.bias)
}
