//! q5_0: weight = d * (q - 16), blocks of 32
//! row: k/8 words of nibbles (4 a block: low ones weights 0..16, high ones 16..32), k/32 of fifth bits (one a weight), then
//!      k/32 scales d (f16, two a word), zeros to a multiple of 4
const QBLOCK: u32 = 32u;

fn row_words(k: u32) -> u32 {
    return (k / 8u + k / 32u + (k / 32u + 1u) / 2u + 3u) / 4u * 4u;
}

/// The weights i..i+4 of the row of k that starts at word `row` of w; i is a multiple of 4.
fn dequant4(row: u32, k: u32, i: u32) -> vec4<f32> {
    let block = i / 32u;
    let low = (i & 16u) / 4u; // 0 or 4: which nibbles
    let bytes = vec4<u32>(w[row + block * 4u + (i & 15u) / 4u] >> low) >> vec4<u32>(0u, 8u, 16u, 24u);
    let fifths = row + k / 8u;
    let fifth = (vec4<u32>(w[fifths + block] >> (i & 31u)) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u);
    let q = vec4<f32>((bytes & vec4<u32>(15u)) + 16u * fifth);
    let pair = unpack2x16float(w[fifths + k / 32u + block / 2u]);
    return select(pair.x, pair.y, (block & 1u) == 1u) * (q - 16.0);
}
