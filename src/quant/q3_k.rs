//! Q3_K: `weight = d * (scale - 32) * (q - 4)`, 256 weights a block in sixteen groups of 16.
//!
//! In a file: 32 bytes of high bits, bit r of byte j that of weight j of row r, of eight rows of 32 weights; 64 bytes of low
//! bits as the quants of Q2_K; 12 bytes of scales of six bits: nibble g / 8 of byte g % 8 has the low bits of scale g, and
//! bits 2 (g / 4) and 2 (g / 4) + 1 of byte 8 + g % 4 its high ones; d (f16): 110 bytes. On the GPU: the low bits of all
//! blocks, the high bits, the scales, then d, two a word. Source: `block_q3_K` and `dequantize_row_q3_K` in ggml; the encoder
//! is our own.

use super::fit::{self, Scaled};
use super::q8::{Group, Unpack};
use super::simd::{Blocks, Vector, both, each_of};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 256;
const BYTES: usize = 110;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q3_K",
    ggml_type: 11,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: &[32..96, 0..32, 96..108, 108..110],
    wgsl: wgsl!("quant/q3_k"),
};

/// The scale of group `g`, from -32.
#[inline(always)]
fn scale(block: &[u8; BYTES], g: usize) -> i8 {
    let low = block[96 + g % 8] >> (g / 8 * 4) & 15;
    let high = block[104 + g % 4] >> (g / 4 * 2) & 3;
    (low | high << 4) as i8 - 32
}

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let d = f16_at(block, 108);
    for (row, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = &block[32 + row / 4 * 32..][..32];
        let steps = [0, 1].map(|g| d * f32::from(scale(block, 2 * row + g)));
        for j in 0..32 {
            let q = low[j] >> (row % 4 * 2) & 3 | (block[j] >> row & 1) << 2;
            out[j] = steps[j / 16] * f32::from(q as i8 - 4);
        }
    }
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 8;
    const SCALES_BY_16: bool = true;
    const BITS: u32 = 3;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        let d = w.words(106).shr(16).f16_to_f32();
        let (low_scales, high_scales) = ([w.words(96), w.words(100)], w.words(104));
        let high = [w.bytes(0), w.bytes(16)];
        for part in 0..2 {
            let low = [w.bytes(32 + 32 * part), w.bytes(48 + 32 * part)];
            each_of::<V, 4>(
                #[inline(always)]
                |r| {
                    let row = 4 * part + r;
                    let quants = both(
                        #[inline(always)]
                        |h| low[h].bits(2 * r as u32, 3, 0).or(high[h].bits(row as u32, 1, 2)),
                    );
                    // The scales of groups 4 t to 4 t + 3, of which two are this row's.
                    let t = row / 2;
                    let scales =
                        low_scales[t % 2].bits(t as u32 / 2 * 4, 15, 0).or(high_scales.bits(2 * t as u32, 3, 4));
                    let scale = both(
                        #[inline(always)]
                        |h| scales.unsigned(row % 2 * 2 + h).add(V::word(-32)).scaled(d),
                    );
                    each(row, Group { scale, ..Group::new(quants, d) });
                },
            );
        }
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let fit = Scaled::new::<16>(weights, 32.0, |x| {
        let peaks = (0..19).map(|i| -3.1 - i as f32 / 10.0);
        fit::scale(x, &x.map(|x| x * x), peaks, |q| fit::whole(q, 4.0))
    });
    block.fill(0);
    for (g, scale) in fit.scales.iter().enumerate() {
        let scale = (scale + 32) as u8;
        block[96 + g % 8] |= (scale & 15) << (g / 8 * 4);
        block[104 + g % 4] |= (scale >> 4) << (g / 4 * 2);
    }
    for (i, x) in weights.iter().enumerate() {
        let q = (fit::quant(*x, fit.steps[i / 16], -4.0, 3.0) + 4) as u8;
        block[i % 32] |= (q >> 2) << (i / 32);
        block[32 + i / 128 * 32 + i % 32] |= (q & 3) << (i / 32 % 4 * 2);
    }
    block[108..].copy_from_slice(&fit.d.to_le_bytes());
}
