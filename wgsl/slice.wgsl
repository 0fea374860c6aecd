//! slice: out[r, h] = x[r, h, start .. start + n] for each of several equal parts of a row
//! x (rows, heads * width) f32 | out (rows, heads * n) f32
//! grid: x one thread for an element, y one row
//! source: our own
struct Params {
    rows_at: u32,  // word of batch with the number of rows
    start: u32,
    n: u32,
    width: u32,
    columns: u32,  // heads * n
    x_stride: u32,
    out_stride: u32,
}
override WG: u32 = 64u;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn slice(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.y < batch[params.rows_at] && id.x < params.columns {
        let column = id.x / params.n * params.width + params.start + id.x % params.n;
        out[id.y * params.out_stride + id.x] = x[id.y * params.x_stride + column];
    }
}
