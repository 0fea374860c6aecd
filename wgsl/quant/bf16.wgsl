//! bf16: two weights a word, the first in the low 16 bits, each the high 16 bits of an f32
//! row: ceil(k/2) words, zeros to a multiple of 4
const QBLOCK: u32 = 1u;
const HALF_GAP: u32 = 16u;
const SCALED: bool = false;
const OFFSET: bool = false;
struct Chunk {
    q0: vec4<u32>,
    q1: vec4<u32>,
    q2: vec4<u32>,
    q3: vec4<u32>,
}

fn row_words(k: u32) -> u32 {
    return (k + 7u) / 8u * 4u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    let i = 4u * c;
    return Chunk(unit_of_row(row, k, i), unit_of_row(row, k, i + 1u), unit_of_row(row, k, i + 2u),
        unit_of_row(row, k, i + 3u));
}

fn four(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    let a = select(chunk.q0, chunk.q2, half == 1u);
    let b = select(chunk.q1, chunk.q3, half == 1u);
    return Scaled(mat4x4<f32>(four(a.x, a.y), four(a.z, a.w), four(b.x, b.y), four(b.z, b.w)), 1.0, 0.0);
}
