//! unpack: how rows of weights are unpacked, whatever their format: by chunks of 32, each two halves of 16 consecutive weights.
//!
//! A format says how far apart the two halves lie (`HALF_GAP`), so that weights which share words are unpacked together. Its
//! `chunk(row, k, c)` loads chunk c of the row of k that starts at word `row` of w, a multiple of 4; `scaled16(chunk, half)`
//! gives its weights, as quants with a scale if it is SCALED and with an offset if it is OFFSET; `ints16(chunk, half)`, where
//! weights are int8, gives those. w is bound by the kernel.

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

/// 16 weights: `d * q + low`.
struct Scaled {
    q: mat4x4<f32>,
    d: f32,    // 1 unless SCALED
    low: f32,  // 0 unless OFFSET
}

/// The 16 weights of a half.
fn decode16(chunk: Chunk, half: u32) -> mat4x4<f32> {
    return decoded(scaled16(chunk, half));
}

fn decoded(s: Scaled) -> mat4x4<f32> {
    if !SCALED {
        return s.q;
    }
    let lows = vec4<f32>(select(0.0, s.low, OFFSET));
    return mat4x4<f32>(s.q[0] * s.d + lows, s.q[1] * s.d + lows, s.q[2] * s.d + lows, s.q[3] * s.d + lows);
}

/// The products of the 16 weights of a half with x, added up; `total` is the sum of x. Scale and offset come last, once.
fn product16(s: Scaled, x: mat4x4<f32>, total: f32) -> f32 {
    let y = sum16(s.q, x);
    if !SCALED {
        return y;
    }
    if !OFFSET {
        return s.d * y;
    }
    return s.d * y + s.low * total;
}

/// The sum of 16 elements of x, if `product16` needs it.
fn total16(x: mat4x4<f32>) -> f32 {
    if !OFFSET {
        return 0.0;
    }
    let v = (x[0] + x[1]) + (x[2] + x[3]);
    return (v.x + v.y) + (v.z + v.w);
}

/// 16 quants, a byte each.
fn bytes16(q: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(bytes4(q.x), bytes4(q.y), bytes4(q.z), bytes4(q.w));
}

/// The bytes of a word; GPUs convert each by an instruction.
fn bytes4(v: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(v) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
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
