//! `attend`: scaled dot-product attention of each row over what its sequence has cached.

use super::{CacheId, ValueId, VectorId};

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
