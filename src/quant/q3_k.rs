//! Q3_K: `weight = d * (scale - 32) * (q - 4)`, 256 weights a block in sixteen groups of 16.
//!
//! In a file: 32 bytes of high bits, bit r of byte j that of weight j of row r, of eight rows of 32 weights; 64 bytes of low
//! bits as the quants of Q2_K; 12 bytes of scales of six bits: nibble g / 8 of byte g % 8 has the low bits of scale g, and
//! bits 2 (g / 4) and 2 (g / 4) + 1 of byte 8 + g % 4 its high ones; d (f16): 110 bytes. On the GPU: the low bits of all
//! blocks, the high bits, the scales, then d, two a word. Source: `block_q3_K` and `dequantize_row_q3_K` in ggml; the encoder
//! is our own.

use super::fit::{self, Scaled};
use super::q8::{Part, Unpack};
use super::simd::Arithmetic;
use super::{FormatInfo, decode_blocks, encode_blocks, f16_at, lanes, q8};

const WEIGHTS: usize = 256;
const BYTES: usize = 110;

pub(super) static INFO: FormatInfo = FormatInfo {
    name: "Q3_K",
    ggml_type: 11,
    weights: WEIGHTS,
    bytes: BYTES,
    decode: |blocks, out| decode_blocks(blocks, out, decode),
    encode: Some(|weights, out| encode_blocks(weights, out, encode)),
    dot: |row, x| lanes::dot_blocks(row, x, decode),
    eight: Some(q8::eight::<Parts, BYTES>()),
    planes: &[32..96, 0..32, 96..108, 108..110],
    wgsl: include_str!("../../wgsl/quant/q3_k.wgsl"),
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

struct Parts;

impl Unpack<BYTES> for Parts {
    const GROUPS: usize = 8;
    const HALVES: bool = true;
    const MINS: bool = false;

    #[inline(always)]
    fn part<A: Arithmetic>(block: &[u8; BYTES], row: usize) -> Part {
        let (low, high) = (&block[32 + row / 4 * 32..][..32], &block[..32]);
        let mut q = [0; 32];
        for j in 0..32 {
            q[j] = (low[j] >> (row % 4 * 2) & 3 | (high[j] >> row & 1) << 2) as i8 - 4;
        }
        let d = f16_at(block, 108);
        let scale = [f32::from(scale(block, 2 * row)), f32::from(scale(block, 2 * row + 1))];
        Part { q, scale: [d * scale[0], d * scale[1]], min: [0.0; 2] }
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
