//! `concat`: the heads of two values, side by side.

use crate::Result;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::ValueId;
use crate::ops::check::{Shapes, same};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{self, Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;

/// `out[r, h] = [a[r, h], b[r, h]]` for each of `heads` equal parts of a row.
///
/// a (rows, heads * a_dim) | b (rows, heads * b_dim) | out (rows, heads * (a_dim + b_dim)) f32
#[derive(Clone, Debug, PartialEq)]
pub struct Concat {
    /// (rows, heads * a_dim)
    pub a: ValueId,
    /// (rows, heads * b_dim)
    pub b: ValueId,
    /// Parts of a row.
    pub heads: u32,
    /// Columns of a part of a.
    pub a_dim: u32,
    /// Columns of a part of b.
    pub b_dim: u32,
    /// (rows, heads * (a_dim + b_dim))
    pub out: ValueId,
}

operands!(Concat, f, Concat { a, b, out, .. } => {
    f(Access::Read, a.into());
    f(Access::Read, b.into());
    f(Access::Write, out.into());
});

impl Operation for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        same(name, "a", (s.width)(self.a), self.heads * self.a_dim)?;
        same(name, "b", (s.width)(self.b), self.heads * self.b_dim)?;
        same(name, "out", (s.width)(self.out), self.heads * (self.a_dim + self.b_dim))
    }
}

// CPU

impl CpuForm for Concat {
    /// Splits heads.
    fn cpu(&self, run: &CpuRun<'_>) {
        let [heads, a_dim, b_dim] = [self.heads, self.a_dim, self.b_dim].map(|n| n as usize);
        let (a, b, out) = (run.value(self.a), run.value(self.b), run.value(self.out));
        let dim = a_dim + b_dim;
        for head in run.share.of(run.rows(self.out) * heads, 1) {
            let (first, second) = out.slice_mut(head * dim..(head + 1) * dim).split_at_mut(a_dim);
            first.copy_from_slice(a.slice(head * a_dim..(head + 1) * a_dim));
            second.copy_from_slice(b.slice(head * b_dim..(head + 1) * b_dim));
        }
    }
}

// Oracle

impl OracleForm for Concat {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let row = |(a, b): (&Vec<f64>, &Vec<f64>)| -> Vec<f64> {
            let heads = a.chunks(self.a_dim as usize).zip(b.chunks(self.b_dim as usize));
            heads.flat_map(|(a, b)| a.iter().chain(b).copied()).collect()
        };
        let out = run.value(self.a).iter().zip(run.value(self.b)).map(row).collect();
        run.set(self.out, out);
    }
}

// GPU

params! {
    pub(crate) struct Params {
        rows_at: u32,
        a_dim: u32,
        b_dim: u32,
        columns: u32,
        a_stride: u32,
        b_stride: u32,
        out_stride: u32,
    }
}

impl GpuForm for Concat {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (a, b, out) = (l.value(self.a), l.value(self.b), l.value(self.out));
        let kernel = l.kernel(kernels::CONCAT);
        let params = Params {
            rows_at: out.rows_at(),
            a_dim: self.a_dim,
            b_dim: self.b_dim,
            columns: out.width,
            a_stride: a.stride(),
            b_stride: b.stride(),
            out_stride: out.stride(),
        };
        let args = [Arg::read(l.step), Arg::read(&a.buffer), Arg::read(&b.buffer), Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(out.width), out.rows(1), Dim::Fixed(1)])
    }
}
