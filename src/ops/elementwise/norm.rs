//! `norm`: root-mean-square and layer normalisation.

use crate::Result;
use crate::cpu::simd;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim, Kernel};
use crate::ops::check::{Shapes, holds, same};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;
use crate::ops::{ValueId, VectorId};

/// Normalises groups of `spec.n` elements of each row.
///
/// x (rows, groups * n) f32 | out the same shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// (rows, groups * n)
    pub x: ValueId,
    /// How.
    pub spec: NormSpec,
    /// Groups in a row: 1 for a norm of the whole row, the number of heads for a per-head norm.
    pub groups: u32,
    /// Weight and bias are (groups * n): each group has its own.
    pub per_group: bool,
    /// (rows, groups * n)
    pub out: ValueId,
}

/// What a normalisation does to `n` elements, alone or folded into the [`Linear`](crate::ops::Linear) that follows.
///
/// * [`Rms`](NormKind::Rms): `y = weight * x / sqrt(mean(x²) + eps)` (Zhang & Sennrich 2019)
/// * [`Layer`](NormKind::Layer): `y = weight * (x - mean) / sqrt(var + eps) + bias` (Ba et al. 2016)
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Which of the two.
    pub kind: NormKind,
    /// Elements that are normalised together.
    pub n: u32,
    /// (n); none means ones. The same for every group, but where a [`Norm`] says otherwise.
    pub weight: Option<VectorId>,
    /// (n); none means zeros.
    pub bias: Option<VectorId>,
    /// Added to the mean square, or to the variance.
    pub eps: f32,
}

/// The kinds of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// RMS norm: by the root of the mean square.
    Rms,
    /// Layer norm: by mean and variance.
    Layer,
}

operands!(Norm, f, Norm { x, spec, out, .. } => {
    f(Access::Read, x.into());
    spec.operands(f);
    f(Access::Write, out.into());
});

operands!(NormSpec, f, NormSpec { weight, bias, .. } => {
    for vector in [weight, bias].into_iter().flatten() {
        f(Access::Read, vector.into());
    }
});

impl Operation for Norm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        self.spec.check(name, if self.per_group { self.groups } else { 1 }, s)?;
        holds(name, self.spec.n > 0, || "groups are empty".to_owned())?;
        same(name, "x", (s.width)(self.x), self.groups * self.spec.n)?;
        same(name, "out", (s.width)(self.out), self.groups * self.spec.n)
    }
}

impl NormSpec {
    /// Checks the weight and the bias of so many groups.
    pub(in crate::ops) fn check(&self, op: &str, groups: u32, s: &Shapes<'_>) -> Result<()> {
        for vector in [self.weight, self.bias].into_iter().flatten() {
            same(op, "its weight or bias", (s.vector)(vector), groups * self.n)?;
        }
        Ok(())
    }
}

// CPU

impl CpuForm for Norm {
    /// Splits groups.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (x, out, n) = (run.value(self.x), run.value(self.out), self.spec.n as usize);
        for group in run.share.of(run.rows(self.x) * self.groups as usize, 1) {
            let range = group * n..(group + 1) * n;
            let own = if self.per_group { group % self.groups as usize * n } else { 0 };
            self.spec.cpu(run, own, x.slice(range.clone()), out.slice_mut(range));
        }
    }
}

impl NormSpec {
    /// Normalises one group of elements, whose weight and bias begin at element `own`.
    pub(in crate::ops) fn cpu(&self, run: &CpuRun<'_>, own: usize, x: &[f32], out: &mut [f32]) {
        let n = x.len() as f32;
        let (mean, square) = match self.kind {
            NormKind::Rms => (0.0, simd::sum(x, |x| x * x) / n),
            NormKind::Layer => {
                let mean = simd::sum(x, |x| x) / n;
                (mean, simd::sum(x, |x| (x - mean) * (x - mean)) / n)
            }
        };
        let scale = 1.0 / (square + self.eps).sqrt();
        for (out, x) in out.iter_mut().zip(x) {
            *out = (x - mean) * scale;
        }
        if let Some(weight) = self.weight {
            out.iter_mut().zip(&run.vector(weight)[own..]).for_each(|(out, w)| *out *= w);
        }
        if let Some(bias) = self.bias {
            out.iter_mut().zip(&run.vector(bias)[own..]).for_each(|(out, b)| *out += b);
        }
    }
}

// Oracle

impl OracleForm for Norm {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let n = self.spec.n as usize;
        let own = |group: usize| if self.per_group { group * n } else { 0 };
        let groups =
            |row: &Vec<f64>| row.chunks(n).enumerate().flat_map(|(g, x)| self.spec.oracle(run, own(g), x)).collect();
        let out = run.value(self.x).iter().map(groups).collect();
        run.set(self.out, out);
    }
}

impl NormSpec {
    pub(in crate::ops) fn oracle(&self, run: &OracleRun<'_>, own: usize, x: &[f64]) -> Vec<f64> {
        let n = x.len() as f64;
        let mean = match self.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => x.iter().sum::<f64>() / n,
        };
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let weight = self.weight.map(|w| run.vector(w));
        let bias = self.bias.map(|b| run.vector(b));
        let normalised = x.iter().map(|x| (x - mean) / (variance + f64::from(self.eps)).sqrt());
        let affine = |(i, y): (usize, f64)| {
            y * weight.as_ref().map_or(1.0, |w| w[own + i]) + bias.as_ref().map_or(0.0, |b| b[own + i])
        };
        normalised.enumerate().map(affine).collect()
    }
}

// GPU

params! {
    pub(crate) struct Params {
        n: u32,
        rows_at: u32,
        stride: u32,
        norm_w: u32,
        norm_b: u32,
        eps: f32,
    }
}

impl NormSpec {
    /// Sets the overrides of a kernel that normalises, and returns where weight and bias lie, in vec4s.
    pub(in crate::ops) fn lower(&self, l: &Lower<'_>, kernel: &mut Kernel) -> (u32, u32) {
        let kind = match self.kind {
            NormKind::Rms => 1u32,
            NormKind::Layer => 2,
        };
        kernel.set("NORM", kind);
        kernel.set("HAS_NORM_W", self.weight.is_some());
        kernel.set("HAS_NORM_B", self.bias.is_some());
        let at = |vector: Option<VectorId>| vector.map_or(0, |v| l.vector(v) / 4);
        (at(self.weight), at(self.bias))
    }
}

impl GpuForm for Norm {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let mut kernel = l.kernel(kernels::NORM);
        let (norm_w, norm_b) = self.spec.lower(l, &mut kernel);
        kernel.set("PER_GROUP", self.per_group);
        l.reduce(&mut kernel, l.tuning.table.reduce);
        let (n, eps) = (self.spec.n, self.spec.eps);
        let params = Params { n, rows_at: x.rows_at(), stride: x.stride(), norm_w, norm_b, eps };
        let args = [Arg::read(l.step), Arg::read(&x.buffer), Arg::read(l.vectors), Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [Dim::Fixed(self.groups), out.rows(1), Dim::Fixed(1)])
    }
}
