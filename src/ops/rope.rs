//! `rope`: rotary position embedding (Su et al. 2021).

use super::{RopeId, ValueId};

/// Rotates pairs of each head's first `spec.dims` elements by the angles of the row's position.
///
/// `(a, b) -> (a cos - b sin, a sin + b cos)`; x (rows, heads * head_dim) f32 | out the same shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// (rows, heads * head_dim)
    pub x: ValueId,
    /// Heads in a row.
    pub heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Which elements are rotated, and by what.
    pub spec: RopeSpec,
    /// (rows, heads * head_dim)
    pub out: ValueId,
}

/// Which elements of a head are rotated, and by what angles.
///
/// The cosines and sines come with the step, computed once a row in f64 on the host: `Packed::angles`. So all devices rotate
/// by the same angles, scaling variants (linear, llama3, yarn, longrope) are tables of divisors, and no kernel reduces a
/// large angle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeSpec {
    /// The table of angles.
    pub table: RopeId,
    /// How elements pair up.
    pub pairing: Pairing,
    /// Elements that are rotated, from the head's first; even. The rest pass through.
    pub dims: u32,
}

/// Which two elements make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// (0, 1), (2, 3), …: the paper's; GGUF files of `llama`.
    Interleaved,
    /// (0, d/2), (1, d/2 + 1), …: GPT-NeoX's; safetensors folders.
    Neox,
}
