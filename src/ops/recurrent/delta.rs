//! `delta`: the gated delta rule.

use crate::Result;
use crate::ops::check::{Shapes, holds, same};
use crate::ops::cpu::CpuRun;
use crate::ops::lower::{Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, GpuNeeds, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;
use crate::ops::recurrent::{self, Decay, Head, Input, Recurrence};
use crate::ops::{CacheId, ValueId};

/// For each value head: `S ← e^g S`, then `S ← S + beta (v - S k) kᵀ`, `out = S q` (Yang et al. 2024).
///
/// q, k (rows, key_heads * k_dim) | v (rows, heads * v_dim) | beta (rows, heads) | S (v_dim, k_dim) a head |
/// out (rows, heads * v_dim) f32; g is the decay's.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// (rows, key_heads * k_dim)
    pub q: ValueId,
    /// (rows, key_heads * k_dim)
    pub k: ValueId,
    /// (rows, heads * v_dim)
    pub v: ValueId,
    /// (rows, heads): from 0, nothing is learnt, to 1, all.
    pub beta: ValueId,
    /// Value heads.
    pub heads: u32,
    /// Heads of queries and keys; divides `heads`.
    pub key_heads: u32,
    /// Elements of a query and a key.
    pub k_dim: u32,
    /// Elements of a value.
    pub v_dim: u32,
    /// Value head h has key head `h mod key_heads`, as GGUF files order them; else neighbours share a key head.
    pub tiled: bool,
    /// How fast S is forgotten.
    pub decay: Decay,
    /// Where S is kept.
    pub state: CacheId,
    /// (rows, heads * v_dim)
    pub out: ValueId,
}

impl Delta {
    /// Elements of the state.
    pub(crate) fn state_len(heads: u32, k_dim: u32, v_dim: u32) -> u32 {
        let head = Head { k: k_dim as usize, v: v_dim as usize, corrects: true };
        u32::try_from(head.state_len()).unwrap_or(u32::MAX).saturating_mul(heads)
    }

    fn head(&self) -> Head {
        Head { k: self.k_dim as usize, v: self.v_dim as usize, corrects: true }
    }

    fn key_head(&self, head: usize) -> usize {
        let (heads, key_heads) = (self.heads as usize, self.key_heads as usize);
        if self.tiled { head % key_heads } else { head / (heads / key_heads) }
    }
}

operands!(Delta, f, Delta { q, k, v, beta, decay, state, out, .. } => {
    for value in [q, k, v, beta] {
        f(Access::Read, value.into());
    }
    decay.operands(f);
    f(Access::Update, state.into());
    f(Access::Write, out.into());
});

impl Operation for Delta {
    fn name(&self) -> &'static str {
        "delta"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        holds(name, self.key_heads > 0 && self.heads.is_multiple_of(self.key_heads), || {
            format!("{} value heads are not a multiple of {} key heads", self.heads, self.key_heads)
        })?;
        let (keys, values) = (self.key_heads * self.k_dim, self.heads * self.v_dim);
        let operands =
            [("q", self.q, keys), ("k", self.k, keys), ("v", self.v, values), ("beta", self.beta, self.heads)];
        for (what, value, wanted) in operands {
            same(name, what, (s.width)(value), wanted)?;
        }
        self.decay.check(name, self.heads, s)?;
        let len = Self::state_len(self.heads, self.k_dim, self.v_dim);
        holds(name, len < u32::MAX, || {
            format!("{} heads of {} x {} are too many", self.heads, self.k_dim, self.v_dim)
        })?;
        same(name, "its state", (s.state)(self.state), Self::state_len(self.heads, self.k_dim, self.v_dim))?;
        same(name, "out", (s.width)(self.out), values)
    }
}

// CPU

impl CpuForm for Delta {
    /// Splits heads of sequences.
    fn cpu(&self, run: &CpuRun<'_>) {
        let [heads, key_heads, k_dim, v_dim] = [self.heads, self.key_heads, self.k_dim, self.v_dim].map(|d| d as usize);
        let (q, k, v, out) = (run.value(self.q), run.value(self.k), run.value(self.v), run.value(self.out));
        let (head, beta, scratch) = (self.head(), run.value(self.beta), run.scratch());
        for item in run.share.strided(run.step.seqs.len() * heads) {
            let (span, h) = (run.step.seqs[item / heads], item % heads);
            let state = run.state(self.state, span.slot, h * head.state_len(), head.state_len());
            let row0 = span.row0 as usize;
            let of_head = |r: usize| ((row0 + r) * heads + h) * v_dim..((row0 + r) * heads + h + 1) * v_dim;
            let of_key = |r: usize| {
                let start = ((row0 + r) * key_heads + self.key_head(h)) * k_dim;
                start..start + k_dim
            };
            let input = |r: usize| {
                let (_, g) = self.decay.cpu(run, heads, row0 + r, h);
                let gain = beta.get((row0 + r) * heads + h);
                Input { q: q.slice(of_key(r)), k: k.slice(of_key(r)), x: v.slice(of_head(r)), gain, g }
            };
            let rows = (run.step.rows[row0].pos as usize, span.rows as usize, run.step.decode);
            head.rows(state, scratch, rows, input, |r| out.slice_mut(of_head(r)));
        }
    }

    fn cpu_scratch(&self, _rows: usize) -> usize {
        self.head().scratch()
    }
}

// Oracle

impl OracleForm for Delta {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let [heads, k_dim, v_dim] = [self.heads, self.k_dim, self.v_dim].map(|d| d as usize);
        let out = recurrent::oracle_sequences(run, self.state, (heads * v_dim, k_dim), |run, rows, state| {
            let row = |r: usize| {
                let mut out = Vec::new();
                for h in 0..heads {
                    let of_key = self.key_head(h) * k_dim..(self.key_head(h) + 1) * k_dim;
                    let (q, k) = (&run.value(self.q)[r][of_key.clone()], &run.value(self.k)[r][of_key]);
                    let v = &run.value(self.v)[r][h * v_dim..(h + 1) * v_dim];
                    let (_, g) = self.decay.oracle(run, r, h);
                    let s = &mut state[h * v_dim..(h + 1) * v_dim];
                    out.extend(self.head().oracle(s, q, k, v, run.value(self.beta)[r][h], g));
                }
                out
            };
            rows.map(row).collect()
        });
        run.set(self.out, out);
    }
}

// GPU

impl GpuForm for Delta {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let recurrence = Recurrence {
            q: self.q,
            keys: self.k,
            x: self.v,
            heads: self.heads,
            key_heads: self.key_heads,
            tiled: self.tiled,
            head: self.head(),
            decay: &self.decay,
            beta: Some(self.beta),
            skip: None,
            state: self.state,
            out: self.out,
        };
        recurrence.lower(l)
    }

    fn gpu_needs(&self) -> GpuNeeds {
        recurrent::gpu_needs(self.head(), self.heads)
    }
}
