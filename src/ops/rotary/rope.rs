//! `rope`: rotary position embedding (Su et al. 2021).

use crate::Result;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::check::{Shapes, holds, same};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{self, Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, operands};
use crate::ops::oracle::{OracleRun, heads};
use crate::ops::{RopeId, ValueId};

/// Rotates pairs of each head's first `spec.dims` elements by the angles of the row's position.
///
/// `(a, b) -> (a cos - b sin, a sin + b cos)`; x (rows, heads * head_dim) f32 | out the same shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// (rows, heads * head_dim)
    pub x: ValueId,
    /// Heads in a row.
    pub heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Which elements are rotated, and by what.
    pub spec: RopeSpec,
    /// (rows, heads * head_dim); may be `x`
    pub out: ValueId,
}

/// Which elements of a head are rotated, and by what angles.
///
/// In the engine, cosines and sines come with the step, computed once per row in f64 on the host: `Packed::angles`. So all
/// devices rotate by the same angles, scaling variants (linear, llama3, yarn, longrope) are tables of divisors, and no kernel
/// reduces a large angle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeSpec {
    /// The table of angles.
    pub table: RopeId,
    /// How elements pair up.
    pub pairing: Pairing,
    /// Elements that are rotated, from the head's first; even. The rest pass through.
    pub dims: u32,
}

/// Which two elements make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// (0, 1), (2, 3), …: the paper's; GGUF files of `llama`.
    Interleaved,
    /// (0, d/2), (1, d/2 + 1), …: GPT-NeoX's; safetensors folders.
    Neox,
}

operands!(Rope, f, Rope { x, spec: RopeSpec { table, .. }, out, .. } => {
    f(Access::Read, x.into());
    f(Access::Read, table.into());
    f(Access::Write, out.into());
});

impl Operation for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        self.spec.check(name, self.head_dim, s)?;
        same(name, "x", (s.width)(self.x), self.heads * self.head_dim)?;
        same(name, "out", (s.width)(self.out), self.heads * self.head_dim)
    }
}

impl RopeSpec {
    /// Checks the rotation of heads of a size.
    pub(in crate::ops) fn check(&self, op: &str, head_dim: u32, s: &Shapes<'_>) -> Result<()> {
        let pairs = (s.pairs)(self.table);
        holds(op, self.dims.is_multiple_of(2) && self.dims <= head_dim && pairs == self.dims as usize / 2, || {
            format!("rotates {} of {head_dim} elements by a table of {pairs} angles", self.dims)
        })
    }
}

// CPU

impl CpuForm for Rope {
    /// Splits heads.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (x, out) = (run.value(self.x), run.value(self.out));
        let (heads, dim) = (self.heads as usize, self.head_dim as usize);
        for item in run.share.of(run.rows(self.x) * heads, 1) {
            let range = item * dim..(item + 1) * dim;
            let head = out.slice_mut(range.clone());
            head.copy_from_slice(x.slice(range));
            self.spec.cpu(run, item / heads, head);
        }
    }
}

impl RopeSpec {
    /// Rotates a head of row `row` in place.
    pub(in crate::ops) fn cpu(&self, run: &CpuRun<'_>, row: usize, head: &mut [f32]) {
        let pairs = self.dims as usize / 2;
        let angles = &run.step.angles[self.table.index()][row * pairs..(row + 1) * pairs];
        for (i, [cos, sin]) in angles.iter().enumerate() {
            let (a, b) = match self.pairing {
                Pairing::Interleaved => (2 * i, 2 * i + 1),
                Pairing::Neox => (i, i + pairs),
            };
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }
}

// Oracle

impl OracleForm for Rope {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let rotated = |(r, row): (usize, &Vec<f64>)| {
            heads(row, self.head_dim).iter().flat_map(|head| self.spec.oracle(run, r, head)).collect()
        };
        let out = run.value(self.x).iter().enumerate().map(rotated).collect();
        run.set(self.out, out);
    }
}

impl RopeSpec {
    /// A head of row `row`, rotated by angles that are computed here, not those that the step brings.
    pub(in crate::ops) fn oracle(&self, run: &OracleRun<'_>, row: usize, head: &[f64]) -> Vec<f64> {
        let pos = run.step.rows[row].pos;
        let (divisors, factor) = (run.ropes)(self.table, pos);
        let mut out = head.to_vec();
        for (i, divisor) in divisors[..self.dims as usize / 2].iter().enumerate() {
            let (sin, cos) = (f64::from(pos) * divisor).sin_cos();
            let (a, b) = match self.pairing {
                Pairing::Interleaved => (2 * i, 2 * i + 1),
                Pairing::Neox => (i, i + self.dims as usize / 2),
            };
            out[a] = factor * (head[a] * cos - head[b] * sin);
            out[b] = factor * (head[a] * sin + head[b] * cos);
        }
        out
    }
}

// GPU

params! {
    pub(crate) struct Params {
        heads: u32,
        head_dim: u32,
        stride: u32,
    }
}

impl GpuForm for Rope {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let mut kernel = l.kernel(kernels::ROPE);
        l.rope(&mut kernel, Some(&self.spec));
        l.angle_source(&mut kernel, Some(&self.spec));
        let in_place = self.x == self.out;
        kernel.set("IN_PLACE", in_place);
        let params = Params { heads: self.heads, head_dim: self.head_dim, stride: x.stride() };
        let angles = l.angles(Some(self.spec.table));
        // A buffer that is written cannot be bound a second time.
        let x = if in_place { l.step } else { &x.buffer };
        let args = [Arg::read(l.step), angles, Arg::read(x), Arg::Write(&out.buffer)];
        let threads = self.heads * self.head_dim.div_ceil(2);
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(threads), Dim::Rows(1), Dim::Fixed(1)])
    }
}
