//! Q6_K: `weight = d * scale * (q - 32)`, 256 weights a block in sixteen groups of 16.
//!
//! In a file: 128 bytes of low nibbles, 64 bytes of high bits, 16 scales (i8), d (f16): 210 bytes. Each half of a block
//! is four rows of 32 weights: byte j of its first 32 low bytes has weight j of row 0 and, above, of row 2; the next 32
//! have rows 1 and 3; bits 2r and 2r + 1 of high byte j belong to weight j of row r. On the GPU: the low nibbles of all
//! blocks, the high bits, the scales, then d, two a word. Source: `block_q6_K` and `dequantize_row_q6_K` in ggml; the
//! encoder is our own.

use super::fit::{self, Scaled};
use super::q8::{Group, Unpack};
use super::simd::{Blocks, Vector, both, each_of};
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, q8};
use crate::wgsl::wgsl;

const WEIGHTS: usize = 256;
const BYTES: usize = 210;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q6_K",
    ggml_type: 14,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    floats: None,
    eight: Some(q8::eight::<Unpacker, BYTES>()),
    planes: &[0..128, 128..192, 192..208, 208..210],
    wgsl: wgsl!("quant/q6_k"),
};

#[inline(always)]
fn decode(block: &[u8; BYTES], out: &mut [f32; WEIGHTS]) {
    let d = f16_at(block, 208);
    for (row, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, r) = (row / 4, row % 4);
        let low = &block[half * 64 + r % 2 * 32..][..32];
        let high = &block[128 + half * 32..][..32];
        let steps = [0, 1].map(|g| d * f32::from(block[192 + 2 * row + g] as i8));
        for j in 0..32 {
            let q = low[j] >> (r / 2 * 4) & 15 | (high[j] >> (2 * r) & 3) << 4;
            out[j] = steps[j / 16] * f32::from(q as i8 - 32);
        }
    }
}

struct Unpacker;

impl Unpack<BYTES> for Unpacker {
    const GROUPS: usize = 8;
    const SCALES_BY_16: bool = true;
    const BITS: u32 = 6;

    #[inline(always)]
    fn block<V: Vector>(w: &Blocks<V, BYTES>, mut each: impl FnMut(usize, Group<V>)) {
        let d = w.words(206).shr(16).f16_to_f32();
        let scales = w.bytes(192).words();
        for part in 0..2 {
            let high = [w.bytes(128 + 32 * part), w.bytes(144 + 32 * part)];
            let low = [64 * part, 64 * part + 32];
            let low = [[w.bytes(low[0]), w.bytes(low[0] + 16)], [w.bytes(low[1]), w.bytes(low[1] + 16)]];
            each_of::<V, 4>(
                #[inline(always)]
                |r| {
                    let quants = both(
                        #[inline(always)]
                        |h| low[r % 2][h].bits(r as u32 / 2 * 4, 15, 0).or(high[h].bits(2 * r as u32, 3, 4)),
                    );
                    let scales = scales[2 * part + r / 2];
                    let scale = [scales.signed(r % 2 * 2).scaled(d), scales.signed(r % 2 * 2 + 1).scaled(d)];
                    each(4 * part + r, Group { scale, ..Group::new(quants, d) });
                },
            );
        }
    }
}

fn encode(weights: &[f32; WEIGHTS], block: &mut [u8; BYTES]) {
    let fit = Scaled::new::<16>(weights, 128.0, |x| {
        let peaks = (0..19).map(|i| -31.1 - i as f32 / 10.0);
        fit::scale(x, &x.map(|x| x * x), peaks, |q| fit::whole(q, 32.0))
    });
    block.fill(0);
    block[208..].copy_from_slice(&fit.d.to_le_bytes());
    for (g, scale) in fit.scales.iter().enumerate() {
        block[192 + g] = *scale as u8;
    }
    for (i, x) in weights.iter().enumerate() {
        let q = (fit::quant(*x, fit.steps[i / 16], -32.0, 31.0) + 32) as u8;
        let (half, r, j) = (i / 128, i / 32 % 4, i % 32);
        block[half * 64 + r % 2 * 32 + j] |= (q & 15) << (r / 2 * 4);
        block[128 + half * 32 + j] |= (q >> 4) << (2 * r);
    }
}
