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
