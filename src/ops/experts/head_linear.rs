//! `head_linear`: every head of a row times a matrix of its own.

use crate::Result;
use crate::ops::check::{Shapes, same, same_matrices};
use crate::ops::cost::row_bytes;
use crate::ops::cpu::CpuRun;
use crate::ops::experts::Matrices;
use crate::ops::lower::{Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, operands};
use crate::ops::oracle::{OracleRun, heads};
use crate::ops::product::{X, product, product_scratch, q8_scratch};
use crate::ops::{Cost, Load, Part, Stack, ValueId, WeightId};
use crate::quant::BlockFormat;
use crate::quant::LANES;

/// `out[r, h] = W[h] x[r, h]`: the projections into and out of the latent space of multi-head latent attention
/// (DeepSeek-V2, 2024), where they are applied to the query and the result instead of to every key and value.
///
/// x (rows, heads * k) f32 | matrices (n, k) any block format, one a head | out (rows, heads * n) f32
#[derive(Clone, Debug, PartialEq)]
pub struct HeadLinear {
    /// (rows, heads * k)
    pub x: ValueId,
    /// (n, k) each
    pub matrices: Vec<WeightId>,
    /// Rows of a matrix.
    pub n: u32,
    /// Columns of a matrix.
    pub k: u32,
    /// (rows, heads * n)
    pub out: ValueId,
}

operands!(HeadLinear, f, HeadLinear { x, matrices, out, .. } => {
    f(Access::Read, x.into());
    for matrix in matrices {
        f(Access::Read, matrix.into());
    }
    f(Access::Write, out.into());
});

impl Operation for HeadLinear {
    fn name(&self) -> &'static str {
        "head_linear"
    }

    fn shape(&self, formats: &dyn Fn(&[WeightId]) -> String) -> String {
        format!("{} {}x{} {}", self.matrices.len(), self.n, self.k, formats(&self.matrices))
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let (name, heads) = (self.name(), self.matrices.len() as u32);
        same(name, "x", (s.width)(self.x), heads * self.k)?;
        same_matrices(name, &self.matrices, (self.n, self.k), s)?;
        same(name, "out", (s.width)(self.out), heads * self.n)
    }

    fn cost(&self, _load: &Load, rows: u32, format: &dyn Fn(WeightId) -> BlockFormat) -> Cost {
        let cost = |&matrix: &WeightId| Cost {
            bytes: f64::from(self.n) * row_bytes(format(matrix), self.k),
            flops: 2.0 * f64::from(rows) * f64::from(self.n) * f64::from(self.k),
        };
        self.matrices.iter().map(cost).sum()
    }

    fn stack(&self) -> Option<Stack> {
        Some(Stack { parts: self.parts(), unit: Stack::UNIT })
    }
}

// CPU

impl CpuForm for HeadLinear {
    /// Splits the rows of each head's matrix.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (rows, count, n) = (run.rows(self.x), self.matrices.len(), self.n as usize);
        let out = run.value(self.out);
        let (eight, rest) = run.scratch().split_at_mut(q8_scratch(rows * count, self.k));
        let x = run.value(self.x).slice(0..rows * count * self.k as usize);
        let x = X::new(run, x, self.k, self.matrices.iter().copied(), eight);
        let columns = run.share.of(n, LANES);
        for (head, &weight) in self.matrices.iter().enumerate() {
            let part = Part { weight, n: self.n, bias: None };
            let store = |r: usize, j: usize, y: &mut [f32]| {
                let at = (r * count + head) * n + j;
                out.slice_mut(at..at + y.len()).copy_from_slice(y);
            };
            product(run, &part, columns.clone(), &x, (0..rows).map(|r| r * count + head), rest, store);
        }
    }

    fn cpu_scratch(&self, rows: usize) -> usize {
        q8_scratch(rows * self.matrices.len(), self.k) + product_scratch(self.k)
    }
}

// Oracle

impl OracleForm for HeadLinear {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let x = run.value(self.x).clone();
        let mut out = vec![Vec::new(); x.len()];
        for (x, out) in x.iter().zip(&mut out) {
            for (&matrix, x) in self.matrices.iter().zip(heads(x, self.k)) {
                for i in 0..self.n as usize {
                    out.push(run.weight_row(matrix, i).iter().zip(&x).map(|(w, x)| w * x).sum());
                }
            }
        }
        run.set(self.out, out);
    }
}

// GPU

impl GpuForm for HeadLinear {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let parts = self.parts();
        let (x, out, count) = (self.x, self.out, parts.len() as u32);
        Matrices { parts, n: self.n, k: self.k, x, own: true, chosen: None, count, out }.lower(l)
    }
}

impl HeadLinear {
    /// Every head's matrix.
    fn parts(&self) -> Vec<Part> {
        self.matrices.iter().map(|&weight| Part { weight, n: self.n, bias: None }).collect()
    }
}
