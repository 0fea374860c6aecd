//! IQ4_XS: `weight = d * (scale - 32) * LEVELS[q]`, 256 weights a block in eight groups of 32; the levels of IQ4_NL.
//!
//! In a file: d (f16); 16 bits, two a group, the high ones of its scale; 4 bytes of low nibbles of scales; 128 bytes of
//! nibbles, 16 a group, as in Q4_0: 136 bytes. On the GPU: the nibbles of all blocks, then two words a block: d in the low
//! half and the high bits above, then the low nibbles. Source: `block_iq4_xs` and `dequantize_row_iq4_xs` in ggml; the
//! encoder is our own.

use super::fit::Scaled;
use super::iq4_nl::{LEVELS, nearest, step};
use super::q8::{Group, Unpack};
use super::simd::{Blocks, Vector, each_of};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 256;
const BYTES: usize = 136;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "IQ4_XS",
    ggml_type: 23,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: &[8..136, 0..8],
    wgsl: wgsl!("quant/iq4_xs"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let step = step_of(block, g);
        for j in 0..16 {
            let byte = usize::from(block[8 + 16 * g + j]);
            out[j] = step * f32::from(LEVELS[byte & 15]);
            out[j + 16] = step * f32::from(LEVELS[byte >> 4]);
        }
    }
}

/// The scale of group `g`.
#[inline(always)]
fn step_of(block: &[u8; BYTES], g: usize) -> f32 {
    let high = u16::from_le_bytes([block[2], block[3]]);
    let scale = block[4 + g / 2] >> (g % 2 * 4) & 15 | ((high >> (2 * g) & 3) << 4) as u8;
    f16_at(block, 0) * f32::from(scale as i8 - 32)
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 8;
    const BITS: u32 = 8;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        let (d, high, low) = (w.words(0).f16_to_f32(), w.words(0).shr(16), w.words(4));
        each_of::<V, 8>(
            #[inline(always)]
            |g| {
                let q = w.bytes(8 + 16 * g);
                let quants = [q.bits(0, 15, 0).lookup(&LEVELS), q.bits(4, 15, 0).lookup(&LEVELS)];
                let low = low.shr(4 * g as u32).and(V::word(15));
                let high = high.shr(2 * g as u32).and(V::word(3)).shl(4);
                each(g, Group::new(quants, low.or(high).add(V::word(-32)).scaled(d)));
            },
        );
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
