//! Temperature: flattens (above 1) or sharpens (below 1) the distribution.

use super::Candidates;

/// `logit *= 1 / temperature`: a product with the f32 reciprocal, as devices do it.
pub(super) fn temperature(c: &mut Candidates, temperature: f32) {
    if temperature == 1.0 {
        return;
    }
    let inverse = (1.0 / temperature).min(f32::MAX); // infinity times zero would be NaN
    // A temperature near zero takes logits past the largest f32, where they would all be equal.
    c.logits.iter_mut().for_each(|logit| *logit = (*logit * inverse).clamp(f32::MIN, f32::MAX));
}
