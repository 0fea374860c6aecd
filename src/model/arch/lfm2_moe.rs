//! LFM2 with experts (Liquid AI 2025): its layers, all but the first ones with experts chosen by sigmoids.

use super::{Arch, lfm2};
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::moe::Moe;
use crate::model::layers::{Head, Mlp, Net};
use crate::model::program::Program;
use crate::ops::{Act, Divide, Pairing, Score};

pub(super) static ARCH: Arch = Arch {
    model_types: &["lfm2_moe"],
    gguf: &["lfm2moe"],
    keys: &[
        ("norm_eps", "rms_norm_eps"),
        ("tie_embedding", "tie_word_embeddings"),
        ("num_dense_layers", "first_k_dense_replace"),
    ],
    gguf_keys: lfm2::GGUF_KEYS,
    tensors: &[
        ("model.embedding_norm", "token_embd_norm"),
        ("model.layers.{}.operator_norm", "blk.{}.attn_norm"),
        ("model.layers.{}.conv.conv", "blk.{}.shortconv.conv"),
        ("model.layers.{}.conv.in_proj", "blk.{}.shortconv.in_proj"),
        ("model.layers.{}.conv.out_proj", "blk.{}.shortconv.out_proj"),
        ("model.layers.{}.self_attn.q_layernorm", "blk.{}.attn_q_norm"),
        ("model.layers.{}.self_attn.k_layernorm", "blk.{}.attn_k_norm"),
        ("model.layers.{}.self_attn.out_proj", "blk.{}.attn_output"),
        ("model.layers.{}.ffn_norm", "blk.{}.ffn_norm"),
        ("model.layers.{}.feed_forward.w1", "blk.{}.ffn_gate"),
        ("model.layers.{}.feed_forward.w3", "blk.{}.ffn_up"),
        ("model.layers.{}.feed_forward.w2", "blk.{}.ffn_down"),
        ("model.layers.{}.feed_forward.gate", "blk.{}.ffn_gate_inp"),
        ("model.layers.{}.feed_forward.expert_bias", "blk.{}.exp_probs_b.bias"),
        ("model.layers.{}.feed_forward.experts.{}.w1", "blk.{}.ffn_gate_exps"),
        ("model.layers.{}.feed_forward.experts.{}.w3", "blk.{}.ffn_up_exps"),
        ("model.layers.{}.feed_forward.experts.{}.w2", "blk.{}.ffn_down_exps"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let block = lfm2::Block::read(c)?;
    let dense = c.maybe_int("first_k_dense_replace", 0..=block.attends.len() as u32)?.unwrap_or(0) as usize;
    let mlp = Mlp { ffn: c.dim("intermediate_size")?, act: Act::Silu, bias: Bias::No };
    c.maybe_int("expert_gating_func", 2..=2)?; // sigmoids
    let mut moe = Moe::read(c, Score::Sigmoid, Moe::ffn(c)?)?.normed(c, true, Divide::SumPlus(1e-6))?;
    (moe.router, moe.experts, moe.parts) = ("feed_forward.gate", "feed_forward.experts", ["w1", "w3", "w2"]);
    moe.route.scale = c.factor("routed_scaling_factor")?;
    moe.choice_bias = c.flag("use_expert_bias", true)?.then_some("feed_forward.expert_bias");
    let rotary = Rotary::read_with_theta(c, block.heads.head_dim, Pairing::Neox, 1e6)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let mut x = net.embed(block.dim, 1.0);
    for layer in 0..block.attends.len() {
        x = block.mixer(&mut net, layer, x, rope);
        let h = net.rms_norm("ffn_norm", x, block.eps);
        let h = if layer < dense { lfm2::dense(&mut net, h, &mlp) } else { net.moe(h, &moe)? };
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.embedding_norm", x, block.eps);
    net.head(x, Head::TIED)
}
