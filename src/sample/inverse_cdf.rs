//! Sampling by the inverse CDF.

use super::{Candidates, by_likelihood};
use crate::ops::sample::{gumbel, noise_key};

/// A uniform number u in (0, 1): recovered from the Gumbel noise -ln(-ln u) of an id that no token has.
pub(super) fn uniform(seed: u64, pos: u32, id: u32) -> f64 {
    let key = noise_key(seed as u32, (seed >> 32) as u32, pos);
    (-(-f64::from(gumbel(key, id))).exp()).exp()
}

/// The first token at which the cumulative probability passes a uniform number keyed by (seed, position), from the most likely down
/// where a filter ranked them, else by id.
pub(super) fn inverse_cdf(c: &mut Candidates, seed: u64, pos: u32) -> Option<u32> {
    let goal = uniform(seed, pos, u32::MAX) * c.weigh();
    if c.ranked {
        let cut = c.reach(|below| below, goal);
        // Rounding may leave a remainder after the last token.
        return cut.map(|cut| cut.last.id).or_else(|| c.list.iter().max_by(|a, b| by_likelihood(a, b)).map(|c| c.id));
    }
    let mut rest = goal;
    let passed = c.list.iter().zip(&c.weights).find(|(_, weight)| {
        rest -= **weight;
        rest < 0.0
    });
    passed.map(|(c, _)| c.id).or(c.list.last().map(|c| c.id))
}
