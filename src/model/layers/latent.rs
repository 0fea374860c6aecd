//! Multi-head latent attention (DeepSeek-V2, 2024): all heads share one compressed key per position, whose first elements
//! are the value. Each head's matrices are absorbed into its query and its result: the scores and sums are the same.

use crate::model::config::rotary::Rotary;
use crate::model::config::{Bias, Config};
use crate::model::layers::Net;
use crate::ops::{Mask, Pairing, RopeSpec, ValueId, WeightId};
use crate::{Error, Result};

use crate::model::program::CacheSpec;

/// A latent attention layer.
#[derive(Clone, Debug)]
pub(in crate::model) struct Latent {
    heads: u32,
    /// Elements of a head's query and key that do not rotate, those that do, and those of its value.
    nope: u32,
    rope: u32,
    value: u32,
    /// Elements of the compressed key.
    rank: u32,
    /// Elements of the compressed query, if there is one.
    q_rank: Option<u32>,
    bias: Bias,
    rotary: Rotary,
    scale: f32,
}

/// The epsilon of norms of compressed queries and keys, whatever `rms_norm_eps` says.
const EPS: f32 = 1e-6;

impl Latent {
    /// Reads an attention layer's hyper-parameters.
    pub(in crate::model) fn read(c: &Config<'_>, pairing: Pairing) -> Result<Self> {
        const DIM: std::ops::RangeInclusive<u32> = 1..=1 << 12;
        let heads = c.int("num_attention_heads", DIM)?;
        c.maybe_int("num_key_value_heads", 1..=heads)?; // one in GGUF files, as many as query heads in folders
        let rope = c.int("qk_rope_head_dim", 2..=1 << 12)?;
        // Newer GGUF files have sizes of compressed keys under the usual names, and those of heads beside them.
        let whole = c.maybe_int("qk_head_dim", DIM)?;
        let whole = c.maybe_int("qk_head_dim_mla", DIM)?.or(whole);
        let nope = match (c.maybe_int("qk_nope_head_dim", DIM)?, whole) {
            (Some(nope), None) => nope,
            (Some(nope), Some(whole)) if whole == nope + rope => nope,
            (None, Some(whole)) if whole > rope => whole - rope,
            (Some(nope), Some(_)) => return Err(c.wrong("qk_head_dim", &format!("{}, of both parts,", nope + rope))),
            _ => return Err(c.wrong("qk_nope_head_dim", "the number of a head's elements that do not rotate")),
        };
        let value = c.maybe_int("v_head_dim", DIM)?;
        let value = match c.maybe_int("v_head_dim_mla", DIM)?.or(value) {
            Some(value) => value,
            None => return Err(c.wrong("v_head_dim", "the number of elements of a head's value")),
        };
        let mut rotary = Rotary::read(c, rope, pairing)?;
        let scale = 1.0 / f64::from(nope + rope).sqrt() * stretch(c, &mut rotary)?.powi(2);
        Ok(Self {
            heads,
            nope,
            rope,
            value,
            rank: c.part("kv_lora_rank")?,
            q_rank: c.maybe_int("q_lora_rank", 0..=1 << 20)?.filter(|&rank| rank > 0),
            bias: c.bias("attention_bias", false)?,
            rotary,
            scale: scale as f32,
        })
    }

    /// The rotation, as the program's.
    pub(in crate::model) fn rotary(&self, net: &mut Net<'_>) -> RopeSpec {
        net.rotary(&self.rotary)
    }
}

/// The factor on the lengths of queries and keys where YaRN stretches the context, by `mscale_all_dim`.
fn stretch(c: &Config<'_>, rotary: &mut Rotary) -> Result<f64> {
    if c.text("rope_parameters.rope_type")?.unwrap_or("default") != "yarn" {
        return Ok(1.0);
    }
    let all = c.maybe_float("rope_parameters.mscale_all_dim", 0.0..=1e6)?;
    // GGUF files have a tenth of it, as f32. Their attention factor applies to the rotation and, squared, to the scores.
    let all = all
        .or(c.maybe_float("yarn_log_multiplier", 0.0..=1e5)?.map(|tenth| (1e7 * tenth).round() / 1e6))
        .unwrap_or(0.0);
    let mut more = 1.0;
    if c.is_gguf() {
        more = c.maybe_float("rope_parameters.attention_factor", 0.0..=1e6)?.unwrap_or(1.0);
        rotary.table.factor = more as f32;
    }
    let factor = c.float("rope_parameters.factor", 1e-6..=1e6)?;
    Ok(if factor <= 1.0 { more } else { more * (0.1 * all * factor.ln() + 1.0) })
}

impl Net<'_> {
    /// Latent attention: `self_attn.q_a_proj` and `q_b_proj` or `q_proj`, `kv_a_proj_with_mqa`, `kv_b_proj`, `o_proj`.
    pub(in crate::model) fn latent_attention(&mut self, x: ValueId, a: &Latent, rope: RopeSpec) -> Result<ValueId> {
        let (dim, q_width) = (self.b.width(x), a.heads * (a.nope + a.rope));
        let q = match a.q_rank {
            None => self.linear("self_attn.q_proj", x, q_width, Bias::No),
            Some(rank) => {
                let q = self.linear("self_attn.q_a_proj", x, rank, a.bias);
                let q = self.rms_norm("self_attn.q_a_layernorm", q, EPS);
                self.linear("self_attn.q_b_proj", q, q_width, Bias::No)
            }
        };
        let (key, value) = self.latent_matrices(a)?;
        let turned = self.b.slice_heads("q rope", q, a.heads, a.nope, a.rope);
        let turned = self.b.rope("q", turned, a.rope, rope);
        let q = self.b.slice_heads("q nope", q, a.heads, 0, a.nope);
        let q = self.b.head_linear("q latent", q, key);
        let q = self.b.concat("q", q, turned, a.heads);

        let kv = self.linear("self_attn.kv_a_proj_with_mqa", x, a.rank + a.rope, a.bias);
        let turned = self.b.slice("k rope", kv, a.rank, a.rope);
        let turned = self.b.rope("k", turned, a.rope, rope);
        let k = self.b.slice("k latent", kv, 0, a.rank);
        let k = self.rms_norm("self_attn.kv_a_layernorm", k, EPS);
        let k = self.b.concat("k", k, turned, 1);

        let (group, k_dim) = (self.group(None), a.rank + a.rope);
        let pages = CacheSpec::Pages { group, kv_heads: 1, k_dim, v_dim: a.rank, v_in_k: true, window: None };
        let cache = self.b.cache(pages);
        self.b.kv_write(cache, k, None);
        let h = self.b.attend(q, cache, Mask::Causal, a.scale);
        let h = self.b.head_linear("values", h, value);
        Ok(self.linear("self_attn.o_proj", h, dim, a.bias))
    }

    /// Each head's matrices: from its query into the compressed space, (rank, nope), and out of it to its value, (value, rank).
    fn latent_matrices(&mut self, a: &Latent) -> Result<(Vec<WeightId>, Vec<WeightId>)> {
        let found = |net: &Self, name: &str| net.tensor(&net.b.tensor(name)).is_ok();
        // Newer GGUF files hold them apart, the first ones as they are used here.
        let apart = found(self, "self_attn.k_b_proj.weight");
        // As many heads as there are rows for, before there is something for each.
        let (name, of_head) = if apart {
            ("self_attn.v_b_proj.weight", a.value)
        } else {
            ("self_attn.kv_b_proj.weight", a.nope + a.value)
        };
        let tensor = self.tensor(&self.b.tensor(name))?;
        let needed = u64::from(a.heads) * u64::from(of_head);
        if tensor.rows() < needed {
            let (name, shape) = (&tensor.name, &tensor.shape);
            return Err(Error::Model(format!(
                "tensor {name} has shape {shape:?}; {} heads need {needed} rows",
                a.heads
            )));
        }
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for head in 0..a.heads {
            if apart {
                key.push(self.b.weight_rows("self_attn.k_b_proj.weight", head * a.rank, a.rank, a.nope));
                value.push(self.b.weight_rows("self_attn.v_b_proj.weight", head * a.value, a.value, a.rank));
            } else {
                let first = head * (a.nope + a.value);
                key.push(self.b.weight_transposed("self_attn.kv_b_proj.weight", first, a.rank, a.nope));
                value.push(self.b.weight_rows("self_attn.kv_b_proj.weight", first + a.nope, a.value, a.rank));
            }
        }
        Ok((key, value))
    }
}
