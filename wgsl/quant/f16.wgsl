//! f16: two weights a word, the first in the low half
//! row: ceil(k/2) words, zeros to a multiple of 4
const QBLOCK: u32 = 1u;

fn row_words(k: u32) -> u32 {
    return (k + 7u) / 8u * 4u;
}

/// The weights i..i+4 of the row of k that starts at word `row` of w; i is a multiple of 4.
fn dequant4(row: u32, k: u32, i: u32) -> vec4<f32> {
    let at = row + i / 2u;
    return vec4<f32>(unpack2x16float(w[at]), unpack2x16float(w[at + 1u]));
}
