//! `kv_write`: stores keys and values in the cache.

use super::{CacheId, ValueId};

/// Writes each row's K and V to the slot of its position in the cache's pages.
///
/// k (rows, kv_heads * k_dim) | v (rows, kv_heads * v_dim) f32; stored in the cache's element type.
#[derive(Clone, Debug, PartialEq)]
pub struct KvWrite {
    /// (rows, kv_heads * k_dim)
    pub k: ValueId,
    /// (rows, kv_heads * v_dim)
    pub v: ValueId,
    /// Where they go.
    pub cache: CacheId,
    /// Heads of K and V.
    pub kv_heads: u32,
    /// Elements of a key.
    pub k_dim: u32,
    /// Elements of a value.
    pub v_dim: u32,
}
