//! `embed`: out[r] = table[index(r)].

use crate::Result;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::check::{Shapes, holds, same};
use crate::ops::cost::row_bytes;
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{self, Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;
use crate::ops::{Cost, Load, RowEntry, ValueId, WeightId};
use crate::quant::BlockFormat;

/// `out[r, :] = scale * table[index(r), :]`.
///
/// table (n, dim) any block format | out (rows, dim) f32. An index past the table is clamped to its last row.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// The table, one row an index.
    pub table: WeightId,
    /// What the rows of the table are looked up by.
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
    /// The same, and 0 for a token past the table (Gemma 3n's images and sounds).
    TokenOrFirst,
    /// The row's position in its sequence, plus a constant (learned positions; OPT starts at 2).
    Position(u32),
    /// The type of the row's token, 0 but where a model is given two texts (BERT's segments).
    Type,
}

operands!(Embed, f, Embed { table, out, .. } => {
    f(Access::Read, table.into());
    f(Access::Write, out.into());
});

impl Operation for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let (name, (rows, k)) = (self.name(), (s.matrix)(self.table));
        same(name, "the table", k, self.dim)?;
        let wanted = self.n;
        holds(name, rows == wanted && wanted > 0, || format!("the table has {rows} rows, but {wanted} are needed"))?;
        same(name, "out", (s.width)(self.out), self.dim)
    }

    fn cost(&self, _load: &Load, rows: u32, format: &dyn Fn(WeightId) -> BlockFormat) -> Cost {
        Cost { bytes: f64::from(rows) * row_bytes(format(self.table), self.dim), flops: 0.0 }
    }
}

// CPU

impl CpuForm for Embed {
    /// Splits rows.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (table, out, dim) = (run.weight(self.table), run.value(self.out), self.dim as usize);
        for r in run.share.of(run.step.rows.len(), 1) {
            let row = run.step.rows[r];
            let index = match self.index {
                Index::Token => row.token,
                Index::TokenOrFirst => {
                    if row.token < self.n {
                        row.token
                    } else {
                        0
                    }
                }
                Index::Position(offset) => row.pos.saturating_add(offset),
                Index::Type => row.kind(),
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

impl OracleForm for Embed {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let index = |r: &RowEntry| match self.index {
            Index::Token => r.token.min(self.n - 1),
            Index::TokenOrFirst => Some(r.token).filter(|&token| token < self.n).unwrap_or(0),
            Index::Position(offset) => (r.pos + offset).min(self.n - 1),
            Index::Type => r.kind().min(self.n - 1),
        };
        let row = |r: &RowEntry| run.weight_row(self.table, index(r) as usize);
        let scaled = |row: Vec<f64>| row.into_iter().map(|x| x * f64::from(self.scale)).collect();
        let out = run.step.rows.iter().map(|r| scaled(row(r))).collect();
        run.set(self.out, out);
    }
}

// GPU

params! {
    pub(crate) struct Params {
        n: u32,
        dim: u32,
        row0: u32,
        chunk: u32,
        by_pos: u32,
        offset: u32,
        scale: f32,
        at: u32,
    }
}

impl GpuForm for Embed {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let out = l.value(self.out);
        let table = l.matrix(self.table);
        let (by_pos, offset) = match self.index {
            Index::Token => (0, 0),
            Index::TokenOrFirst => (2, 0),
            Index::Position(offset) => (1, offset),
            Index::Type => (3, 0),
        };
        let mut kernel = l.kernel(kernels::EMBED);
        lower::weights(&mut kernel, table.format);
        for piece in &table.pieces {
            let params = Params {
                n: self.n,
                dim: self.dim,
                row0: piece.row,
                chunk: piece.n,
                by_pos,
                offset,
                scale: self.scale,
                at: piece.at,
            };
            let w = Arg::read(&l.weights[piece.buffer]);
            let args = [Arg::read(l.step), Arg::read(l.sampled), w, Arg::Write(&out.buffer)];
            let grid = [lower::wide(self.dim.div_ceil(32) * 2), out.rows(1), Dim::Fixed(1)];
            l.plan.dispatch(&kernel, &params, &args, grid)?;
        }
        Ok(())
    }
}
