//! Q5_1: `weight = d * q + m`, 32 weights a block.
//!
//! In a file: d (f16), m (f16), 32 fifth bits, one a weight, 16 bytes of nibbles, the low ones weights 0..16, the high ones
//! 16..32: 24 bytes. On the GPU: the nibbles of all blocks, four words a block, then the fifth bits, a word a block, then one
//! word a block: d in the low half, m in the high. Source: `block_q5_1` and `quantize_row_q5_1_ref` in ggml.

use super::q8::{Group, Unpack};
use super::simd::{Blocks, Bytes, Vector};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, put_f16, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 32;
const BYTES: usize = 24;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q5_1",
    ggml_type: 7,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: &[8..24, 4..8, 0..4],
    wgsl: wgsl!("quant/q5_1"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let fifth = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for j in 0..WEIGHTS / 2 {
        let bit = |i: usize| ((fifth >> i & 1) << 4) as u8;
        out[j] = f32::from(block[8 + j] & 15 | bit(j)) * d + m;
        out[j + WEIGHTS / 2] = f32::from(block[8 + j] >> 4 | bit(j + WEIGHTS / 2)) * d + m;
    }
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 1;
    const MINS: bool = true;
    const BITS: u32 = 5;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        let (q, head, fifths) = (w.bytes(8), w.words(0), w.words(4));
        let quants = [q.bits(0, 15, 0).or(Bytes::fifths(fifths, 0)), q.bits(4, 15, 0).or(Bytes::fifths(fifths, 2))];
        each(0, Group { min: [V::negated(head.shr(16).f16_to_f32()); 2], ..Group::new(quants, head.f16_to_f32()) });
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let min = weights.iter().copied().fold(f32::INFINITY, f32::min);
    let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / 31.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    put_f16(block, 0, d);
    put_f16(block, 2, min);
    let quants = weights.map(|w| (((w - min) * inverse + 0.5) as u8).min(31));
    let fifth = (0..WEIGHTS).fold(0, |bits, i| bits | u32::from(quants[i] >> 4) << i);
    block[4..8].copy_from_slice(&fifth.to_le_bytes());
    for j in 0..WEIGHTS / 2 {
        block[8 + j] = quants[j] & 15 | quants[j + WEIGHTS / 2] << 4;
    }
}
