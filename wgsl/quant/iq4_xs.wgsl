//! iq4_xs: weight = d * (scale - 32) * levels(q), blocks of 256 in groups of 32
//! row: k/8 words of nibbles (4 a group: low ones weights 0..16, high ones 16..32), then two words a block: d (f16) and the
//!      high bits of the scales (two a group), the low ones (four a group); zeros to a multiple of 4
const QBLOCK: u32 = 256u;

fn row_words(k: u32) -> u32 {
    return (k / 8u + k / 256u * 2u + 3u) / 4u * 4u;
}

/// The levels of four quants: table[q] for signed bytes, four a word.
fn levels(q: vec4<u32>) -> vec4<f32> {
    let table = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
    let words = vec4<u32>(table[q.x >> 2u], table[q.y >> 2u], table[q.z >> 2u], table[q.w >> 2u]);
    return vec4<f32>(bitcast<vec4<i32>>(words << (vec4<u32>(24u) - 8u * (q & vec4<u32>(3u)))) >> vec4<u32>(24u));
}

/// The weights i..i+4 of the row of k that starts at word `row` of w; i is a multiple of 4.
fn dequant4(row: u32, k: u32, i: u32) -> vec4<f32> {
    let group = i / 32u;
    let low = (i & 16u) / 4u; // 0 or 4: which nibbles
    let bytes = vec4<u32>(w[row + group * 4u + (i & 15u) / 4u] >> low) >> vec4<u32>(0u, 8u, 16u, 24u);
    let at = row + k / 8u + i / 256u * 2u;
    let g = group & 7u;
    let scale = ((w[at + 1u] >> (4u * g)) & 15u) | (((w[at] >> (16u + 2u * g)) & 3u) << 4u);
    let step = unpack2x16float(w[at]).x * (f32(scale) - 32.0);
    return step * levels(bytes & vec4<u32>(15u));
}
