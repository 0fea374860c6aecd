//! Sampling by the inverse CDF.

use super::{Candidates, Weighed, by_likelihood};
use crate::cpu::simd;
use crate::ops::sample::{gumbel, noise_key};

/// A uniform number u in (0, 1): recovered from the Gumbel noise -ln(-ln u) of an id that no token has.
pub(super) fn uniform(seed: u64, pos: u32, id: u32) -> f64 {
    let key = noise_key(seed as u32, (seed >> 32) as u32, pos);
    (-(-f64::from(gumbel(key, id))).exp()).exp()
}

/// The first token at which the cumulative probability passes a uniform number keyed by (seed, position), from the most likely down
/// where a filter ranked them, else by id.
pub(super) fn inverse_cdf(c: &mut Candidates, seed: u64, pos: u32) -> Option<u32> {
    let Weighed { max, sum, .. } = c.weigh();
    let goal = uniform(seed, pos, u32::MAX) * sum;
    if c.ranked {
        let last = c.reach(max, 0.0, goal).map(|cut| cut.last);
        // Rounding may leave a remainder after the last token.
        let last = last.or_else(|| (0..c.ids.len() as u32).max_by(|a, b| by_likelihood(&c.logits, *a, *b)));
        return last.map(|at| c.ids[at as usize]);
    }
    const GROUP: usize = 512;
    let mut rest = goal;
    for (ids, logits) in c.ids.chunks(GROUP).zip(c.logits.chunks(GROUP)) {
        c.weights.clear();
        c.weights.extend(logits.iter().map(|logit| f64::from(*logit) - max));
        simd::exp_of_negatives(&mut c.weights);
        let passed = c.weights.iter().position(|weight| {
            rest -= *weight;
            rest < 0.0
        });
        if let Some(at) = passed {
            return Some(ids[at]);
        }
    }
    c.ids.last().copied()
}
