//! `pool`: one row for all rows of a sequence.

use crate::Result;
use crate::cpu::simd;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::ValueId;
use crate::ops::check::{Shapes, same};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{self, Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;

/// `out[s, :] = pooling of x[r, :]` over the rows r of sequence s.
///
/// x (rows, n) f32 | out (seqs, n) f32: from here on, a program works on the step's sequences. All rows of a sequence must be
/// in the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// (rows, n)
    pub x: ValueId,
    /// How.
    pub pooling: Pooling,
    /// Columns.
    pub n: u32,
    /// (seqs, n)
    pub out: ValueId,
}

/// How the rows of a sequence become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first, BERT's `[CLS]`.
    Cls,
    /// The last, the only one that has seen all others where attention is causal.
    Last,
}

impl std::str::FromStr for Pooling {
    type Err = crate::Error;

    fn from_str(s: &str) -> crate::Result<Self> {
        match s {
            "mean" => Ok(Self::Mean),
            "cls" => Ok(Self::Cls),
            "last" => Ok(Self::Last),
            _ => Err(crate::Error::argument("pooling", format!("{s:?}; mean, cls and last work"))),
        }
    }
}

operands!(Pool, f, Pool { x, out, .. } => {
    f(Access::Read, x.into());
    f(Access::Write, out.into());
});

impl Operation for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        same(self.name(), "x", (s.width)(self.x), self.n)?;
        same(self.name(), "out", (s.width)(self.out), self.n)
    }
}

// CPU

impl CpuForm for Pool {
    /// Splits sequences. Rows are added in their order, so that a sum does not depend on the split.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (x, out, n) = (run.value(self.x), run.value(self.out), self.n as usize);
        for s in run.share.of(run.step.seqs.len(), 1) {
            let span = run.step.seqs[s];
            let (first, rows) = (span.row0 as usize, span.rows as usize);
            let row = |r: usize| x.slice(r * n..(r + 1) * n);
            let out = out.slice_mut(s * n..(s + 1) * n);
            match self.pooling {
                Pooling::Cls => out.copy_from_slice(row(first)),
                Pooling::Last => out.copy_from_slice(row(first + rows - 1)),
                Pooling::Mean => {
                    out.fill(0.0);
                    (first..first + rows).for_each(|r| simd::add_scaled(out, 1.0, row(r)));
                    out.iter_mut().for_each(|o| *o /= rows as f32);
                }
            }
        }
    }
}

// Oracle

impl OracleForm for Pool {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let x = run.value(self.x);
        let pooled = |span: &crate::ops::SeqEntry| {
            let rows = &x[span.row0 as usize..(span.row0 + span.rows) as usize];
            match self.pooling {
                Pooling::Cls => rows[0].clone(),
                Pooling::Last => rows[rows.len() - 1].clone(),
                Pooling::Mean => {
                    (0..self.n as usize).map(|i| rows.iter().map(|r| r[i]).sum::<f64>() / rows.len() as f64).collect()
                }
            }
        };
        let out = run.step.seqs.iter().map(pooled).collect();
        run.set(self.out, out);
    }
}

// GPU

params! {
    pub(crate) struct Params {
        n: u32,
        stride: u32,
    }
}

impl GpuForm for Pool {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let mut kernel = l.kernel(kernels::POOL);
        let pooling = match self.pooling {
            Pooling::Mean => 0u32,
            Pooling::Cls => 1,
            Pooling::Last => 2,
        };
        kernel.set("POOLING", pooling);
        let params = Params { n: self.n, stride: out.stride() };
        let args = [Arg::read(l.step), Arg::read(&x.buffer), Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(self.n), Dim::Seqs(1), Dim::Fixed(1)])
    }
}
