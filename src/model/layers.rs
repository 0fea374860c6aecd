//! The layers that architectures are made of: canonical ops with the names of their tensors, where models agree on them.

use super::config::{Bias, Config, Heads};
use super::program::{Builder, Out, Program};
use crate::ops::{GroupId, Index, Mask, NormKind, NormSpec, Pairing, RopeSpec, ValueId, VectorId};
use crate::{Error, Result};

/// A program in the making, beside the hyper-parameters that it follows.
pub(super) struct Net<'c> {
    c: &'c Config<'c>,
    vocab: u32,
    /// The builder, for single ops.
    pub(super) b: Builder,
}

impl<'c> Net<'c> {
    /// An empty program for the model's vocabulary and context.
    pub(super) fn new(c: &'c Config<'c>) -> Result<Self> {
        let vocab = c.vocab()?;
        Ok(Self { c, vocab, b: Builder::new(vocab, c.context()?) })
    }

    /// The embeddings of the tokens, times `scale`.
    pub(super) fn embed(&mut self, dim: u32, scale: f32) -> ValueId {
        let table = self.c.names.arch.embedding;
        self.b.embed(table, Index::Token, self.vocab, dim, scale)
    }

    /// The table of a rotation, as the program's.
    pub(super) fn rotary(&mut self, rotary: &Rotary) -> RopeSpec {
        let table = self.b.rope_table(rotary.divisors.clone(), rotary.factor);
        RopeSpec { table, pairing: rotary.pairing, dims: 2 * rotary.divisors.len() as u32 }
    }

    /// `NAME.bias`, from its element `start` on, if there is one.
    fn bias(&mut self, name: &str, start: u32, n: u32, bias: Bias) -> Option<VectorId> {
        let name = format!("{name}.bias");
        let there = match bias {
            Bias::Yes => true,
            Bias::No => false,
            Bias::IfPresent => self.c.names.find(&self.b.tensor(&name)).is_some(),
        };
        there.then(|| self.b.vector_part(&name, start, n, 0.0))
    }

    /// `W x + b` with `NAME.weight` (n, width of x) and `NAME.bias`.
    pub(super) fn linear(&mut self, name: &str, x: ValueId, n: u32, bias: Bias) -> ValueId {
        self.linear_part(name, x, 0, n, bias)
    }

    /// The same with rows `start..start + n` of the tensor: of one that holds several matrices.
    pub(super) fn linear_part(&mut self, name: &str, x: ValueId, start: u32, n: u32, bias: Bias) -> ValueId {
        let bias = self.bias(name, start, n, bias);
        let k = self.b.width(x);
        let weight = self.b.weight_rows(&format!("{name}.weight"), start, n, k);
        self.b.linear(name, x, weight, bias)
    }

    /// By the root of the mean square of each row, times `NAME.weight`.
    pub(super) fn rms_norm(&mut self, name: &str, x: ValueId, eps: f32) -> ValueId {
        let n = self.b.width(x);
        let weight = Some(self.b.vector(&format!("{name}.weight"), n));
        self.b.norm(name, x, NormSpec { kind: NormKind::Rms, n, weight, bias: None, eps })
    }

    /// By mean and variance of each row, times `NAME.weight`, plus `NAME.bias`.
    pub(super) fn layer_norm(&mut self, name: &str, x: ValueId, eps: f32, bias: Bias) -> ValueId {
        let n = self.b.width(x);
        let weight = Some(self.b.vector(&format!("{name}.weight"), n));
        let bias = self.bias(name, 0, n, bias);
        self.b.norm(name, x, NormSpec { kind: NormKind::Layer, n, weight, bias, eps })
    }

    /// Attention of q over k and v, those of this step and those kept, with scores divided by the root of the head's size.
    pub(super) fn attention(
        &mut self,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        heads: Heads,
        group: GroupId,
        mask: Mask,
    ) -> ValueId {
        let window = match mask {
            Mask::Window(n) => Some(n),
            Mask::Causal | Mask::Full | Mask::Near(_) => None,
        };
        let cache = self.b.pages(group, heads.kv_heads, heads.head_dim, heads.head_dim, window);
        self.b.kv_write(cache, k, v);
        self.b.attend(q, cache, mask, (1.0 / f64::from(heads.head_dim).sqrt()) as f32)
    }

    /// The logits: by `lm_head.weight`, or by the embedding table where `tie_word_embeddings` says so.
    pub(super) fn head(mut self, x: ValueId, tied: bool) -> Result<Program> {
        let tied = self.c.flag("tie_word_embeddings", tied)?;
        let name = if tied { self.c.names.arch.embedding } else { "lm_head.weight" };
        let k = self.b.width(x);
        let picked = self.b.pick(x);
        let weight = self.b.weight(name, self.vocab, k);
        let logits = self.b.linear("logits", picked, weight, None);
        Ok(self.b.finish(vec![Out::Hidden(x), Out::Logits(logits)]))
    }
}

/// A rotary embedding: which elements turn, by what angles.
///
/// Pair i of d rotated elements turns by `position / theta^(2i/d)`, as scaled by `rope_parameters`:
/// * `linear`: positions divided by `factor` (Chen et al. 2023)
/// * `llama3`: long waves as in `linear`, short ones as they are, those between interpolated (Llama 3.1)
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rotary {
    /// Radians a position, of each pair. In f64: rounding them to f32, as transformers does, brings the logits of its fixtures no nearer.
    divisors: Vec<f64>,
    factor: f32,
    pairing: Pairing,
}

impl Rotary {
    /// The rotation that the hyper-parameters describe for heads of a size.
    pub(super) fn read(c: &Config<'_>, head_dim: u32, pairing: Pairing) -> Result<Self> {
        let dims = rotated(c, head_dim)?;
        let theta = c.maybe_float("rope_parameters.rope_theta", 1e-3..=1e15)?.unwrap_or(1e4);
        let mut divisors: Vec<f64> = (0..dims / 2).map(|i| theta.powf(-2.0 * f64::from(i) / f64::from(dims))).collect();
        match c.text("rope_parameters.rope_type")?.unwrap_or("default") {
            "default" | "none" => {}
            "linear" => {
                let factor = c.float("rope_parameters.factor", FACTOR)?;
                divisors.iter_mut().for_each(|f| *f /= factor);
            }
            "llama3" => llama3(c, &mut divisors)?,
            other => {
                let what = format!("rope_type = {other:?} in a {} model", c.names.arch.name());
                return Err(Error::unsupported(what, "default, linear and llama3 work"));
            }
        }
        if let Some(factors) = c.maybe_floats("rope_parameters.freq_factors")? {
            if factors.len() != divisors.len() {
                return Err(c.wrong("rope_parameters.freq_factors", &format!("one of {} elements", divisors.len())));
            }
            divisors.iter_mut().zip(factors).for_each(|(f, by)| *f /= by);
        }
        Ok(Self { divisors, factor: 1.0, pairing })
    }
}

const FACTOR: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

/// How many elements of a head are rotated.
fn rotated(c: &Config<'_>, head_dim: u32) -> Result<u32> {
    let (key, dims) = match c.maybe_int("rotary_dim", 2..=head_dim.max(2))? {
        Some(dims) => ("rotary_dim", dims),
        None => {
            let key = "rope_parameters.partial_rotary_factor";
            let part = c.maybe_float(key, 1e-6..=1.0)?.unwrap_or(1.0);
            (key, (f64::from(head_dim) * part) as u32)
        }
    };
    if dims < 2 || dims > head_dim || !dims.is_multiple_of(2) {
        let works = format!("rope turns {dims} of a head's {head_dim} elements by that, an even number");
        return Err(c.wrong(key, &works));
    }
    Ok(dims)
}

/// Llama 3.1's scaling, by the length of a pair's wave in positions.
fn llama3(c: &Config<'_>, divisors: &mut [f64]) -> Result<()> {
    let factor = c.float("rope_parameters.factor", FACTOR)?;
    let low = c.float("rope_parameters.low_freq_factor", FACTOR)?;
    let high = c.float("rope_parameters.high_freq_factor", FACTOR)?;
    let context = f64::from(c.int("rope_parameters.original_max_position_embeddings", 1..=1 << 30)?);
    if low >= high {
        return Err(c.wrong("rope_parameters.high_freq_factor", &format!("a number above {low}, low_freq_factor,")));
    }
    for f in divisors {
        let waves = context * *f / std::f64::consts::TAU; // in the original context
        let keep = ((waves - low) / (high - low)).clamp(0.0, 1.0);
        *f = (1.0 - keep) * *f / factor + keep * *f;
    }
    Ok(())
}
