//! `rope_kv`: normalises and rotates the heads of q and k, and writes k and v to the cache, in one pass over a row.

use crate::Result;
use crate::cpu::Kind;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::check::{Shapes, holds, same};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{CacheBuffer, Lower, Lowered, ValueBuffer};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, PageHeads, operands};
use crate::ops::oracle::{OracleRun, Rows64, heads};
use crate::ops::{CacheId, KvStorage, NormKind, NormSpec, RopeSpec, ValueId};

/// The fused form of two [`Norm`](crate::ops::Norm)s of heads and two [`Rope`](crate::ops::Rope)s, where a model has them, and a
/// [`KvWrite`](crate::ops::KvWrite). *Made by fuse only.*
///
/// q (rows, heads * head_dim), k, v (rows, kv_heads * head_dim) f32, in one value or in three | out: q, rotated, (rows,
/// heads * head_dim) f32.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeKv {
    /// (rows, heads * head_dim)
    pub q: View,
    /// (rows, kv_heads * head_dim)
    pub k: View,
    /// (rows, kv_heads * head_dim)
    pub v: View,
    /// The norm of each head of q: an RMS norm without a bias.
    pub q_norm: Option<NormSpec>,
    /// The norm of each head of k.
    pub k_norm: Option<NormSpec>,
    /// The heads, and what happens to them after the norms.
    pub spec: RopeKvSpec,
    /// (rows, heads * head_dim)
    pub out: ValueId,
}

/// Heads of q, k and v that are rotated and stored: what [`RopeKv`] and an epilogue of [`Linear`](crate::ops::Linear) share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeKvSpec {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head, the same for q, k and v.
    pub head_dim: u32,
    /// None: learned positions or none at all; q and k pass through.
    pub rope: Option<RopeSpec>,
    /// Where k and v go.
    pub cache: CacheId,
}

/// Some columns of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The value.
    pub value: ValueId,
    /// Its columns.
    pub width: u32,
    /// The first column of the view.
    pub at: u32,
}

impl View {
    /// The views of q, k and v that are contiguous in a value.
    pub fn qkv(value: ValueId, heads: u32, kv_heads: u32, head_dim: u32) -> [Self; 3] {
        let width = (heads + 2 * kv_heads) * head_dim;
        [0, heads, heads + kv_heads].map(|before| Self { value, width, at: before * head_dim })
    }
}

operands!(RopeKv, f, RopeKv { q, k, v, q_norm, k_norm, spec: RopeKvSpec { rope, cache, .. }, out } => {
    for View { value, .. } in [q, k, v] {
        f(Access::Read, value.into());
    }
    for norm in [q_norm, k_norm].into_iter().flatten() {
        norm.operands(f);
    }
    if let Some(RopeSpec { table, .. }) = rope {
        f(Access::Read, table.into());
    }
    f(Access::Write, cache.into());
    f(Access::Write, out.into());
});

impl Operation for RopeKv {
    fn name(&self) -> &'static str {
        "rope_kv"
    }

    fn pages(&self) -> Option<PageHeads> {
        Some(self.spec.pages())
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        let RopeKvSpec { heads, kv_heads, head_dim, rope, .. } = self.spec;
        if let Some(rope) = rope {
            rope.check(name, head_dim, s)?;
        }
        for norm in [&self.q_norm, &self.k_norm].into_iter().flatten() {
            norm.check(name, 1, s)?;
            same(name, "a norm of heads", norm.n, head_dim)?;
            holds(name, norm.kind == NormKind::Rms && norm.bias.is_none(), || {
                "heads take an RMS norm without a bias".to_owned()
            })?;
        }
        let views = [("q", self.q, heads), ("k", self.k, kv_heads), ("v", self.v, kv_heads)];
        for (what, view, view_heads) in views {
            same(name, what, (s.width)(view.value), view.width)?;
            let last = u64::from(view.at) + u64::from(view_heads) * u64::from(head_dim);
            holds(name, last <= u64::from(view.width), || {
                format!("{what} is elements {} to {last} of {}", view.at, view.width)
            })?;
        }
        same(name, "out", (s.width)(self.out), heads * head_dim)
    }
}

// CPU

impl CpuForm for RopeKv {
    /// Splits heads.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (dim, units) = (self.spec.head_dim as usize, self.spec.units());
        for item in run.share.of(run.step.rows.len() * units, 1) {
            let (row, unit) = (item / units, item % units);
            let (part, index) = self.spec.unit(unit);
            let (view, norm) = match part {
                Qkv::Q => (self.q, self.q_norm),
                Qkv::K => (self.k, self.k_norm),
                Qkv::V => (self.v, None),
            };
            let x = run.value(view.value);
            let at = row * view.width as usize + view.at as usize + index * dim;
            let head = &mut run.scratch()[..dim];
            match norm {
                Some(norm) => norm.cpu(run, 0, x.slice(at..at + dim), head),
                None => head.copy_from_slice(x.slice(at..at + dim)),
            }
            self.spec.finish(run, unit, row, head, self.out);
        }
    }

    fn cpu_scratch(&self, _rows: usize) -> usize {
        self.spec.head_dim as usize
    }
}

impl RopeKvSpec {
    pub(in crate::ops) fn pages(&self) -> PageHeads {
        PageHeads { cache: self.cache, kv_heads: self.kv_heads, k_dim: self.head_dim, v_dim: self.head_dim }
    }

    /// Heads of q, k and v together.
    pub(in crate::ops) fn units(&self) -> usize {
        (self.heads + 2 * self.kv_heads) as usize
    }

    /// Which of q, k and v a head of a row belongs to, and its number there.
    pub(in crate::ops) fn unit(&self, unit: usize) -> (Qkv, usize) {
        let (heads, kv_heads) = (self.heads as usize, self.kv_heads as usize);
        match unit {
            u if u < heads => (Qkv::Q, u),
            u if u < heads + kv_heads => (Qkv::K, u - heads),
            u => (Qkv::V, u - heads - kv_heads),
        }
    }

    /// Rotates a head of a row, if it is one of q or k, and stores it where it belongs: q in `out`, k and v in the cache.
    pub(in crate::ops) fn finish(&self, run: &CpuRun<'_>, unit: usize, row: usize, head: &mut [f32], out: ValueId) {
        let (part, index) = self.unit(unit);
        if let (Some(spec), Qkv::Q | Qkv::K) = (self.rope, part) {
            spec.cpu(run, row, head);
        }
        let pages = run.cache(self.cache);
        let store = |kind| {
            let entry = run.step.rows[row];
            pages.store(kind, run.step.kv_slot(pages.group, entry.seq as usize, entry.pos as usize), index, head);
        };
        match part {
            Qkv::Q => {
                let start = (row * self.heads as usize + index) * head.len();
                run.value(out).slice_mut(start..start + head.len()).copy_from_slice(head);
            }
            Qkv::K => store(Kind::K),
            Qkv::V => store(Kind::V),
        }
    }
}

/// The three parts of a row, in their order.
#[derive(Clone, Copy)]
pub(in crate::ops) enum Qkv {
    Q,
    K,
    V,
}

// Oracle

impl OracleForm for RopeKv {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let RopeKvSpec { heads, kv_heads, head_dim, .. } = self.spec;
        let dim = head_dim as usize;
        let part = |view: View, heads: u32, norm: Option<NormSpec>, row: usize| -> Vec<f64> {
            let x = &run.value(view.value)[row][view.at as usize..][..heads as usize * dim];
            let head = |x: &[f64]| norm.map_or(x.to_vec(), |norm| norm.oracle(run, 0, x));
            x.chunks(dim).flat_map(head).collect()
        };
        let row = |row: usize| {
            let parts = [
                part(self.q, heads, self.q_norm, row),
                part(self.k, kv_heads, self.k_norm, row),
                part(self.v, kv_heads, None, row),
            ];
            parts.concat()
        };
        let qkv: Rows64 = (0..run.step.rows.len()).map(row).collect();
        let out = self.spec.oracle(run, &qkv);
        run.set(self.out, out);
    }
}

impl RopeKvSpec {
    /// Rotates rows of q | k | v that are normalised already, stores k and v, and returns q.
    pub(in crate::ops) fn oracle(&self, run: &mut OracleRun<'_>, qkv: &Rows64) -> Rows64 {
        let mut out = Vec::new();
        for (row, qkv) in qkv.iter().enumerate() {
            let all = heads(qkv, self.head_dim);
            let (q, kv) = all.split_at(self.heads as usize);
            let (k, v) = kv.split_at(self.kv_heads as usize);
            let rotated = |heads: &[Vec<f64>]| -> Rows64 {
                let rotate = |head: &Vec<f64>| self.rope.map_or(head.clone(), |spec| spec.oracle(run, row, head));
                heads.iter().map(rotate).collect()
            };
            let (q, k) = (rotated(q), rotated(k));
            out.push(q.concat());
            run.keep(self.cache, row, k, v.to_vec());
        }
        out
    }
}

// GPU

params! {
    pub(crate) struct Params {
        heads: u32,
        k_dim: u32,
        v_dim: u32,
        out_stride: u32,
        q_from: u32,
        q_stride: u32,
        k_from: u32,
        k_stride: u32,
        v_from: u32,
        v_stride: u32,
        q_norm: u32,
        k_norm: u32,
        q_eps: f32,
        k_eps: f32,
    }
}

impl GpuForm for RopeKv {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let RopeKvSpec { heads, head_dim, rope, cache, .. } = self.spec;
        let (out, cache) = (l.value(self.out), l.cache(cache));
        let (k_dim, v_dim, norms) = (head_dim, head_dim, [self.q_norm, self.k_norm]);
        let heads = Heads { heads, q: self.q, k: self.k, v: self.v, k_dim, v_dim, norms, rope };
        heads.lower(l, cache, Some(out))
    }
}

/// Elements of a unit of a head, which one thread computes.
const UNIT: u32 = 8;

/// Heads of q, k and v on their way to the cache, by one of two kernels.
pub(in crate::ops) struct Heads {
    pub(in crate::ops) heads: u32,
    /// Any view, where there are no query heads.
    pub(in crate::ops) q: View,
    pub(in crate::ops) k: View,
    pub(in crate::ops) v: View,
    pub(in crate::ops) k_dim: u32,
    pub(in crate::ops) v_dim: u32,
    /// Of q and k.
    pub(in crate::ops) norms: [Option<NormSpec>; 2],
    pub(in crate::ops) rope: Option<RopeSpec>,
}

impl Heads {
    /// Whether heads, views and rotations are not of complete vec4s and units, or the cache pads heads.
    fn ragged(&self, cache: &CacheBuffer) -> bool {
        let vec4s = [self.k_dim, self.v_dim, self.q.at, self.k.at, self.v.at];
        cache.shape.is_padded()
            || vec4s.iter().any(|n| !n.is_multiple_of(4))
            || self.rope.is_some_and(|r| !r.dims.is_multiple_of(UNIT))
    }

    pub(in crate::ops) fn lower(&self, l: &mut Lower<'_>, cache: &CacheBuffer, out: Option<&ValueBuffer>) -> Lowered {
        let (ragged, normed) = (self.ragged(cache), self.norms.iter().any(Option::is_some));
        // Norms, and the scales of 8-bit storage, are reductions over a head's threads.
        let whole_heads = normed || ragged || cache.shape.storage == KvStorage::Q8;
        let mut kernel = l.kernel(if whole_heads { kernels::NORM_ROPE_KV } else { kernels::ROPE_KV });
        l.rope(&mut kernel, self.rope.as_ref());
        l.angle_source(&mut kernel, self.rope.as_ref());
        l.kv_store(&mut kernel, cache)?;
        l.paged(&mut kernel, cache)?;
        let [q_norm, k_norm] = self.norms.map(|n| n.and_then(|n| n.weight).map_or(0, |w| l.vector(w)));
        let [q_eps, k_eps] = self.norms.map(|n| n.map_or(0.0, |n| n.eps));
        let [q, k, v] = [self.q, self.k, self.v].map(|view| l.value(view.value));
        let params = Params {
            heads: self.heads,
            k_dim: self.k_dim,
            v_dim: self.v_dim,
            out_stride: out.map_or(0, |out| out.stride()),
            q_from: self.q.at,
            q_stride: q.stride(),
            k_from: self.k.at,
            k_stride: k.stride(),
            v_from: self.v.at,
            v_stride: v.stride(),
            q_norm,
            k_norm,
            q_eps,
            k_eps,
        };
        let [q, k, v] = [q, k, v].map(|value| Arg::read(&value.buffer));
        let (out, kv) = (out.map_or(Arg::Unused, |out| Arg::Write(&out.buffer)), Arg::Write(&cache.buffer));
        let mut args = vec![Arg::read(l.step), l.angles(self.rope.map(|r| r.table)), q, k, v, out, kv];
        let heads = self.heads + 2 * cache.shape.kv_heads;
        let units = cache.shape.padded_k().max(cache.shape.padded_v()).div_ceil(UNIT);
        let threads = l.tuning.table.head.min(units.next_power_of_two());
        let group = l.tuning.table.reduce.max(threads);
        kernel.set("WG", group);
        kernel.set("THREADS", threads);
        let grid = [Dim::Fixed(heads.div_ceil(group / threads)), Dim::Rows(1), Dim::Fixed(1)];
        if !whole_heads {
            return l.plan.dispatch(&kernel, &params, &args, grid);
        }
        kernel.set("RAGGED", ragged);
        for (norm, [has, has_weight]) in self.norms.iter().zip([["Q_NORM", "HAS_Q_NORM_W"], ["K_NORM", "HAS_K_NORM_W"]])
        {
            kernel.set(has, norm.is_some());
            kernel.set(has_weight, norm.is_some_and(|norm| norm.weight.is_some()));
        }
        args.push(Arg::read(l.vectors));
        l.plan.dispatch(&kernel, &params, &args, grid)
    }
}
