//! Sampling by the inverse CDF.

use super::Candidates;
use crate::ops::sample::{gumbel, noise_key};

/// A uniform number u in (0, 1): recovered from the Gumbel noise -ln(-ln u) of an id that no token has.
pub(super) fn uniform(seed: u64, pos: u32, id: u32) -> f64 {
    let key = noise_key(seed as u32, (seed >> 32) as u32, pos);
    (-(-f64::from(gumbel(key, id))).exp()).exp()
}

/// The first token at which the cumulative probability passes a uniform number keyed by (seed, position).
pub(super) fn inverse_cdf(c: &mut Candidates, seed: u64, pos: u32) -> Option<u32> {
    let mut rest = uniform(seed, pos, u32::MAX) * c.weigh();
    let passed = c.list.iter().zip(&c.weights).find(|(_, weight)| {
        rest -= **weight;
        rest < 0.0
    });
    // Rounding may leave a remainder after the last token.
    passed.map(|(c, _)| c.id).or(c.list.last().map(|c| c.id))
}
