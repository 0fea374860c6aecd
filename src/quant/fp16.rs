//! F16: little-endian IEEE binary16, one number a block. The GPU form is the file's, two numbers a word.

use crate::wgsl::wgsl;
use half::f16;
use half::slice::HalfFloatSliceExt;

use super::FormatInfo;
use super::simd::{self, F16};

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "F16",
    ggml_type: 1,
    weights: 1,
    bytes: 2,
    decode: |blocks, out| {
        for (numbers, out) in blocks.as_chunks().0.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
            decode(numbers, out);
        }
    },
    encode: Some(encode),
    floats: Some(simd::float_products::<F16>),
    eight: None,
    planes: std::slice::from_ref(&(0..2)),
    wgsl: wgsl!("quant/f16"),
};

/// Numbers that are converted at once.
const CHUNK: usize = 32;

/// Converts at most 32 numbers, through a buffer because a file's bytes need not be aligned.
#[inline(always)]
fn decode(numbers: &[[u8; 2]], out: &mut [f32]) {
    let mut f16s = [f16::ZERO; CHUNK];
    for (half, bytes) in f16s.iter_mut().zip(numbers) {
        *half = f16::from_le_bytes(*bytes);
    }
    f16s[..numbers.len()].convert_to_f32_slice(out); // the CPU's own instruction, where it has one
}

/// Rounds to nearest, ties to even.
fn encode(weights: &[f32], out: &mut [u8]) {
    for (bytes, weight) in out.as_chunks_mut().0.iter_mut().zip(weights) {
        *bytes = f16::from_f32(*weight).to_le_bytes();
    }
}
