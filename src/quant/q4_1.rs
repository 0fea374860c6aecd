//! Q4_1: `weight = d * q + m`, 32 weights a block.
//!
//! In a file: d (f16), m (f16), 16 bytes of nibbles, the low ones weights 0..16, the high ones 16..32: 20 bytes. On
//! the GPU: the nibbles of all blocks, four words a block, then one word a block: d in the low half, m in the high.
//! Source: `block_q4_1` and `quantize_row_q4_1_ref` in ggml.

use super::q8::{Group, Unpack};
use super::simd::{Blocks, Vector};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, put_f16, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 32;
const BYTES: usize = 20;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q4_1",
    ggml_type: 3,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: &[4..20, 0..4],
    wgsl: wgsl!("quant/q4_1"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let d = f16_at(block, 0);
    let m = f16_at(block, 2);
    for j in 0..WEIGHTS / 2 {
        out[j] = f32::from(block[4 + j] & 15) * d + m;
        out[j + WEIGHTS / 2] = f32::from(block[4 + j] >> 4) * d + m;
    }
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 1;
    const MINS: bool = true;
    const BITS: u32 = 4;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        let (q, head) = (w.bytes(4), w.words(0));
        let quants = [q.bits(0, 15, 0), q.bits(4, 15, 0)];
        each(0, Group { min: [V::negated(head.shr(16).f16_to_f32()); 2], ..Group::new(quants, head.f16_to_f32()) });
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let min = weights.iter().copied().fold(f32::INFINITY, f32::min);
    let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / 15.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    put_f16(block, 0, d);
    put_f16(block, 2, min);
    let quant = |w: f32| (((w - min) * inverse + 0.5) as u8).min(15);
    for j in 0..WEIGHTS / 2 {
        block[4 + j] = quant(weights[j]) | quant(weights[j + WEIGHTS / 2]) << 4;
    }
}
