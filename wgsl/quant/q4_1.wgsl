//! q4_1: weight = d * q + m, blocks of 32
//! row: k/8 words of nibbles (4 a block: low ones weights 0..16, high ones 16..32), then k/32 words (d, m) as f16,
//!      zeros to a multiple of 4
const QBLOCK: u32 = 32u;
const HALF_GAP: u32 = 16u;
const LOWS: bool = true;
const SCALED: bool = true;
const OFFSET: bool = true;
struct Chunk {
    q: vec4<u32>,
    dm: vec2<f32>,
}

fn row_words(k: u32) -> u32 {
    return (k / 8u + k / 32u + 3u) / 4u * 4u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    return Chunk(w[row / 4u + c], unpack2x16float(word(row + k / 8u + c)));
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    return Scaled(bytes16((chunk.q >> vec4<u32>(4u * half)) & vec4<u32>(0x0f0f0f0fu)), chunk.dm.x, chunk.dm.y);
}

fn ints16(chunk: Chunk, half: u32) -> Ints {
    return Ints((chunk.q >> vec4<u32>(4u * half)) & vec4<u32>(0x0f0f0f0fu), chunk.dm.x, chunk.dm.y);
}
