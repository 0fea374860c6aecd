//! Typical sampling (Meister et al. 2022).

use super::{Candidates, added};

/// Keeps the tokens whose surprise `-ln p` is nearest to its mean, the entropy, up to the first at which their probabilities sum to
/// `p`; at least one. Of equally typical ones, the more likely first.
pub(super) fn typical(c: &mut Candidates, p: f32) {
    if p >= 1.0 || c.list.is_empty() {
        return;
    }
    let sum = c.weigh();
    let max = f64::from(c.max());
    // A surprise is how far a logit lies below the largest, and the logarithm of the sum: so is its mean.
    let below = |logit: f32| max - f64::from(logit);
    c.bins.clear();
    c.bins.extend(c.list.iter().zip(&c.weights).map(|(c, weight)| weight * below(c.logit)));
    let mean = added(&c.bins) / sum;
    let distance = |below: f64| (below - mean).abs();
    let cut = c.reach(distance, f64::from(p) * sum);
    c.cut(distance, cut);
}
