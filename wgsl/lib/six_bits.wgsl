//! six_bits: scales and minima of a block of eight groups, six bits each.
//!
//! A chunk that has them holds d and dmin as f16 in `d`, and what `scales` returns in `scales`.

// The scales of the groups 2g and 2g + 1, then their minima, from the head of a block: a byte each. The low bits of those of
// the groups 4.. are in its last word, the high ones on top of those of the groups 0..4.
fn scales(head: vec4<u32>, g: u32) -> u32 {
    let t = 16u * (g & 1u);
    let six = ((head.y >> t) & 0xffffu) | ((head.z >> t) << 16u);
    let four = (head.w >> t) & 0xffffu;
    let later = (four & 0x0f0fu) | ((four << 12u) & 0x0f0f0000u) | ((six >> 2u) & 0x30303030u);
    return select(six & 0x3f3f3f3fu, later, g >= 2u);
}

// Scale and minimum of a half.
fn scaling(chunk: Chunk, half: u32) -> vec2<f32> {
    return unpack2x16float(chunk.d) * vec2<f32>((vec2<u32>(chunk.scales >> (8u * half)) >> vec2<u32>(0u, 16u)) & vec2<u32>(255u));
}
