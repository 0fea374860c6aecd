//! What an op costs, for the profiler and the benches.

use crate::ops::KvStorage;
use crate::quant::BlockFormat;

/// What an op costs for a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Bytes of weights and KV cache that it reads. Values between ops are not counted: they stay in the processor's caches.
    pub bytes: f64,
    /// Multiplications and additions in matmuls and in attention.
    pub flops: f64,
}

/// The size of a step, as far as an op's cost depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Rows of the step, all of one sequence.
    pub rows: u32,
    /// The position of its first row.
    pub pos: u32,
    /// How the KV cache stores its elements.
    pub kv: KvStorage,
}

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, flops: self.flops + other.flops }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), std::ops::Add::add)
    }
}

/// Bytes of a matrix's row of `k` elements.
pub(in crate::ops) fn row_bytes(format: BlockFormat, k: u32) -> f64 {
    let info = format.info();
    f64::from(k) / info.weights as f64 * info.bytes as f64
}
