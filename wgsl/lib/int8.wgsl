//! int8: rows of x as `quantize` writes them. Three units of 16 bytes stand for 32 columns: their quants, four a word, then what
//! belongs to them all (`int8_scales`).
@group(0) @binding(2) var<storage, read> x8: array<vec4<u32>>;

// The units of a row of k columns.
fn int8_units(k: u32) -> u32 {
    return k / 32u * 3u;
}

// Columns i..i+16 of the row that begins at unit `row`; i is a multiple of 16.
fn int8_16(row: u32, i: u32) -> vec4<u32> {
    return x8[row + i / 32u * 3u + i / 16u % 2u];
}

// Of the 32 columns around i: d, Σ x², then d times the sum of the first 16 quants, and of the last.
fn int8_scales(row: u32, i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(x8[row + i / 32u * 3u + 2u]);
}

// The sum of 16 products. GPUs add to a sum what they multiply, so it is one chain.
fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.w, b.w) + (dot4I8Packed(a.z, b.z) + (dot4I8Packed(a.y, b.y) + dot4I8Packed(a.x, b.x)));
}
