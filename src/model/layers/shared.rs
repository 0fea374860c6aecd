//! What the layers of Gemma 3n and 4 share: keys and values of earlier layers, and embeddings of tokens for each layer.

use crate::Result;
use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Net};
use crate::ops::{Act, CacheId, Index, NormKind, NormSpec, ValueId};

/// Which layers attend over the cache of an earlier one: the last `num_kv_shared_layers`. Each uses the cache of the last
/// layer before them of the same kind (full attention or sliding window).
pub(in crate::model) struct Sharing {
    /// The first layer that keeps nothing itself.
    pub(in crate::model) first: u32,
    /// The last caches before it: of full attention, of a sliding window.
    caches: [Option<CacheId>; 2],
}

impl Sharing {
    /// Which layers of so many share.
    pub(in crate::model) fn read(c: &Config<'_>, layers: u32) -> Result<Self> {
        let shared = c.maybe_int("num_kv_shared_layers", 0..=layers - 1)?.unwrap_or(0);
        Ok(Self { first: layers - shared, caches: [None; 2] })
    }

    /// Self-attention whose values are normed, too; `same`: they are the keys, before norm and rotation.
    #[allow(clippy::too_many_arguments, reason = "all that attention needs, and all that differs here")]
    pub(in crate::model) fn attention(
        &mut self,
        c: &Config<'_>,
        net: &mut Net<'_>,
        layer: u32,
        x: ValueId,
        a: &Attention,
        eps: f32,
        same: bool,
    ) -> Result<ValueId> {
        let dim = net.b.width(x);
        let q = net.linear("self_attn.q_proj", x, a.heads.q(), a.bias);
        let q = net.turned("q", q, a);
        let kept = &mut self.caches[usize::from(a.window.is_some())];
        if layer < self.first {
            let k = net.linear("self_attn.k_proj", x, a.heads.kv(), a.bias);
            let v = if same { k } else { net.linear("self_attn.v_proj", x, a.heads.kv(), a.bias) };
            let spec = NormSpec { kind: NormKind::Rms, n: a.heads.head_dim, weight: None, bias: None, eps };
            let v = net.b.norm("v_norm", v, spec);
            let k = net.turned("k", k, a);
            let cache = net.cache(a);
            net.b.kv_write(cache, k, v);
            *kept = Some(cache);
        }
        let works = || c.wrong("num_kv_shared_layers", "a number that leaves a layer of each kind before them");
        let h = net.attend(q, kept.ok_or_else(works)?, a);
        Ok(net.linear("self_attn.o_proj", h, dim, a.out_bias))
    }
}

/// Embeddings of each row's token for each layer.
pub(in crate::model) struct PerLayer {
    /// (rows, layers * inside)
    values: ValueId,
    inside: u32,
    act: Act,
    eps: f32,
}

impl PerLayer {
    /// `(table[token] * sqrt(inside) + norm(projection(x) / sqrt(dim))) / sqrt(2)`, of the embeddings x.
    pub(in crate::model) fn new(
        net: &mut Net<'_>,
        c: &Config<'_>,
        x: ValueId,
        layers: u32,
        inside: u32,
        act: Act,
        eps: f32,
    ) -> Result<Self> {
        const TABLE: &str = "model.embed_tokens_per_layer.weight";
        let rows = c.names.find(TABLE).and_then(|table| u32::try_from(table.rows()).ok());
        let vocab = c.maybe_int("vocab_size_per_layer_input", 1..=1 << 24)?.or(rows).unwrap_or(1);
        let width = layers.checked_mul(inside).filter(|width| *width <= 1 << 24);
        let width = width.ok_or_else(|| c.wrong("hidden_size_per_layer_input", "a smaller number"))?;
        let dim = f64::from(net.b.width(x));
        let table = net.b.embed(TABLE, Index::TokenOrFirst, vocab, width, (inside as f32).sqrt());
        let own = net.linear("model.per_layer_model_projection", x, width, Bias::No);
        let own = net.b.scale("per-layer projection", own, dim.powf(-0.5) as f32);
        let own = net.head_norm("model.per_layer_projection_norm", own, inside, eps);
        let sum = net.b.add("per-layer inputs", own, table);
        let values = net.b.scale("per-layer inputs", sum, std::f32::consts::FRAC_1_SQRT_2);
        Ok(Self { values, inside, act, eps })
    }

    /// `norm(projection(act(gate(x)) * inputs of the layer))`
    pub(in crate::model) fn block(&self, net: &mut Net<'_>, layer: u32, x: ValueId) -> ValueId {
        let dim = net.b.width(x);
        let own = net.b.slice("per-layer input", self.values, layer * self.inside, self.inside);
        let h = net.linear("per_layer_input_gate", x, self.inside, Bias::No);
        let h = net.gated(h, own, self.act);
        let h = net.linear("per_layer_projection", h, dim, Bias::No);
        net.rms_norm("post_per_layer_input_norm", h, self.eps)
    }
}
