//! q5_k: weight = d * scale * q - dmin * min, blocks of 256 in groups of 32
//! row: k/256 blocks of 44 words as in the file: (d, dmin) as f16, 3 of scales and minima, 8 of fifth bits (bit g of a byte
//!      is of group g), 32 of nibbles (8 for two groups, low ones the first)
const QBLOCK: u32 = 256u;

fn row_words(k: u32) -> u32 {
    return k / 256u * 44u;
}

/// The scale and the minimum of group g of 32: six bits each, in the words 1..4 of a block; the low bits of those of the
/// groups 4.. are in word 3, the high ones on top of those of the groups 0..4.
fn scale_min(block: u32, g: u32) -> vec2<f32> {
    let t = 8u * (g & 3u);
    let low = vec2<u32>(w[block + 1u], w[block + 2u]) >> vec2<u32>(t);
    let high = vec2<u32>(w[block + 3u] >> t) >> vec2<u32>(0u, 4u);
    let packed = (high & vec2<u32>(15u)) | ((low & vec2<u32>(192u)) >> vec2<u32>(2u));
    return vec2<f32>(select(packed, low & vec2<u32>(63u), g < 4u));
}

/// The weights i..i+4 of the row of k that starts at word `row` of w; i is a multiple of 4.
fn dequant4(row: u32, k: u32, i: u32) -> vec4<f32> {
    let block = row + i / 256u * 44u;
    let g = (i / 32u) & 7u;
    let j = (i & 31u) / 4u;
    let bytes = vec4<u32>(0u, 8u, 16u, 24u);
    let low = (vec4<u32>(w[block + 12u + g / 2u * 8u + j] >> (4u * (g & 1u))) >> bytes) & vec4<u32>(15u);
    let fifth = (vec4<u32>(w[block + 4u + j] >> g) >> bytes) & vec4<u32>(1u);
    let step = unpack2x16float(w[block]) * scale_min(block, g);
    return step.x * vec4<f32>(low + 16u * fifth) - step.y;
}
