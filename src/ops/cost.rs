//! What an op costs, for the profiler and the benches.

use super::{Attend, Embed, ExpertLinear, HeadLinear, Kv, KvStorage, Linear, Mask, Op, WeightId};
use crate::quant::BlockFormat;

/// What an op costs for a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Bytes of weights and KV cache that it reads. Values between ops, which stay near the processor, are not counted.
    pub bytes: f64,
    /// Multiplications and additions in products of matrices and in attention.
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

impl Op {
    /// The op's cost. `rows` is the number of rows it works on, `format` the block format of a matrix.
    pub fn cost(&self, load: &Load, rows: u32, format: &dyn Fn(WeightId) -> BlockFormat) -> Cost {
        let rows = f64::from(rows);
        let row_bytes = |weight, k: u32| {
            let info = format(weight).info();
            f64::from(k) / info.weights as f64 * info.bytes as f64
        };
        match self {
            Self::Embed(Embed { table, dim, .. }) => Cost { bytes: rows * row_bytes(*table, *dim), flops: 0.0 },
            Self::Linear(Linear { parts, k, .. }) => {
                let part = |n: u32| 2.0 * rows * f64::from(n) * f64::from(*k);
                let cost = |p: &super::Part| Cost { bytes: f64::from(p.n) * row_bytes(p.weight, *k), flops: part(p.n) };
                parts.iter().map(cost).sum()
            }
            Self::ExpertLinear(ExpertLinear { experts, used, n, k, .. }) => {
                // How many different experts rows that choose at random choose together.
                let share = 1.0 - (1.0 - f64::from(*used) / experts.len().max(1) as f64).powf(rows);
                let all: f64 = experts.iter().map(|&expert| f64::from(*n) * row_bytes(expert, *k)).sum();
                Cost { bytes: share * all, flops: 2.0 * rows * f64::from(*used) * f64::from(*n) * f64::from(*k) }
            }
            Self::HeadLinear(HeadLinear { matrices, n, k, .. }) => {
                let matrix = |&weight: &WeightId| Cost {
                    bytes: f64::from(*n) * row_bytes(weight, *k),
                    flops: 2.0 * rows * f64::from(*n) * f64::from(*k),
                };
                matrices.iter().map(matrix).sum()
            }
            Self::Attend(op) => op.cost(load),
            _ => Cost::default(),
        }
    }
}

impl Attend {
    fn cost(&self, load: &Load) -> Cost {
        let dims = f64::from(self.k_dim) + f64::from(self.v_dim);
        // What the rows from `pos` on see: each its own position and those before.
        let (mut seen, mut most) = (0.0, 0u32);
        for own in load.pos..load.pos.saturating_add(load.rows) {
            let sees = match self.mask {
                Mask::Causal => own + 1,
                Mask::Window(n) => n.min(own + 1),
                Mask::Full => load.rows,
                Mask::Near(n) => n.saturating_mul(2).saturating_add(1).min(load.rows),
            };
            seen += f64::from(sees);
            most = most.max(sees.saturating_add(own - load.pos).min(own + 1));
        }
        let bytes = match self.kv {
            Kv::Cache(_) => {
                let vectors = [self.k_dim, self.v_dim].map(|dim| load.kv.vector_bytes(dim));
                f64::from(most) * f64::from(self.kv_heads) * vectors.map(f64::from).iter().sum::<f64>()
            }
            Kv::Packed { .. } => 0.0,
        };
        Cost { bytes, flops: 2.0 * seen * f64::from(self.heads) * dims }
    }
}
