//! Where an executor gets weights from.

use std::ops::Range;

use crate::Result;
use crate::ops::{VectorId, WeightId};
use crate::quant::BlockFormat;

/// Gives the weights of a program, by parts, so that nobody holds a second copy of a model in memory.
///
/// Asynchronous because a browser fetches ranges; a file answers at once.
#[allow(async_fn_in_trait, reason = "futures are driven on the thread that owns the executor: none needs Send")]
pub trait WeightSource {
    /// The block format of a matrix.
    fn format(&self, weight: WeightId) -> BlockFormat;

    /// Rows of a matrix in its block format, as a file holds them: `rows.len() * format.row_bytes(k)` bytes into `out`.
    async fn rows(&self, weight: WeightId, rows: Range<u32>, out: &mut [u8]) -> Result<()>;

    /// A vector, in f32, with what its spec adds.
    async fn vector(&self, vector: VectorId) -> Result<Vec<f32>>;
}
