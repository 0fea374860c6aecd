//! `slice`: some columns of a value.

use super::ValueId;
use super::cpu::CpuRun;
use super::oracle::OracleRun;

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
