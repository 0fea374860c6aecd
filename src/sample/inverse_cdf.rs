//! The inverse-CDF draw.

use super::Candidates;
use super::noise::uniform;

/// The first token at which the cumulative probability passes a uniform number keyed by (seed, position).
pub(super) fn inverse_cdf(c: &mut Candidates, seed: u64, pos: u32) -> Option<u32> {
    // One number a position; no token has this id, so that the number is not one of the Gumbel draw's.
    let u = f64::from(uniform(seed, pos, u32::MAX));
    let mut rest = u * c.weigh();
    let passed = c.list.iter().zip(&c.weights).find(|(_, weight)| {
        rest -= **weight;
        rest < 0.0
    });
    // Rounding may leave a rest behind the last token.
    passed.map(|(c, _)| c.id).or(c.list.last().map(|c| c.id))
}
