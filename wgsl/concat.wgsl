//! concat: out[r, h] = a[r, h] followed by b[r, h], for each of several equal parts of a row
//! a (rows, heads * a_dim) f32 | b (rows, heads * b_dim) f32 | out (rows, heads * (a_dim + b_dim)) f32
//! grid: x one thread for an element, y one row
//! source: the two parts of a latent query, DeepSeek-V2 2024
struct Params {
    rows_at: u32,  // word of batch with the number of rows
    a_dim: u32,
    b_dim: u32,
    columns: u32,  // heads * (a_dim + b_dim)
    a_stride: u32,
    b_stride: u32,
    out_stride: u32,
}
override WG: u32 = 64u;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> a: array<f32>;
@group(0) @binding(3) var<storage, read> b: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn concat(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    if row >= batch[params.rows_at] || id.x >= params.columns {
        return;
    }
    let head = id.x / (params.a_dim + params.b_dim);
    let i = id.x % (params.a_dim + params.b_dim);
    var v = 0.0;
    if i < params.a_dim {
        v = a[row * params.a_stride + head * params.a_dim + i];
    } else {
        v = b[row * params.b_stride + head * params.b_dim + i - params.a_dim];
    }
    out[row * params.out_stride + id.x] = v;
}
