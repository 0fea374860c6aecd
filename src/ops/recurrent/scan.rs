//! `scan`: the selective state-space scan of Mamba-2.

use crate::Result;
use crate::cpu::simd;
use crate::ops::check::{Shapes, holds, same};
use crate::ops::cpu::CpuRun;
use crate::ops::lower::{Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, GpuNeeds, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;
use crate::ops::recurrent::{self, Decay, Head, Input, Recurrence};
use crate::ops::{CacheId, ValueId, VectorId};

/// For each head h of group `h / (heads / groups)`: `S ← e^g S + Δ x bᵀ`, `out = S c + skip[h] x` (Dao & Gu 2024).
///
/// x (rows, heads * dim) | b, c (rows, groups * states) | S (dim, states) a head | out (rows, heads * dim) f32; g and Δ are the
/// decay's.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// (rows, heads * dim)
    pub x: ValueId,
    /// (rows, groups * states): how much of x goes into each state.
    pub b: ValueId,
    /// (rows, groups * states): how much of each state comes out.
    pub c: ValueId,
    /// Heads.
    pub heads: u32,
    /// Elements of a head.
    pub dim: u32,
    /// Groups of heads that share b and c; divides `heads`.
    pub groups: u32,
    /// States of each element of a head.
    pub states: u32,
    /// How fast states decay.
    pub decay: Decay,
    /// (heads): D.
    pub skip: VectorId,
    /// Where S is kept.
    pub state: CacheId,
    /// (rows, heads * dim)
    pub out: ValueId,
}

impl Scan {
    /// Elements of the state.
    pub(crate) fn state_len(heads: u32, dim: u32, states: u32) -> u32 {
        let head = Head { k: states as usize, v: dim as usize, corrects: false };
        u32::try_from(head.state_len()).unwrap_or(u32::MAX).saturating_mul(heads)
    }

    fn head(&self) -> Head {
        Head { k: self.states as usize, v: self.dim as usize, corrects: false }
    }
}

operands!(Scan, f, Scan { x, b, c, decay, skip, state, out, .. } => {
    f(Access::Read, x.into());
    f(Access::Read, b.into());
    f(Access::Read, c.into());
    decay.operands(f);
    f(Access::Read, skip.into());
    f(Access::Update, state.into());
    f(Access::Write, out.into());
});

impl Operation for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        holds(name, self.groups > 0 && self.heads.is_multiple_of(self.groups), || {
            format!("{} heads are not a multiple of {} groups", self.heads, self.groups)
        })?;
        let inner = self.groups * self.states;
        for (what, value, wanted) in [("x", self.x, self.heads * self.dim), ("b", self.b, inner), ("c", self.c, inner)]
        {
            same(name, what, (s.width)(value), wanted)?;
        }
        self.decay.check(name, self.heads, s)?;
        same(name, "skip", (s.vector)(self.skip), self.heads)?;
        let len = Self::state_len(self.heads, self.dim, self.states);
        holds(name, len < u32::MAX, || {
            format!("{} heads of {} x {} states are too many", self.heads, self.dim, self.states)
        })?;
        same(name, "its state", (s.state)(self.state), Self::state_len(self.heads, self.dim, self.states))?;
        same(name, "out", (s.width)(self.out), self.heads * self.dim)
    }
}

// CPU

impl CpuForm for Scan {
    /// Splits heads of sequences.
    fn cpu(&self, run: &CpuRun<'_>) {
        let [heads, dim, groups, n] = [self.heads, self.dim, self.groups, self.states].map(|d| d as usize);
        let (x, b, c, out) = (run.value(self.x), run.value(self.b), run.value(self.c), run.value(self.out));
        let (head, skip, scratch) = (self.head(), run.vector(self.skip), run.scratch());
        for item in run.share.strided(run.step.seqs.len() * heads) {
            let (span, h) = (run.step.seqs[item / heads], item % heads);
            let state = run.state(self.state, span.slot, h * head.state_len(), head.state_len());
            let row0 = span.row0 as usize;
            let of_head = |r: usize| ((row0 + r) * heads + h) * dim..((row0 + r) * heads + h + 1) * dim;
            let of_group = |r: usize| {
                let start = ((row0 + r) * groups + h / (heads / groups)) * n;
                start..start + n
            };
            let input = |r: usize| {
                let (gain, g) = self.decay.cpu(run, heads, row0 + r, h);
                Input { q: c.slice(of_group(r)), k: b.slice(of_group(r)), x: x.slice(of_head(r)), gain, g }
            };
            let rows = (run.step.rows[row0].pos as usize, span.rows as usize, run.step.decode);
            head.rows(state, scratch, rows, input, |r| out.slice_mut(of_head(r)));
            for r in 0..span.rows as usize {
                simd::add_scaled(out.slice_mut(of_head(r)), skip[h], x.slice(of_head(r)));
            }
        }
    }

    fn cpu_scratch(&self, _rows: usize) -> usize {
        self.head().scratch()
    }
}

// Oracle

impl OracleForm for Scan {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let [heads, dim, groups, n] = [self.heads, self.dim, self.groups, self.states].map(|d| d as usize);
        let skip = run.vector(self.skip);
        let out = recurrent::oracle_sequences(run, self.state, (heads * dim, n), |run, rows, state| {
            let row = |r: usize| {
                let (x, b, c) = (&run.value(self.x)[r], &run.value(self.b)[r], &run.value(self.c)[r]);
                let mut out = Vec::new();
                for h in 0..heads {
                    let x = &x[h * dim..(h + 1) * dim];
                    let group = h * groups / heads;
                    let of_group = group * n..(group + 1) * n;
                    let (delta, g) = self.decay.oracle(run, r, h);
                    let s = &mut state[h * dim..(h + 1) * dim];
                    let y = self.head().oracle(s, &c[of_group.clone()], &b[of_group], x, delta, g);
                    out.extend(y.iter().zip(x).map(|(y, x)| y + skip[h] * x));
                }
                out
            };
            rows.map(row).collect()
        });
        run.set(self.out, out);
    }
}

// GPU

impl GpuForm for Scan {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let recurrence = Recurrence {
            q: self.c,
            keys: self.b,
            x: self.x,
            heads: self.heads,
            key_heads: self.groups,
            tiled: false,
            head: self.head(),
            decay: &self.decay,
            beta: None,
            skip: Some(self.skip),
            state: self.state,
            out: self.out,
        };
        recurrence.lower(l)
    }

    fn gpu_needs(&self) -> GpuNeeds {
        recurrent::gpu_needs(self.head(), self.heads)
    }
}
