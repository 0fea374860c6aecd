//! `gather`: the rows whose logits were requested.

use crate::Result;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::ValueId;
use crate::ops::check::{Shapes, same};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{self, Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;

/// `out[o, :] = x[row of output o, :]`.
///
/// x (rows, n) f32 | out (outs, n) f32: from here on a program works on the step's output rows only.
#[derive(Clone, Debug, PartialEq)]
pub struct Gather {
    /// (rows, n)
    pub x: ValueId,
    /// Columns.
    pub n: u32,
    /// (outs, n)
    pub out: ValueId,
}

operands!(Gather, f, Gather { x, out, .. } => {
    f(Access::Read, x.into());
    f(Access::Write, out.into());
});

impl Operation for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        same(self.name(), "x", (s.width)(self.x), self.n)?;
        same(self.name(), "out", (s.width)(self.out), self.n)
    }
}

// CPU

impl CpuForm for Gather {
    /// Splits output rows.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (x, out, n) = (run.value(self.x), run.value(self.out), self.n as usize);
        for o in run.share.of(run.step.outs.len(), 1) {
            let row = run.step.outs[o] as usize;
            out.slice_mut(o * n..(o + 1) * n).copy_from_slice(x.slice(row * n..(row + 1) * n));
        }
    }
}

// Oracle

impl OracleForm for Gather {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let out = run.step.outs.iter().map(|&row| run.value(self.x)[row as usize].clone()).collect();
        run.set(self.out, out);
    }
}

// GPU

params! {
    pub(crate) struct Params {
        vec4s: u32,
    }
}

impl GpuForm for Gather {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let kernel = l.kernel(kernels::GATHER);
        let params = Params { vec4s: x.stride() / 4 };
        let args = [Arg::read(l.step), Arg::read(&x.buffer), Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(params.vec4s), Dim::Outs(1), Dim::Fixed(1)])
    }
}
