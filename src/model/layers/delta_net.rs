//! Gated delta nets with attention in some layers: what Qwen3-Next and Qwen3.5 have in common.

use crate::Result;
use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Net, QkNorm};
use crate::model::program::Runs;
use crate::model::{KeyHeads, StoredDecays};
use crate::ops::{Act, Decay, NormKind, NormSpec, Pairing, RopeSpec, ValueId};

/// Their keys in GGUF files.
pub(in crate::model) const GGUF_KEYS: crate::model::config::keys::Keys = &[
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
    ("ssm.inner_size", "linear_inner"),
    ("full_attention_interval", "full_attention_interval"),
    ("attention.recurrent_layers", "recurrent_layers"),
    ("rope.dimension_sections", "rope_sections"),
    ("nextn_predict_layers", "num_nextn_predict_layers"),
];

/// The sizes of the layers.
pub(in crate::model) struct Hybrid {
    /// Columns of the stream.
    pub(in crate::model) dim: u32,
    /// Of all norms.
    pub(in crate::model) eps: f32,
    /// For each layer, whether it attends.
    pub(in crate::model) attends: Vec<bool>,
    /// Heads of queries and keys of a delta net.
    pub(in crate::model) key_heads: u32,
    /// Value heads, a multiple of them.
    pub(in crate::model) heads: u32,
    pub(in crate::model) k_dim: u32,
    pub(in crate::model) v_dim: u32,
    kernel_size: u32,
    act: Act,
    decays: StoredDecays,
    /// Value heads of one key head lie `key_heads` apart.
    tiled: bool,
    attention: Attention,
    rotary: Rotary,
}

impl Hybrid {
    /// Reads the hyper-parameters. `tiled`: how the file orders value heads.
    pub(in crate::model) fn read(c: &Config<'_>, tiled: bool) -> Result<Self> {
        let extra = if c.is_gguf() { c.maybe_int("num_nextn_predict_layers", 0..=8)?.unwrap_or(0) } else { 0 };
        let layers = c.layers()?.saturating_sub(extra).max(1);
        let attends = match c.layer_types(layers)? {
            Some(types) if types.iter().all(|t| ["linear_attention", "full_attention"].contains(&t.as_str())) => {
                types.iter().map(|kind| kind == "full_attention").collect()
            }
            Some(_) => return Err(c.wrong("layer_types", "a list of linear_attention and full_attention")),
            None if c.value("recurrent_layers").is_some() => {
                let flags = c.maybe_flags("recurrent_layers", layers)?;
                flags.unwrap_or_default().into_iter().map(|recurrent| !recurrent).collect()
            }
            None => {
                let interval = c.maybe_int("full_attention_interval", 1..=1 << 12)?.unwrap_or(4);
                (1..=layers).map(|layer| layer.is_multiple_of(interval)).collect()
            }
        };
        let key_heads = c.int("linear_num_key_heads", 1..=1 << 12)?;
        let heads = c.int("linear_num_value_heads", 1..=1 << 12)?;
        if !heads.is_multiple_of(key_heads) {
            return Err(
                c.wrong("linear_num_value_heads", &format!("a multiple of {key_heads}, the number of key heads,"))
            );
        }
        let v_dim = match c.maybe_dim("linear_inner")? {
            Some(inner) if inner.is_multiple_of(heads) => inner / heads,
            Some(_) => return Err(c.wrong("linear_inner", &format!("a multiple of {heads}, the number of heads,"))),
            None => c.part("linear_value_head_dim")?,
        };
        let eps = c.eps("rms_norm_eps")?;
        let of_heads = c.hybrid_heads()?;
        let bias = c.bias("attention_bias", false)?;
        let plain = Attention { norms: QkNorm::Heads(eps), ..Attention::new(of_heads, None) };
        Ok(Self {
            dim: c.dim("hidden_size")?,
            eps,
            attends,
            key_heads,
            heads,
            k_dim: c.part("linear_key_head_dim")?,
            v_dim,
            kernel_size: c.int("linear_conv_kernel_dim", 1..=64)?,
            act: c.activation("hidden_act", Act::Silu)?,
            decays: if c.is_gguf() { StoredDecays::Plain } else { StoredDecays::Logarithms },
            tiled,
            attention: Attention { bias, out_bias: bias, ..plain },
            rotary: Rotary::read_part(c, of_heads.head_dim, Pairing::Neox, 0.25)?,
        })
    }

    /// Columns of the queries of a delta net, and of its keys.
    pub(in crate::model) fn keys(&self) -> u32 {
        self.key_heads * self.k_dim
    }

    /// Columns of the values of a delta net, and of its gate.
    pub(in crate::model) fn values(&self) -> u32 {
        self.heads * self.v_dim
    }

    /// An empty program with the layers' rotation.
    pub(in crate::model) fn start<'c>(&self, c: &'c Config<'c>) -> Result<(Net<'c>, RopeSpec)> {
        let mut net = Net::new(c)?;
        if !c.is_gguf() {
            net.norms_zero_centred();
        }
        let rope = net.rotary(&self.rotary);
        Ok((net, rope))
    }

    /// The first half of a layer: attention whose result is gated, or a delta net. `project` makes its queries, keys,
    /// values, gate, beta and decay from the normed stream.
    pub(in crate::model) fn mixer(
        &self,
        net: &mut Net<'_>,
        (layer, x, rope): (usize, ValueId, RopeSpec),
        project: impl Fn(&mut Net<'_>, ValueId) -> [ValueId; 6],
    ) -> ValueId {
        net.b.layer(layer as u32, format!("model.layers.{layer}."));
        let h = net.rms_norm("input_layernorm", x, self.eps);
        let h = if self.attends[layer] {
            self.attention(net, h, rope)
        } else {
            let projected = project(net, h);
            self.delta_net(net, projected)
        };
        net.b.add("mixer residual", x, h)
    }

    fn attention(&self, net: &mut Net<'_>, x: ValueId, rope: RopeSpec) -> ValueId {
        let a = Attention { rope: Some(rope), ..self.attention };
        // Each head's query, then its gate.
        let runs = Runs { run: a.heads.head_dim, skip: a.heads.head_dim };
        let q = net.linear_runs("self_attn.q_proj", x, 0, a.heads.q(), runs, a.bias);
        let gate = net.linear_runs("self_attn.q_proj", x, a.heads.head_dim, a.heads.q(), runs, a.bias);
        let k = net.linear("self_attn.k_proj", x, a.heads.kv(), a.bias);
        let v = net.linear("self_attn.v_proj", x, a.heads.kv(), a.bias);
        let h = net.attention(q, k, v, &a);
        let h = net.gated(gate, h, Act::Sigmoid);
        net.linear("self_attn.o_proj", h, self.dim, a.out_bias)
    }

    fn delta_net(&self, net: &mut Net<'_>, [q, k, v, gate, beta, decay]: [ValueId; 6]) -> ValueId {
        let starts = [(q, 0), (k, self.keys()), (v, 2 * self.keys())];
        let [q, k, v] = starts.map(|(x, start)| {
            let h = net.short_conv("linear_attn.conv1d", x, start, self.kernel_size, Bias::No);
            net.b.act("act", h, self.act)
        });
        // x / sqrt(Σ x² + 1e-6), as an RMS norm with a factor; queries are also divided by the root of the head's size.
        let n = self.k_dim;
        let unit = NormSpec { kind: NormKind::Rms, n, weight: None, bias: None, eps: 1e-6 / n as f32 };
        let [q, k] = [(q, 1.0 / f64::from(n)), (k, f64::from(n).powf(-0.5))].map(|(x, by)| {
            let h = net.b.norm("unit", x, unit);
            net.scaled("unit", h, by as f32)
        });
        let beta = net.b.act("beta", beta, Act::Sigmoid);
        let bias = net.b.vector("linear_attn.dt_bias", self.heads);
        let a = net.b.decays("linear_attn.A_log", self.heads, self.decays);
        let decay = Decay { x: decay, bias, a, min: 0.0, max: f32::INFINITY };
        let keys = KeyHeads { count: self.key_heads, tiled: self.tiled };
        let h = net.b.delta([q, k, v, beta], keys, self.v_dim, decay);
        let weight = Some(net.b.vector("linear_attn.norm.weight", self.v_dim));
        let spec = NormSpec { kind: NormKind::Rms, n: self.v_dim, weight, bias: None, eps: self.eps };
        let h = net.b.norm("linear_attn.norm", h, spec);
        let h = net.silu_gated(h, gate);
        net.linear("linear_attn.out_proj", h, self.dim, Bias::No)
    }
}
