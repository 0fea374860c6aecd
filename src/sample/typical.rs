//! Typical sampling (Meister et al. 2022).

use super::Candidates;

/// Keeps the tokens whose surprise `-ln p` is nearest to its mean, the entropy, up to the first at which their probabilities sum to
/// `p`; at least one. Of equally typical ones, the more likely first.
pub(super) fn typical(c: &mut Candidates, p: f32) {
    if p >= 1.0 || c.ids.is_empty() {
        return;
    }
    // A surprise is how far a logit lies below the largest, and the logarithm of the sum: so is its mean.
    let weighed = c.weigh();
    c.cut(weighed.max, weighed.below, f64::from(p) * weighed.sum);
}
