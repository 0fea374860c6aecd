//! q5_k: weight = d * scale * q - dmin * min, blocks of 256 in groups of 32
//! row: k/256 blocks of 44 words as in the file: (d, dmin) as f16, 3 of scales and minima, 8 of fifth bits (bit g of a byte
//!      is of group g), 32 of nibbles (8 for two groups, low ones the first)
const QBLOCK: u32 = 256u;
const HALF_GAP: u32 = 32u;
const LOWS: bool = true;
const SCALED: bool = true;
const OFFSET: bool = true;
struct Chunk {
    q: vec4<u32>,
    fifths: vec4<u32>,
    scaling: vec4<f32>,  // scale and minimum of the first half, of the second
}

fn row_words(k: u32) -> u32 {
    return k / 256u * 44u;
}

fn chunk(row: u32, k: u32, c: u32) -> Chunk {
    let block = row / 4u + c / 8u * 11u;
    let g = (c / 2u) & 3u;
    let fifths = w[block + 1u + (c & 1u)] >> vec4<u32>(2u * g);
    return Chunk(w[block + 3u + (c & 7u)], fifths, scalings(w[block], g));
}

// The scales and minima of the groups 2g and 2g + 1, from the head of a block: six bits each. The low bits of those of the
// groups 4.. are in its last word, the high ones on top of those of the groups 0..4.
fn scalings(head: vec4<u32>, g: u32) -> vec4<f32> {
    let t = 16u * (g & 1u);
    let low = vec4<u32>(head.yz >> vec2<u32>(t), head.yz >> vec2<u32>(t + 8u));
    let high = (vec4<u32>(head.w >> t) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    let packed = select(low & vec4<u32>(63u), high | ((low & vec4<u32>(192u)) >> vec4<u32>(2u)), g >= 2u);
    return unpack2x16float(head.x).xyxy * vec4<f32>(bitcast<vec4<i32>>(packed));
}

fn quants(chunk: Chunk, half: u32) -> vec4<u32> {
    let low = (chunk.q >> vec4<u32>(4u * half)) & vec4<u32>(0x0f0f0f0fu);
    let fifth = (chunk.fifths >> vec4<u32>(half)) & vec4<u32>(0x01010101u);
    return low | (fifth << vec4<u32>(4u));
}

fn scaled16(chunk: Chunk, half: u32) -> Scaled {
    let scaling = select(chunk.scaling.xy, chunk.scaling.zw, half == 1u);
    return Scaled(bytes16(quants(chunk, half)), scaling.x, -scaling.y);
}

fn ints16(chunk: Chunk, half: u32) -> Ints {
    let scaling = select(chunk.scaling.xy, chunk.scaling.zw, half == 1u);
    return Ints(quants(chunk, half), scaling.x, -scaling.y);
}
