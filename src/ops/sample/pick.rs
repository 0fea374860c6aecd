//! Sampling with filters, penalties, biases and allowed tokens, on the CPU.
//!
//! Vocabularies are large, and few of their tokens are likely. So passes over all of it are made of vector instructions, and
//! what is done one by one is done for tokens that are not too deep: of 8 halvings at first, of more where those do not reach.
#![allow(unsafe_code, reason = "code compiled for features of the CPU is called once they were found")]

use std::ops::Range;

use super::likeliest::{all_finite, few, gather, largest, likeliest, place};
use super::noise::{Best, GROUP, scaled, with_noise};
use super::{ADJUSTED, BINNED, FILTERED, MASKED, RING, SampleEntry, WHOLE};
use crate::cpu::simd::widened;

/// Samples one token at a time, and reuses its memory.
#[derive(Debug, Default)]
pub(crate) struct Picker {
    /// Logits after penalties and bias.
    adjusted: Vec<f32>,
    /// Sums of weights, or counts, of tokens by depth: 32 bins per halving of the weight.
    bins: Vec<u64>,
    /// The places of the tokens that may be kept.
    kept: Vec<u64>,
}

/// Bins of depths.
const BINS: usize = 1024;
/// The bins that are looked at first, and then where the cut is not among them.
const FIRST: [usize; 3] = [BINS / 4, BINS / 2, BINS];
/// Units of depth in a bin, as a power of two.
const BIN_BITS: u32 = 11;

/// A polynomial for 2^-x on [0, 1] with alternating signs, in units of 2⁻¹⁶.
const FIT: [u32; 6] = [65536, 45426, 15740, 3624, 604, 62];

/// How far a logit lies below the largest: halvings of its weight, in units of 2⁻¹⁶, below 32.
#[inline(always)]
fn depth(largest: f32, x: f32, scale: f32) -> u32 {
    // Conversion to integers saturates.
    ((largest - x) * scale).min(2_097_151.0) as i32 as u32
}

/// `2²⁶ * 2^-depth`, to a relative 2⁻¹⁴.
#[inline(always)]
fn weight(depth: u32) -> u32 {
    let f = depth & 0xffff;
    let mut m = FIT[5];
    for c in FIT[..5].iter().rev() {
        m = c - ((f * m + 0x8000) >> 16);
    }
    (m << 10) >> (depth >> 16)
}

widened! {
    /// The sum of the logits' weights.
    fn total_weight(logits: &[f32], largest: f32, scale: f32) -> u64 = total_weight_body;
}

#[inline(always)]
fn total_weight_body(logits: &[f32], largest: f32, scale: f32) -> u64 {
    const LANES: usize = 16;
    let mut total = 0;
    // The sum of 32 weights is below 2³².
    for part in logits.chunks(32 * LANES) {
        let mut sums = [0u32; LANES];
        let (whole, rest) = part.as_chunks::<LANES>();
        for part in whole {
            for (sum, x) in sums.iter_mut().zip(part) {
                *sum += weight(depth(largest, *x, scale));
            }
        }
        for x in rest {
            total += u64::from(weight(depth(largest, *x, scale)));
        }
        for sum in sums {
            total += u64::from(sum);
        }
    }
    total
}

/// Adds the places of those tokens from `first` on whose logits are less deep than a bin.
fn above(logits: &[f32], first: u32, (largest, scale): (f32, f32), bin: usize, places: &mut Vec<u64>) {
    // Of what is computed in floats as `depth` does; the last bin has all that is deeper, too.
    let limit = if bin < BINS { (bin << BIN_BITS) as f32 } else { f32::INFINITY };
    let is_above = |x: f32| bin == BINS || (largest - x) * scale < limit;
    gather(logits, first, is_above, |id, x| place(x, id), places);
}

/// The ranges of tokens that a map allows, each as long as it can be; without a map, of all.
fn ranges(map: Option<&[u32]>, vocab: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    // The bits of a word from a token's on.
    let bits = move |at: usize| map.map_or(u32::MAX, |map| map[at / 32] >> (at % 32));
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < vocab && bits(at) == 0 {
            at = (at / 32 + 1) * 32;
        }
        // The last word may have bits of no token.
        let first = if at < vocab { at + bits(at).trailing_zeros() as usize } else { vocab };
        if first >= vocab {
            return None;
        }
        at = first;
        while at < vocab {
            let ones = bits(at).trailing_ones() as usize;
            at += ones;
            if ones == 0 || !at.is_multiple_of(32) {
                break;
            }
        }
        Some(first..at.min(vocab))
    })
}

/// Penalties and bias: changes the logits of the tokens that the sample's lists name. `ring` holds the tokens sampled last
/// for the sample's slot, by position.
pub(crate) fn adjust(sample: &SampleEntry, lists: &[u32], ring: &[u32], logits: &mut [f32]) {
    let part = |[at, count]: [u32; 2]| lists[at as usize..][..2 * count as usize].as_chunks::<2>().0;
    let recent = || (1..=sample.pending).map(|j| ring[(sample.pos.wrapping_sub(j) % RING) as usize]);
    let times = |token: u32| recent().filter(|t| *t == token).count() as u32;
    let mut penalise = |token: u32, count: u32| {
        let x = &mut logits[token as usize];
        let scaled = *x * if *x > 0.0 { sample.inv_repeat } else { sample.repeat };
        *x = scaled - (count as f32 * sample.frequency + sample.presence);
    };
    let counts = part(sample.counts);
    counts.iter().for_each(|[token, count]| penalise(*token, count + times(*token)));
    for (j, token) in recent().enumerate() {
        if recent().take(j).all(|t| t != token) && counts.iter().all(|[t, _]| *t != token) {
            penalise(token, times(token));
        }
    }
    part(sample.bias).iter().for_each(|[token, bias]| logits[*token as usize] += f32::from_bits(*bias));
}

impl Picker {
    /// Samples a token from its logits; none if one of them is NaN or infinite, or no token is allowed.
    pub(crate) fn pick(&mut self, sample: &SampleEntry, lists: &[u32], ring: &[u32], logits: &[f32]) -> Option<u32> {
        if !all_finite(logits) {
            return None;
        }
        let Self { adjusted, bins, kept } = self;
        let mut logits = logits;
        if sample.flags & ADJUSTED != 0 {
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            adjust(sample, lists, ring, adjusted);
            logits = adjusted;
        }
        let map = if sample.flags & MASKED != 0 { Some(&lists[sample.allowed as usize..]) } else { None };
        let ranges = || ranges(map, logits.len());
        if sample.flags & FILTERED == 0 {
            let of =
                |r: Range<usize>| Best::of(&logits[r.clone()], r.start as u32, sample.inv_temperature, sample.key());
            return ranges().map(of).fold(Best::NONE, Best::max).token();
        }
        let largest = ranges().map(|r| largest(&logits[r])).reduce(f32::max)?;
        let scale = sample.depth_scale;
        let depth = |id: u32| depth(largest, logits[id as usize], scale);
        let weight = |id: u32| u64::from(weight(depth(id)));
        let reach = |total: u64| (total * u64::from(sample.top_p)).div_ceil(u64::from(WHOLE));
        let all_above = |bin: usize, kept: &mut Vec<u64>| {
            kept.clear();
            ranges().for_each(|r| above(&logits[r.clone()], r.start as u32, (largest, scale), bin, kept));
        };
        let mut goal = 0;
        if map.is_none() && sample.top_k != 0 && sample.top_k as usize <= few(logits.len()) {
            likeliest(logits, sample.top_k as usize, kept);
        } else if sample.flags & BINNED != 0 {
            goal = match sample.top_k {
                0 => reach(ranges().map(|r| total_weight(&logits[r], largest, scale)).sum()),
                k => u64::from(k),
            };
            for first in FIRST {
                all_above(first, kept);
                bins.clear();
                bins.resize(BINS, 0);
                for id in kept.iter().map(|place| *place as u32) {
                    bins[(depth(id) >> BIN_BITS) as usize] += if sample.top_k != 0 { 1 } else { weight(id) };
                }
                let mut sum = 0;
                let last = bins[..first].iter().position(|bin| {
                    sum += bin;
                    sum >= goal
                });
                if last.is_some() || first == BINS {
                    kept.retain(|place| last.is_none_or(|last| (depth(*place as u32) >> BIN_BITS) as usize <= last));
                    break;
                }
            }
            let k = sample.top_k as usize;
            if k != 0 && k < kept.len() {
                kept.select_nth_unstable(k - 1);
                kept.truncate(k);
            }
            if sample.top_p < WHOLE {
                kept.sort_unstable();
            }
        } else {
            // Min-p alone.
            all_above((sample.deepest as usize >> BIN_BITS).saturating_add(1).min(BINS), kept);
        }
        if sample.top_p < WHOLE {
            if sample.top_k != 0 {
                goal = reach(kept.iter().map(|place| weight(*place as u32)).sum());
            }
            let mut sum = 0;
            let reached = kept.iter().position(|place| {
                sum += weight(*place as u32);
                sum >= goal
            });
            kept.truncate(reached.map_or(kept.len(), |last| last + 1));
        }
        kept.retain(|place| depth(*place as u32) <= sample.deepest);
        // Ties go to the lowest id, in whatever order they come: the likeliest first spare the others their noise.
        let mut best = (Best::NONE.score, Best::NONE.token);
        for places in kept.chunks(GROUP) {
            let (mut tokens, mut group) = ([0; GROUP], [0.0; GROUP]);
            for (i, place) in places.iter().enumerate() {
                let id = *place as u32;
                (tokens[i], group[i]) = (id, scaled(logits[id as usize], sample.inv_temperature));
            }
            best = with_noise(best, &tokens, &group[..places.len()], sample.key());
        }
        (best.1 != Best::NONE.token).then_some(best.1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::noise::score;
    use super::super::{SampleLists, SampleSpec};
    use super::*;

    fn random(state: &mut u64) -> u32 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 32) as u32
    }

    /// The description at the head of the module, in the plainest way.
    fn by_sorting(sample: &SampleEntry, map: Option<&[u32]>, logits: &[f32]) -> Option<u32> {
        let is_allowed = |id: &u32| map.is_none_or(|map| map[*id as usize / 32] >> (id % 32) & 1 != 0);
        let mut ids: Vec<u32> = (0..logits.len() as u32).filter(is_allowed).collect();
        ids.sort_by(|a, b| logits[*b as usize].partial_cmp(&logits[*a as usize]).unwrap().then(a.cmp(b)));
        let largest = logits[*ids.first()? as usize];
        let depth = |id: u32| depth(largest, logits[id as usize], sample.depth_scale);
        let weight = |id: u32| u64::from(weight(depth(id)));
        ids.truncate(if sample.top_k != 0 { sample.top_k as usize } else { ids.len() });
        if sample.top_p < WHOLE {
            let total: u64 = ids.iter().map(|id| weight(*id)).sum();
            let goal = (total * u64::from(sample.top_p)).div_ceil(u64::from(WHOLE));
            let mut sum = 0;
            let reached = ids.iter().position(|id| {
                sum += weight(*id);
                sum >= goal
            });
            ids.truncate(reached.map_or(ids.len(), |last| last + 1));
        }
        ids.retain(|id| depth(*id) <= sample.deepest);
        ids.sort_unstable();
        let scored = ids.iter().map(|id| score(logits[*id as usize], sample.inv_temperature, sample.key(), *id));
        scored.zip(&ids).reduce(|a, b| if b.0 > a.0 { b } else { a }).map(|(_, id)| *id)
    }

    #[test]
    fn what_is_picked_is_what_sorting_picks() {
        let (mut picker, state) = (Picker::default(), &mut 0x2545_f491_4f6c_dd1d);
        for case in 0..3000u32 {
            let len = [1usize, 31, 32, 33, 700, 5000][random(state) as usize % 6];
            // Flat, ordinary and peaked rows, some with equal logits, some with the largest floats.
            let spread = [0.0, 0.01, 3.0, 12.0, 100.0, f32::MAX][random(state) as usize % 6];
            let levels = [3, u32::MAX][random(state) as usize % 2];
            let number = |n: u32| (n % levels) as f32 / levels as f32 * 2.0 - 1.0;
            let logits: Vec<f32> = (0..len).map(|_| number(random(state)) * spread).collect();
            let spec = SampleSpec {
                temperature: [0.3, 1.0, 1.9][random(state) as usize % 3],
                seed: u64::from(random(state)),
                top_k: [0, 0, 1, 5, 40, 900][random(state) as usize % 6],
                top_p: [1.0, 0.1, 0.9, 0.999][random(state) as usize % 4],
                min_p: [0.0, 0.05, 1.0, 1e-9][random(state) as usize % 4],
                ..SampleSpec::GREEDY
            };
            // None, a word of each, runs, few.
            let (form, few) = (random(state) % 5, 1 << (random(state) % 32));
            let word =
                |n: u32| [u32::MAX, n, 0x0fff_fff0, if n.is_multiple_of(3) { u32::MAX } else { 0 }, few][form as usize];
            let map: Vec<u32> = (0..len.div_ceil(32)).map(|_| word(random(state))).collect();
            let map = (form != 0).then_some(&map[..]);
            let lists = SampleLists { allowed: map, ..SampleLists::default() };
            let mut words = Vec::new();
            let entry = SampleEntry::new(&spec, &lists, [0, 0, case], len as u32, &mut words).unwrap();
            let ring = [0; RING as usize];
            let picked = picker.pick(&entry, &words, &ring, &logits);
            assert_eq!(picked, by_sorting(&entry, map, &logits), "{spec:?}, {len} logits up to {spread}, map {form}");
        }
    }

    #[test]
    fn ranges_are_the_bits_of_a_map() {
        let state = &mut 7;
        for len in [0usize, 1, 31, 32, 33, 64, 95, 200] {
            for form in 0..6 {
                let word = |n: u32| [0, u32::MAX, n, n & 1, n | 1 << 31, 0x8000_0001][form];
                let map: Vec<u32> = (0..len.div_ceil(32)).map(|_| word(random(state))).collect();
                let mut bits = Vec::new();
                let mut end = 0;
                for r in ranges(Some(&map), len) {
                    assert!(r.start < r.end && (bits.is_empty() || r.start > end), "{r:?}");
                    end = r.end;
                    bits.extend(r);
                }
                let expected: Vec<usize> = (0..len).filter(|at| map[at / 32] >> (at % 32) & 1 != 0).collect();
                assert_eq!(bits, expected);
            }
            assert_eq!(ranges(None, len).flatten().collect::<Vec<_>>(), (0..len).collect::<Vec<_>>());
        }
    }
}
