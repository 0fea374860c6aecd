//! Q5_K: `weight = d * scale * q - dmin * min`, 256 weights a block in eight groups of 32.
//!
//! In a file: d (f16), dmin (f16), scales and minima (12 bytes, see `packed6`), 32 bytes of fifth bits, bit g of byte j
//! that of weight j of group g, then 128 bytes of nibbles as in Q4_K: 176 bytes, eleven 16-byte units, which is also the
//! GPU form. Source: `block_q5_K` and `dequantize_row_q5_K` in ggml; the encoder is our own.

use super::fit::{Affine, size_and_rms};
use super::q8::{Group, Unpack};
use super::simd::{Blocks, Vector, both, each_of};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, packed6, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 256;
const BYTES: usize = 176;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q5_K",
    ggml_type: 13,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: std::slice::from_ref(&(0..BYTES)),
    wgsl: wgsl!("quant/q5_k"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (step, min) = scale_min(block, g);
        let nibbles = &block[48 + g / 2 * 32..][..32];
        for ((out, byte), fifth) in out.iter_mut().zip(nibbles).zip(&block[16..48]) {
            *out = step * f32::from(byte >> (g % 2 * 4) & 15 | (fifth >> g & 1) << 4) - min;
        }
    }
}

/// The scale and the minimum of group `g`, in f32.
#[inline(always)]
fn scale_min(block: &[u8; BYTES], g: usize) -> (f32, f32) {
    let (scale, min) = packed6::get(&block[4..16], g);
    (f16_at(block, 0) * f32::from(scale), f16_at(block, 2) * f32::from(min))
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 8;
    const MINS: bool = true;
    const BITS: u32 = 5;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        let head = w.bytes(0).words();
        let (d, dmin) = (head[0].f16_to_f32(), head[0].shr(16).f16_to_f32());
        let (scales, mins) = packed6::all([head[1], head[2], head[3]]);
        let fifths = [w.bytes(16), w.bytes(32)];
        each_of::<V, 4>(
            #[inline(always)]
            |pair| {
                let q = [w.bytes(48 + 32 * pair), w.bytes(64 + 32 * pair)];
                each_of::<V, 2>(
                    #[inline(always)]
                    |odd| {
                        let g = 2 * pair + odd;
                        let quants = both(
                            #[inline(always)]
                            |h| q[h].bits(4 * odd as u32, 15, 0).or(fifths[h].bits(g as u32, 1, 4)),
                        );
                        let scale = scales[g / 4].unsigned(g % 4).scaled(d);
                        each(
                            g,
                            Group { min: [mins[g / 4].unsigned(g % 4).scaled(dmin); 2], ..Group::new(quants, scale) },
                        );
                    },
                );
            },
        );
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
