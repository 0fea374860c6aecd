//! Q5_0: `weight = d * (q - 16)`, 32 weights a block.
//!
//! In a file: d (f16), 32 fifth bits, one a weight, 16 bytes of nibbles, the low ones weights 0..16, the high ones 16..32:
//! 22 bytes. On the GPU: the nibbles of all blocks, four words a block, then the fifth bits, a word a block, then the scales,
//! two a word. Source: `block_q5_0` and `quantize_row_q5_0_ref` in ggml.

use super::q8::{Group, Unpack};
use super::simd::{Blocks, Bytes, Vector};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, largest, put_f16, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 32;
const BYTES: usize = 22;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q5_0",
    ggml_type: 6,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: &[6..22, 2..6, 0..2],
    wgsl: wgsl!("quant/q5_0"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let d = f16_at(block, 0);
    let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for j in 0..WEIGHTS / 2 {
        let bit = |i: usize| ((fifth >> i & 1) << 4) as u8;
        out[j] = f32::from((block[6 + j] & 15 | bit(j)) as i8 - 16) * d;
        out[j + WEIGHTS / 2] = f32::from((block[6 + j] >> 4 | bit(j + WEIGHTS / 2)) as i8 - 16) * d;
    }
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 1;
    const BITS: u32 = 5;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        let (q, fifths) = (w.bytes(6), w.words(2));
        let quants = [q.bits(0, 15, 0).or(Bytes::fifths(fifths, 0)), q.bits(4, 15, 0).or(Bytes::fifths(fifths, 2))];
        each(0, Group::new(quants, w.f16s(0)));
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let d = largest(weights) / -16.0; // the largest weight becomes -16, of which there is no opposite
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    put_f16(block, 0, d);
    let quant = |w: f32| ((w * inverse + 16.5) as u8).min(31);
    let quants = weights.map(quant);
    let fifth = (0..WEIGHTS).fold(0, |bits, i| bits | u32::from(quants[i] >> 4) << i);
    block[2..6].copy_from_slice(&fifth.to_le_bytes());
    for j in 0..WEIGHTS / 2 {
        block[6 + j] = quants[j] & 15 | quants[j + WEIGHTS / 2] << 4;
    }
}
