//! `expert_linear`: every row times the matrices of the experts that were chosen for it.

use crate::Result;
use crate::ops::check::{Shapes, holds, same, same_matrices};
use crate::ops::cost::row_bytes;
use crate::ops::cpu::CpuRun;
use crate::ops::experts::{self, Matrices};
use crate::ops::lower::{Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, GpuNeeds, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;
use crate::ops::product::{X, product, product_scratch, q8_scratch};
use crate::ops::{Cost, Load, Part, Stack, ValueId, VectorId, WeightId};
use crate::quant::BlockFormat;
use crate::quant::LANES;

/// `out[r, j] = W[e] x + b[e]` for the experts e = chosen[r, j], where x is `x[r]`, or `x[r, j]` if each expert has an x of its
/// own (a second layer).
///
/// x (rows, k) or (rows, used * k) f32 | chosen (rows, 2 * used) f32, of [`Route`](crate::ops::Route) | experts (n, k) any block
/// format, each its own | out (rows, used * n) f32
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertLinear {
    /// (rows, k), or (rows, used * k) if `own`
    pub x: ValueId,
    /// Each expert has an x of its own.
    pub own: bool,
    /// (rows, 2 * used): the numbers of the experts, then their weights, which this op does not read.
    pub chosen: ValueId,
    /// (n, k) each
    pub experts: Vec<WeightId>,
    /// (n) each, or none at all
    pub biases: Vec<VectorId>,
    /// Experts of a row.
    pub used: u32,
    /// Rows of an expert's matrix.
    pub n: u32,
    /// Columns of an expert's matrix.
    pub k: u32,
    /// (rows, used * n)
    pub out: ValueId,
}

impl ExpertLinear {
    fn part(&self, expert: usize) -> Part {
        Part { weight: self.experts[expert], n: self.n, bias: self.biases.get(expert).copied() }
    }
}

operands!(ExpertLinear, f, ExpertLinear { x, chosen, experts, biases, out, .. } => {
    f(Access::Read, x.into());
    f(Access::Read, chosen.into());
    for expert in experts {
        f(Access::Read, expert.into());
    }
    for bias in biases {
        f(Access::Read, bias.into());
    }
    f(Access::Write, out.into());
});

impl Operation for ExpertLinear {
    fn name(&self) -> &'static str {
        "expert_linear"
    }

    fn shape(&self, formats: &dyn Fn(&[WeightId]) -> String) -> String {
        format!("{} of {} {}x{} {}", self.used, self.experts.len(), self.n, self.k, formats(&self.experts))
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        same(name, "x", (s.width)(self.x), if self.own { self.used * self.k } else { self.k })?;
        same(name, "the value of the chosen", (s.width)(self.chosen), 2 * self.used)?;
        let biases = self.biases.is_empty() || self.biases.len() == self.experts.len();
        holds(name, !self.experts.is_empty() && biases, || {
            format!("{} experts with {} biases", self.experts.len(), self.biases.len())
        })?;
        same_matrices(name, &self.experts, (self.n, self.k), s)?;
        for &bias in &self.biases {
            same(name, "a bias", (s.vector)(bias), self.n)?;
        }
        same(name, "out", (s.width)(self.out), self.used * self.n)
    }

    fn cost(&self, _load: &Load, rows: u32, format: &dyn Fn(WeightId) -> BlockFormat) -> Cost {
        let (rows, used, n) = (f64::from(rows), f64::from(self.used), f64::from(self.n));
        // The share of experts that some row chooses, if rows choose at random.
        let share = 1.0 - (1.0 - used / self.experts.len().max(1) as f64).powf(rows);
        let all: f64 = self.experts.iter().map(|&expert| n * row_bytes(format(expert), self.k)).sum();
        Cost { bytes: share * all, flops: 2.0 * rows * used * n * f64::from(self.k) }
    }

    fn stack(&self) -> Option<Stack> {
        Some(Stack { parts: self.parts(), unit: Stack::UNIT })
    }
}

// CPU

impl CpuForm for ExpertLinear {
    /// Splits the rows of each expert's matrix. The products of all rows are ordered by expert, so that a matrix is read once
    /// however many rows chose it.
    fn cpu(&self, run: &CpuRun<'_>) {
        let [n, used] = [self.n, self.used].map(|n| n as usize);
        let rows = run.rows(self.x);
        let (chosen, out) = (run.value(self.chosen), run.value(self.out));
        let (ends, rest) = run.scratch().split_at_mut(self.experts.len());
        let (items, rest) = rest.split_at_mut(rows * used);
        let (ends, items): (&mut [u32], &mut [u32]) = (bytemuck::cast_slice_mut(ends), bytemuck::cast_slice_mut(items));
        // The number is stored as a float: it is clamped to a valid one.
        let expert = |item: usize| {
            let number = chosen.get(item / used * 2 * used + item % used) as usize;
            number.min(self.experts.len() - 1)
        };
        if !run.share.again {
            ends.fill(0);
            (0..rows * used).for_each(|item| ends[expert(item)] += 1);
            let mut start = 0;
            for end in ends.iter_mut() {
                (*end, start) = (start, start + *end);
            }
            for item in 0..rows * used {
                let end = &mut ends[expert(item)];
                items[*end as usize] = item as u32;
                *end += 1;
            }
        }

        let x_rows = if self.own { rows * used } else { rows };
        let (eight, rest) = rest.split_at_mut(q8_scratch(x_rows, self.k));
        let x = run.value(self.x).slice(0..x_rows * self.k as usize);
        let x = X::new(run, x, self.k, self.experts.iter().copied(), eight);
        let row = |&item: &u32| if self.own { item as usize } else { item as usize / used };
        let columns = run.share.of(n, LANES);
        let mut start = 0;
        for (expert, &end) in ends.iter().enumerate() {
            let items = &items[start..end as usize];
            start = end as usize;
            if !items.is_empty() {
                let store = |i: usize, j: usize, y: &mut [f32]| {
                    let at = items[i] as usize * n + j;
                    out.slice_mut(at..at + y.len()).copy_from_slice(y);
                };
                product(run, &self.part(expert), columns.clone(), &x, items.iter().map(row), rest, store);
            }
        }
    }

    fn cpu_scratch(&self, rows: usize) -> usize {
        let items = rows * self.used as usize;
        let x_rows = if self.own { items } else { rows };
        self.experts.len() + items + q8_scratch(x_rows, self.k) + product_scratch(self.k)
    }
}

// Oracle

impl OracleForm for ExpertLinear {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let (x, chosen) = (run.value(self.x).clone(), run.value(self.chosen).clone());
        let mut out = vec![Vec::new(); x.len()];
        for ((x, chosen), out) in x.iter().zip(&chosen).zip(&mut out) {
            for (j, number) in chosen[..self.used as usize].iter().enumerate() {
                let expert = *number as usize;
                let x = if self.own { &x[j * self.k as usize..(j + 1) * self.k as usize] } else { x };
                let bias = self.biases.get(expert).map(|bias| run.vector(*bias));
                for i in 0..self.n as usize {
                    let w = run.weight_row(self.experts[expert], i);
                    let dot: f64 = w.iter().zip(x).map(|(w, x)| w * x).sum();
                    out.push(dot + bias.as_ref().map_or(0.0, |bias| bias[i]));
                }
            }
        }
        run.set(self.out, out);
    }
}

// GPU

impl GpuForm for ExpertLinear {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (x, out, chosen) = (self.x, self.out, Some(self.chosen));
        Matrices { parts: self.parts(), n: self.n, k: self.k, x, own: self.own, chosen, count: self.used, out }.lower(l)
    }

    fn gpu_needs(&self) -> GpuNeeds {
        experts::gpu_needs(self.experts.len(), self.used)
    }
}

impl ExpertLinear {
    /// Every expert's matrix with its bias.
    fn parts(&self) -> Vec<Part> {
        (0..self.experts.len()).map(|expert| self.part(expert)).collect()
    }
}
