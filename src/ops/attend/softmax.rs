//! `softmax` by itself.

use crate::gpu::compose::lib;
use crate::gpu::params::params;
use crate::gpu::{Arg, Buffer, Dim, PlanBuilder};
use crate::ops::kernels;
use crate::ops::lower::KernelTuning;
use crate::{Error, Result};

/// `out[r, i] = exp(scale x[r, i]) / Σ_j exp(scale x[r, j])`; x, out (rows, n) f32.
///
/// Elements that come to -1e30 or less are masked; a row of masked elements alone is uniform, 1 / n. A row that holds NaN or
/// positive infinity is NaN. The engine does not need it: attention has its own, and sampling needs none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softmax {
    /// Rows.
    pub rows: u32,
    /// Elements of a row.
    pub n: u32,
    /// Elements from a row to the next.
    pub stride: u32,
    /// A factor on the elements, above 0.
    pub scale: f32,
}

params! {
    pub(crate) struct Params {
        rows: u32,
        n: u32,
        stride: u32,
        across: u32,
        scale: f32,
    }
}

impl Softmax {
    /// Adds the dispatch.
    pub fn dispatch(&self, plan: &mut PlanBuilder<'_>, x: &Buffer, out: &Buffer) -> Result<()> {
        let Self { rows, n, stride, scale } = *self;
        let wrong = |problem: String| Err(Error::argument("softmax", problem));
        if rows == 0 || n == 0 || stride < n || scale.is_nan() || scale <= 0.0 {
            return wrong(format!("{rows} rows of {n} elements, {stride} apart, by {scale}"));
        }
        let bytes = (u64::from(rows - 1) * u64::from(stride) + u64::from(n)) * 4;
        let most = plan.device().caps().max_binding;
        for (what, buffer) in [("x", x), ("out", out)] {
            if buffer.size() < bytes || buffer.size() > most {
                let has = buffer.size();
                return wrong(format!("{what} needs {bytes} bytes, the buffer has {has}, a binding at most {most}"));
            }
        }
        if x.is(out) {
            return wrong("out is x".to_owned());
        }
        let caps = plan.device().caps();
        let KernelTuning { subgroups, table, .. } = KernelTuning::exact(caps);
        let across = rows.min(caps.max_groups);
        let mut kernel = kernels::SOFTMAX.kernel();
        kernel.fill("reduce", if subgroups { lib::REDUCE_SUBGROUP } else { lib::REDUCE });
        kernel.set("WG", table.reduce);
        let params = Params { rows, n, stride, across, scale };
        let grid = [Dim::Fixed(across), Dim::Fixed(rows.div_ceil(across)), Dim::Fixed(1)];
        plan.dispatch(&kernel, &params, &[Arg::read(x), Arg::Write(out)], grid)
    }
}
