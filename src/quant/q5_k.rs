//! Q5_K: `weight = d * scale * q - dmin * min`, 256 weights a block in eight groups of 32.
//!
//! In a file: d (f16), dmin (f16), scales and minima (12 bytes, see `packed6`), 32 bytes of fifth bits, bit g of byte j
//! that of weight j of group g, then 128 bytes of nibbles as in Q4_K: 176 bytes, eleven 16-byte units, which is also the
//! GPU form. Source: `block_q5_K` and `dequantize_row_q5_K` in ggml; the encoder is our own.

use super::fit::{Affine, size_and_rms};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, lanes, packed6};

const WEIGHTS: usize = 256;
const BYTES: usize = 176;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q5_K",
    ggml_type: 13,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    dot: |row, x| lanes::dot_blocks(row, x, decode),
    planes: std::slice::from_ref(&(0..BYTES)),
    wgsl: include_str!("../../wgsl/quant/q5_k.wgsl"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = packed6::get(&block[4..16], g);
        let (step, min) = (d * f32::from(scale), dmin * f32::from(min));
        let nibbles = &block[48 + g / 2 * 32..][..32];
        for ((out, byte), fifth) in out.iter_mut().zip(nibbles).zip(&block[16..48]) {
            *out = step * f32::from(byte >> (g % 2 * 4) & 15 | (fifth >> g & 1) << 4) - min;
        }
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let fit = Affine::<32>::new(weights, 31.0, 63.0, size_and_rms);
    block.fill(0);
    block[..2].copy_from_slice(&fit.d.to_le_bytes());
    block[2..4].copy_from_slice(&fit.dmin.to_le_bytes());
    packed6::put(&mut block[4..16], &fit.scales, &fit.mins);
    for (g, quants) in fit.quants.as_chunks::<32>().0.iter().enumerate() {
        for (j, q) in quants.iter().enumerate() {
            block[16 + j] |= (q >> 4) << g;
            block[48 + g / 2 * 32 + j] |= (q & 15) << (g % 2 * 4);
        }
    }
}
