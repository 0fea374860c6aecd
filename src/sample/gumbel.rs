//! Gumbel-max sampling, as `ops/sample.rs` defines it for devices.

use super::{Candidate, Candidates, by_likelihood};
use crate::ops::sample::{gumbel as noise, noise_key};

/// `argmax_t(logit[t] + noise(seed, pos, t))`, ties to the lowest id.
pub(super) fn gumbel(c: &Candidates, seed: u64, pos: u32) -> Option<u32> {
    let key = noise_key(seed as u32, (seed >> 32) as u32, pos);
    let scored = c.list.iter().map(|c| Candidate { id: c.id, logit: c.logit + noise(key, c.id) });
    scored.min_by(by_likelihood).map(|best| best.id)
}
