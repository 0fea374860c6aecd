//! Top-k (Fan et al. 2018).

use super::Candidates;
use crate::ops::sample::likeliest;

/// Keeps the `k` most likely tokens, of equals those with the lowest ids; 0 keeps all.
pub(super) fn top_k(c: &mut Candidates, k: u32) {
    let k = k as usize;
    if k == 0 || k >= c.ids.len() {
        return;
    }
    likeliest(&c.logits, k, &mut c.likeliest);
    c.places.clear();
    c.places.extend(c.likeliest.iter().map(|place| *place as u32));
    c.places.sort_unstable();
    c.keep();
    c.ranked = true;
}
