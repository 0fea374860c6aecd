//! `magnitude`, `sparsify`, `weigh`: what a few models do to the rows of a stream.

use crate::Result;
use crate::cpu::simd;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::check::{Shapes, holds, same, same_values};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;
use crate::ops::{ValueId, VectorId};

/// Ops on whole rows of `n` elements: x (rows, n) f32 | out (rows, n) f32.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "operands of a formula: the variant's line gives it")]
pub enum RowWise {
    /// `out = x * sqrt(mean(like²) / max(mean(x²), floor))`: x, as long as `like` (Gemma 3n's streams).
    Magnitude { x: ValueId, like: ValueId, floor: f32, n: u32, out: ValueId },
    /// `out = max(x - mean(x) - by * deviation(x), 0)`: what lies that many deviations above the mean, a
    /// fixed share of a row whose elements are distributed normally (Gemma 3n's sparse activations).
    Sparsify { x: ValueId, by: f32, n: u32, out: ValueId },
    /// `out = weight * x`; weight (n), or (1) for all elements.
    Weigh { x: ValueId, weight: VectorId, weights: u32, n: u32, out: ValueId },
}

impl RowWise {
    pub(in crate::ops) fn out(&self) -> ValueId {
        match *self {
            Self::Magnitude { out, .. } | Self::Sparsify { out, .. } | Self::Weigh { out, .. } => out,
        }
    }

    /// Elements of a row.
    pub(in crate::ops) fn n(&self) -> u32 {
        match *self {
            Self::Magnitude { n, .. } | Self::Sparsify { n, .. } | Self::Weigh { n, .. } => n,
        }
    }
}

operands!(RowWise, f, op => {
    match op {
        RowWise::Magnitude { x, like, out, .. } => {
            f(Access::Read, x.into());
            f(Access::Read, like.into());
            f(Access::Write, out.into());
        }
        RowWise::Sparsify { x, out, .. } => {
            f(Access::Read, x.into());
            f(Access::Write, out.into());
        }
        RowWise::Weigh { x, weight, out, .. } => {
            f(Access::Read, x.into());
            f(Access::Read, weight.into());
            f(Access::Write, out.into());
        }
    }
});

impl Operation for RowWise {
    fn name(&self) -> &'static str {
        match self {
            Self::Magnitude { .. } => "magnitude",
            Self::Sparsify { .. } => "sparsify",
            Self::Weigh { .. } => "weigh",
        }
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        if let Self::Weigh { weight, weights, n, .. } = *self {
            same(name, "its weight", (s.vector)(weight), weights)?;
            holds(name, weights == n || weights == 1, || format!("{weights} weights for {n} elements"))?;
        }
        same_values(name, self, self.n(), s)
    }
}

// CPU

impl CpuForm for RowWise {
    /// Splits rows.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (out, n) = (run.value(self.out()), self.n() as usize);
        for r in run.share.of(run.rows(self.out()), 1) {
            let row = r * n..(r + 1) * n;
            let y = out.slice_mut(row.clone());
            match *self {
                Self::Magnitude { x, like, floor, .. } => {
                    let (x, like) = (run.value(x).slice(row.clone()), run.value(like).slice(row));
                    let square = |x: &[f32]| simd::sum(x, |x| x * x) / n as f32;
                    let by = (square(like) / square(x).max(floor)).sqrt();
                    y.iter_mut().zip(x).for_each(|(y, x)| *y = x * by);
                }
                Self::Sparsify { x, by, .. } => {
                    let x = run.value(x).slice(row);
                    let mean = simd::sum(x, |x| x) / n as f32;
                    let deviation = (simd::sum(x, |x| (x - mean) * (x - mean)) / n as f32).sqrt();
                    let threshold = mean + by * deviation;
                    y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - threshold).max(0.0));
                }
                Self::Weigh { x, weight, .. } => {
                    let weights = run.vector(weight).iter().cycle();
                    y.iter_mut().zip(run.value(x).slice(row)).zip(weights).for_each(|((y, x), w)| *y = x * w);
                }
            }
        }
    }
}

// Oracle

impl OracleForm for RowWise {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let mean = |x: &[f64], f: &dyn Fn(f64) -> f64| x.iter().map(|x| f(*x)).sum::<f64>() / x.len() as f64;
        let out = match *self {
            Self::Magnitude { x, like, floor, .. } => {
                let row = |(x, like): (&Vec<f64>, &Vec<f64>)| {
                    let square = |x: &[f64]| mean(x, &|x| x * x);
                    let by = (square(like) / square(x).max(f64::from(floor))).sqrt();
                    x.iter().map(|x| x * by).collect()
                };
                run.value(x).iter().zip(run.value(like)).map(row).collect()
            }
            Self::Sparsify { x, by, .. } => {
                let row = |x: &Vec<f64>| {
                    let middle = mean(x, &|x| x);
                    let threshold = middle + f64::from(by) * mean(x, &|x| (x - middle).powi(2)).sqrt();
                    x.iter().map(|x| (x - threshold).max(0.0)).collect()
                };
                run.value(x).iter().map(row).collect()
            }
            Self::Weigh { x, weight, .. } => {
                let weights = run.vector(weight);
                let row = |x: &Vec<f64>| x.iter().zip(weights.iter().cycle()).map(|(x, w)| x * w).collect();
                run.value(x).iter().map(row).collect()
            }
        };
        run.set(self.out(), out);
    }
}

// GPU

params! {
    pub(crate) struct Params {
        rows_at: u32,
        n: u32,
        stride: u32,
        weight: u32,
        each: u32,
        by: f32,
    }
}

impl GpuForm for RowWise {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let mut kernel = l.kernel(kernels::ROW_WISE);
        l.reduce(&mut kernel, l.tuning.table.reduce);
        let (mut weight, mut each) = (0, 0);
        let (op, x, like, by) = match *self {
            Self::Magnitude { x, like, floor, .. } => (0u32, x, like, floor),
            Self::Sparsify { x, by, .. } => (1, x, x, by),
            Self::Weigh { x, weight: id, weights, .. } => {
                (weight, each) = (l.vector(id), u32::from(weights > 1));
                (2, x, x, 0.0)
            }
        };
        kernel.set("OP", op);
        let (x, like, out) = (l.value(x), l.value(like), l.value(self.out()));
        let params = Params { rows_at: out.rows_at(), n: self.n(), stride: out.stride(), weight, each, by };
        let (x, like, vectors) = (Arg::read(&x.buffer), Arg::read(&like.buffer), Arg::read(l.vectors));
        let args = [Arg::read(l.step), x, like, vectors, Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [out.rows(1), Dim::Fixed(1), Dim::Fixed(1)])
    }
}
