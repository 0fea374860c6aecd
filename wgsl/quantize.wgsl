//! quantize: q = round(x / d) as int8, d = max |x| / 127 of each 32; x times the weight of a norm, if one comes before
//! x (rows, k) f32 | out (rows, k / 32) of three units: 32 x i8, then d, Σ x², d Σ q of the first 16, and of the last, f32
//! grid: x one thread for 32 columns, y one workgroup for a row
//! use: lib/batch
//! source: quantize_q8_1 of llama.cpp; Σ x², from which mat-vec has an RMS norm, our own
override WG: u32 = 64u;
override HAS_NORM_W: bool = false;
struct Params {
    k: u32,        // a multiple of 32
    rows_at: u32,  // word of batch with the number of rows
    norm_w: u32,   // vec4 of vecs where the norm's weight lies (HAS_NORM_W)
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;     // (rows, k)
@group(0) @binding(3) var<storage, read> vecs: array<vec4<f32>>;  // the model's vectors
@group(0) @binding(4) var<storage, read_write> out: array<vec4<u32>>;

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
    var squares = vec4<f32>(0.0);
    var values = array<vec4<f32>, 8>();
    for (var i = 0u; i < 8u; i++) {
        var v = x[row * (k / 4u) + 8u * c + i];
        squares += v * v;
        if HAS_NORM_W {
            v *= vecs[params.norm_w + 8u * c + i];
        }
        values[i] = v;
        most = max(most, bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu));
    }
    let largest = bitcast<f32>(max(max(most.x, most.y), max(most.z, most.w)));
    // Below 1e-30, 127 / largest might be infinite.
    let inverse = select(0.0, 127.0 / largest, largest > 1e-30);
    let d = largest * (1.0 / 127.0);
    let at = 3u * (row * (k / 32u) + c);
    var totals = vec2<f32>(0.0);
    for (var half = 0u; half < 2u; half++) {
        var sum = vec4<i32>(0);
        var words = vec4<u32>(0u);
        for (var i = 0u; i < 4u; i++) {
            let v = values[4u * half + i] * inverse;
            let q = vec4<i32>(round(clamp(v, vec4<f32>(-127.0), vec4<f32>(127.0))));
            sum += q;
            let bytes = bitcast<vec4<u32>>(q) & vec4<u32>(255u);
            words[i] = bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
        }
        out[at + half] = words;
        totals[half] = d * f32((sum.x + sum.y) + (sum.z + sum.w));
    }
    let square = (squares.x + squares.y) + (squares.z + squares.w);
    out[at + 2u] = bitcast<vec4<u32>>(vec4<f32>(d, square, totals));
}
