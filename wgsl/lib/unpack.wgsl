//! unpack: how rows of weights are unpacked, whatever their format: by chunks of 32, each two halves of 16 consecutive weights.
//!
//! A format says how far apart the two halves lie (`HALF_GAP`), so that weights which share words are unpacked together. Its
//! `chunk(row, k, c)` loads chunk c of the row of k that starts at word `row` of w, a multiple of 4; `decode16(chunk, half)`
//! gives its weights; `ints16(chunk, half)`, where weights are int8, gives those. w is bound by the kernel.

// Bytes are masked in place, not shifted: each value comes out too large by a power of 256, which these factors undo.
const BYTE_SCALES: vec4<f32> = vec4<f32>(1.0, 0.00390625, 0.0000152587890625, 0.000000059604644775390625);

/// The first weight of chunk c; its second half begins HALF_GAP further on.
fn chunk_at(c: u32) -> u32 {
    return c / (HALF_GAP / 16u) * (2u * HALF_GAP) + c % (HALF_GAP / 16u) * 16u;
}

fn word(at: u32) -> u32 {
    return w[at / 4u][at % 4u];
}

/// Number i of the f16 that begin at word `at`.
fn f16_at(at: u32, i: u32) -> f32 {
    return unpack2x16float(word(at + i / 2u) >> (16u * (i & 1u))).x;
}

/// Four words of a row of floats; past its end, its last ones again, which meet zeros of x.
fn unit_of_row(row: u32, k: u32, i: u32) -> vec4<u32> {
    return w[row / 4u + min(i, row_words(k) / 4u - 1u)];
}

/// `d * q + low` of 16 quants, a byte each; `mask` selects their bits, less than eight, in all four bytes.
fn affine(q: vec4<u32>, mask: u32, d: f32, low: f32) -> mat4x4<f32> {
    let m = vec4<u32>(mask) & vec4<u32>(0xffu, 0xff00u, 0xff0000u, 0xff000000u);
    let scales = d * BYTE_SCALES;
    let lows = vec4<f32>(low);
    return mat4x4<f32>(in_place(q.x, m) * scales + lows, in_place(q.y, m) * scales + lows, in_place(q.z, m) * scales + lows,
        in_place(q.w, m) * scales + lows);
}

fn in_place(v: u32, mask: vec4<u32>) -> vec4<f32> {
    // Converted as signed integers, which they are small enough for: not all processors convert unsigned ones.
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(v) & mask));
}

/// Spreads the four bits of each word over its bytes, to the lowest bit of each.
fn to_bytes(bits: vec4<u32>) -> vec4<u32> {
    return (bits * vec4<u32>(0x204081u)) & vec4<u32>(0x01010101u);
}

/// The weights i..i+4 of a row; i is a multiple of 4. For kernels that take few: 16 weights are unpacked for them.
fn dequant4(row: u32, k: u32, i: u32) -> vec4<f32> {
    let c = i / (2u * HALF_GAP) * (HALF_GAP / 16u) + i % HALF_GAP / 16u;
    var v = decode16(chunk(row, k, c), i / HALF_GAP % 2u);
    return v[i / 4u % 4u];
}

/// The products of 16 weights with x, added up.
fn sum16(w: mat4x4<f32>, x: mat4x4<f32>) -> f32 {
    let v = w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3];
    return (v.x + v.y) + (v.z + v.w);
}

/// 16 weights as int8: `weight = d * q + low`.
struct Ints {
    q: vec4<u32>,
    d: f32,
    low: f32,  // 0 unless LOWS says that the format has some
}

/// Each byte minus `by`, as int8; bytes must be below 128.
fn below(q: vec4<u32>, by: u32) -> vec4<u32> {
    return ((q | vec4<u32>(0x80808080u)) - vec4<u32>(by * 0x01010101u)) ^ vec4<u32>(0x80808080u);
}

/// Four small integers as int8.
fn signed_bytes(v: vec4<f32>) -> u32 {
    let b = bitcast<vec4<u32>>(vec4<i32>(v)) & vec4<u32>(255u);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}
