//! Where an executor gets weights from.

use crate::Result;
use crate::model::Model;
use crate::ops::{CpuWeights, VectorId, WeightId};
use crate::quant::BlockFormat;

/// Takes rows of a matrix: the first row's number, and the rows' bytes.
#[cfg(not(target_arch = "wasm32"))]
pub type RowsFn<'a> = dyn FnMut(u32, &[u8]) -> Result<()> + Send + 'a;
/// Takes rows of a matrix: the first row's number, and the rows' bytes.
#[cfg(target_arch = "wasm32")]
pub type RowsFn<'a> = dyn FnMut(u32, &[u8]) -> Result<()> + 'a;

/// A weight of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tensor {
    /// A matrix.
    Matrix(WeightId),
    /// A vector.
    Vector(VectorId),
}

/// Gives the weights of a program, by parts, so that nobody holds a second copy of a model in memory.
///
/// Asynchronous because a browser fetches ranges; a file answers at once.
#[allow(async_fn_in_trait, reason = "futures are driven on the thread that owns the executor: none needs Send")]
pub trait WeightSource {
    /// The block format of a matrix.
    fn format(&self, weight: WeightId) -> BlockFormat;

    /// Where a weight lies: file and byte.
    fn place(&self, _tensor: Tensor) -> (usize, u64) {
        (0, 0)
    }

    /// So many matrices and vectors, in the order of the files: whoever loads all of them asks in this order, and what downloads
    /// the files reads on where it stopped.
    fn in_order(&self, matrices: usize, vectors: usize) -> Vec<Tensor> {
        let matrices = (0..matrices as u32).map(|i| Tensor::Matrix(WeightId(i)));
        let vectors = (0..vectors as u32).map(|i| Tensor::Vector(VectorId(i)));
        let mut order: Vec<Tensor> = matrices.chain(vectors).collect();
        order.sort_by_key(|&tensor| self.place(tensor));
        order
    }

    /// The rows of a matrix as a file has them, in slices of at most `slice` bytes, but whole rows: `each` gets the first
    /// row's number and the rows' bytes.
    async fn rows(&self, weight: WeightId, slice: usize, each: &mut RowsFn<'_>) -> Result<()>;

    /// A vector, in f32, with what its spec adds.
    async fn vector(&self, vector: VectorId) -> Result<Vec<f32>>;
}

impl WeightSource for Model {
    fn format(&self, weight: WeightId) -> BlockFormat {
        match &self.quantized {
            Some(quantized) => quantized.formats[weight.index()],
            None => self.located.weights[weight.index()].format,
        }
    }

    fn place(&self, tensor: Tensor) -> (usize, u64) {
        let (info, start) = match tensor {
            Tensor::Matrix(id) => {
                let at = &self.located.weights[id.index()];
                (&at.tensor, at.first_byte())
            }
            Tensor::Vector(id) => (&self.located.vectors[id.index()].tensor, 0),
        };
        (info.file, info.offset + start)
    }

    async fn rows(&self, weight: WeightId, slice: usize, each: &mut RowsFn<'_>) -> Result<()> {
        match &self.quantized {
            Some(quantized) => self.quantized_rows(quantized, weight, slice, each).await,
            None => self.located.read_rows(&self.file, weight, slice, each).await,
        }
    }

    async fn vector(&self, vector: VectorId) -> Result<Vec<f32>> {
        self.located.read_vector(&self.file, vector).await
    }
}

/// Weights in memory, as the CPU executor has them: random models of tests and benches.
impl WeightSource for CpuWeights {
    fn format(&self, weight: WeightId) -> BlockFormat {
        self.matrices[weight.index()].format()
    }

    async fn rows(&self, weight: WeightId, slice: usize, each: &mut RowsFn<'_>) -> Result<()> {
        let view = self.matrices[weight.index()].view();
        let row_bytes = view.format.row_bytes(view.k as u64)? as usize;
        let rows = (slice / row_bytes).max(1);
        (0..view.n).step_by(rows).try_for_each(|first| {
            let bytes: Vec<u8> = (first..view.n.min(first + rows)).flat_map(|row| view.row(row)).copied().collect();
            each(first as u32, &bytes)
        })
    }

    async fn vector(&self, vector: VectorId) -> Result<Vec<f32>> {
        Ok(self.vectors[vector.index()].clone())
    }
}
