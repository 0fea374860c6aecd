//! Q4_1: `weight = d * q + m`, 32 weights a block.
//!
//! In a file: d (f16), m (f16), 16 bytes of nibbles, the low ones weights 0..16, the high ones 16..32: 20 bytes. On
//! the GPU: the nibbles of all blocks, four words a block, then one word a block: d in the low half, m in the high.
//! Source: `block_q4_1` and `quantize_row_q4_1_ref` in ggml.

use half::f16;

use super::{FormatInfo, copy_words, lanes};

const WEIGHTS: usize = 32;
const BYTES: usize = 20;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q4_1",
    ggml_type: 3,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| {
        for (block, out) in blocks.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
            decode(block, out);
        }
    },
    encode: Some(|weights, out| {
        for (weights, block) in weights.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
            encode(weights, block);
        }
    }),
    dot: |row, x| lanes::dot_blocks(row, x, decode),
    row_words: |k| k / 8 + k / 32,
    repack,
    wgsl: include_str!("../../wgsl/quant/q4_1.wgsl"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
    let m = f16::from_le_bytes([block[2], block[3]]).to_f32();
    for j in 0..WEIGHTS / 2 {
        out[j] = f32::from(block[4 + j] & 15) * d + m;
        out[j + WEIGHTS / 2] = f32::from(block[4 + j] >> 4) * d + m;
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let min = weights.iter().copied().fold(f32::INFINITY, f32::min);
    let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / 15.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&f16::from_f32(min).to_le_bytes());
    let quant = |w: f32| (((w - min) * inverse + 0.5) as u8).min(15);
    for j in 0..WEIGHTS / 2 {
        block[4 + j] = quant(weights[j]) | quant(weights[j + WEIGHTS / 2]) << 4;
    }
}

fn repack(row: &[u8], out: &mut [u32]) {
    let blocks = row.as_chunks::<BYTES>().0;
    let (nibbles, scales) = out.split_at_mut(blocks.len() * (WEIGHTS / 8));
    for ((block, nibbles), scale) in blocks.iter().zip(nibbles.chunks_exact_mut(WEIGHTS / 8)).zip(scales) {
        copy_words(&block[4..], nibbles);
        *scale = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    }
}
