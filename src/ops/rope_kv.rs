//! `rope_kv`: rotates Q and K and writes K and V to the cache, in one pass over a fused Q|K|V row.

use super::{CacheId, RopeSpec, ValueId};

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
