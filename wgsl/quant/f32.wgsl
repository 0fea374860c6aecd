//! f32: the weights as they are
//! row: k words, zeros to a multiple of 4
const QBLOCK: u32 = 1u;
const HALF_GAP: u32 = 16u;
const SCALED: bool = false;
const OFFSET: bool = false;
struct Chunk {
    run0: mat4x4<f32>,
    run1: mat4x4<f32>,
}

fn row_words(k: u32) -> u32 {
    return (k + 3u) / 4u * 4u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    return Chunk(floats16(row, k, 8u * c), floats16(row, k, 8u * c + 4u));
}

fn floats16(row: u32, k: u32, i: u32) -> mat4x4<f32> {
    return mat4x4<f32>(floats(row, k, i), floats(row, k, i + 1u), floats(row, k, i + 2u), floats(row, k, i + 3u));
}

fn floats(row: u32, k: u32, i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(unit_of_row(row, k, i));
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    if half == 1u {
        return Scaled(chunk.run1, 1.0, 0.0);
    }
    return Scaled(chunk.run0, 1.0, 0.0);
}
