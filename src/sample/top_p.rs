//! Top-p, or nucleus sampling (Holtzman et al. 2019).

use super::Candidates;

/// Keeps the most likely tokens up to the first at which their probabilities sum to `p`; at least one.
pub(super) fn top_p(c: &mut Candidates, p: f32) {
    if p >= 1.0 {
        return;
    }
    let weighed = c.weigh();
    c.cut(weighed.max, 0.0, f64::from(p) * weighed.sum);
}
