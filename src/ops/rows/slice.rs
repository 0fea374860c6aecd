//! `slice`: some columns of a value, or of each of its heads.

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

/// `out[r, h] = x[r, h, start .. start + n]` for each of `heads` equal parts of a row.
///
/// x (rows, heads * width) f32 | out (rows, heads * n) f32
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// (rows, heads * width)
    pub x: ValueId,
    /// Parts of a row.
    pub heads: u32,
    /// Columns of a part of x.
    pub width: u32,
    /// The first column of a part that is taken.
    pub start: u32,
    /// Columns that are taken of a part.
    pub n: u32,
    /// (rows, heads * n)
    pub out: ValueId,
}

operands!(Slice, f, Slice { x, out, .. } => {
    f(Access::Read, x.into());
    f(Access::Write, out.into());
});

impl Operation for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let (name, end) = (self.name(), u64::from(self.start) + u64::from(self.n));
        same(name, "x", (s.width)(self.x), self.heads * self.width)?;
        same(name, "out", (s.width)(self.out), self.heads * self.n)?;
        holds(name, end <= u64::from(self.width), || format!("columns {} to {end} of {}", self.start, self.width))
    }
}

// CPU

impl CpuForm for Slice {
    /// Splits heads.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (x, out, n) = (run.value(self.x), run.value(self.out), self.n as usize);
        for head in run.share.of(run.rows(self.x) * self.heads as usize, 1) {
            let start = head * self.width as usize + self.start as usize;
            out.slice_mut(head * n..(head + 1) * n).copy_from_slice(x.slice(start..start + n));
        }
    }
}

// Oracle

impl OracleForm for Slice {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let columns = self.start as usize..(self.start + self.n) as usize;
        let row = |row: &Vec<f64>| -> Vec<f64> {
            row.chunks(self.width as usize).flat_map(|head| head[columns.clone()].to_vec()).collect()
        };
        let out = run.value(self.x).iter().map(row).collect();
        run.set(self.out, out);
    }
}

// GPU

params! {
    pub(crate) struct Params {
        rows_at: u32,
        start: u32,
        n: u32,
        width: u32,
        columns: u32,
        x_stride: u32,
        out_stride: u32,
    }
}

impl GpuForm for Slice {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let kernel = l.kernel(kernels::SLICE);
        let (start, n, width, columns) = (self.start, self.n, self.width, self.heads * self.n);
        let (x_stride, out_stride) = (x.stride(), out.stride());
        let params = Params { rows_at: x.rows_at(), start, n, width, columns, x_stride, out_stride };
        let args = [Arg::read(l.step), Arg::read(&x.buffer), Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(columns), out.rows(1), Dim::Fixed(1)])
    }
}
