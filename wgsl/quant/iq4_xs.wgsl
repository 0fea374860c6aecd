//! iq4_xs: weight = d * (scale - 32) * levels(q), blocks of 256 in groups of 32
//! row: k/8 words of nibbles (4 a group: low ones weights 0..16, high ones 16..32), then two words a block: d (f16) and the
//!      high bits of the scales (two a group), the low ones (four a group); zeros to a multiple of 4
const QBLOCK: u32 = 256u;
const HALF_GAP: u32 = 16u;
const LOWS: bool = false;
const SCALED: bool = true;
const OFFSET: bool = false;
struct Chunk {
    q: vec4<u32>,
    d: f32,
}

fn row_words(k: u32) -> u32 {
    return (k / 8u + k / 256u * 2u + 3u) / 4u * 4u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    let at = row + k / 8u + c / 8u * 2u;
    let head = word(at);
    let g = c & 7u;
    let scale = ((word(at + 1u) >> (4u * g)) & 15u) | (((head >> (16u + 2u * g)) & 3u) << 4u);
    return Chunk(w[row / 4u + c], unpack2x16float(head).x * (f32(scale) - 32.0));
}

// The levels of four quants: table[q] for signed bytes, four a word.
fn levels(v: u32) -> vec4<f32> {
    let q = (vec4<u32>(v) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
    let table = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
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
