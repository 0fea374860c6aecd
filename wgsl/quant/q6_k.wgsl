//! q6_k: weight = d * scale * (q - 32), blocks of 256 in groups of 16
//! row: k/8 words of low nibbles (32 a block), k/16 of high bits (16 a block), k/64 of scales (4 x i8), then k/256 scales d
//!      (f16, two a word), zeros to a multiple of 4
//! A half of a block is four rows r of 32: low nibbles in bytes 32 (r & 1).., high ones of them if r >= 2; bits 2r, 2r + 1 of
//! a high byte.
const QBLOCK: u32 = 256u;
const HALF_GAP: u32 = 64u;
const LOWS: bool = false;
const SCALED: bool = true;
const OFFSET: bool = true;
struct Chunk {
    low: vec4<u32>,
    high: vec4<u32>,
    scaling: vec2<f32>,  // the scale of each half
}

fn row_words(k: u32) -> u32 {
    return (k / 8u + k / 16u + k / 64u + (k / 256u + 1u) / 2u + 3u) / 4u * 4u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    let highs = row + k / 8u;
    let scales = highs + k / 16u;
    // The first half is in row 0 or 1, the second two rows later.
    let high = w[highs / 4u + c / 4u * 2u + (c & 1u)] >> vec4<u32>(c & 2u);
    let at = scales + c / 4u * 2u;
    let n = bitcast<vec2<i32>>(vec2<u32>(word(at), word(at + 1u)) << vec2<u32>(24u - 8u * (c & 3u))) >> vec2<u32>(24u);
    return Chunk(w[row / 4u + c], high, f16_at(scales + k / 64u, c / 8u) * vec2<f32>(n));
}

fn quants(chunk: Chunk, half: u32) -> vec4<u32> {
    let low = (chunk.low >> vec4<u32>(4u * half)) & vec4<u32>(0x0f0f0f0fu);
    // The second half's bits are where they belong already.
    return low | ((chunk.high << vec4<u32>(4u - 4u * half)) & vec4<u32>(0x30303030u));
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    let scaling = select(chunk.scaling.x, chunk.scaling.y, half == 1u);
    return Scaled(bytes16(quants(chunk, half)), scaling, -32.0 * scaling);
}

fn ints16(chunk: Chunk, half: u32) -> Ints {
    let scaling = select(chunk.scaling.x, chunk.scaling.y, half == 1u);
    return Ints(below(quants(chunk, half), 32u), scaling, 0.0);
}
