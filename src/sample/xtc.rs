//! XTC, exclude top choices (p-e-w, oobabooga/text-generation-webui#6335).

use super::{Candidates, by_likelihood, inverse_cdf};

/// Removes the most likely tokens, so that the text is less expected; the least likely of them stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// How often; 0 never. 0 to 1.
    pub probability: f32,
    /// Tokens at least this likely are removed, except the least likely of them. 0 to 1; above 0.5 there are never two of
    /// them.
    pub threshold: f32,
}

impl Xtc {
    /// Never.
    pub const NONE: Self = Self { probability: 0.0, threshold: 0.1 };
}

/// An id that no token has, and whose noise nothing else uses.
const CHANCE: u32 = u32::MAX - 1;

pub(super) fn xtc(c: &mut Candidates, xtc: &Xtc, seed: u64, pos: u32) {
    if xtc.probability <= 0.0 || inverse_cdf::uniform(seed, pos, CHANCE) >= f64::from(xtc.probability) {
        return;
    }
    let weighed = c.weigh();
    c.look_at_exactly(weighed.logit(f64::from(xtc.threshold) * weighed.sum));
    if let Some(last) = c.places.iter().copied().max_by(|a, b| by_likelihood(&c.logits, *a, *b)) {
        c.places.retain(|at| *at != last);
        c.remove();
        c.ranked = true;
    }
}
