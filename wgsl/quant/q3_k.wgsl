//! q3_k: weight = d * (scale - 32) * (q - 4), blocks of 256 in groups of 16
//! row: k/16 words of low bits (16 a block), k/32 of high bits (8 a block), 3 words a block of scales (six bits each), then
//!      k/256 scales d (f16, two a word), zeros to a multiple of 4
//! A block is eight rows r of 32: bits 2 (r & 3), 2 (r & 3) + 1 of a low byte of its half, bit r of a high byte.
const QBLOCK: u32 = 256u;

fn row_words(k: u32) -> u32 {
    return (k / 16u + k / 32u + k / 256u * 3u + (k / 256u + 1u) / 2u + 3u) / 4u * 4u;
}

/// The weights i..i+4 of the row of k that starts at word `row` of w; i is a multiple of 4.
fn dequant4(row: u32, k: u32, i: u32) -> vec4<f32> {
    let block = i / 256u;
    let r = (i / 32u) & 7u;
    let j = (i & 31u) / 4u;
    let bytes = vec4<u32>(0u, 8u, 16u, 24u);
    let low = (vec4<u32>(w[row + i / 128u * 8u + j] >> (2u * (r & 3u))) >> bytes) & vec4<u32>(3u);
    let highs = row + k / 16u;
    let high = (vec4<u32>(w[highs + block * 8u + j] >> r) >> bytes) & vec4<u32>(1u);
    let q = vec4<f32>(low + 4u * high) - 4.0;
    let scales = highs + k / 32u;
    let g = (i / 16u) & 15u;
    let scale_low = w[scales + block * 3u + ((g & 7u) >> 2u)] >> (8u * (g & 3u) + 4u * (g >> 3u));
    let scale_high = w[scales + block * 3u + 2u] >> (8u * (g & 3u) + 2u * (g >> 2u));
    let scale = f32((scale_low & 15u) | ((scale_high & 3u) << 4u)) - 32.0;
    let pair = unpack2x16float(w[scales + k / 256u * 3u + block / 2u]);
    return select(pair.x, pair.y, (block & 1u) == 1u) * scale * q;
}
