//! `embed`: out[r] = table[index(r)].

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
