//! BF16: the upper half of an IEEE binary32, little-endian, one number a block. The GPU form is the file's, two
//! numbers a word.

use super::FormatInfo;
use super::simd::{self, Bf16};
use crate::wgsl::wgsl;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "BF16",
    ggml_type: 30,
    weights: 1,
    bytes: 2,
    decode: |blocks, out| decode(blocks.as_chunks().0, out),
    encode: Some(encode),
    floats: Some(simd::float_products::<Bf16>),
    eight: None,
    planes: std::slice::from_ref(&(0..2)),
    wgsl: wgsl!("quant/bf16"),
};

#[inline(always)]
fn decode(numbers: &[[u8; 2]], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(numbers) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

/// Rounds to nearest, ties to even; a NaN stays one.
fn encode(weights: &[f32], out: &mut [u8]) {
    for (bytes, weight) in out.as_chunks_mut().0.iter_mut().zip(weights) {
        *bytes = half::bf16::from_f32(*weight).to_le_bytes();
    }
}
