//! The Gumbel-max draw, as `ops/sample.rs` defines it for devices.

use super::Candidates;
use super::noise::gumbel as noise;

/// `argmax_t(logit[t] + noise(seed, pos, t))`, ties to the lowest id.
pub(super) fn gumbel(c: &Candidates, seed: u64, pos: u32) -> Option<u32> {
    let scored = c.list.iter().map(|c| (c.logit + noise(seed, pos, c.id), c.id));
    scored.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, id)| id)
}
