//! `slice`: some columns of a value.

use super::ValueId;

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
