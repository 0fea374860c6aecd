//! q6_k: weight = d * scale * (q - 32), blocks of 256 in groups of 16
//! row: k/8 words of low nibbles (32 a block), k/16 of high bits (16 a block), k/64 of scales (4 x i8), then k/256 scales d
//!      (f16, two a word), zeros to a multiple of 4
//! A half of a block is four rows r of 32: low nibbles in bytes 32 (r & 1).., high ones of them if r >= 2; bits 2r, 2r + 1 of
//! a high byte.
const QBLOCK: u32 = 256u;

fn row_words(k: u32) -> u32 {
    return (k / 8u + k / 16u + k / 64u + (k / 256u + 1u) / 2u + 3u) / 4u * 4u;
}

/// The weights i..i+4 of the row of k that starts at word `row` of w; i is a multiple of 4.
fn dequant4(row: u32, k: u32, i: u32) -> vec4<f32> {
    let half = i / 128u;
    let r = (i / 32u) & 3u;
    let j = (i & 31u) / 4u;
    let bytes = vec4<u32>(0u, 8u, 16u, 24u);
    let low = (vec4<u32>(w[row + half * 16u + (r & 1u) * 8u + j] >> (4u * (r >> 1u))) >> bytes) & vec4<u32>(15u);
    let highs = row + k / 8u;
    let high = (vec4<u32>(w[highs + half * 8u + j] >> (2u * r)) >> bytes) & vec4<u32>(3u);
    let q = vec4<f32>(low + 16u * high) - 32.0;
    let scales = highs + k / 16u;
    let scale = bitcast<i32>(w[scales + i / 64u] << (24u - 8u * ((i / 16u) & 3u))) >> 24u;
    let block = i / 256u;
    let pair = unpack2x16float(w[scales + k / 64u + block / 2u]);
    return select(pair.x, pair.y, (block & 1u) == 1u) * f32(scale) * q;
}
