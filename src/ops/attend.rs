//! `attend`: scaled dot-product attention of each row over what its sequence has cached.

use super::lower::{self, Lower, Lowered};
use super::{CacheId, ValueId, VectorId};
use crate::gpu::{Arg, Dim};

/// `out[r, h] = Σ_t softmax_t(scale * q[r, h] · k[t, h / g]) v[t, h / g]` over the positions t that the mask allows.
///
/// q (rows, heads * k_dim) f32 | out (rows, heads * v_dim) f32, with g = heads / kv_heads query heads to a KV head.
/// A row that may see nothing gives zeros.
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
}

// GPU

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    group: u32,
    k_dim: u32,
    v_dim: u32,
    q_stride: u32,
    out_stride: u32,
    sinks: u32,
    window: u32,
    full: u32,
    scale: f32,
    softcap: f32,
}

impl Attend {
    /// Positions in a tile, and threads of a workgroup.
    const TILE: u32 = 64;

    pub(crate) fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let Kv::Cache(cache) = self.kv else { return Err(lower::no_kernel("attention over packed rows")) };
        if self.v_dim > 4 * Self::TILE || self.k_dim > 8 * Self::TILE {
            return Err(lower::no_kernel(&format!("attention with heads of {} and {}", self.k_dim, self.v_dim)));
        }
        let (q, out, cache) = (l.value(self.q), l.value(self.out), l.cache(cache));
        let mut kernel = l.kernel("attend");
        l.paged(&mut kernel, cache);
        l.kv_load(&mut kernel);
        l.reduce(&mut kernel, Self::TILE);
        kernel.overrides.push(("HAS_SINKS", f64::from(u8::from(self.sinks.is_some()))));
        let params = Params {
            group: self.heads / self.kv_heads,
            k_dim: self.k_dim,
            v_dim: self.v_dim,
            q_stride: q.stride(),
            out_stride: out.stride(),
            sinks: self.sinks.map_or(0, |s| l.vector(s)),
            window: if let Mask::Window(n) = self.mask { n } else { 0 },
            full: u32::from(self.mask == Mask::Full),
            scale: self.scale,
            softcap: self.softcap,
        };
        let cache = Arg::read(&cache.buffer);
        let args = [Arg::read(l.step), Arg::read(&q.buffer), Arg::read(l.vectors), cache, Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [Dim::Fixed(self.heads), Dim::Rows(1), Dim::Fixed(1)])
    }
}
