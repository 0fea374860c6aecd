//! q5_0: weight = d * (q - 16), blocks of 32
//! row: k/8 words of nibbles (4 a block: low ones weights 0..16, high ones 16..32), k/32 of fifth bits (one a weight), then
//!      k/32 scales d (f16, two a word), zeros to a multiple of 4
const QBLOCK: u32 = 32u;
const HALF_GAP: u32 = 16u;
const LOWS: bool = false;
const SCALED: bool = true;
const OFFSET: bool = true;
struct Chunk {
    q: vec4<u32>,
    fifths: u32,
    d: f32,
}

fn row_words(k: u32) -> u32 {
    return (k / 8u + k / 32u + (k / 32u + 1u) / 2u + 3u) / 4u * 4u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    let fifths = row + k / 8u;
    return Chunk(w[row / 4u + c], word(fifths + c), f16_at(fifths + k / 32u, c));
}

fn quants(chunk: Chunk, half: u32) -> vec4<u32> {
    let bits = (vec4<u32>(chunk.fifths >> (16u * half)) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    return ((chunk.q >> vec4<u32>(4u * half)) & vec4<u32>(0x0f0f0f0fu)) | (to_bytes(bits) << vec4<u32>(4u));
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    return Scaled(bytes16(quants(chunk, half)), chunk.d, -16.0 * chunk.d);
}

fn ints16(chunk: Chunk, half: u32) -> Ints {
    return Ints(below(quants(chunk, half), 16u), chunk.d, 0.0);
}
