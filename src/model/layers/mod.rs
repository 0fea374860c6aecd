//! The layers that architectures are made of: canonical ops with the names of their tensors, where models agree on them.

pub(in crate::model) mod altup;
pub(in crate::model) mod delta_net;
pub(in crate::model) mod latent;
pub(in crate::model) mod moe;
pub(in crate::model) mod recurrent;
pub(in crate::model) mod shared;

use crate::Result;
use crate::file::TensorInfo;
use crate::model::Builder;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config, Heads, keys};
use crate::model::embedding::Task;
use crate::model::program::{Out, Program, Runs};
use crate::ops::{Act, CacheId, GroupId, Index, Mask, NormKind, NormSpec, Op, Pooling, RopeSpec, ValueId, VectorId};

/// A program in the making, beside the hyper-parameters that it follows.
pub(in crate::model) struct Net<'c> {
    /// The hyper-parameters.
    pub(in crate::model) c: &'c Config<'c>,
    vocab: u32,
    /// The groups of caches, by the window that their layers see.
    groups: Vec<(Option<u32>, GroupId)>,
    /// Added to the norms' weights: 1 where the file has them zero-centred.
    norm_offset: f32,
    /// The builder, for single ops.
    pub(in crate::model) b: Builder,
}

/// An attention layer, where models differ.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct Attention {
    /// Its heads.
    pub(in crate::model) heads: Heads,
    /// Biases of the projections to queries, keys and values.
    pub(in crate::model) bias: Bias,
    /// Bias of the projection back.
    pub(in crate::model) out_bias: Bias,
    /// Norms of queries and keys.
    pub(in crate::model) norms: QkNorm,
    /// The rotation of queries and keys.
    pub(in crate::model) rope: Option<RopeSpec>,
    /// The sliding window, in positions, the token's own included; none: all positions.
    pub(in crate::model) window: Option<u32>,
    /// Attention is bidirectional, with half the window on each side: an encoder, which keeps nothing for another step.
    pub(in crate::model) bidirectional: bool,
    /// Factor on the scores.
    pub(in crate::model) scale: f32,
    /// `cap * tanh(score / cap)` if not zero.
    pub(in crate::model) softcap: f32,
    /// A vector of scores without values, one a head.
    pub(in crate::model) sinks: Option<&'static str>,
    /// Queries, keys and values are clamped to ± this before they are rotated.
    pub(in crate::model) clip: Option<f32>,
}

/// Norms of queries and keys before they are rotated: `q_norm.weight` and `k_norm.weight`, with an epsilon.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) enum QkNorm {
    /// There are none.
    None,
    /// Of each head, with one weight for all heads.
    Heads(f32),
    /// Of all heads together.
    Whole(f32),
}

impl Attention {
    /// Plain causal attention: no biases, scores divided by the root of the head's size.
    pub(in crate::model) fn new(heads: Heads, rope: Option<RopeSpec>) -> Self {
        let scale = (1.0 / f64::from(heads.head_dim).sqrt()) as f32;
        let (bias, norms) = (Bias::No, QkNorm::None);
        let (bidirectional, sinks, clip) = (false, None, None);
        Self { heads, bias, out_bias: bias, norms, rope, window: None, bidirectional, scale, softcap: 0.0, sinks, clip }
    }

    /// The mask: which positions a token attends to.
    pub(in crate::model) fn mask(&self) -> Mask {
        match (self.window, self.bidirectional) {
            (None, false) => Mask::Causal,
            (Some(window), false) => Mask::Window(window),
            (None, true) => Mask::Full,
            (Some(window), true) => Mask::BidirectionalWindow(window / 2),
        }
    }
}

/// A feed-forward layer.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct Mlp {
    /// Columns inside.
    pub(in crate::model) ffn: u32,
    /// The activation.
    pub(in crate::model) act: Act,
    /// Biases of all its projections.
    pub(in crate::model) bias: Bias,
}

/// The output head, where models differ.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct Head {
    /// The matrix, without `.weight`, where it is not the embedding table.
    pub(in crate::model) name: &'static str,
    /// Whether it is the embedding table where nothing is said.
    pub(in crate::model) tied: bool,
    /// Whether it is a matrix of its own in folders, whatever is said: the class names no tied weights.
    pub(in crate::model) own: bool,
    /// Its bias.
    pub(in crate::model) bias: Bias,
    /// Factor on the logits.
    pub(in crate::model) scale: f32,
    /// `cap * tanh(logit / cap)` if not zero, after the factor.
    pub(in crate::model) softcap: f32,
}

impl Mlp {
    /// One without biases: `intermediate_size` and `hidden_act`.
    pub(in crate::model) fn read(c: &Config<'_>, act: Act) -> Result<Self> {
        Ok(Self { ffn: c.dim("intermediate_size")?, act: c.activation("hidden_act", act)?, bias: Bias::No })
    }
}

impl Head {
    /// `lm_head`, without more.
    pub(in crate::model) const PLAIN: Self =
        Self { name: "lm_head", tied: false, own: false, bias: Bias::No, scale: 1.0, softcap: 0.0 };
    /// The same, the embedding table where nothing is said.
    pub(in crate::model) const TIED: Self = Self { tied: true, ..Self::PLAIN };
}

impl<'c> Net<'c> {
    /// An empty program for the model's vocabulary and context.
    pub(in crate::model) fn new(c: &'c Config<'c>) -> Result<Self> {
        Ok(Self::sized(c, c.vocab()?, c.context()?))
    }

    /// The same for a model without attention: where nothing is said, its context is as long as converters to GGUF say.
    pub(in crate::model) fn endless(c: &'c Config<'c>) -> Result<Self> {
        let (vocab, context) = (c.vocab()?, c.maybe_int("max_position_embeddings", 1..=1 << 30)?.unwrap_or(1 << 20));
        Ok(Self::sized(c, vocab, context))
    }

    fn sized(c: &'c Config<'c>, vocab: u32, context: u32) -> Self {
        Self { c, vocab, groups: Vec::new(), norm_offset: 0.0, b: Builder::new(vocab, context) }
    }

    /// The file has zero-centred norm weights (w - 1): Gemma's folders.
    pub(in crate::model) fn norms_zero_centred(&mut self) {
        self.norm_offset = 1.0;
    }

    /// The embeddings of the tokens, times `scale`.
    pub(in crate::model) fn embed(&mut self, dim: u32, scale: f32) -> ValueId {
        let table = self.c.names.arch.embedding;
        self.b.embed(table, Index::Token, self.vocab, dim, scale)
    }

    /// The table of a rotation, as the program's.
    pub(in crate::model) fn rotary(&mut self, rotary: &Rotary) -> RopeSpec {
        let table = self.b.rope_table_of(rotary.table.clone());
        RopeSpec { table, pairing: rotary.pairing, dims: rotary.dims() }
    }

    /// A tensor that must be there.
    pub(in crate::model) fn tensor(&self, name: &str) -> Result<&'c TensorInfo> {
        let names = &self.c.names;
        names.find(name).map_or_else(|| names.file.tensor(&names.spelled(name)), Ok)
    }

    /// `NAME.bias`, from its element `start` on, if there is one.
    pub(in crate::model) fn bias(
        &mut self,
        name: &str,
        start: u32,
        n: u32,
        runs: Runs,
        bias: Bias,
    ) -> Option<VectorId> {
        let name = format!("{name}.bias");
        let there = match bias {
            Bias::Yes => true,
            Bias::No => false,
            Bias::IfPresent => self.c.names.find(&self.b.tensor(&name)).is_some(),
        };
        there.then(|| self.b.vector_runs(&name, start, n, runs, 0.0))
    }

    /// `W x + b` with `NAME.weight` (n, width of x) and `NAME.bias`.
    pub(in crate::model) fn linear(&mut self, name: &str, x: ValueId, n: u32, bias: Bias) -> ValueId {
        self.linear_part(name, x, 0, n, bias)
    }

    /// The same with rows `start..start + n` of the tensor: of one that holds several matrices.
    pub(in crate::model) fn linear_part(&mut self, name: &str, x: ValueId, start: u32, n: u32, bias: Bias) -> ValueId {
        self.linear_runs(name, x, start, n, Runs::ONE, bias)
    }

    /// The same with rows that are not contiguous.
    pub(in crate::model) fn linear_runs(
        &mut self,
        name: &str,
        x: ValueId,
        start: u32,
        n: u32,
        runs: Runs,
        bias: Bias,
    ) -> ValueId {
        let bias = self.bias(name, start, n, runs, bias);
        let k = self.b.width(x);
        let weight = self.b.weight_runs(&format!("{name}.weight"), start, n, runs, k);
        self.b.linear(name, x, weight, bias)
    }

    /// RMS norm of each row, times `NAME.weight`.
    pub(in crate::model) fn rms_norm(&mut self, name: &str, x: ValueId, eps: f32) -> ValueId {
        self.head_norm(name, x, self.b.width(x), eps)
    }

    /// RMS norm of each `n` elements, times `NAME.weight` (n).
    pub(in crate::model) fn head_norm(&mut self, name: &str, x: ValueId, n: u32, eps: f32) -> ValueId {
        let weight = Some(self.b.vector_part(&format!("{name}.weight"), 0, n, self.norm_offset));
        self.b.norm(name, x, NormSpec { kind: NormKind::Rms, n, weight, bias: None, eps })
    }

    /// Layer norm of each row: by mean and variance, times `NAME.weight`, plus `NAME.bias`.
    pub(in crate::model) fn layer_norm(&mut self, name: &str, x: ValueId, eps: f32, bias: Bias) -> ValueId {
        let n = self.b.width(x);
        let weight = Some(self.b.vector(&format!("{name}.weight"), n));
        let bias = self.bias(name, 0, n, Runs::ONE, bias);
        self.b.norm(name, x, NormSpec { kind: NormKind::Layer, n, weight, bias, eps })
    }

    /// The layers of most decoders, and the last norm: attention and feed-forward, each of the normed stream and added to it.
    pub(in crate::model) fn decoder(&mut self, x: ValueId, eps: f32, layers: &[Attention], mlp: &Mlp) -> ValueId {
        self.scaled_decoder(x, eps, layers, mlp, 1.0)
    }

    /// The same with `by` times what is added.
    pub(in crate::model) fn scaled_decoder(
        &mut self,
        mut x: ValueId,
        eps: f32,
        layers: &[Attention],
        mlp: &Mlp,
        by: f32,
    ) -> ValueId {
        for (layer, attention) in (0..).zip(layers) {
            self.b.layer(layer, format!("model.layers.{layer}."));
            let h = self.rms_norm("input_layernorm", x, eps);
            let h = self.self_attention(h, attention);
            let h = self.scaled("attention", h, by);
            x = self.b.add("attention residual", x, h);

            let h = self.rms_norm("post_attention_layernorm", x, eps);
            let h = self.gated_mlp("mlp", h, mlp);
            let h = self.scaled("mlp", h, by);
            x = self.b.add("mlp residual", x, h);
        }
        self.b.end_layers();
        self.rms_norm("model.norm", x, eps)
    }

    /// Self-attention: `self_attn.q_proj`, `k_proj`, `v_proj` and `o_proj`.
    pub(in crate::model) fn self_attention(&mut self, x: ValueId, a: &Attention) -> ValueId {
        self.attention_of("self_attn", x, a)
    }

    /// The same by another name: `NAME.q_proj`, …
    pub(in crate::model) fn attention_of(&mut self, name: &str, x: ValueId, a: &Attention) -> ValueId {
        let dim = self.b.width(x);
        let q = self.linear(&format!("{name}.q_proj"), x, a.heads.q(), a.bias);
        let k = self.linear(&format!("{name}.k_proj"), x, a.heads.kv(), a.bias);
        let v = self.linear(&format!("{name}.v_proj"), x, a.heads.kv(), a.bias);
        let v = self.clipped("v", v, a);
        let h = self.attention(q, k, v, a);
        self.linear(&format!("{name}.o_proj"), h, dim, a.out_bias)
    }

    /// Attention of q over k and v, those of this step and those kept. Queries and keys are normed and rotated first.
    pub(in crate::model) fn attention(&mut self, q: ValueId, k: ValueId, v: ValueId, a: &Attention) -> ValueId {
        let q = self.turned("q", q, a);
        let k = self.turned("k", k, a);
        if a.bidirectional {
            let out = self.b.attend_packed([q, k, v], a.heads.head_dim, a.mask(), a.scale);
            return self.capped(out, a);
        }
        let cache = self.cache(a);
        self.b.kv_write(cache, k, v);
        self.attend(q, cache, a)
    }

    /// Queries or keys, normed and rotated.
    pub(in crate::model) fn turned(&mut self, name: &str, x: ValueId, a: &Attention) -> ValueId {
        let norm = format!("self_attn.{name}_norm");
        let x = match a.norms {
            QkNorm::None => x,
            QkNorm::Heads(eps) => self.head_norm(&norm, x, a.heads.head_dim, eps),
            QkNorm::Whole(eps) => self.rms_norm(&norm, x, eps),
        };
        let x = self.clipped(name, x, a);
        a.rope.map_or(x, |rope| self.b.rope(name, x, a.heads.head_dim, rope))
    }

    fn clipped(&mut self, name: &str, x: ValueId, a: &Attention) -> ValueId {
        a.clip.map_or(x, |clip| self.b.clamp(name, x, -clip, clip))
    }

    /// A cache for a layer's keys and values, in the group of its window.
    pub(in crate::model) fn cache(&mut self, a: &Attention) -> CacheId {
        let Heads { kv_heads, head_dim, .. } = a.heads;
        let group = self.group(a.window);
        self.b.pages(group, kv_heads, head_dim, head_dim, a.window)
    }

    /// The cache group of the layers with this window; none: full attention.
    pub(in crate::model) fn group(&mut self, window: Option<u32>) -> GroupId {
        let found = self.groups.iter().find(|(of, _)| *of == window).map(|(_, group)| *group);
        found.unwrap_or_else(|| {
            let group = self.b.group();
            self.groups.push((window, group));
            group
        })
    }

    /// Attention of q, normed and rotated, over a cache.
    pub(in crate::model) fn attend(&mut self, q: ValueId, cache: CacheId, a: &Attention) -> ValueId {
        let out = self.b.attend(q, cache, a.mask(), a.scale);
        self.capped(out, a)
    }

    /// Sets the soft-cap and the sinks of the attention that was built last.
    fn capped(&mut self, out: ValueId, a: &Attention) -> ValueId {
        let sinks = a.sinks.map(|name| self.b.vector(name, a.heads.heads));
        if let Some(Op::Attend(attend)) = self.b.last() {
            attend.softcap = a.softcap;
            attend.sinks = sinks;
        }
        out
    }

    /// `down(act(gate x) * up x)`: `NAME.gate_proj`, `up_proj` and `down_proj`.
    pub(in crate::model) fn gated_mlp(&mut self, name: &str, x: ValueId, mlp: &Mlp) -> ValueId {
        let dim = self.b.width(x);
        let gate = self.linear(&format!("{name}.gate_proj"), x, mlp.ffn, mlp.bias);
        let up = self.linear(&format!("{name}.up_proj"), x, mlp.ffn, mlp.bias);
        let h = self.gated(gate, up, mlp.act);
        self.linear(&format!("{name}.down_proj"), h, dim, mlp.bias)
    }

    /// The same with gate and up in one tensor, `NAME.gate_up_proj`, gate first.
    pub(in crate::model) fn stacked_mlp(&mut self, name: &str, x: ValueId, mlp: &Mlp) -> ValueId {
        let dim = self.b.width(x);
        let stack = format!("{name}.gate_up_proj");
        let gate = self.linear_part(&stack, x, 0, mlp.ffn, mlp.bias);
        let up = self.linear_part(&stack, x, mlp.ffn, mlp.ffn, mlp.bias);
        let h = self.gated(gate, up, mlp.act);
        self.linear(&format!("{name}.down_proj"), h, dim, mlp.bias)
    }

    /// `down(act(up x))`
    pub(in crate::model) fn plain_mlp(&mut self, up: &str, down: &str, x: ValueId, mlp: &Mlp) -> ValueId {
        let dim = self.b.width(x);
        let h = self.linear(up, x, mlp.ffn, mlp.bias);
        let h = self.b.act("act", h, mlp.act);
        self.linear(down, h, dim, mlp.bias)
    }

    /// `act(gate) * up`
    pub(in crate::model) fn gated(&mut self, gate: ValueId, up: ValueId, act: Act) -> ValueId {
        let gate = self.b.act("act", gate, act);
        self.b.mul("gated", gate, up)
    }

    /// `by * x`, if that is not x.
    pub(in crate::model) fn scaled(&mut self, name: &str, x: ValueId, by: f32) -> ValueId {
        if by == 1.0 { x } else { self.b.scale(name, x, by) }
    }

    /// `cap * tanh(x / cap)`, if there is a cap.
    pub(in crate::model) fn softcap(&mut self, name: &str, x: ValueId, cap: f32) -> ValueId {
        if cap == 0.0 {
            return x;
        }
        let x = self.b.scale(name, x, 1.0 / cap);
        let x = self.b.act(name, x, Act::Tanh);
        self.b.scale(name, x, cap)
    }

    /// The logits of the head's input: by the head's matrix, or by the embedding table where `tie_word_embeddings` says so.
    ///
    /// If the model is opened for vectors, it pools the last token instead, unless its files or the caller say otherwise.
    pub(in crate::model) fn head(mut self, x: ValueId, head: Head) -> Result<Program> {
        if let Task::Embed(_) = self.c.task {
            return self.embedding(x, Pooling::Last);
        }
        let tied = self.c.flag(keys::TIED, head.tied)? && (self.c.is_gguf() || !head.own);
        let name = if tied { self.c.names.arch.embedding.to_owned() } else { format!("{}.weight", head.name) };
        let k = self.b.width(x);
        let picked = self.b.gather(x);
        let weight = self.b.weight(&name, self.vocab, k);
        let bias = self.bias(head.name, 0, self.vocab, Runs::ONE, head.bias);
        let logits = self.b.linear("logits", picked, weight, bias);
        let logits = self.scaled("logits", logits, head.scale);
        let logits = self.softcap("logits", logits, head.softcap);
        Ok(self.b.finish(vec![Out::Hidden(x), Out::Logits(logits)]))
    }
}
