//! Fits the step (and the minimum) of a group of weights, for the formats whose encoders search: a least-squares fit for
//! given quants and a rounding for a given fit take turns, from several first steps; the best of all wins. A weight's
//! *importance* says how much its squared error counts.

use half::f16;

/// First steps that `affine` tries: the range over `top - 1.0`, `top - 0.8`, ... `top + 1.0`.
const STARTS: usize = 11;
/// Roundings for each first step, with a fit before all but the first.
const TURNS: usize = 3;

/// How ggml's encoders rank weights of a format with minima: by size, and none for nothing.
pub(super) fn size_and_rms<const N: usize>(x: &[f32; N]) -> [f32; N] {
    let rms = (x.iter().map(|x| x * x).sum::<f32>() / N as f32).sqrt();
    x.map(|x| x.abs() + rms)
}

/// The smallest weighted squared error that was seen, and what gave it.
struct Best<T> {
    error: f32,
    fit: T,
}

impl<T> Best<T> {
    fn offer(&mut self, error: f32, fit: T) {
        if error < self.error {
            *self = Best { error, fit };
        }
    }
}

/// 1.5 · 2^23: what is added to it loses its fraction, ties to even.
pub(super) const ROUND: f32 = 12_582_912.0;

/// The nearest integer for sizes up to 2^22: plain arithmetic, which becomes vector code on every CPU.
#[inline(always)]
pub(super) fn nearest(x: f32) -> f32 {
    (x + ROUND) - ROUND
}

/// Sums of S terms over N weights, by eight at a time.
#[inline(always)]
fn sums<const N: usize, const S: usize>(
    x: &[f32; N],
    importance: &[f32; N],
    terms: impl Fn(f32, f32) -> [f32; S],
) -> [f32; S] {
    let mut lanes = [[0.0; 8]; S];
    for (x, i) in x.as_chunks::<8>().0.iter().zip(importance.as_chunks::<8>().0) {
        for l in 0..8 {
            let terms = terms(x[l], i[l]);
            for s in 0..S {
                lanes[s][l] += terms[s];
            }
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

/// `x ≈ step * q - min` with q in 0..=top: (step, min), both at least 0.
fn affine<const N: usize>(x: &[f32; N], importance: &[f32; N], top: f32) -> (f32, f32) {
    let low = x.iter().copied().fold(0.0, f32::min);
    let high = x.iter().copied().fold(low, f32::max);
    let [w, wx] = sums(x, importance, |x, i| [i, i * x]);
    let mut best = Best { error: f32::INFINITY, fit: (0.0, -low) };
    for start in 0..STARTS {
        let (mut step, mut min) = ((high - low) / (top - 1.0 + start as f32 / 5.0), -low);
        for _ in 0..TURNS {
            if !(step > 0.0 && step.is_finite()) {
                break;
            }
            let inverse = 1.0 / step;
            let [error, wq, wqq, wqx] = sums(x, importance, |x, i| {
                let q = nearest(((x + min) * inverse).max(0.0).min(top));
                let off = step * q - min - x;
                [i * off * off, i * q, i * q * q, i * q * x]
            });
            best.offer(error, (step, min));
            let determinant = w * wqq - wq * wq;
            (step, min) = ((w * wqx - wx * wq) / determinant, (wq * wqx - wqq * wx) / determinant);
            if min < 0.0 {
                (step, min) = (wqx / wqq, 0.0);
            }
        }
    }
    best.fit
}

/// `x ≈ step * level(x / step)`: the step, which may be negative. The first steps bring the largest weight to `peaks`.
pub(super) fn scale<const N: usize>(
    x: &[f32; N],
    importance: &[f32; N],
    peaks: impl Iterator<Item = f32>,
    level: impl Fn(f32) -> f32,
) -> f32 {
    let largest = super::largest(x);
    let mut best = Best { error: f32::INFINITY, fit: 0.0 };
    for peak in peaks {
        let mut step = largest / peak;
        for _ in 0..TURNS - 1 {
            if step == 0.0 || !step.is_finite() {
                break;
            }
            let inverse = 1.0 / step;
            let [error, wqq, wqx] = sums(x, importance, |x, i| {
                let q = level(x * inverse);
                let off = step * q - x;
                [i * off * off, i * q * q, i * q * x]
            });
            best.offer(error, step);
            step = wqx / wqq;
        }
    }
    best.fit
}

/// The level of a symmetric format: the nearest integer from -top to top - 1.
#[inline(always)]
pub(super) fn whole(x: f32, top: f32) -> f32 {
    nearest(x.max(-top).min(top - 1.0))
}

/// A block of 256 weights in groups of N, `weight = d * scale * q - dmin * min`.
pub(super) struct Affine<const N: usize> {
    pub(super) d: f16,
    pub(super) dmin: f16,
    /// The scale of each group.
    pub(super) scales: [u8; 16],
    /// The minimum of each group.
    pub(super) mins: [u8; 16],
    pub(super) quants: [u8; 256],
}

impl<const N: usize> Affine<N> {
    /// Fits a block: quants up to `top`, scales and minima up to `scale_top`.
    pub(super) fn new(
        weights: &[f32; 256],
        top: f32,
        scale_top: f32,
        importance: impl Fn(&[f32; N]) -> [f32; N],
    ) -> Self {
        let groups = weights.as_chunks::<N>().0;
        let mut fits = [(0.0f32, 0.0f32); 16];
        for (fit, x) in fits.iter_mut().zip(groups) {
            *fit = affine(x, &importance(x), top);
        }
        let largest = |part: fn(&(f32, f32)) -> f32| fits.iter().map(part).fold(0.0, f32::max);
        let (d, dmin) = (largest(|fit| fit.0) / scale_top, largest(|fit| fit.1) / scale_top);
        let mut block =
            Affine { d: f16::from_f32(d), dmin: f16::from_f32(dmin), scales: [0; 16], mins: [0; 16], quants: [0; 256] };
        let (d, dmin) = (block.d.to_f32(), block.dmin.to_f32());
        for (g, (x, q)) in groups.iter().zip(block.quants.as_chunks_mut::<N>().0).enumerate() {
            let round = |value: f32, unit: f32| (value / unit).round_ties_even().clamp(0.0, scale_top) as u8;
            block.scales[g] = round(fits[g].0, d); // NaN, of 0 / 0, becomes 0
            block.mins[g] = round(fits[g].1, dmin);
            let (step, min) = (d * f32::from(block.scales[g]), dmin * f32::from(block.mins[g]));
            for (q, x) in q.iter_mut().zip(x) {
                *q = if step == 0.0 { 0 } else { ((x + min) / step).round_ties_even().clamp(0.0, top) as u8 };
            }
        }
        block
    }
}

/// A block of 256 weights in groups of N, `weight = d * scale * q`.
pub(super) struct Scaled {
    pub(super) d: f16,
    /// The scale of each group.
    pub(super) scales: [i8; 16],
    /// What each group's weights are to be rounded by: `d * scale`.
    pub(super) steps: [f32; 16],
}

impl Scaled {
    /// Fits a block: scales from -scale_top, the largest one's, to scale_top - 1; `step` fits a group.
    pub(super) fn new<const N: usize>(weights: &[f32; 256], scale_top: f32, step: impl Fn(&[f32; N]) -> f32) -> Self {
        let mut steps = [0.0f32; 16];
        for (fit, x) in steps.iter_mut().zip(weights.as_chunks::<N>().0) {
            *fit = step(x);
        }
        let d = f16::from_f32(super::largest(&steps) / -scale_top);
        let scales = steps.map(|s| (s / d.to_f32()).round_ties_even().clamp(-scale_top, scale_top - 1.0) as i8);
        Scaled { d, scales, steps: scales.map(|scale| d.to_f32() * f32::from(scale)) }
    }
}

/// The integer nearest to `x / step` from `low` to `high`; 0 for a step of 0.
pub(super) fn quant(x: f32, step: f32, low: f32, high: f32) -> i8 {
    if step == 0.0 { 0 } else { (x / step).round_ties_even().clamp(low, high) as i8 }
}
