//! `linear`: y = W x, the op that nine tenths of the time goes to, with what `fuse` folds into it.

use super::{Act, NormSpec, RopeKv, ValueId, VectorId, WeightId};

/// `out[r] = epi(W pre(x[r]) + b)`, where W is a stack of parts by rows.
///
/// x (rows, k) f32 | parts (nᵢ, k) any block format, each its own | out (rows, Σ nᵢ) f32, or what the epilogue says.
/// A canonical linear has one part, no `pre` and no `epi`.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// (rows, k)
    pub x: ValueId,
    /// Columns of every part.
    pub k: u32,
    /// The rows of W, stacked. More than one part is *set by fuse only*.
    pub parts: Vec<Part>,
    /// *Set by fuse only.*
    pub pre: Pre,
    /// *Set by fuse only.*
    pub epi: Epi,
    /// (rows, width of the epilogue's result)
    pub out: ValueId,
}

/// Some rows of a stacked weight matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// (n, k)
    pub weight: WeightId,
    /// Rows.
    pub n: u32,
    /// (n)
    pub bias: Option<VectorId>,
}

/// What happens to a row of x before the product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pre {
    /// Nothing.
    None,
    /// A norm over the whole row.
    Norm(NormSpec),
}

/// What happens to a row of W x + b before it is stored.
#[derive(Clone, Debug, PartialEq)]
pub enum Epi {
    /// Nothing: out (rows, Σ nᵢ).
    None,
    /// `out = residual + y`; residual and out (rows, n).
    Add(ValueId),
    /// `out = act(y)`.
    Act(Act),
    /// Two parts of the same n, gate then up: `out = act(gate) * up`, (rows, n).
    Gated(Act),
    /// Three parts q, k, v: q is rotated into `out` (rows, heads * head_dim); k, rotated, and v go to the cache.
    /// The `qkv` and `out` operands inside are not used.
    RopeKv(RopeKv),
}

impl Linear {
    /// Rows of the stacked matrix.
    pub fn n(&self) -> u32 {
        self.parts.iter().map(|p| p.n).sum()
    }
}
