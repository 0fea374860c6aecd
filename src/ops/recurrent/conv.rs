//! `conv`: a short causal convolution over the positions of a sequence, each column by itself.

use crate::Result;
use crate::cpu::simd;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::check::{Shapes, holds, same};
use crate::ops::cost::row_bytes;
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{self, Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, GpuNeeds, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;
use crate::ops::recurrent;
use crate::ops::{CacheId, Cost, Load, ValueId, VectorId, WeightId};
use crate::quant::BlockFormat;

/// `out[t, c] = bias[c] + Σ_j weight[c, j] x[t - (kernel_size - 1) + j, c]`, with zeros before the first position.
///
/// x (rows, n) | weight (n, kernel_size) | out (rows, n) f32; the state is the last `kernel_size - 1` rows of x.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// (rows, n)
    pub x: ValueId,
    /// Columns.
    pub n: u32,
    /// (n, kernel_size): the last column multiplies the row itself.
    pub weight: WeightId,
    /// Rows of x that go into one of out, its own among them.
    pub kernel_size: u32,
    /// (n)
    pub bias: Option<VectorId>,
    /// Where the rows before this step's are kept.
    pub state: CacheId,
    /// (rows, n)
    pub out: ValueId,
}

impl Conv {
    /// Elements of the state.
    pub(crate) fn state_len(n: u32, kernel_size: u32) -> u32 {
        n.saturating_mul(kernel_size.saturating_sub(1))
    }
}

operands!(Conv, f, Conv { x, weight, bias, state, out, .. } => {
    f(Access::Read, x.into());
    f(Access::Read, weight.into());
    if let Some(bias) = bias {
        f(Access::Read, bias.into());
    }
    f(Access::Update, state.into());
    f(Access::Write, out.into());
});

impl Operation for Conv {
    fn name(&self) -> &'static str {
        "conv"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        let (n, kernel_size) = (s.matrix)(self.weight);
        holds(name, (n, kernel_size) == (self.n, self.kernel_size) && kernel_size > 0, || {
            format!("w is ({n}, {kernel_size}), but ({}, {}) is needed", self.n, self.kernel_size)
        })?;
        if let Some(bias) = self.bias {
            same(name, "its bias", (s.vector)(bias), self.n)?;
        }
        same(name, "x", (s.width)(self.x), self.n)?;
        same(name, "its state", (s.state)(self.state), Self::state_len(self.n, self.kernel_size))?;
        same(name, "out", (s.width)(self.out), self.n)
    }

    fn cost(&self, _load: &Load, rows: u32, format: &dyn Fn(WeightId) -> BlockFormat) -> Cost {
        let elements = f64::from(self.n) * f64::from(self.kernel_size);
        let bytes = f64::from(self.n) * row_bytes(format(self.weight), self.kernel_size);
        Cost { bytes, flops: 2.0 * f64::from(rows) * elements }
    }
}

// CPU

impl CpuForm for Conv {
    /// Splits columns.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (n, kernel_size) = (self.n as usize, self.kernel_size as usize);
        let (x, out, weight) = (run.value(self.x), run.value(self.out), run.weight(self.weight));
        let own = run.share.of(n, 16);
        // (kernel_size, own): transposed, so that columns lie side by side.
        let (row, columns) = run.scratch().split_at_mut(kernel_size);
        for (i, c) in own.clone().enumerate() {
            weight.decode(c, row);
            row.iter().enumerate().for_each(|(j, w)| columns[j * own.len() + i] = *w);
        }
        for span in run.step.seqs {
            let (row0, rows) = (span.row0 as usize, span.rows as usize);
            let kept = |i: usize| run.state(self.state, span.slot, i * n + own.start, own.len());
            if run.step.rows[row0].pos == 0 {
                (0..kernel_size - 1).for_each(|i| kept(i).fill(0.0));
            }
            // Rows are numbered through the state, then the step.
            let input = |i: usize| -> &[f32] {
                let Some(r) = i.checked_sub(kernel_size - 1) else { return kept(i) };
                x.slice((row0 + r) * n + own.start..(row0 + r) * n + own.end)
            };
            for r in 0..rows {
                let out = out.slice_mut((row0 + r) * n + own.start..(row0 + r) * n + own.end);
                match self.bias {
                    Some(bias) => out.copy_from_slice(&run.vector(bias)[own.clone()]),
                    None => out.fill(0.0),
                }
                for (j, weights) in columns.chunks_exact(own.len().max(1)).take(kernel_size).enumerate() {
                    simd::add_products(out, weights, input(r + j));
                }
            }
            for i in 0..kernel_size - 1 {
                kept(i).copy_from_slice(input(rows + i));
            }
        }
    }

    fn cpu_scratch(&self, _rows: usize) -> usize {
        self.kernel_size as usize * (self.n as usize + 1)
    }
}

// Oracle

impl OracleForm for Conv {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let (n, kernel_size) = (self.n as usize, self.kernel_size as usize);
        let weight: Vec<_> = (0..n).map(|c| run.weight_row(self.weight, c)).collect();
        let bias = self.bias.map_or_else(|| vec![0.0; n], |bias| run.vector(bias));
        let out = recurrent::oracle_sequences(run, self.state, (kernel_size - 1, n), |run, rows, state| {
            let row = |r: usize| {
                state.push(run.value(self.x)[r].clone());
                let sum = |c: usize| (0..kernel_size).map(|j| weight[c][j] * state[j][c]).sum::<f64>();
                let out = (0..n).map(|c| bias[c] + sum(c)).collect();
                state.remove(0);
                out
            };
            rows.map(row).collect()
        });
        run.set(self.out, out);
    }
}

// GPU

params! {
    pub(crate) struct Params {
        n: u32,
        first: u32,
        count: u32,
        row0: u32,
        kernel_size: u32,
        bias: u32,
        stride: u32,
        state_len: u32,
    }
}

impl GpuForm for Conv {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (x, out, state, weight) = (l.value(self.x), l.value(self.out), l.cache(self.state), l.matrix(self.weight));
        let mut kernel = l.kernel(kernels::CONV);
        lower::weights(&mut kernel, weight.format);
        kernel.set("HAS_BIAS", self.bias.is_some());
        for piece in &weight.pieces {
            let params = Params {
                n: self.n,
                first: piece.row,
                count: piece.n,
                row0: piece.at,
                kernel_size: self.kernel_size,
                bias: self.bias.map_or(0, |bias| l.vector(bias)),
                stride: x.stride(),
                state_len: state.state,
            };
            let (x, vectors, w) = (Arg::read(&x.buffer), Arg::read(l.vectors), Arg::read(&l.weights[piece.buffer]));
            let args = [Arg::read(l.step), x, vectors, w, Arg::Write(&state.buffer), Arg::Write(&out.buffer)];
            l.plan.dispatch(&kernel, &params, &args, [lower::wide(piece.n), Dim::Seqs(1), Dim::Fixed(1)])?;
        }
        Ok(())
    }

    fn gpu_needs(&self) -> GpuNeeds {
        GpuNeeds { state: Self::state_len(self.n, self.kernel_size).into(), ..GpuNeeds::default() }
    }
}
