//! pointwise: out = a + b, a * b, act(a), by * a, max(low, min(a, high))
//! a, b, out (rows, n) f32, in vec4s: what lies past n in a row's last vec4 is never read as a result
//! grid: x one thread for four elements, y one row
//! use: lib/act
//! source: GELU, Hendrycks and Gimpel 2016; SiLU, Elfwing et al. 2017
struct Params {
    rows_at: u32,  // word of batch with the number of rows
    vec4s: u32,    // in a row
    by: f32,
    low: f32,
    high: f32,
}
override WG: u32 = 64u;
override OP: u32 = 0u;  // 0 add, 1 mul, 2 act, 3 scale, 4 clamp
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn pointwise(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.y >= batch[params.rows_at] || id.x >= params.vec4s {
        return;
    }
    let i = id.y * params.vec4s + id.x;
    let x = a[i];
    switch OP {
        case 0u: { out[i] = x + b[i]; }
        case 1u: { out[i] = x * b[i]; }
        case 2u: { out[i] = vec4<f32>(act(x.x), act(x.y), act(x.z), act(x.w)); }
        case 3u: { out[i] = params.by * x; }
        default: { out[i] = max(vec4<f32>(params.low), min(x, vec4<f32>(params.high))); }
    }
}
