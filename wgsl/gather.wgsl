//! gather: out[o, :] = x[row of output o, :]
//! x (rows, n) f32 | out (outs, n) f32, in vec4s
//! grid: x one thread for four elements, y one output row
//! use: lib/batch
//! source: get_rows of llama.cpp, for output rows
struct Params {
    vec4s: u32,  // in a row
}
override WG: u32 = 64u;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn gather(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.y < batch[2] && id.x < params.vec4s {
        out[id.y * params.vec4s + id.x] = x[out_row(id.y) * params.vec4s + id.x];
    }
}
