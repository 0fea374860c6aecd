//! LFM2 (Liquid AI 2025): gated short convolutions, and attention in some layers.

use super::Arch;
use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config, Heads};
use crate::model::layers::{Attention, Head, Mlp, Net, QkNorm};
use crate::model::program::Program;
use crate::ops::{Act, Pairing, RopeSpec, ValueId};

pub(super) static ARCH: Arch = Arch {
    model_types: &["lfm2"],
    gguf: &["lfm2"],
    keys: KEYS,
    gguf_keys: GGUF_KEYS,
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
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

pub(super) const KEYS: super::Keys = &[
    ("norm_eps", "rms_norm_eps"),
    ("block_ff_dim", "intermediate_size"),
    ("tie_embedding", "tie_word_embeddings"),
    ("use_pos_enc", "use_rope"),
];
pub(super) const GGUF_KEYS: super::Keys = &[("shortconv.l_cache", "conv_L_cache")];

/// What the layers have in common.
pub(super) struct Block {
    pub(super) dim: u32,
    pub(super) eps: f32,
    /// For each layer, whether it attends.
    pub(super) attends: Vec<bool>,
    pub(super) heads: Heads,
    kernel_size: u32,
    bias: Bias,
}

fn build(c: &Config<'_>) -> Result<Program> {
    let block = Block::read(c)?;
    let mlp = Mlp { ffn: ffn(c)?, act: Act::Silu, bias: Bias::No };
    let rotary = Rotary::read_with_theta(c, block.heads.head_dim, Pairing::Neox, 1e6)?;

    let mut net = Net::new(c)?;
    let rope = net.rotary(&rotary);
    let mut x = net.embed(block.dim, 1.0);
    for layer in 0..block.attends.len() {
        x = block.mixer(&mut net, layer, x, rope);
        let h = net.rms_norm("ffn_norm", x, block.eps);
        let h = dense(&mut net, h, &mlp);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.embedding_norm", x, block.eps);
    net.head(x, Head::TIED)
}

impl Block {
    pub(super) fn read(c: &Config<'_>) -> Result<Self> {
        let layers = c.layers()?;
        // GGUF files give the layers without attention no KV heads.
        let heads = c.hybrid_heads()?;
        let attends: Vec<bool> = match c.layer_types(layers)? {
            Some(types) if types.iter().all(|kind| ["conv", "full_attention"].contains(&kind.as_str())) => {
                types.iter().map(|kind| kind != "conv").collect()
            }
            Some(_) => return Err(c.wrong("layer_types", "a list of conv and full_attention")),
            None if c.is_gguf() => c.attending(layers)?,
            None => {
                let listed = c.maybe_ints("full_attn_idxs", 0..=layers)?;
                (0..layers).map(|layer| listed.as_ref().is_none_or(|list| list.contains(&layer))).collect()
            }
        };
        let kernel_size = c.int("conv_L_cache", 1..=64)?;
        Ok(Self {
            dim: c.dim("hidden_size")?,
            eps: c.eps("rms_norm_eps")?,
            attends,
            heads,
            kernel_size,
            bias: c.bias("conv_bias", false)?,
        })
    }

    /// The first half of a layer: attention, or a convolution that is gated before and after.
    pub(super) fn mixer(&self, net: &mut Net<'_>, layer: usize, x: ValueId, rope: RopeSpec) -> ValueId {
        net.b.layer(layer as u32, format!("model.layers.{layer}."));
        let h = net.rms_norm("operator_norm", x, self.eps);
        let h = if self.attends[layer] {
            let q = net.linear("self_attn.q_proj", h, self.heads.q(), Bias::No);
            let k = net.linear("self_attn.k_proj", h, self.heads.kv(), Bias::No);
            let v = net.linear("self_attn.v_proj", h, self.heads.kv(), Bias::No);
            let q = net.head_norm("self_attn.q_layernorm", q, self.heads.head_dim, self.eps);
            let k = net.head_norm("self_attn.k_layernorm", k, self.heads.head_dim, self.eps);
            let h =
                net.attention(q, k, v, &Attention { norms: QkNorm::None, ..Attention::new(self.heads, Some(rope)) });
            net.linear("self_attn.out_proj", h, self.dim, Bias::No)
        } else {
            let [b, c, x] = [0, 1, 2].map(|i| net.linear_part("conv.in_proj", h, i * self.dim, self.dim, self.bias));
            let h = net.b.mul("gated in", b, x);
            let h = net.short_conv("conv.conv", h, 0, self.kernel_size, self.bias);
            let h = net.b.mul("gated out", c, h);
            net.linear("conv.out_proj", h, self.dim, self.bias)
        };
        net.b.add("mixer residual", x, h)
    }
}

/// A gated feed-forward layer by its names here.
pub(super) fn dense(net: &mut Net<'_>, x: ValueId, mlp: &Mlp) -> ValueId {
    let dim = net.b.width(x);
    let gate = net.linear("feed_forward.w1", x, mlp.ffn, mlp.bias);
    let up = net.linear("feed_forward.w3", x, mlp.ffn, mlp.bias);
    let h = net.gated(gate, up, mlp.act);
    net.linear("feed_forward.w2", h, dim, mlp.bias)
}

/// Columns of the feed-forward layers: two thirds of the folder's number, rounded up, unless the folder says otherwise.
fn ffn(c: &Config<'_>) -> Result<u32> {
    let ffn = c.dim("intermediate_size")?;
    if c.is_gguf() || !c.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(ffn);
    }
    let by = c.maybe_float("block_ffn_dim_multiplier", 1e-3..=1e3)?.unwrap_or(1.0);
    let unit = c.int("block_multiple_of", 1..=1 << 16)?;
    let ffn = (by * f64::from(2 * ffn / 3)) as u32;
    Ok(ffn.div_ceil(unit) * unit)
}
