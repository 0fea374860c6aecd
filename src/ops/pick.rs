//! `pick`: the rows whose logits somebody asked for.

use super::ValueId;
use super::cpu::CpuRun;
use super::oracle::OracleRun;

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
