//! Min-p (Nguyen et al. 2024).

use super::Candidates;

/// Keeps tokens at least `p` times as likely as the most likely one.
pub(super) fn min_p(c: &mut Candidates, p: f32) {
    if p <= 0.0 {
        return;
    }
    // probability ≥ p * largest, taken to logarithms: no softmax is needed.
    c.look_at(c.max() + p.ln());
    c.keep();
}
