//! Top-k (Fan et al. 2018).

use super::{Candidates, by_likelihood};

/// Keeps the `k` most likely tokens, of equals those with the lowest ids; 0 keeps all.
pub(super) fn top_k(c: &mut Candidates, k: u32) {
    let k = k as usize;
    if k == 0 || k >= c.list.len() {
        return;
    }
    c.list.select_nth_unstable_by(k - 1, by_likelihood);
    c.list.truncate(k);
    c.list.sort_unstable_by_key(|c| c.id);
    c.ranked = true;
}
