//! iq4_nl: weight = d * levels(q), blocks of 32
//! row: k/8 words of nibbles (4 a block: low ones weights 0..16, high ones 16..32), then k/32 scales d (f16, two a word),
//!      zeros to a multiple of 4
const QBLOCK: u32 = 32u;

fn row_words(k: u32) -> u32 {
    return (k / 8u + (k / 32u + 1u) / 2u + 3u) / 4u * 4u;
}

/// The levels of four quants: table[q] for signed bytes, four a word.
fn levels(q: vec4<u32>) -> vec4<f32> {
    let table = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
    let words = vec4<u32>(table[q.x >> 2u], table[q.y >> 2u], table[q.z >> 2u], table[q.w >> 2u]);
    return vec4<f32>(bitcast<vec4<i32>>(words << (vec4<u32>(24u) - 8u * (q & vec4<u32>(3u)))) >> vec4<u32>(24u));
}

/// The weights i..i+4 of the row of k that starts at word `row` of w; i is a multiple of 4.
fn dequant4(row: u32, k: u32, i: u32) -> vec4<f32> {
    let block = i / 32u;
    let low = (i & 16u) / 4u; // 0 or 4: which nibbles
    let bytes = vec4<u32>(w[row + block * 4u + (i & 15u) / 4u] >> low) >> vec4<u32>(0u, 8u, 16u, 24u);
    let pair = unpack2x16float(w[row + k / 8u + block / 2u]);
    return select(pair.x, pair.y, (block & 1u) == 1u) * levels(bytes & vec4<u32>(15u));
}
