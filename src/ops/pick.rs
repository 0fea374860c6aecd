//! `pick`: the rows whose logits somebody asked for.

use super::ValueId;

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
