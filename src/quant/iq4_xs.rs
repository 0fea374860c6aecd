//! IQ4_XS: `weight = d * (scale - 32) * LEVELS[q]`, 256 weights a block in eight groups of 32; the levels of IQ4_NL.
//!
//! In a file: d (f16); 16 bits, two a group, the high ones of its scale; 4 bytes of low nibbles of scales; 128 bytes of
//! nibbles, 16 a group, as in Q4_0: 136 bytes. On the GPU: the nibbles of all blocks, then two words a block: d in the low
//! half and the high bits above, then the low nibbles. Source: `block_iq4_xs` and `dequantize_row_iq4_xs` in ggml; the
//! encoder is our own.

use super::fit::Scaled;
use super::iq4_nl::{LEVELS, nearest, step};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, lanes};

const WEIGHTS: usize = 256;
const BYTES: usize = 136;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "IQ4_XS",
    ggml_type: 23,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    dot: |row, x| lanes::dot_blocks(row, x, decode),
    planes: &[8..136, 0..8],
    wgsl: include_str!("../../wgsl/quant/iq4_xs.wgsl"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let d = f16_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = block[4 + g / 2] >> (g % 2 * 4) & 15 | ((high >> (2 * g) & 3) << 4) as u8;
        let step = d * f32::from(scale as i8 - 32);
        for j in 0..16 {
            let byte = usize::from(block[8 + 16 * g + j]);
            out[j] = step * f32::from(LEVELS[byte & 15]);
            out[j + 16] = step * f32::from(LEVELS[byte >> 4]);
        }
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let fit = Scaled::new::<32>(weights, 32.0, step);
    block.fill(0);
    block[..2].copy_from_slice(&fit.d.to_le_bytes());
    for (g, x) in weights.as_chunks::<32>().0.iter().enumerate() {
        let scale = (fit.scales[g] + 32) as u8;
        block[2 + g / 4] |= (scale >> 4) << (g % 4 * 2);
        block[4 + g / 2] |= (scale & 15) << (g % 2 * 4);
        let inverse = if fit.steps[g] == 0.0 { 0.0 } else { 1.0 / fit.steps[g] };
        for j in 0..16 {
            block[8 + 16 * g + j] = nearest(x[j] * inverse) | nearest(x[j + 16] * inverse) << 4;
        }
    }
}
