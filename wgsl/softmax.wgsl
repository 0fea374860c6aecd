//! softmax: out[r, i] = exp(scale x[r, i] - m) / sum_j exp(scale x[r, j] - m), m the row's largest
//! x, out (rows, n) f32
//! grid: x and y one workgroup for a row, `across` workgroups in a row of the grid
//! use: <reduce>
//! source: attention's scores to weights, Vaswani et al. 2017
//! bench only: attention has a softmax of its own, sampling needs none
//!
//! Elements that come to -1e30 or less are masked. A row of masked elements alone is uniform, 1 / n; a row that holds NaN or
//! positive infinity is NaN.
struct Params {
    rows: u32,
    n: u32,
    stride: u32,  // elements from a row to the next
    across: u32,
    scale: f32,
}
const MASK_VALUE: f32 = -1e30;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(WG)
fn softmax(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y * params.across + group.x;
    if row >= params.rows {
        return;
    }
    let at = row * params.stride;
    var largest = MASK_VALUE;
    var broken = 0.0;
    for (var i = lid; i < params.n; i += WG) {
        let bits = x[at + i];
        // By bits: a compiler may assume that there is no NaN and no infinity.
        if (bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u {
            broken = 1.0;
        }
        if bits != 0xff800000u {
            largest = max(largest, params.scale * bitcast<f32>(bits));
        }
    }
    broken = wg_max(broken, lid);
    largest = wg_max(largest, lid);
    var sum = 0.0;
    for (var i = lid; i < params.n; i += WG) {
        let bits = x[at + i];
        if bits != 0xff800000u {
            sum += exp(params.scale * bitcast<f32>(bits) - largest);
        }
    }
    sum = wg_sum(sum, lid);
    for (var i = lid; i < params.n; i += WG) {
        let bits = x[at + i];
        var p = 0.0;
        if largest <= MASK_VALUE {
            p = 1.0 / f32(params.n);
        } else if bits != 0xff800000u {
            p = exp(params.scale * bitcast<f32>(bits) - largest) / sum;
        }
        out[at + i] = select(bitcast<u32>(p), 0x7fc00000u, broken > 0.0);
    }
}
