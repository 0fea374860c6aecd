//! Sampling with filters, penalties, biases and allowed tokens, on the CPU.

use super::likeliest::{all_finite, few, largest, likeliest, place};
use super::noise::{Best, score};
use super::{ADJUSTED, BINNED, FILTERED, MASKED, RING, SampleEntry, WHOLE};

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

/// A polynomial for 2^-x on [0, 1] with alternating signs, in units of 2⁻¹⁶.
const FIT: [u32; 6] = [65536, 45426, 15740, 3624, 604, 62];

/// How far a logit lies below the largest: halvings of its weight, in units of 2⁻¹⁶, below 32.
fn depth(largest: f32, x: f32, scale: f32) -> u32 {
    // Conversion to integers saturates; infinity minus infinity is NaN, and becomes 0.
    ((largest - x) * scale).min(2_097_151.0) as u32
}

/// `2²⁶ * 2^-depth`, to a relative 2⁻¹⁴.
fn weight(depth: u32) -> u32 {
    let f = depth & 0xffff;
    let fold = |m: u32, c: &u32| c - ((f * m + 0x8000) >> 16);
    let m = FIT[..5].iter().rev().fold(FIT[5], fold);
    (m << 10) >> (depth >> 16)
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
        let allowed = |id: &u32| map.is_none_or(|map| map[*id as usize / 32] >> (id % 32) & 1 != 0);
        let ids = || (0..logits.len() as u32).filter(allowed);
        let best = |ids: &mut dyn Iterator<Item = u32>| {
            let key = sample.key();
            let scored = ids.map(|id| (score(logits[id as usize], sample.inv_temperature, key, id), id));
            scored.reduce(|a, b| if b.0 > a.0 || (b.0 == a.0 && b.1 < a.1) { b } else { a }).map(|(_, id)| id)
        };
        if sample.flags & FILTERED == 0 {
            return match map {
                Some(_) => best(&mut ids()),
                None => Best::of(logits, 0, sample.inv_temperature, sample.key()).token(),
            };
        }
        let largest = match map {
            Some(_) => ids().map(|id| logits[id as usize]).reduce(f32::max)?,
            None => largest(logits),
        };
        let depth = |id: u32| depth(largest, logits[id as usize], sample.depth_scale);
        let weight = |id: u32| u64::from(weight(depth(id)));
        let reach = |total: u64| (total * u64::from(sample.top_p)).div_ceil(u64::from(WHOLE));
        let mut last = BINS;
        let mut goal = 0;
        let quick = map.is_none() && sample.top_k != 0 && sample.top_k as usize <= few(logits.len());
        if sample.flags & BINNED != 0 && !quick {
            bins.clear();
            bins.resize(BINS, 0);
            ids().for_each(|id| bins[depth(id) as usize >> 11] += if sample.top_k != 0 { 1 } else { weight(id) });
            goal = if sample.top_k != 0 { u64::from(sample.top_k) } else { reach(bins.iter().sum()) };
            let mut sum = 0;
            last = bins
                .iter()
                .position(|bin| {
                    sum += bin;
                    sum >= goal
                })
                .unwrap_or(BINS);
        }
        if quick {
            likeliest(logits, sample.top_k as usize, kept);
        } else {
            kept.clear();
            kept.extend(ids().filter(|id| depth(*id) as usize >> 11 <= last).map(|id| place(logits[id as usize], id)));
            if sample.flags & BINNED != 0 {
                kept.sort_unstable();
            }
        }
        kept.truncate(if sample.top_k != 0 { sample.top_k as usize } else { kept.len() });
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
        best(&mut kept.iter().map(|place| *place as u32).filter(|id| depth(*id) <= sample.deepest))
    }
}
