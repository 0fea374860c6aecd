//! F32: little-endian IEEE binary32, one number a block. The GPU form is the file's.

use super::FormatInfo;
use super::simd::{self, F32};
use crate::wgsl::wgsl;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "F32",
    ggml_type: 0,
    weights: 1,
    bytes: 4,
    decode: |blocks, out| decode(blocks.as_chunks().0, out),
    encode: Some(encode),
    floats: Some(simd::float_products::<F32>),
    eight: None,
    planes: std::slice::from_ref(&(0..4)),
    wgsl: wgsl!("quant/f32"),
};

#[inline(always)]
fn decode(numbers: &[[u8; 4]], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(numbers) {
        *out = f32::from_le_bytes(*bytes);
    }
}

fn encode(weights: &[f32], out: &mut [u8]) {
    for (bytes, weight) in out.as_chunks_mut().0.iter_mut().zip(weights) {
        *bytes = weight.to_le_bytes();
    }
}
