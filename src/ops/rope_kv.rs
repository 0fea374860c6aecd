//! `rope_kv`: rotates Q and K and writes K and V to the cache, in one pass over a fused Q|K|V row.

use super::lower::{self, Lower, Lowered};
use super::{CacheId, RopeSpec, ValueId};
use crate::gpu::{Arg, Dim};

/// The fused form of two [`Rope`](super::Rope)s and a [`KvWrite`](super::KvWrite). *Made by fuse only.*
///
/// qkv (rows, (heads + 2 kv_heads) * head_dim) f32 | out: q, rotated, (rows, heads * head_dim) f32.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeKv {
    /// (rows, (heads + 2 kv_heads) * head_dim): q, then k, then v
    pub qkv: ValueId,
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
    /// (rows, heads * head_dim)
    pub out: ValueId,
}

// GPU

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    heads: u32,
    head_dim: u32,
    stride: u32,
    out_stride: u32,
}

impl RopeKv {
    pub(crate) fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (qkv, out, cache) = (l.value(self.qkv), l.value(self.out), l.cache(self.cache));
        let mut kernel = l.kernel("rope_kv");
        l.paged(&mut kernel, cache);
        l.kv_store(&mut kernel);
        RopeSpec::lower(self.rope.as_ref(), &mut kernel);
        let (heads, head_dim) = (self.heads, self.head_dim);
        let params = Params { heads, head_dim, stride: qkv.stride(), out_stride: out.stride() };
        let angles = l.angles(self.rope.map(|r| r.table));
        let write = [Arg::Write(&out.buffer), Arg::Write(&cache.buffer)];
        let args = [Arg::read(l.step), angles, Arg::read(&qkv.buffer), write[0], write[1]];
        let threads = (heads + 2 * self.kv_heads) * head_dim / 4;
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(threads), Dim::Rows(1), Dim::Fixed(1)])
    }
}
