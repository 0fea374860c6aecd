//! row_wise: magnitude, x * sqrt(mean(like²) / max(mean(x²), floor)); sparsify, max(x - mean(x) - by * deviation(x), 0); weigh, w * x
//! x, like (rows, n) f32 | w (n) or (1) f32 | out (rows, n) f32
//! grid: x one workgroup for a row
//! use: lib/batch, <reduce>
//! source: Gemma 3n's streams and sparse activations, 2025; Gemma 4's factors of layers
struct Params {
    rows_at: u32,  // word of batch with the number of rows
    n: u32,
    stride: u32,   // elements from a row to the next
    weight: u32,   // element of vecs where w lies (OP 2)
    each: u32,     // 1: a weight for each element; 0: one for all
    by: f32,       // floor, or deviations
}
override OP: u32 = 0u;  // 0 magnitude, 1 sparsify, 2 weigh
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> like: array<f32>;
@group(0) @binding(4) var<storage, read> vecs: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn row_wise(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    if group.x >= batch[params.rows_at] {
        return;
    }
    let n = params.n;
    let at = group.x * params.stride;
    if OP == 2u {
        for (var i = lid; i < n; i += WG) {
            let weight = params.weight + i * params.each;
            out[at + i] = vecs[weight / 4u][weight % 4u] * x[at + i];
        }
        return;
    }
    var sums = vec4<f32>(0.0);
    for (var i = lid; i < n; i += WG) {
        if OP == 0u {
            sums += vec4<f32>(x[at + i] * x[at + i], like[at + i] * like[at + i], 0.0, 0.0);
        } else {
            sums.x += x[at + i];
        }
    }
    sums = wg_sum4(sums, lid) / f32(n);
    if OP == 0u {
        let factor = sqrt(sums.y / max(sums.x, params.by));
        for (var i = lid; i < n; i += WG) {
            out[at + i] = factor * x[at + i];
        }
        return;
    }
    var squares = 0.0;
    for (var i = lid; i < n; i += WG) {
        let d = x[at + i] - sums.x;
        squares += d * d;
    }
    let threshold = sums.x + params.by * sqrt(wg_sum(squares, lid) / f32(n));
    for (var i = lid; i < n; i += WG) {
        out[at + i] = max(x[at + i] - threshold, 0.0);
    }
}
