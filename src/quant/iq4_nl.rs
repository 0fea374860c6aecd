//! IQ4_NL: `weight = d * LEVELS[q]`, 32 weights a block: four-bit numbers of levels that lie closer together around 0.
//!
//! In a file and on the GPU: as Q4_0. Source: `block_iq4_nl` and `kvalues_iq4nl` in ggml; the encoder is our own.

use super::q8::{Group, Unpack};
use super::simd::{Blocks, Vector};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, fit, put_f16, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 32;
const BYTES: usize = 18;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "IQ4_NL",
    ggml_type: 20,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: &[2..18, 0..2],
    wgsl: wgsl!("quant/iq4_nl"),
};

/// The sixteen levels.
pub(super) const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let d = f16_at(block, 0);
    for j in 0..WEIGHTS / 2 {
        let byte = usize::from(block[2 + j]);
        out[j] = d * f32::from(LEVELS[byte & 15]);
        out[j + WEIGHTS / 2] = d * f32::from(LEVELS[byte >> 4]);
    }
}

/// The number of the level nearest to `x`: how many midpoints between neighbours lie below it.
#[inline(always)]
pub(super) fn nearest(x: f32) -> u8 {
    LEVELS.windows(2).map(|pair| u8::from(2.0 * x > f32::from(pair[0]) + f32::from(pair[1]))).sum()
}

/// The level nearest to `x`: from the lowest up by the steps whose midpoints lie below it.
#[inline(always)]
fn level(x: f32) -> f32 {
    let mut level = f32::from(LEVELS[0]);
    for pair in 0..15 {
        let (low, high) = (f32::from(LEVELS[pair]), f32::from(LEVELS[pair + 1]));
        level += if 2.0 * x > low + high { high - low } else { 0.0 };
    }
    level
}

/// The step that suits 32 weights.
pub(super) fn step(x: &[f32; WEIGHTS]) -> f32 {
    let peaks = (0..15).map(|i| -127.0 + (i - 7) as f32).chain([113.0]);
    fit::scale(x, &x.map(|x| x * x), peaks, level)
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 1;
    const BITS: u32 = 8;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        let q = w.bytes(2);
        let quants = [q.bits(0, 15, 0).lookup(&LEVELS), q.bits(4, 15, 0).lookup(&LEVELS)];
        each(0, Group::new(quants, w.f16s(0)));
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let d = step(weights);
    put_f16(block, 0, d);
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    for j in 0..WEIGHTS / 2 {
        block[2 + j] = nearest(weights[j] * inverse) | nearest(weights[j + WEIGHTS / 2] * inverse) << 4;
    }
}
