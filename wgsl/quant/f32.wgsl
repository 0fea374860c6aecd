//! f32: the weights as they are
//! row: k words, zeros to a multiple of 4
const QBLOCK: u32 = 1u;

fn row_words(k: u32) -> u32 {
    return (k + 3u) / 4u * 4u;
}

/// The weights i..i+4 of the row of k that starts at word `row` of w; i is a multiple of 4.
fn dequant4(row: u32, k: u32, i: u32) -> vec4<f32> {
    let at = row + i;
    return bitcast<vec4<f32>>(vec4<u32>(w[at], w[at + 1u], w[at + 2u], w[at + 3u]));
}
