//! mxfp4: weight = 2^(e - 128) * levels(q), blocks of 32; levels are twice the FP4 (E2M1) values
//! row: k/8 words of nibbles (4 a block: low ones weights 0..16, high ones 16..32), then k/32 exponents e (u8, four a word),
//!      zeros to a multiple of 4
const QBLOCK: u32 = 32u;
const HALF_GAP: u32 = 16u;
const LOWS: bool = false;
const SCALED: bool = true;
const OFFSET: bool = false;
struct Chunk {
    q: vec4<u32>,
    d: f32,
}

fn row_words(k: u32) -> u32 {
    return (k / 8u + (k / 32u + 3u) / 4u + 3u) / 4u * 4u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    let e = (word(row + k / 8u + c / 4u) >> (8u * (c & 3u))) & 255u;
    let d = bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << e, e < 2u)); // subnormal where e < 2
    return Chunk(w[row / 4u + c], d);
}

// The levels of four quants: table[q] for signed bytes, four a word.
fn levels(v: u32) -> vec4<f32> {
    let q = (vec4<u32>(v) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
    let table = vec4<u32>(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
    let words = vec4<u32>(table[q.x >> 2u], table[q.y >> 2u], table[q.z >> 2u], table[q.w >> 2u]);
    return vec4<f32>(bitcast<vec4<i32>>(words << (vec4<u32>(24u) - 8u * (q & vec4<u32>(3u)))) >> vec4<u32>(24u));
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    let q = chunk.q >> vec4<u32>(4u * half);
    return Scaled(mat4x4<f32>(levels(q.x), levels(q.y), levels(q.z), levels(q.w)), chunk.d, 0.0);
}

fn ints16(chunk: Chunk, half: u32) -> Ints {
    let q = chunk.q >> vec4<u32>(4u * half);
    let bytes = vec4<u32>(signed_bytes(levels(q.x)), signed_bytes(levels(q.y)), signed_bytes(levels(q.z)), signed_bytes(levels(q.w)));
    return Ints(bytes, chunk.d, 0.0);
}
