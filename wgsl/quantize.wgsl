//! quantize: q = round(x / d) as int8, d = max |x| / 127 of each 32
//! x (rows, k) f32 | out (rows, k) i8, then (rows, k / 32) f32, row by row
//! grid: x one thread for 32 columns, y one workgroup for a row
//! use: lib/batch
//! source: quantize_q8_1 of llama.cpp
//!
//! A row of out is k / 4 words of quants, four a word, then its scales, and a multiple of 4 words long.
override WG: u32 = 64u;
struct Params {
    k: u32,        // a multiple of 32
    rows_at: u32,  // word of batch with the number of rows
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;         // (rows, k)
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(WG)
fn quantize(@builtin(global_invocation_id) id: vec3<u32>) {
    let c = id.x;
    let row = id.y;
    let k = params.k;
    if c >= k / 32u || row >= batch[params.rows_at] {
        return;
    }
    // As integers, magnitudes of floats keep their order, and NaN is above all.
    var most = vec4<u32>(0u);
    for (var i = 0u; i < 8u; i++) {
        most = max(most, bitcast<vec4<u32>>(x[row * (k / 4u) + 8u * c + i]) & vec4<u32>(0x7fffffffu));
    }
    let largest = bitcast<f32>(max(max(most.x, most.y), max(most.z, most.w)));
    // Below 1e-30, 127 / largest might be infinite.
    let inverse = select(0.0, 127.0 / largest, largest > 1e-30);
    let at = row * ((k / 4u + k / 32u + 3u) / 4u * 4u);
    for (var i = 0u; i < 8u; i++) {
        let v = x[row * (k / 4u) + 8u * c + i] * inverse;
        let q = bitcast<vec4<u32>>(vec4<i32>(round(clamp(v, vec4<f32>(-127.0), vec4<f32>(127.0))))) & vec4<u32>(255u);
        out[at + 8u * c + i] = q.x | (q.y << 8u) | (q.z << 16u) | (q.w << 24u);
    }
    out[at + k / 4u + c] = bitcast<u32>(largest * (1.0 / 127.0));
}
