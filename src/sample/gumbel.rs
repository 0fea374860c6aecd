//! Gumbel-max sampling, as `ops/sample.rs` defines it for devices.

use super::Candidates;
use crate::ops::sample::{GROUP, bound_scores, gumbel as noise, noise_key};

/// `argmax_t(logit[t] + noise(seed, pos, t))`, ties to the lowest id.
pub(super) fn gumbel(c: &Candidates, seed: u64, pos: u32) -> Option<u32> {
    let key = noise_key(seed as u32, (seed >> 32) as u32, pos);
    let mut best = None::<(f32, u32)>;
    // Candidates are in the order of their ids.
    for group in c.list.chunks(GROUP) {
        let (mut bounds, mut tokens) = ([0.0; GROUP], [0; GROUP]);
        for (i, c) in group.iter().enumerate() {
            (bounds[i], tokens[i]) = (c.logit, c.id);
        }
        let bounds = &mut bounds[..group.len()];
        let most = bound_scores(bounds, &tokens, key, best.map_or(f32::NEG_INFINITY, |(score, _)| score));
        if best.is_some_and(|(score, _)| most < score) {
            continue;
        }
        for (bound, c) in bounds.iter().zip(group) {
            if best.is_none_or(|(score, _)| *bound >= score) {
                let score = c.logit + noise(key, c.id);
                if best.is_none_or(|(best, _)| score > best) {
                    best = Some((score, c.id));
                }
            }
        }
    }
    best.map(|(_, id)| id)
}
