//! `norm`: root-mean-square and layer normalisation.

use super::{ValueId, VectorId};

/// Normalises groups of `spec.n` elements of each row.
///
/// x (rows, groups * n) f32 | out the same shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// (rows, groups * n)
    pub x: ValueId,
    /// How.
    pub spec: NormSpec,
    /// Groups in a row: 1 for a norm of the whole row, the number of heads for a per-head norm.
    pub groups: u32,
    /// (rows, groups * n)
    pub out: ValueId,
}

/// What a normalisation does to `n` elements, alone or folded into the [`Linear`](super::Linear) that follows.
///
/// * [`Rms`](NormKind::Rms): `y = weight * x / sqrt(mean(x²) + eps)` (Zhang & Sennrich 2019)
/// * [`Layer`](NormKind::Layer): `y = weight * (x - mean) / sqrt(var + eps) + bias` (Ba et al. 2016)
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Which of the two.
    pub kind: NormKind,
    /// Elements that are normalised together.
    pub n: u32,
    /// (n); none means ones. The same for every group.
    pub weight: Option<VectorId>,
    /// (n); none means zeros.
    pub bias: Option<VectorId>,
    /// Added to the mean square, or to the variance.
    pub eps: f32,
}

/// The kinds of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// By the root of the mean square.
    Rms,
    /// By mean and variance.
    Layer,
}
