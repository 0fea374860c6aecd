//! `embed`: out[r] = table[index(r)].

use super::cpu::CpuRun;
use super::oracle::OracleRun;
use super::{ValueId, WeightId};

/// `out[r, :] = scale * table[index(r), :]`.
///
/// table (n, dim) any block format | out (rows, dim) f32. An index past the table is clamped to its last row.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// The table, one row an index.
    pub table: WeightId,
    /// What numbers the rows of the table.
    pub index: Index,
    /// Rows of the table.
    pub n: u32,
    /// Width of a row.
    pub dim: u32,
    /// Factor on every element (Gemma: the square root of the width).
    pub scale: f32,
    /// (rows, dim)
    pub out: ValueId,
}

/// What an embedding is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// The row's token id.
    Token,
    /// The row's position in its sequence, plus a constant (learned positions; OPT starts at 2).
    Position(u32),
}

// CPU

impl Embed {
    /// Splits rows.
    pub(super) fn cpu(&self, run: &CpuRun<'_>) {
        let (table, out, dim) = (run.weight(self.table), run.value(self.out), self.dim as usize);
        for r in run.member.share(run.step.rows.len(), 1) {
            let row = run.step.rows[r];
            let index = match self.index {
                Index::Token => row.token,
                Index::Position(offset) => row.pos.saturating_add(offset),
            };
            let out = out.slice_mut(r * dim..(r + 1) * dim);
            table.decode((index as usize).min(table.n - 1), out);
            if self.scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= self.scale);
            }
        }
    }
}

// Oracle

impl Embed {
    pub(super) fn oracle(&self, run: &mut OracleRun<'_>) {
        let index = |pos: u32, token: u32| match self.index {
            Index::Token => token.min(self.n - 1),
            Index::Position(offset) => (pos + offset).min(self.n - 1),
        };
        let row = |r: &super::cpu::Row| run.weight_row(self.table, index(r.pos, r.token) as usize);
        let scaled = |row: Vec<f64>| row.into_iter().map(|x| x * f64::from(self.scale)).collect();
        let out = run.step.rows.iter().map(|r| scaled(row(r))).collect();
        run.set(self.out, out);
    }
}
