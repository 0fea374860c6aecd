//! combine: out[r, i] = sum_j weights[r, start + j] * x[r, j, i]
//! x (rows, count * n) f32 | weights (rows, start + count or more) f32 | out (rows, n) f32
//! grid: x one thread for an element, y one row
//! source: the weighted sum of experts' results, Shazeer et al. 2017
struct Params {
    rows_at: u32,  // word of batch with the number of rows
    start: u32,
    count: u32,
    n: u32,
    x_stride: u32,
    w_stride: u32,
    out_stride: u32,
}
override WG: u32 = 64u;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn combine(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    if row >= batch[params.rows_at] || id.x >= params.n {
        return;
    }
    var sum = 0.0;
    for (var j = 0u; j < params.count; j++) {
        let weight = weights[row * params.w_stride + params.start + j];
        sum += weight * x[row * params.x_stride + j * params.n + id.x];
    }
    out[row * params.out_stride + id.x] = sum;
}
