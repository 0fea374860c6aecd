//! `kv_write`: stores keys and values in the cache.

use crate::Result;
use crate::cpu::Kind;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::check::{Shapes, holds, same};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{self, Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, PageHeads, operands};
use crate::ops::oracle::{OracleRun, heads};
use crate::ops::rotary::rope_kv::{Heads, View};
use crate::ops::{CacheId, KvStorage, ValueId};

/// Writes each row's K and V to the slot of its position in the cache's pages.
///
/// k (rows, kv_heads * k_dim) | v (rows, kv_heads * v_dim) f32; stored in the cache's element type. Where values lie within
/// keys (multi-head latent attention), there is no v: the first `v_dim` elements of k are read as such.
#[derive(Clone, Debug, PartialEq)]
pub struct KvWrite {
    /// (rows, kv_heads * k_dim)
    pub k: ValueId,
    /// (rows, kv_heads * v_dim); none where values lie within keys
    pub v: Option<ValueId>,
    /// Where they go.
    pub cache: CacheId,
    /// Heads of K and V.
    pub kv_heads: u32,
    /// Elements of a key.
    pub k_dim: u32,
    /// Elements of a value.
    pub v_dim: u32,
}

operands!(KvWrite, f, KvWrite { k, v, cache, .. } => {
    f(Access::Read, k.into());
    if let Some(v) = v {
        f(Access::Read, v.into());
    }
    f(Access::Write, cache.into());
});

impl Operation for KvWrite {
    fn name(&self) -> &'static str {
        "kv_write"
    }

    fn pages(&self) -> Option<PageHeads> {
        Some(PageHeads { cache: self.cache, kv_heads: self.kv_heads, k_dim: self.k_dim, v_dim: self.v_dim })
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        same(name, "k", (s.width)(self.k), self.kv_heads * self.k_dim)?;
        match self.v {
            Some(v) => same(name, "v", (s.width)(v), self.kv_heads * self.v_dim),
            None => holds(name, self.v_dim <= self.k_dim, || {
                format!("values of {} within keys of {}", self.v_dim, self.k_dim)
            }),
        }
    }
}

// CPU

impl CpuForm for KvWrite {
    /// Splits heads.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (k, pages) = (run.value(self.k), run.cache(self.cache));
        let v = self.v.map(|v| run.value(v));
        let [heads, k_dim, v_dim] = [self.kv_heads, self.k_dim, self.v_dim].map(|d| d as usize);
        for item in run.share.of(run.step.rows.len() * heads, 1) {
            let row = run.step.rows[item / heads];
            let at = run.step.kv_slot(pages.group, row.seq as usize, row.pos as usize);
            pages.store(Kind::K, at, item % heads, k.slice(item * k_dim..(item + 1) * k_dim));
            if let Some(v) = v {
                pages.store(Kind::V, at, item % heads, v.slice(item * v_dim..(item + 1) * v_dim));
            }
        }
    }
}

// Oracle

impl OracleForm for KvWrite {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        for row in 0..run.step.rows.len() {
            let k = heads(&run.value(self.k)[row], self.k_dim);
            let v = match self.v {
                Some(v) => heads(&run.value(v)[row], self.v_dim),
                None => k.iter().map(|k| k[..self.v_dim as usize].to_vec()).collect(),
            };
            run.keep(self.cache, row, k, v);
        }
    }
}

// GPU

params! {
    pub(crate) struct Params {
        k_stride: u32,
        v_stride: u32,
        k_dim: u32,
        v_dim: u32,
    }
}

impl GpuForm for KvWrite {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (k, cache) = (l.value(self.k), l.cache(self.cache));
        // Where values lie within keys, the binding of v still needs a buffer.
        let v = l.value(self.v.unwrap_or(self.k));
        if cache.shape.storage == KvStorage::Q8 {
            // The scale of a vector is a reduction over threads.
            let k = View { value: self.k, width: self.kv_heads * self.k_dim, at: 0 };
            let value = self.v.ok_or_else(|| lower::no_kernel("an 8-bit cache with values within keys"))?;
            let v = View { value, width: self.kv_heads * self.v_dim, at: 0 };
            let (k_dim, v_dim) = (self.k_dim, self.v_dim);
            let heads = Heads { heads: 0, q: k, k, v, k_dim, v_dim, norms: [None; 2], rope: None };
            return heads.lower(l, cache, None);
        }
        let mut kernel = l.kernel(kernels::KV_WRITE);
        l.kv_store(&mut kernel, cache)?;
        l.paged(&mut kernel, cache)?;
        let (k_stride, v_stride) = (k.stride(), v.stride());
        let params = Params { k_stride, v_stride, k_dim: self.k_dim, v_dim: self.v_dim };
        let args = [Arg::read(l.step), Arg::read(&k.buffer), Arg::read(&v.buffer), Arg::Write(&cache.buffer)];
        let ragged = cache.shape.is_padded() || [self.k_dim, self.v_dim].iter().any(|dim| !dim.is_multiple_of(4));
        kernel.set("RAGGED", ragged);
        let vec4s = cache.shape.padded_k().max(cache.shape.padded_v()) / 4;
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(self.kv_heads * vec4s), Dim::Rows(1), Dim::Fixed(1)])
    }
}
