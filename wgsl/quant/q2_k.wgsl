//! q2_k: weight = d * scale * q - dmin * min, blocks of 256 in groups of 16
//! row: k/16 words of quants (16 a block), k/64 of scales and minima (a byte a group, the minimum in the high nibble), then
//!      k/256 words (d, dmin) as f16, zeros to a multiple of 4
//! A half of a block is four rows r of 32: bits 2r, 2r + 1 of a byte of quants.
const QBLOCK: u32 = 256u;
const HALF_GAP: u32 = 32u;
const LOWS: bool = true;
const SCALED: bool = true;
const OFFSET: bool = true;
struct Chunk {
    q: vec4<u32>,
    scales: u32,  // scale and minimum of the first half in the lowest byte, of the second in the third
    d: u32,       // d and dmin, as f16
}

fn row_words(k: u32) -> u32 {
    return (k / 16u + k / 64u + k / 256u + 3u) / 4u * 4u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    let scales = row + k / 16u;
    // Two consecutive chunks cover two rows of 32, which are bits 0..4 of a byte; the next two are bits 4..8.
    let q = w[row / 4u + c / 4u * 2u + (c & 1u)] >> vec4<u32>(4u * ((c / 2u) & 1u));
    return Chunk(q, word(scales + c / 2u) >> (8u * (c & 1u)), word(scales + k / 64u + c / 8u));
}

// Scale and minimum of a half.
fn scaling(chunk: Chunk, half: u32) -> vec2<f32> {
    let packed = vec2<u32>(chunk.scales >> (16u * half)) >> vec2<u32>(0u, 4u);
    return unpack2x16float(chunk.d) * vec2<f32>(packed & vec2<u32>(15u));
}

fn quants(chunk: Chunk, half: u32) -> vec4<u32> {
    return (chunk.q >> vec4<u32>(2u * half)) & vec4<u32>(0x03030303u);
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    let s = scaling(chunk, half);
    return Scaled(bytes16(quants(chunk, half)), s.x, -s.y);
}

fn ints16(chunk: Chunk, half: u32) -> Ints {
    let s = scaling(chunk, half);
    return Ints(quants(chunk, half), s.x, -s.y);
}
