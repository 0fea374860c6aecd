//! q8_0: weight = d * q, blocks of 32
//! row: k/4 words of quants (4 x i8), then k/32 scales d (f16, two a word), zeros to a multiple of 4
const QBLOCK: u32 = 32u;
const HALF_GAP: u32 = 16u;
const LOWS: bool = false;
const SCALED: bool = true;
const OFFSET: bool = false;
struct Chunk {
    q0: vec4<u32>,  // of the first half
    q1: vec4<u32>,
    d: f32,
}

fn row_words(k: u32) -> u32 {
    return (k / 4u + (k / 32u + 1u) / 2u + 3u) / 4u * 4u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    let at = row / 4u + 2u * c;
    return Chunk(w[at], w[at + 1u], f16_at(row + k / 4u, c));
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    let q = select(chunk.q0, chunk.q1, half == 1u);
    return Scaled(mat4x4<f32>(signed4(q.x), signed4(q.y), signed4(q.z), signed4(q.w)), chunk.d, 0.0);
}

// The four bytes of a word: each to the top of a word of its own, then down with its sign.
fn signed4(v: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(v) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn ints16(chunk: Chunk, half: u32) -> Ints {
    return Ints(select(chunk.q0, chunk.q1, half == 1u), chunk.d, 0.0);
}
