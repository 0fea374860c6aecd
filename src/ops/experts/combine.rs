//! `combine`: the weighted sum of the parts of each row.

use crate::Result;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::ValueId;
use crate::ops::check::{Shapes, holds, same};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{self, Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;

/// `out[r, i] = Σ_j weights[r, start + j] * x[r, j, i]`.
///
/// x (rows, count * n) f32 | weights (rows, start + count or more) f32 | out (rows, n) f32
#[derive(Clone, Debug, PartialEq)]
pub struct Combine {
    /// (rows, count * n)
    pub x: ValueId,
    /// What the parts are multiplied by.
    pub weights: ValueId,
    /// Columns of `weights`.
    pub width: u32,
    /// The first of them that is used.
    pub start: u32,
    /// Parts.
    pub count: u32,
    /// Elements of a part.
    pub n: u32,
    /// (rows, n)
    pub out: ValueId,
}

operands!(Combine, f, Combine { x, weights, out, .. } => {
    f(Access::Read, x.into());
    f(Access::Read, weights.into());
    f(Access::Write, out.into());
});

impl Operation for Combine {
    fn name(&self) -> &'static str {
        "combine"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let (name, end) = (self.name(), u64::from(self.start) + u64::from(self.count));
        same(name, "x", (s.width)(self.x), self.count * self.n)?;
        same(name, "the value of the weights", (s.width)(self.weights), self.width)?;
        holds(name, end <= u64::from(self.width), || format!("weights {} to {end} of {}", self.start, self.width))?;
        same(name, "out", (s.width)(self.out), self.n)
    }
}

// CPU

impl CpuForm for Combine {
    /// Splits rows.
    fn cpu(&self, run: &CpuRun<'_>) {
        let [width, start, count, n] = [self.width, self.start, self.count, self.n].map(|n| n as usize);
        let (x, weights, out) = (run.value(self.x), run.value(self.weights), run.value(self.out));
        // Threads share the columns of a row, so that a single row is work for all.
        for item in run.share.of(run.rows(self.out) * n, 16) {
            let (r, i) = (item / n, item % n);
            let part = |j: usize| weights.get(r * width + start + j) * x.get((r * count + j) * n + i);
            out.set(item, (0..count).map(part).sum());
        }
    }
}

// Oracle

impl OracleForm for Combine {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let row = |(x, weights): (&Vec<f64>, &Vec<f64>)| -> Vec<f64> {
            let mut out = vec![0.0; self.n as usize];
            for (part, weight) in x.chunks(self.n as usize).zip(&weights[self.start as usize..]) {
                out.iter_mut().zip(part).for_each(|(out, x)| *out += weight * x);
            }
            out
        };
        let out = run.value(self.x).iter().zip(run.value(self.weights)).map(row).collect();
        run.set(self.out, out);
    }
}

// GPU

params! {
    pub(crate) struct Params {
        rows_at: u32,
        start: u32,
        count: u32,
        n: u32,
        x_stride: u32,
        w_stride: u32,
        out_stride: u32,
    }
}

impl GpuForm for Combine {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (x, weights, out) = (l.value(self.x), l.value(self.weights), l.value(self.out));
        let params = Params {
            rows_at: out.rows_at(),
            start: self.start,
            count: self.count,
            n: self.n,
            x_stride: x.stride(),
            w_stride: weights.stride(),
            out_stride: out.stride(),
        };
        let kernel = l.kernel(kernels::COMBINE);
        let args = [Arg::read(l.step), Arg::read(&x.buffer), Arg::read(&weights.buffer), Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(self.n), out.rows(1), Dim::Fixed(1)])
    }
}
