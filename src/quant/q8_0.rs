//! Q8_0: `weight = d * q`, 32 weights a block.
//!
//! In a file: d (f16), q (32 × i8): 34 bytes. On the GPU: the quants of all blocks, four a word, then the scales of
//! all blocks, two a word. Source: `block_q8_0` and `quantize_row_q8_0_ref` in ggml.

use super::q8::{Group, Unpack};
use super::simd::{Blocks, Vector};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, put_f16, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 32;
const BYTES: usize = 34;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q8_0",
    ggml_type: 8,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: &[2..34, 0..2],
    wgsl: wgsl!("quant/q8_0"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let d = f16_at(block, 0);
    for j in 0..WEIGHTS {
        out[j] = f32::from(block[2 + j] as i8) * d;
    }
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 1;
    const BITS: u32 = 8;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        each(0, Group::new([w.bytes(2).biased(), w.bytes(18).biased()], w.f16s(0)));
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let max = weights.iter().fold(0.0, |max: f32, w| max.max(w.abs()));
    let d = max / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    put_f16(block, 0, d);
    for (q, w) in block[2..].iter_mut().zip(weights) {
        *q = (w * inverse).round() as i8 as u8; // half away from zero, as C's roundf
    }
}
