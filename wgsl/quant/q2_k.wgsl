//! q2_k: weight = d * scale * q - dmin * min, blocks of 256 in groups of 16
//! row: k/16 words of quants (16 a block), k/64 of scales and minima (a byte a group, the minimum in the high nibble), then
//!      k/256 words (d, dmin) as f16, zeros to a multiple of 4
//! A half of a block is four rows r of 32: bits 2r, 2r + 1 of a byte of quants.
const QBLOCK: u32 = 256u;

fn row_words(k: u32) -> u32 {
    return (k / 16u + k / 64u + k / 256u + 3u) / 4u * 4u;
}

/// The weights i..i+4 of the row of k that starts at word `row` of w; i is a multiple of 4.
fn dequant4(row: u32, k: u32, i: u32) -> vec4<f32> {
    let r = (i / 32u) & 3u;
    let bytes = vec4<u32>(w[row + i / 128u * 8u + (i & 31u) / 4u] >> (2u * r)) >> vec4<u32>(0u, 8u, 16u, 24u);
    let scales = row + k / 16u;
    let scale = w[scales + i / 64u] >> (8u * ((i / 16u) & 3u));
    let step = unpack2x16float(w[scales + k / 64u + i / 256u]) * vec2<f32>(vec2<u32>(scale, scale >> 4u) & vec2<u32>(15u));
    return step.x * vec4<f32>(bytes & vec4<u32>(3u)) - step.y;
}
