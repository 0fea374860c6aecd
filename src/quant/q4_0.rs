//! Q4_0: `weight = d * (q - 8)`, 32 weights a block.
//!
//! In a file: d (f16), 16 bytes of nibbles, the low ones weights 0..16, the high ones 16..32: 18 bytes. On the GPU: the
//! nibbles of all blocks, four words a block, then the scales of all blocks, two a word. Source: `block_q4_0` and
//! `quantize_row_q4_0_ref` in ggml.

use super::q8::{Group, Unpack};
use super::simd::{Blocks, Vector};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, largest, put_f16, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 32;
const BYTES: usize = 18;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q4_0",
    ggml_type: 2,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: &[2..18, 0..2],
    wgsl: wgsl!("quant/q4_0"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let d = f16_at(block, 0);
    for j in 0..WEIGHTS / 2 {
        out[j] = f32::from((block[2 + j] & 15) as i8 - 8) * d;
        out[j + WEIGHTS / 2] = f32::from((block[2 + j] >> 4) as i8 - 8) * d;
    }
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 1;
    const BITS: u32 = 4;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        let q = w.bytes(2);
        each(0, Group::new([q.bits(0, 15, 0), q.bits(4, 15, 0)], w.f16s(0)));
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let d = largest(weights) / -8.0; // the largest weight becomes -8, of which there is no opposite
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    put_f16(block, 0, d);
    let quant = |w: f32| ((w * inverse + 8.5) as u8).min(15);
    for j in 0..WEIGHTS / 2 {
        block[2 + j] = quant(weights[j]) | quant(weights[j + WEIGHTS / 2]) << 4;
    }
}
