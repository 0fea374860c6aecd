//! Gumbel noise, and the choice of the best token. `wgsl/lib/noise.wgsl` computes the same, operation for operation.
//!
//! The noise takes two logarithms, which of a large vocabulary cost as much as a small model. So first comes a bound, which is
//! all that most tokens need.
#![allow(unsafe_code, reason = "code compiled for features of the CPU is called once they were found")]

use super::likeliest::{all_finite, largest};
use crate::cpu::simd::widened;

/// Mixes a word: Wellons' `lowbias32`, whose every output bit depends on every input bit.
#[inline(always)]
fn mix(mut h: u32) -> u32 {
    h ^= h >> 16;
    h = h.wrapping_mul(0x7feb_352d);
    h ^= h >> 15;
    h = h.wrapping_mul(0x846c_a68b);
    h ^ h >> 16
}

/// The key of one sample's noise: from the two words of the seed and the position of the token that is sampled.
pub(crate) fn noise_key(seed_lo: u32, seed_hi: u32, pos: u32) -> [u32; 2] {
    let a = mix(seed_lo ^ mix(pos.wrapping_add(0x9e37_79b9)));
    [a, mix(seed_hi ^ a.wrapping_add(0x85eb_ca6b))]
}

/// An odd number of 24 bits for a token.
#[inline(always)]
fn uniform(key: [u32; 2], token: u32) -> u32 {
    mix(mix(token ^ key[0]).wrapping_add(key[1])) >> 8 | 1
}

/// Gumbel noise of a token: `-ln(-ln u)` with u an odd multiple of 2⁻²⁴.
pub(crate) fn gumbel(key: [u32; 2], token: u32) -> f32 {
    -ln(-ln(uniform(key, token) as f32 * (1.0 / 16_777_216.0)))
}

/// Tokens whose bounds are computed together.
pub(super) const GROUP: usize = 64;
/// A group before it has any: none of these is ever the best.
const NO_TOKENS: ([u32; GROUP], [f32; GROUP]) = ([u32::MAX; GROUP], [f32::NEG_INFINITY; GROUP]);

/// More than rounding can remove.
const MORE: f32 = 1e-3;
/// The largest noise: of the u next to 1.
const LARGEST: f32 = std::f32::consts::LN_2 * 24.0 + MORE;

/// `scores[i]` of a logit becomes no less than it and the noise of `tokens[i]` are together.
///
/// `-ln u ≥ 1 - u`, and the binary logarithm of a float is no less than its bits, read as a number with a fraction of 23 bits, less
/// 127. Sums of floats are monotonic, so no sum with the noise itself is larger.
#[inline(always)]
fn bound_scores(scores: &mut [f32; GROUP], tokens: &[u32; GROUP], key: [u32; 2]) {
    const PER_BIT: f32 = std::f32::consts::LN_2 / 8_388_608.0;
    const ALL: f32 = std::f32::consts::LN_2 * (24.0 + 127.0) + MORE;
    for i in 0..GROUP {
        let rest = (0x0100_0000 - uniform(key, tokens[i])) as i32 as f32;
        scores[i] += ALL - rest.to_bits() as i32 as f32 * PER_BIT;
    }
}

/// Whether one of the scores, with as much more, is no less than the best. The largest would say more, but takes no vectors.
#[inline(always)]
fn one_reaches(best: f32, scores: &[f32; GROUP], more: f32) -> bool {
    let mut any = false;
    for score in scores {
        any |= score + more >= best;
    }
    any
}

/// The natural logarithm of a positive normal number, to 2 units in the last place, in plain products and sums: the
/// polynomial of Cephes' `logf` on [√½, √2).
fn ln(x: f32) -> f32 {
    const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
    const FIT: [f32; 9] = [
        7.037_683_6e-2,
        -1.151_461e-1,
        1.167_699_87e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ];
    let shifted = x.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let exponent = (shifted as i32 >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007f_ffff) + SQRT_HALF_BITS) - 1.0;
    let z = m * m;
    let fit = FIT.iter().fold(0.0, |sum, c| sum * m + c);
    let y = fit * m * z + exponent * -2.121_944_4e-4 - 0.5 * z;
    m + y + exponent * 0.693_359_4
}

/// `logit / temperature`. Clamped, since a temperature near zero would take logits past the largest f32.
#[inline(always)]
pub(super) fn scaled(logit: f32, inv_temperature: f32) -> f32 {
    (logit * inv_temperature).clamp(-3.0e38, 3.0e38)
}

/// `logit / temperature + noise`, or the logit where the temperature is 0.
#[cfg(test)]
pub(super) fn score(logit: f32, inv_temperature: f32, key: [u32; 2], token: u32) -> f32 {
    if inv_temperature == 0.0 {
        return logit;
    }
    scaled(logit, inv_temperature) + gumbel(key, token)
}

widened! {
    /// The largest sum of a logit and its token's noise, and the token, of equals the one with the lowest id; `best` if none is
    /// larger. That begins at -infinity and any token.
    pub(crate) fn with_noise(best: (f32, u32), tokens: &[u32], logits: &[f32], key: [u32; 2]) -> (f32, u32) = with_noise_body;
}

#[inline(always)]
fn with_noise_body(mut best: (f32, u32), tokens: &[u32], logits: &[f32], key: [u32; 2]) -> (f32, u32) {
    for (some, logits) in tokens.chunks(GROUP).zip(logits.chunks(GROUP)) {
        let (mut tokens, mut group) = NO_TOKENS;
        tokens[..some.len()].copy_from_slice(some);
        group[..logits.len()].copy_from_slice(logits);
        group_with_noise(&mut best, &tokens, &group, key);
    }
    best
}

widened! {
    /// The same of the tokens from `first` on, and of their logits times `inv_temperature`.
    fn scaled_with_noise(first: u32, logits: &[f32], inv_temperature: f32, key: [u32; 2]) -> (f32, u32) = scaled_with_noise_body;
}

#[inline(always)]
fn scaled_with_noise_body(first: u32, logits: &[f32], inv_temperature: f32, key: [u32; 2]) -> (f32, u32) {
    let mut best = (Best::NONE.score, Best::NONE.token);
    for (first, logits) in (first..).step_by(GROUP).zip(logits.chunks(GROUP)) {
        let (mut tokens, mut group) = NO_TOKENS;
        for (i, logit) in logits.iter().enumerate() {
            tokens[i] = first + i as u32;
            group[i] = scaled(*logit, inv_temperature);
        }
        group_with_noise(&mut best, &tokens, &group, key);
    }
    best
}

#[inline(always)]
fn group_with_noise(best: &mut (f32, u32), tokens: &[u32; GROUP], logits: &[f32; GROUP], key: [u32; 2]) {
    if !one_reaches(best.0, logits, LARGEST) {
        return;
    }
    let mut bounds = *logits;
    bound_scores(&mut bounds, tokens, key);
    if !one_reaches(best.0, &bounds, 0.0) {
        return;
    }
    for ((bound, token), logit) in bounds.iter().zip(tokens).zip(logits) {
        if *bound >= best.0 {
            let score = logit + gumbel(key, *token);
            if score > best.0 || (score == best.0 && *token < best.1) {
                *best = (score, *token);
            }
        }
    }
}

/// The best token of some of a row's logits.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Zeroable)]
pub(crate) struct Best {
    pub(crate) score: f32,
    pub(crate) token: u32,
    /// Whether all logits were finite.
    pub(crate) finite: bool,
}

impl Best {
    /// The best of no logits.
    pub(crate) const NONE: Self = Self { score: f32::NEG_INFINITY, token: u32::MAX, finite: true };

    /// The best of the logits of tokens `first..`; an `inv_temperature` of 0 samples greedily.
    pub(crate) fn of(logits: &[f32], first: u32, inv_temperature: f32, key: [u32; 2]) -> Self {
        let mut best = Self { finite: all_finite(logits), ..Self::NONE };
        if inv_temperature == 0.0 {
            let largest = largest(logits);
            // None of NaNs alone, which sample nothing.
            if let Some((token, _)) = (first..).zip(logits).find(|(_, logit)| **logit == largest) {
                (best.score, best.token) = (largest, token);
            }
            return best;
        }
        (best.score, best.token) = scaled_with_noise(first, logits, inv_temperature, key);
        best
    }

    /// The better of the two; ties go to the lowest id.
    pub(crate) fn max(self, other: Self) -> Self {
        let other_wins = other.score > self.score || (other.score == self.score && other.token < self.token);
        let winner = if other_wins { other } else { self };
        Self { finite: self.finite && other.finite, ..winner }
    }

    /// A token that was sampled of a whole row, or that nothing could be.
    pub(crate) fn picked(token: Option<u32>) -> Self {
        token.map_or(Self { finite: false, ..Self::NONE }, |token| Self { score: f32::MAX, token, finite: true })
    }

    /// The token, whether or not all logits were finite.
    pub(super) fn token(self) -> Option<u32> {
        (self.token != u32::MAX).then_some(self.token)
    }

    /// The sampled token.
    pub(crate) fn sampled(self) -> Option<u32> {
        self.token().filter(|_| self.finite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(logits: &[f32], temperature: f32, seed: u64, pos: u32) -> Option<u32> {
        let key = noise_key(seed as u32, (seed >> 32) as u32, pos);
        let inverse = if temperature > 0.0 { 1.0 / temperature } else { 0.0 };
        // In two parts, as two threads would.
        let (low, high) = logits.split_at(logits.len() / 2);
        let low = Best::of(low, 0, inverse, key);
        let high = Best::of(high, (logits.len() / 2) as u32, inverse, key);
        let sampled = low.max(high);
        assert_eq!(sampled, high.max(low), "the maximum commutes");
        sampled.sampled()
    }

    /// Pearson's statistic of 100 000 samples against the softmax in f64, over positions of one seed and over seeds.
    #[test]
    fn samples_follow_the_softmax() {
        const SAMPLES: u32 = 100_000;
        let logits = [1.5f32, -0.5, 0.0, 2.0, -3.0, 0.7, 0.7, 1.0, -1.0, 2.5, -2.0, 0.1];
        for (temperature, over_positions) in [(1.0, true), (1.0, false), (0.6, true), (2.5, false)] {
            let weights = logits.map(|l| f64::from(l / temperature).exp());
            let total: f64 = weights.iter().sum();
            let mut counts = [0u32; 12];
            for i in 0..SAMPLES {
                let (seed, pos) = if over_positions { (0x1234_5678_9abc_def0, i) } else { (u64::from(i), 17) };
                counts[sample(&logits, temperature, seed, pos).unwrap() as usize] += 1;
            }
            let statistic: f64 = counts
                .iter()
                .zip(weights)
                .map(|(&count, weight)| {
                    let expected = f64::from(SAMPLES) * weight / total;
                    (f64::from(count) - expected).powi(2) / expected
                })
                .sum();
            // 11 degrees of freedom: one in a million would be above 50. The samples are fixed, so this cannot flicker.
            assert!(statistic < 35.0, "{statistic} at temperature {temperature}: {counts:?}");
        }
    }

    /// Samples of neighbouring positions, and of neighbouring seeds, are independent.
    #[test]
    fn samples_are_independent() {
        let logits = [0.0f32; 4];
        for by_seed in [false, true] {
            let mut counts = [0u32; 16];
            for i in 0..40_000u32 {
                let at =
                    |i: u32| if by_seed { sample(&logits, 1.0, u64::from(i), 3) } else { sample(&logits, 1.0, 9, i) };
                counts[(at(2 * i).unwrap() * 4 + at(2 * i + 1).unwrap()) as usize] += 1;
            }
            let statistic: f64 = counts.iter().map(|&c| (f64::from(c) - 2500.0).powi(2) / 2500.0).sum();
            assert!(statistic < 45.0, "{statistic}: {counts:?}"); // 15 degrees of freedom
        }
    }

    #[test]
    fn greedy_ties_go_to_the_lowest_id_and_broken_rows_sample_nothing() {
        assert_eq!(sample(&[0.0, 2.0, 1.0, 2.0, 2.0, -1.0], 0.0, 5, 5), Some(1));
        assert_eq!(sample(&[-2.0, -2.0, -2.0], 0.0, 5, 5), Some(0));
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..4 {
                let mut logits = [1.0, 3.0, 2.0, 0.0];
                logits[at] = broken;
                assert_eq!(sample(&logits, 0.0, 5, 5), None);
                assert_eq!(sample(&logits, 0.7, 5, 5), None);
            }
        }
        assert_eq!(sample(&[], 0.0, 5, 5), None);
    }

    #[test]
    fn the_logarithm_is_right_to_a_few_units() {
        let mut worst: f64 = 0.0;
        for i in 0..200_000u32 {
            let odd = (i.wrapping_mul(2_654_435_761) >> 8) | 1;
            for x in [
                odd as f32 / 16_777_216.0,
                1.0 + odd as f32 / 8_388_608.0,
                odd as f32,
                1.0 - (i + 1) as f32 / 16_777_216.0,
            ] {
                let exact = f64::from(x).ln();
                let unit = f64::from(f32::EPSILON) * exact.abs().max(1e-7);
                worst = worst.max((f64::from(ln(x)) - exact).abs() / unit);
            }
        }
        assert!(worst < 2.0, "{worst} units");
        // The ends of the noise are finite.
        assert!((-ln(-ln(1.0 / 16_777_216.0))).is_finite() && (-ln(-ln(16_777_215.0 / 16_777_216.0))).is_finite());
    }

    /// The best is that of all scores, whatever bounds spare.
    #[test]
    fn no_token_is_passed_over() {
        let number = |i: u32| mix(i) as f32 * 2.0f32.powi(-31) - 1.0;
        for case in 0..400u32 {
            let len = [1, 3, GROUP as u32, GROUP as u32 + 1, 1000, 5000][case as usize % 6];
            let spread = [0.0f32, 1.0, 20.0, 1e30, f32::MAX][case as usize / 6 % 5];
            let logits: Vec<f32> = (0..len).map(|i| number(case * 10_000 + i) * spread).collect();
            let key = noise_key(case, 7, 3 * case);
            for inverse in [0.01, 1.0, 1.7, 1e6, f32::MAX] {
                let scores = logits.iter().zip(5..).map(|(logit, token)| (score(*logit, inverse, key, token), token));
                let first = scores.reduce(|a, b| if b.0 > a.0 { b } else { a }).unwrap();
                let best = Best::of(&logits, 5, inverse, key);
                assert_eq!((best.score, best.token), first, "{len} logits up to {spread}, 1 / {inverse}");
            }
        }
        // Of any noise.
        let key = noise_key(3, 1, 4);
        let tokens: Vec<u32> = (0..1 << 20).collect();
        let mut bounds = vec![0.0; tokens.len()];
        for (bounds, tokens) in bounds.as_chunks_mut().0.iter_mut().zip(tokens.as_chunks().0) {
            bound_scores(bounds, tokens, key);
        }
        let mut near = 0;
        for (bound, token) in bounds.iter().zip(&tokens) {
            let noise = gumbel(key, *token);
            assert!(*bound >= noise, "{token}: {bound} for {noise}");
            near += u32::from(noise > 3.0 && bound - noise < 0.1);
        }
        // Where the noise is large, the bound is close.
        assert!(near > 40_000, "{near}");
    }

    /// Values that `wgsl/lib/noise.wgsl` must give, too.
    #[test]
    fn the_noise_is_fixed() {
        let key = noise_key(1, 2, 3);
        assert_eq!((mix(1), key), (0x688990c0, [0x50f4f2, 0x5ceb65d9]));
        for (token, noise) in [(0, -0.10158), (1, 1.17367), (49_151, -0.239704)] {
            assert!((gumbel(key, token) - noise).abs() < 2e-6, "{token}: {}", gumbel(key, token));
        }
    }
}
