//! Qwen3-Next (Qwen Team 2025): gated delta nets, gated attention in every fourth layer, experts beside one for all rows.

use super::Arch;
use crate::Result;
use crate::model::config::{Bias, Config};
use crate::model::layers::delta_net::{GGUF_KEYS, Hybrid};
use crate::model::layers::moe::Moe;
use crate::model::layers::{Head, Mlp, Net};
use crate::model::program::{Program, Runs};
use crate::ops::{Act, Divide, Score, ValueId};

pub(super) static ARCH: Arch = Arch {
    model_types: &["qwen3_next"],
    gguf: &["qwen3next"],
    keys: &[],
    gguf_keys: GGUF_KEYS,
    tensors: &[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.linear_attn.in_proj_qkv", "blk.{}.attn_qkv"),
        ("model.layers.{}.linear_attn.in_proj_z", "blk.{}.attn_gate"),
        ("model.layers.{}.linear_attn.in_proj_ba", "blk.{}.ssm_ba"),
        ("model.layers.{}.linear_attn.conv1d", "blk.{}.ssm_conv1d"),
        ("model.layers.{}.linear_attn.dt_bias", "blk.{}.ssm_dt.bias"),
        ("model.layers.{}.linear_attn.A_log", "blk.{}.ssm_a"),
        ("model.layers.{}.linear_attn.norm", "blk.{}.ssm_norm"),
        ("model.layers.{}.linear_attn.out_proj", "blk.{}.ssm_out"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let hybrid = Hybrid::read(c, false)?;
    let moe = Moe::read(c, Score::Softmax, Moe::ffn(c)?)?.normed(c, true, Divide::SumPlus(0.0))?;
    let sparse = super::qwen2_moe::sparse(c, &moe)?;
    let dense = if sparse.contains(&false) { Some(Mlp::read(c, Act::Silu)?) } else { None };
    let shared = shared(c)?;
    let joined = !c.is_gguf();

    let (mut net, rope) = hybrid.start(c)?;
    let mut x = net.embed(hybrid.dim, 1.0);
    for (layer, sparse) in sparse.into_iter().enumerate().take(hybrid.attends.len()) {
        x = hybrid.mixer(&mut net, (layer, x, rope), |net, h| project(&hybrid, net, h, joined));
        let h = net.rms_norm("post_attention_layernorm", x, hybrid.eps);
        let h = match &dense {
            Some(dense) if !sparse => net.gated_mlp("mlp", h, dense),
            _ => experts(&mut net, h, &moe, &shared)?,
        };
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, hybrid.eps);
    net.head(x, Head::PLAIN)
}

/// The expert that all rows go through.
pub(super) fn shared(c: &Config<'_>) -> Result<Mlp> {
    let act = c.activation("hidden_act", Act::Silu)?;
    Ok(Mlp { ffn: c.dim("shared_expert_intermediate_size")?, act, bias: Bias::No })
}

/// Experts, and the one for all rows, gated.
pub(super) fn experts(net: &mut Net<'_>, x: ValueId, moe: &Moe, shared: &Mlp) -> Result<ValueId> {
    let experts = net.moe(x, moe)?;
    let shared = net.gated_expert("mlp.shared_expert", "mlp.shared_expert_gate", x, shared);
    Ok(net.b.add("experts and shared", experts, shared))
}

/// Queries, keys, values, gate, beta and decay of a delta net. `joined`: one matrix holds, for each key head, its query, its key,
/// its values and their gates; the converter to GGUF takes it apart. Beta and decay lie together in both.
fn project(hybrid: &Hybrid, net: &mut Net<'_>, x: ValueId, joined: bool) -> [ValueId; 6] {
    let each = hybrid.heads / hybrid.key_heads;
    let (k, v) = (hybrid.k_dim, each * hybrid.v_dim);
    let (keys, values) = (hybrid.keys(), hybrid.values());
    let [q, k, v, gate] = if joined {
        [(0, k, keys), (k, k, keys), (2 * k, v, values), (2 * k + v, v, values)].map(|(start, run, n)| {
            let runs = Runs { run, skip: 2 * (k + v) - run };
            net.linear_runs("linear_attn.in_proj_qkvz", x, start, n, runs, Bias::No)
        })
    } else {
        let parts = [(0, keys), (keys, keys), (2 * keys, values)];
        let [q, k, v] = parts.map(|(start, n)| net.linear_part("linear_attn.in_proj_qkv", x, start, n, Bias::No));
        [q, k, v, net.linear("linear_attn.in_proj_z", x, values, Bias::No)]
    };
    let [beta, decay] = [0, each].map(|start| {
        let runs = Runs { run: each, skip: each };
        net.linear_runs("linear_attn.in_proj_ba", x, start, hybrid.heads, runs, Bias::No)
    });
    [q, k, v, gate, beta, decay]
}
