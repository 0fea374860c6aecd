//! `sample`: draws the next token from a row of logits, on the device.

use super::ValueId;
use super::lower::{Lower, Lowered, WIDE};
use crate::gpu::{Arg, Buffer, Dim};

/// How a token is drawn: greedily, or by Gumbel-max at a temperature.
///
/// `argmax_t(logit[t] / temperature + g(seed, position, t))` with g Gumbel noise is a draw from the softmax (Gumbel 1954);
/// the maximum is associative, so the result does not depend on the grid, nor on the batch. Ties go to the lowest id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleSpec {
    /// 0 draws greedily.
    pub temperature: f32,
    /// Keys the noise, with the position of the drawn token and the token's id.
    pub seed: u64,
}

impl SampleSpec {
    /// The most likely token.
    pub const GREEDY: Self = Self { temperature: 0.0, seed: 0 };
}

// The draw. `wgsl/lib/noise.wgsl` says the same, operation for operation.

/// Mixes a word: Wellons' `lowbias32`, whose every output bit depends on every input bit.
fn mix(mut h: u32) -> u32 {
    h ^= h >> 16;
    h = h.wrapping_mul(0x7feb_352d);
    h ^= h >> 15;
    h = h.wrapping_mul(0x846c_a68b);
    h ^ h >> 16
}

/// Keys the noise of one draw: from the seed's halves and the position of the token that is drawn.
pub(crate) fn noise_key(seed_lo: u32, seed_hi: u32, pos: u32) -> [u32; 2] {
    let a = mix(seed_lo ^ mix(pos.wrapping_add(0x9e37_79b9)));
    [a, mix(seed_hi ^ a.wrapping_add(0x85eb_ca6b))]
}

/// Gumbel noise of a token: `-ln(-ln u)` with u an odd multiple of 2⁻²⁴.
pub(crate) fn gumbel(key: [u32; 2], token: u32) -> f32 {
    let bits = mix(mix(token ^ key[0]).wrapping_add(key[1]));
    let u = ((bits >> 8) | 1) as f32 * (1.0 / 16_777_216.0);
    -ln(-ln(u))
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
        3.333_333_1e-1,
    ];
    let shifted = x.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let exponent = (shifted as i32 >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007f_ffff) + SQRT_HALF_BITS) - 1.0;
    let z = m * m;
    let fit = FIT.iter().fold(0.0, |sum, c| sum * m + c);
    let y = fit * m * z + exponent * -2.121_944_4e-4 - 0.5 * z;
    m + y + exponent * 0.693_359_375
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
    /// Of no logits.
    pub(crate) const NONE: Self = Self { score: f32::NEG_INFINITY, token: u32::MAX, finite: true };

    /// Of the logits of tokens `first..`; an `inv_temperature` of 0 draws greedily.
    pub(crate) fn of(logits: &[f32], first: u32, inv_temperature: f32, key: [u32; 2]) -> Self {
        let mut best = Self::NONE;
        for (token, logit) in (first..).zip(logits) {
            // Bits, not comparisons: all ones in the exponent are infinities and NaNs.
            best.finite &= logit.to_bits() & 0x7f80_0000 != 0x7f80_0000;
            let score = if inv_temperature == 0.0 { *logit } else { logit * inv_temperature + gumbel(key, token) };
            if score > best.score {
                (best.score, best.token) = (score, token);
            }
        }
        best
    }

    /// Of both; ties go to the lowest id.
    pub(crate) fn max(self, other: Self) -> Self {
        let other_wins = other.score > self.score || (other.score == self.score && other.token < self.token);
        let winner = if other_wins { other } else { self };
        Self { finite: self.finite && other.finite, ..winner }
    }

    /// The drawn token.
    pub(crate) fn drawn(self) -> Option<u32> {
        (self.finite && self.token != u32::MAX).then_some(self.token)
    }
}

// GPU

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct PartParams {
    vocab: u32,
    stride: u32,
    parts: u32,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct MergeParams {
    parts: u32,
    slots: u32,
}

/// Logits that one workgroup looks through.
const PART: u32 = 2048;

/// Parts of a row of logits, and so entries of `best` that a row needs.
pub(crate) fn parts(vocab: u32) -> u32 {
    vocab.div_ceil(PART)
}

/// Draws from each output row: `best` (outs, parts) of 4 words, `drawn` (slots), `result` (outs).
pub(crate) fn lower(
    l: &mut Lower<'_>,
    logits: ValueId,
    best: &Buffer,
    drawn: &Buffer,
    result: &Buffer,
    slots: u32,
) -> Lowered {
    let logits = l.value(logits);
    let parts = parts(logits.width);
    let kernel = l.kernel("sample");
    let params = PartParams { vocab: logits.width, stride: logits.stride(), parts };
    let args = [Arg::read(l.step), Arg::read(&logits.buffer), Arg::Write(best)];
    l.plan.dispatch(&kernel, &params, &args, [Dim::Fixed(parts), Dim::Outs(1), Dim::Fixed(1)])?;
    let kernel = l.kernel("sample_merge");
    let args = [Arg::read(l.step), Arg::read(best), Arg::Write(drawn), Arg::Write(result)];
    l.plan.dispatch(&kernel, &MergeParams { parts, slots }, &args, [Dim::Outs(WIDE), Dim::Fixed(1), Dim::Fixed(1)])
}
