//! q5_k: weight = d * scale * q - dmin * min, blocks of 256 in groups of 32
//! row: k/256 blocks of 44 words as in the file: (d, dmin) as f16, 3 of scales and minima, 8 of fifth bits (bit g of a byte
//!      is of group g), 32 of nibbles (8 for two groups, low ones the first)
//! use: lib/six_bits
const QBLOCK: u32 = 256u;
const HALF_GAP: u32 = 32u;
const LOWS: bool = true;
const SCALED: bool = true;
const OFFSET: bool = true;
struct Chunk {
    q: vec4<u32>,
    fifths: vec4<u32>,
    d: u32,        // d and dmin, as f16
    scales: u32,   // a byte each: the scales of both halves, their minima
}

fn row_words(k: u32) -> u32 {
    return k / 256u * 44u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    let block = row / 4u + c / 8u * 11u;
    let g = (c / 2u) & 3u;
    let fifths = w[block + 1u + (c & 1u)] >> vec4<u32>(2u * g);
    let head = w[block];
    return Chunk(w[block + 3u + (c & 7u)], fifths, head.x, scales(head, g));
}

fn quants(chunk: Chunk, half: u32) -> vec4<u32> {
    let low = (chunk.q >> vec4<u32>(4u * half)) & vec4<u32>(0x0f0f0f0fu);
    let fifth = (chunk.fifths >> vec4<u32>(half)) & vec4<u32>(0x01010101u);
    return low | (fifth << vec4<u32>(4u));
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    let s = scaling(chunk, half);
    return Scaled(bytes16(quants(chunk, half)), s.x, -s.y);
}

fn ints16(chunk: Chunk, half: u32) -> Ints {
    let s = scaling(chunk, half);
    return Ints(quants(chunk, half), s.x, -s.y);
}
