//! norm: RMS norm or layer norm of groups of n elements of each row
//! x (rows, groups * n) f32 | weight, bias (n) or (groups * n) f32 | out (rows, groups * n) f32
//! grid: x one workgroup for a group, y one for a row
//! use: lib/batch, <reduce>
//! source: layer norm, Ba et al. 2016; RMS norm, Zhang and Sennrich 2019
struct Params {
    n: u32,
    rows_at: u32,   // word of batch with the number of rows
    stride: u32,    // elements from a row to the next
    norm_w: u32,    // vec4 of vecs where the weight lies (HAS_NORM_W)
    norm_b: u32,    // vec4 of vecs where the bias lies (HAS_NORM_B)
    eps: f32,
}
override NORM: u32 = 1u;            // 1 RMS, 2 layer norm
override HAS_NORM_W: bool = false;
override HAS_NORM_B: bool = false;
override PER_GROUP: bool = false;   // weight and bias (groups * n)
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> vecs: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn norm(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    if group.y >= batch[params.rows_at] {
        return;
    }
    let n = params.n;
    let at = group.y * params.stride + group.x * n;
    var mean = 0.0;
    if NORM == 2u {
        var sum = 0.0;
        for (var i = lid; i < n; i += WG) {
            sum += x[at + i];
        }
        mean = wg_sum(sum, lid) / f32(n);
    }
    var squares = 0.0;
    for (var i = lid; i < n; i += WG) {
        let d = x[at + i] - mean;
        squares += d * d;
    }
    let scale = inverseSqrt(wg_sum(squares, lid) / f32(n) + params.eps);
    let own = select(0u, group.x * n, PER_GROUP);
    for (var i = lid; i < n; i += WG) {
        var y = (x[at + i] - mean) * scale;
        if HAS_NORM_W {
            y *= vecs[params.norm_w + (own + i) / 4u][(own + i) % 4u];
        }
        if HAS_NORM_B {
            y += vecs[params.norm_b + (own + i) / 4u][(own + i) % 4u];
        }
        out[at + i] = y;
    }
}
