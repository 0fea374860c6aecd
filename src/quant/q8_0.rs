//! Q8_0: `weight = d * q`, 32 weights a block.
//!
//! In a file: d (f16), q (32 × i8): 34 bytes. On the GPU: the quants of all blocks, four a word, then the scales of
//! all blocks, two a word. Source: `block_q8_0` and `quantize_row_q8_0_ref` in ggml.

use half::f16;

use super::{FormatInfo, copy_words, lanes};

const WEIGHTS: usize = 32;
const BYTES: usize = 34;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q8_0",
    ggml_type: 8,
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
    row_words: |k| k / 4 + (k / 32).div_ceil(2),
    repack,
    wgsl: include_str!("../../wgsl/quant/q8_0.wgsl"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
    for j in 0..WEIGHTS {
        out[j] = f32::from(block[2 + j] as i8) * d;
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let max = weights.iter().fold(0.0, |max: f32, w| max.max(w.abs()));
    let d = max / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (q, w) in block[2..].iter_mut().zip(weights) {
        *q = (w * inverse).round() as i8 as u8; // half away from zero, as C's roundf
    }
}

fn repack(row: &[u8], out: &mut [u32]) {
    let blocks = row.as_chunks::<BYTES>().0;
    let (quants, scales) = out.split_at_mut(blocks.len() * (WEIGHTS / 4));
    for (b, (block, quants)) in blocks.iter().zip(quants.chunks_exact_mut(WEIGHTS / 4)).enumerate() {
        copy_words(&block[2..], quants);
        scales[b / 2] |= u32::from(u16::from_le_bytes([block[0], block[1]])) << (16 * (b % 2));
    }
}
