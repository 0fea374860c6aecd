//! Gumbel-max sampling, as `ops/sample.rs` defines it for devices.

use super::Candidates;
use crate::ops::sample::{GROUP, noise_key, with_noise};

/// `argmax_t(logit[t] + noise(seed, pos, t))`, ties to the lowest id: candidates are in the order of their ids.
pub(super) fn gumbel(c: &Candidates, seed: u64, pos: u32) -> Option<u32> {
    let key = noise_key(seed as u32, (seed >> 32) as u32, pos);
    let mut best = (f32::NEG_INFINITY, c.list.first()?.id);
    for group in c.list.chunks(GROUP) {
        let (mut tokens, mut logits) = ([0; GROUP], [0.0; GROUP]);
        for (i, c) in group.iter().enumerate() {
            (tokens[i], logits[i]) = (c.id, c.logit);
        }
        with_noise(&mut best, &tokens, &logits[..group.len()], key);
    }
    Some(best.1)
}
