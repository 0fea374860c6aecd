//! q4_k: weight = d * scale * q - dmin * min, blocks of 256 in groups of 32
//! row: k/256 blocks of 36 words as in the file: (d, dmin) as f16, 3 of scales and minima, 32 of nibbles (8 for two groups,
//!      low ones the first)
//! use: lib/six_bits
const QBLOCK: u32 = 256u;
const HALF_GAP: u32 = 32u;
const LOWS: bool = true;
const SCALED: bool = true;
const OFFSET: bool = true;
struct Chunk {
    q: vec4<u32>,
    d: u32,        // d and dmin, as f16
    scales: u32,   // a byte each: the scales of both halves, their minima
}

fn row_words(k: u32) -> u32 {
    return k / 256u * 36u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    let block = row / 4u + c / 8u * 9u;
    let head = w[block];
    return Chunk(w[block + 1u + (c & 7u)], head.x, scales(head, (c / 2u) & 3u));
}

fn quants(chunk: Chunk, half: u32) -> vec4<u32> {
    return (chunk.q >> vec4<u32>(4u * half)) & vec4<u32>(0x0f0f0f0fu);
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    let s = scaling(chunk, half);
    return Scaled(bytes16(quants(chunk, half)), s.x, -s.y);
}

fn ints16(chunk: Chunk, half: u32) -> Ints {
    let s = scaling(chunk, half);
    return Ints(quants(chunk, half), s.x, -s.y);
}
