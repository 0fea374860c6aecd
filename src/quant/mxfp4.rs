//! MXFP4: `weight = 2^(e - 127) * q`, 32 weights a block: the OCP's microscaling format, q a float of four bits (E2M1).
//!
//! In a file: e (u8), 16 bytes of nibbles, the low ones weights 0..16, the high ones 16..32: 17 bytes. On the GPU: the nibbles
//! of all blocks, four words a block, then the exponents, four a word. Source: OCP Microscaling Formats 1.0, `block_mxfp4` and
//! `quantize_row_mxfp4_ref` in ggml.

use super::q8::{Group, Unpack};
use super::simd::{Blocks, Vector};
use super::{FormatInfo, decode_blocks, encode_blocks, largest, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 32;
const BYTES: usize = 17;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "MXFP4",
    ggml_type: 39,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: &[1..17, 0..1],
    wgsl: wgsl!("quant/mxfp4"),
};

/// Twice the numbers of E2M1, which makes them integers.
const DOUBLES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `2^(e - 128)`, for doubles; exact in f32, where the two smallest are subnormal.
#[inline(always)]
fn half_scale(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let scale = half_scale(block[0]);
    for j in 0..WEIGHTS / 2 {
        let byte = usize::from(block[1 + j]);
        out[j] = f32::from(DOUBLES[byte & 15]) * scale;
        out[j + WEIGHTS / 2] = f32::from(DOUBLES[byte >> 4]) * scale;
    }
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 1;
    const BITS: u32 = 8;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        let q = w.bytes(1);
        let quants = [q.bits(0, 15, 0).lookup(&DOUBLES), q.bits(4, 15, 0).lookup(&DOUBLES)];
        // `half_scale` as a product of two powers of two that are no subnormals.
        let e = w.words(0).unsigned(0);
        let power = |half: V| half.add(V::word(63)).shl(23).as_floats();
        each(0, Group::new(quants, V::mul_floats(power(e.shr(1)), power(e.add(V::word(1)).shr(1)))));
    }
}

/// The largest weight's exponent is that of 4, the largest power of two in E2M1.
fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let exponent = largest(weights).to_bits() >> 23 & 255;
    block[0] = exponent.saturating_sub(2) as u8;
    let scale = half_scale(block[0]);
    let quant = |w: f32| {
        // The first of the nearest: ties to the smaller, and to +0.
        let distance = |q: usize| (f32::from(DOUBLES[q]) * scale - w).abs();
        (1..DOUBLES.len()).fold(0, |best, q| if distance(q) < distance(best) { q } else { best }) as u8
    };
    for j in 0..WEIGHTS / 2 {
        block[1 + j] = quant(weights[j]) | quant(weights[j + WEIGHTS / 2]) << 4;
    }
}
