//! `pick`: the rows whose logits somebody asked for.

use super::ValueId;
use super::cpu::CpuRun;
use super::lower::{self, Lower, Lowered};
use super::oracle::OracleRun;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::kernels;

/// `out[o, :] = x[row of output o, :]`.
///
/// x (rows, n) f32 | out (outs, n) f32: from here on a program works on the step's output rows only.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// (rows, n)
    pub x: ValueId,
    /// Columns.
    pub n: u32,
    /// (outs, n)
    pub out: ValueId,
}

// CPU

impl Pick {
    /// Splits output rows.
    pub(super) fn cpu(&self, run: &CpuRun<'_>) {
        let (x, out, n) = (run.value(self.x), run.value(self.out), self.n as usize);
        for o in run.member.share(run.step.outs.len(), 1) {
            let row = run.step.outs[o] as usize;
            out.slice_mut(o * n..(o + 1) * n).copy_from_slice(x.slice(row * n..(row + 1) * n));
        }
    }
}

// Oracle

impl Pick {
    pub(super) fn oracle(&self, run: &mut OracleRun<'_>) {
        let out = run.step.outs.iter().map(|&row| run.value(self.x)[row as usize].clone()).collect();
        run.set(self.out, out);
    }
}

// GPU

params! {
    pub(crate) struct Params {
        fours: u32,
    }
}

impl Pick {
    pub(crate) fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let kernel = l.kernel(kernels::PICK);
        let params = Params { fours: x.stride() / 4 };
        let args = [Arg::read(l.step), Arg::read(&x.buffer), Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(params.fours), Dim::Outs(1), Dim::Fixed(1)])
    }
}
