//! Typical sampling (Meister et al. 2022).

use super::Candidates;

/// Keeps the tokens whose surprise `-ln p` is nearest to its mean, the entropy, up to the first at which their probabilities sum to
/// `p`; at least one. Of equally typical ones, the more likely first.
pub(super) fn typical(c: &mut Candidates, p: f32) {
    if p >= 1.0 {
        return;
    }
    c.sort();
    let sum = c.weigh();
    let entropy = c.weights.iter().filter(|w| **w > 0.0).map(|w| -(w / sum) * (w / sum).ln()).sum::<f64>();
    let distance = |i: usize| (-(c.weights[i] / sum).ln() - entropy).abs();
    let mut order: Vec<usize> = (0..c.list.len()).collect();
    order.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
    let enough = f64::from(p) * sum;
    let mut reached = 0.0;
    let kept = order.iter().position(|&i| {
        reached += c.weights[i];
        reached >= enough
    });
    order.truncate(kept.map_or(order.len(), |last| last + 1));
    order.sort_unstable();
    c.list = order.into_iter().map(|i| c.list[i]).collect();
}
