//! `attend`: scaled dot-product attention of each row over what its sequence has cached. `cpu.rs` is its form on the CPU; its kernels are planned in
//! `gpu.rs`, `cooperative.rs` and `v1.rs`.

mod cooperative;
mod cpu;
pub(crate) mod gpu;
pub(in crate::ops) mod softmax;
mod v1;
pub(crate) mod work;

use crate::Result;
use crate::ops::check::{Shapes, holds, same};
use crate::ops::operation::{Access, Operation, OracleForm, PageHeads, operands};
use crate::ops::oracle::{OracleRun, Rows64, heads};
use crate::ops::{CacheId, Cost, Load, ValueId, VectorId, WeightId};
use crate::quant::BlockFormat;

/// `out[r, h] = Σ_t softmax_t(scale * q[r, h] · k[t, h / g]) v[t, h / g]` over the positions t that the mask allows.
///
/// q (rows, heads * k_dim) f32 | out (rows, heads * v_dim) f32, with g = heads / kv_heads query heads to a KV head.
/// A score of minus infinity weighs nothing; a row that sees nothing, or nothing with a higher score, gives zeros. One that
/// sees a score of NaN or plus infinity gives NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct Attend {
    /// (rows, heads * k_dim)
    pub q: ValueId,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Elements of a query and a key.
    pub k_dim: u32,
    /// Elements of a value.
    pub v_dim: u32,
    /// Where keys and values are.
    pub kv: Kv,
    /// Which positions a row sees.
    pub mask: Mask,
    /// Factor on the scores.
    pub scale: f32,
    /// `cap * tanh(score / cap)` if not zero.
    pub softcap: f32,
    /// (heads): a score that takes part in the softmax and has no value.
    pub sinks: Option<VectorId>,
    /// (heads): what a score loses for each position of distance (ALiBi, Press et al. 2022).
    pub slopes: Option<VectorId>,
    /// (rows, heads * v_dim)
    pub out: ValueId,
}

/// Where keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kv {
    /// In the pages of a cache, written before in this step or earlier.
    Cache(CacheId),
    /// In this step's rows (encoders): a row sees the rows of its own sequence.
    Packed {
        /// (rows, kv_heads * k_dim)
        k: ValueId,
        /// (rows, kv_heads * v_dim)
        v: ValueId,
    },
}

/// Which positions a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Its own and all before.
    Causal,
    /// Its own and the `n - 1` before.
    Window(u32),
    /// All of its sequence.
    Full,
    /// Its own and the `n` on either side.
    BidirectionalWindow(u32),
}

operands!(Attend, f, Attend { q, kv, sinks, slopes, out, .. } => {
    f(Access::Read, q.into());
    match kv {
        Kv::Cache(cache) => f(Access::Read, cache.into()),
        Kv::Packed { k, v } => {
            f(Access::Read, k.into());
            f(Access::Read, v.into());
        }
    }
    for vector in [sinks, slopes].into_iter().flatten() {
        f(Access::Read, vector.into());
    }
    f(Access::Write, out.into());
});

impl Operation for Attend {
    fn name(&self) -> &'static str {
        "attend"
    }

    fn shape(&self, _formats: &dyn Fn(&[WeightId]) -> String) -> String {
        format!("{}/{} heads of {}", self.heads, self.kv_heads, self.k_dim)
    }

    fn pages(&self) -> Option<PageHeads> {
        let Kv::Cache(cache) = self.kv else { return None };
        Some(PageHeads { cache, kv_heads: self.kv_heads, k_dim: self.k_dim, v_dim: self.v_dim })
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let Self { q, heads, kv_heads, k_dim, v_dim, kv, sinks, slopes, out, .. } = *self;
        let name = self.name();
        holds(name, kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads), || {
            format!("{heads} query heads are not a multiple of {kv_heads} KV heads")
        })?;
        holds(name, k_dim > 0 && v_dim > 0, || format!("keys of {k_dim} elements, values of {v_dim}"))?;
        same(name, "q", (s.width)(q), heads * k_dim)?;
        same(name, "out", (s.width)(out), heads * v_dim)?;
        for (what, vector) in [("sinks", sinks), ("slopes", slopes)] {
            if let Some(vector) = vector {
                same(name, what, (s.vector)(vector), heads)?;
            }
        }
        if let Kv::Packed { k, v } = kv {
            same(name, "k", (s.width)(k), kv_heads * k_dim)?;
            same(name, "v", (s.width)(v), kv_heads * v_dim)?;
        }
        Ok(())
    }

    fn cost(&self, load: &Load, _rows: u32, _format: &dyn Fn(WeightId) -> BlockFormat) -> Cost {
        let dims = f64::from(self.k_dim) + f64::from(self.v_dim);
        // What the rows from `pos` on see: each its own position and those before.
        let (mut seen, mut most) = (0.0, 0u32);
        for own in load.pos..load.pos.saturating_add(load.rows) {
            let sees = match self.mask {
                Mask::Causal => own + 1,
                Mask::Window(n) => n.min(own + 1),
                Mask::Full => load.rows,
                Mask::BidirectionalWindow(n) => n.saturating_mul(2).saturating_add(1).min(load.rows),
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

    fn cost_depends_on_position(&self) -> bool {
        true
    }
}

// Oracle

impl OracleForm for Attend {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let [sinks, slopes] = [self.sinks, self.slopes].map(|v| v.map(|v| run.vector(v)));
        let mut out = Vec::new();
        for r in 0..run.step.rows.len() {
            let (own, all) = self.oracle_keys(run, r);
            let allowed = |t: usize| match self.mask {
                Mask::Causal => t <= own,
                Mask::Window(n) => t <= own && own - t < n as usize,
                Mask::Full => true,
                Mask::BidirectionalWindow(n) => t.abs_diff(own) <= n as usize,
            };
            let seen: Vec<_> = (0..all).filter(|&t| allowed(t)).map(|t| (t, self.oracle_kv(run, r, t))).collect();
            let mut row = Vec::new();
            for (h, q) in heads(&run.value(self.q)[r], self.k_dim).iter().enumerate() {
                let kv_head = h * self.kv_heads as usize / self.heads as usize;
                let slope = slopes.as_ref().map_or(0.0, |s| s[h]);
                let score = |(t, (k, _)): &(usize, (Rows64, Rows64))| {
                    let score = f64::from(self.scale) * q.iter().zip(&k[kv_head]).map(|(q, k)| q * k).sum::<f64>();
                    let cap = f64::from(self.softcap);
                    let capped = if cap == 0.0 { score } else { cap * (score / cap).tanh() };
                    capped - slope * own.abs_diff(*t) as f64
                };
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let sink = sinks.as_ref().map(|s| s[h]);
                let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
                let mut head = vec![0.0; self.v_dim as usize];
                if max == f64::NEG_INFINITY && scores.iter().all(|score| !score.is_nan()) {
                    row.extend(head);
                    continue;
                }
                for (score, (_, (_, v))) in scores.iter().zip(&seen) {
                    head.iter_mut().zip(&v[kv_head]).for_each(|(o, v)| *o += (score - max).exp() / total * v);
                }
                row.extend(head);
            }
            out.push(row);
        }
        run.set(self.out, out);
    }
}

impl Attend {
    /// A row's own number among the keys of its sequence, and how many there are.
    fn oracle_keys(&self, run: &OracleRun<'_>, r: usize) -> (usize, usize) {
        let row = run.step.rows[r];
        let span = run.step.seqs[row.seq as usize];
        match self.kv {
            Kv::Cache(_) => (row.pos as usize, span.context as usize),
            Kv::Packed { .. } => (r - span.row0 as usize, span.rows as usize),
        }
    }

    /// The key and value heads at number t of a row's sequence.
    fn oracle_kv(&self, run: &OracleRun<'_>, r: usize, t: usize) -> (Rows64, Rows64) {
        match self.kv {
            Kv::Cache(cache) => run.caches[cache.index()].1[&run.slot(cache, r, t)].clone(),
            Kv::Packed { k, v } => {
                let at = run.step.seqs[run.step.rows[r].seq as usize].row0 as usize + t;
                (heads(&run.value(k)[at], self.k_dim), heads(&run.value(v)[at], self.v_dim))
            }
        }
    }
}
