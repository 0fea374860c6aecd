//! q8_0: weight = d * q, blocks of 32
//! row: k/4 words of quants (4 x i8), then k/32 scales d (f16, two a word), zeros to a multiple of 4
const QBLOCK: u32 = 32u;

fn row_words(k: u32) -> u32 {
    return (k / 4u + (k / 32u + 1u) / 2u + 3u) / 4u * 4u;
}

/// The weights i..i+4 of the row of k that starts at word `row` of w; i is a multiple of 4.
fn dequant4(row: u32, k: u32, i: u32) -> vec4<f32> {
    // Each byte to the top of a word of its own, then down with its sign.
    let bytes = vec4<u32>(w[row + i / 4u]) << vec4<u32>(24u, 16u, 8u, 0u);
    let q = bitcast<vec4<i32>>(bytes) >> vec4<u32>(24u);
    let block = i / 32u;
    let pair = unpack2x16float(w[row + k / 4u + block / 2u]);
    return select(pair.x, pair.y, (block & 1u) == 1u) * vec4<f32>(q);
}
