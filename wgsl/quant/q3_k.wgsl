//! q3_k: weight = d * (scale - 32) * (q - 4), blocks of 256 in groups of 16
//! row: k/16 words of low bits (16 a block), k/32 of high bits (8 a block), 3 words a block of scales (six bits each), then
//!      k/256 scales d (f16, two a word), zeros to a multiple of 4
//! A block is eight rows r of 32: bits 2 (r & 3), 2 (r & 3) + 1 of a low byte of its half, bit r of a high byte.
const QBLOCK: u32 = 256u;
const HALF_GAP: u32 = 32u;
const LOWS: bool = false;
const SCALED: bool = true;
const OFFSET: bool = true;
struct Chunk {
    low: vec4<u32>,
    high: vec4<u32>,
    scaling: vec2<f32>,  // the scale of each half
}

fn row_words(k: u32) -> u32 {
    return (k / 16u + k / 32u + k / 256u * 3u + (k / 256u + 1u) / 2u + 3u) / 4u * 4u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    let block = c / 8u;
    let r = (c / 2u * 2u) & 7u;  // row of the first half
    let low = w[row / 4u + c / 4u * 2u + (c & 1u)] >> vec4<u32>(2u * (r & 3u));
    let highs = row + k / 16u;
    let high = w[highs / 4u + block * 2u + (c & 1u)] >> vec4<u32>(r);
    let scales = highs + k / 32u;
    let at = scales + block * 3u;
    let g = 2u * r + (c & 1u);
    let d = f16_at(scales + k / 256u * 3u, block);
    return Chunk(low, high, d * vec2<f32>(scale(at, g), scale(at, g + 2u)));
}

// The scale of group g of 16, in the three words from `at` on: four low bits, then two high ones.
fn scale(at: u32, g: u32) -> f32 {
    let low = word(at + (g & 7u) / 4u) >> (8u * (g & 3u) + 4u * (g / 8u));
    let high = word(at + 2u) >> (8u * (g & 3u) + 2u * (g / 4u));
    return f32((low & 15u) | ((high & 3u) << 4u)) - 32.0;
}

fn quants(chunk: Chunk, half: u32) -> vec4<u32> {
    let low = (chunk.low >> vec4<u32>(2u * half)) & vec4<u32>(0x03030303u);
    let high = (chunk.high >> vec4<u32>(half)) & vec4<u32>(0x01010101u);
    return low | (high << vec4<u32>(2u));
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    let scaling = select(chunk.scaling.x, chunk.scaling.y, half == 1u);
    return Scaled(bytes16(quants(chunk, half)), scaling, -4.0 * scaling);
}

fn ints16(chunk: Chunk, half: u32) -> Ints {
    let scaling = select(chunk.scaling.x, chunk.scaling.y, half == 1u);
    return Ints(below(quants(chunk, half), 4u), scaling, 0.0);
}
