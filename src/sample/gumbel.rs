//! Gumbel-max sampling, as `ops/sample.rs` defines it for devices.

use super::Candidates;
use crate::ops::sample::{noise_key, with_noise};

/// `argmax_t(logit[t] + noise(seed, pos, t))`, ties to the lowest id.
pub(super) fn gumbel(c: &Candidates, seed: u64, pos: u32) -> Option<u32> {
    let key = noise_key(seed as u32, (seed >> 32) as u32, pos);
    let first = (f32::NEG_INFINITY, *c.ids.first()?);
    Some(with_noise(first, &c.ids, &c.logits, key).1)
}
