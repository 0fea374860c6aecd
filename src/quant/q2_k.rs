//! Q2_K: `weight = d * scale * q - dmin * min`, 256 weights a block in sixteen groups of 16.
//!
//! In a file: 16 bytes, the scale of each group in the low nibble, its minimum in the high one; 64 bytes of quants; d (f16);
//! dmin (f16): 84 bytes. Each half of a block is four rows of 32 weights: bits 2r and 2r + 1 of its byte j are weight j of
//! row r. On the GPU: the quants of all blocks, then the scales, then one word a block: d in the low half, dmin in the high.
//! Source: `block_q2_K` and `dequantize_row_q2_K` in ggml; the encoder is our own.

use super::fit::Affine;
use super::q8::{Group, Unpack};
use super::simd::{Blocks, Vector, both, each_of};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 256;
const BYTES: usize = 84;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q2_K",
    ggml_type: 10,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: &[16..80, 0..16, 80..84],
    wgsl: wgsl!("quant/q2_k"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (row, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let quants = &block[16 + row / 4 * 32..][..32];
        let scales = [block[2 * row], block[2 * row + 1]];
        let (steps, mins) = (scales.map(|s| d * f32::from(s & 15)), scales.map(|s| dmin * f32::from(s >> 4)));
        for j in 0..32 {
            out[j] = steps[j / 16] * f32::from(quants[j] >> (row % 4 * 2) & 3) - mins[j / 16];
        }
    }
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 8;
    const SCALES_BY_16: bool = true;
    const MINS: bool = true;
    const BITS: u32 = 2;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        let (d, dmin) = (w.words(80).f16_to_f32(), w.words(80).shr(16).f16_to_f32());
        let scales = w.bytes(0).words();
        for part in 0..2 {
            let q = [w.bytes(16 + 32 * part), w.bytes(32 + 32 * part)];
            each_of::<V, 4>(
                #[inline(always)]
                |r| {
                    let quants = [q[0].bits(2 * r as u32, 3, 0), q[1].bits(2 * r as u32, 3, 0)];
                    let row = 4 * part + r;
                    let scale = both(
                        #[inline(always)]
                        |h| scales[row / 2].unsigned(row % 2 * 2 + h).and(V::word(15)).scaled(d),
                    );
                    let min = both(
                        #[inline(always)]
                        |h| scales[row / 2].unsigned(row % 2 * 2 + h).shr(4).scaled(dmin),
                    );
                    each(row, Group { quants, scale, min });
                },
            );
        }
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let fit = Affine::<16>::new(weights, 3.0, 15.0, |x| x.map(f32::abs));
    block.fill(0);
    for (byte, (scale, min)) in block.iter_mut().zip(fit.scales.iter().zip(&fit.mins)) {
        *byte = scale | min << 4;
    }
    for (i, q) in fit.quants.iter().enumerate() {
        block[16 + i / 128 * 32 + i % 32] |= q << (i / 32 % 4 * 2);
    }
    block[80..82].copy_from_slice(&fit.d.to_le_bytes());
    block[82..].copy_from_slice(&fit.dmin.to_le_bytes());
}
