//! AltUp (Baykal et al. 2023): a wide residual stream is several narrow ones, and a layer works on one of them.

use crate::Result;
use crate::model::config::{Bias, Config};
use crate::model::layers::Net;
use crate::ops::ValueId;

/// A layer predicts all streams from all, works on the active one, and corrects all by its result.
pub(in crate::model) struct AltUp {
    streams: u32,
    /// The stream that layers work on.
    pub(in crate::model) active: usize,
    dim: u32,
    eps: f32,
}

/// Below every mean square of a stream that matters.
const FLOOR: f32 = 1e-5;

impl AltUp {
    /// As `altup_num_inputs` and `altup_active_idx` say.
    pub(in crate::model) fn read(c: &Config<'_>, dim: u32, eps: f32) -> Result<Self> {
        let streams = c.int("altup_num_inputs", 1..=16)?;
        let active = c.int("altup_active_idx", 0..=streams - 1)? as usize;
        Ok(Self { streams, active, dim, eps })
    }

    /// The streams (rows, streams * dim) of the embeddings: the embeddings, then projections of them of the same magnitude.
    pub(in crate::model) fn streams(&self, net: &mut Net<'_>, c: &Config<'_>, x: ValueId) -> ValueId {
        let mut all = vec![x];
        for i in 1..self.streams {
            let y = self.project(net, c, "model.altup_projections", i, x);
            all.push(net.b.magnitude("stream", y, x, FLOOR));
        }
        side_by_side(net, &all)
    }

    /// Streams predicted from all: `h[i] + Σ_j coefs[i, j] h[j]`.
    pub(in crate::model) fn predict(&self, net: &mut Net<'_>, x: ValueId) -> Vec<ValueId> {
        let streams: Vec<_> = (0..self.streams).map(|i| net.b.slice("stream", x, i * self.dim, self.dim)).collect();
        let modes = self.modes(net, streams[self.active]);
        let coefs = net.linear("altup.prediction_coefs", modes, self.streams * self.streams, Bias::No);
        let mut predict = |(i, stream): (u32, ValueId)| {
            let mixed = net.b.combine("predicted", x, coefs, i * self.streams, self.streams);
            net.b.add("predicted", mixed, stream)
        };
        (0..).zip(streams).map(&mut predict).collect()
    }

    /// Corrects predicted streams by what the layer made of the active one: `h[i] + (1 + coefs[i]) (y - h[active])`.
    pub(in crate::model) fn correct(&self, net: &mut Net<'_>, streams: &mut [ValueId], y: ValueId) {
        let modes = self.modes(net, y);
        let coefs = net.linear("altup.correction_coefs", modes, self.streams, Bias::No);
        let minus = net.b.scale("innovation", streams[self.active], -1.0);
        let new = net.b.add("innovation", y, minus);
        for (i, stream) in (0..).zip(streams) {
            let sum = net.b.add("corrected", *stream, new);
            let more = net.b.combine("corrected", new, coefs, i, 1);
            *stream = net.b.add("corrected", sum, more);
        }
    }

    /// One stream of all: their mean, each but the first projected and made as long as the first.
    pub(in crate::model) fn merge(&self, net: &mut Net<'_>, c: &Config<'_>, x: ValueId) -> ValueId {
        let first = net.b.slice("stream", x, 0, self.dim);
        let mut sum = first;
        for i in 1..self.streams {
            let y = net.b.slice("stream", x, i * self.dim, self.dim);
            let y = self.project(net, c, "model.altup_unembed_projections", i, y);
            let y = net.b.magnitude("stream", y, first, FLOOR);
            sum = net.b.add("streams", sum, y);
        }
        net.b.scale("streams", sum, 1.0 / self.streams as f32)
    }

    /// The router's output, from which the coefficients are computed: `tanh(router(norm(x) / dim))`.
    fn modes(&self, net: &mut Net<'_>, x: ValueId) -> ValueId {
        let x = net.rms_norm("altup.router_norm", x, self.eps);
        let x = net.b.scale("router", x, 1.0 / self.dim as f32);
        let x = net.linear("altup.modality_router", x, self.streams, Bias::No);
        net.b.act("modes", x, crate::ops::Act::Tanh)
    }

    /// A projection of stream i from 1: tensors of their own in folders, one stack in GGUF files.
    fn project(&self, net: &mut Net<'_>, c: &Config<'_>, name: &str, i: u32, x: ValueId) -> ValueId {
        match c.is_gguf() {
            true => net.linear_part(name, x, (i - 1) * self.dim, self.dim, Bias::No),
            false => net.linear(&format!("{name}.{}", i - 1), x, self.dim, Bias::No),
        }
    }
}

/// Streams (rows, dim) as one value (rows, streams * dim).
pub(in crate::model) fn side_by_side(net: &mut Net<'_>, streams: &[ValueId]) -> ValueId {
    let mut all = streams[0];
    for stream in &streams[1..] {
        all = net.b.concat("streams", all, *stream, 1);
    }
    all
}

/// The quantile `p`, between 0 and 1, of the normal distribution: by Newton's method, from the series
/// `Φ(x) = 1/2 + φ(x) (x + x³/3 + x⁵/15 + …)`.
pub(in crate::model) fn quantile(p: f64) -> f64 {
    let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    let mut x = 0.0f64;
    for _ in 0..60 {
        let mut term = x;
        let mut sum = x;
        for i in 1..200 {
            term *= x * x / f64::from(2 * i + 1);
            sum += term;
        }
        let step = (0.5 + density(x) * sum - p) / density(x);
        x = (x - step.clamp(-0.5, 0.5)).clamp(-8.0, 8.0);
    }
    x
}

#[cfg(test)]
mod tests {
    #[test]
    fn quantiles_are_those_of_tables() {
        for (p, x) in
            [(0.5, 0.0), (0.6, 0.253_347_103_135_8), (0.95, 1.644_853_626_951_473), (0.025, -1.959_963_984_540_05)]
        {
            assert!((super::quantile(p) - x).abs() < 1e-10, "{p}: {}", super::quantile(p));
        }
    }
}
