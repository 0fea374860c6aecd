//! Top-p, or nucleus sampling (Holtzman et al. 2019).

use super::Candidates;

/// Keeps the most likely tokens up to the first at which their probabilities sum to `p`; at least one.
pub(super) fn top_p(c: &mut Candidates, p: f32) {
    if p >= 1.0 {
        return;
    }
    c.sort();
    let enough = f64::from(p) * c.weigh();
    let mut sum = 0.0;
    let reached = c.weights.iter().position(|w| {
        sum += w;
        sum >= enough
    });
    if let Some(last) = reached {
        c.list.truncate(last + 1);
    }
}
