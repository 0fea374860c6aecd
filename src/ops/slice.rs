//! `slice`: some columns of a value.

use super::ValueId;
use super::cpu::CpuRun;
use super::lower::{self, Lower, Lowered};
use super::oracle::OracleRun;
use crate::gpu::{Arg, Dim};

/// `out[r, :] = x[r, start .. start + n]`.
///
/// x (rows, width) f32 | out (rows, n) f32
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// (rows, width)
    pub x: ValueId,
    /// Columns of x.
    pub width: u32,
    /// The first column that is taken.
    pub start: u32,
    /// Columns that are taken.
    pub n: u32,
    /// (rows, n)
    pub out: ValueId,
}

// CPU

impl Slice {
    /// Splits rows.
    pub(super) fn cpu(&self, run: &CpuRun<'_>) {
        let (x, out, n) = (run.value(self.x), run.value(self.out), self.n as usize);
        for r in run.member.share(run.rows(self.x), 1) {
            let start = r * self.width as usize + self.start as usize;
            out.slice_mut(r * n..(r + 1) * n).copy_from_slice(x.slice(start..start + n));
        }
    }
}

// Oracle

impl Slice {
    pub(super) fn oracle(&self, run: &mut OracleRun<'_>) {
        let columns = self.start as usize..(self.start + self.n) as usize;
        let out = run.value(self.x).iter().map(|row| row[columns.clone()].to_vec()).collect();
        run.set(self.out, out);
    }
}

// GPU

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows_at: u32,
    start: u32,
    n: u32,
    x_stride: u32,
    out_stride: u32,
}

impl Slice {
    pub(crate) fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let kernel = l.kernel("slice");
        let (start, n) = (self.start, self.n);
        let params = Params { rows_at: x.rows_at(), start, n, x_stride: x.stride(), out_stride: out.stride() };
        let args = [Arg::read(l.step), Arg::read(&x.buffer), Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(n), out.rows(1), Dim::Fixed(1)])
    }
}
