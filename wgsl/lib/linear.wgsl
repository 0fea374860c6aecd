//! linear: parameters and bindings that the kernels of W x share, and how they read x.
struct Params {
    n: u32,           // rows of W in this dispatch; of a gated pair, of each
    k: u32,           // columns of W
    row0: u32,        // row of w where the rows begin
    up: u32,          // rows of w from a gate to its up
    out0: u32,        // column of out that the first row makes
    rows_at: u32,     // word of batch with the number of rows of x: 0 rows, 2 outs
    out_stride: u32,  // elements from a row of out to the next
    bias_at: u32,     // element of vecs where the bias of row `out0` lies (HAS_BIAS)
    norm_w: u32,      // vec4 of vecs where the norm's weight lies (NORM, HAS_NORM_W)
    bias_up: u32,     // element of vecs where the bias of the ups lies (gated, HAS_BIAS)
    eps: f32,         // of the norm
}
override NORM: bool = false;        // an RMS norm of a row of x comes before (mat-vec only)
override HAS_NORM_W: bool = false;
override HAS_BIAS: bool = false;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;     // (rows, k)
@group(0) @binding(3) var<storage, read> vecs: array<vec4<f32>>;  // the model's vectors
@group(0) @binding(4) var<storage, read> w: array<vec4<u32>>;     // rows of W, in their block format

// Elements i..i+4 of a row of x; i is a multiple of 4, and what lies past k is zero.
fn x4(row: u32, i: u32) -> vec4<f32> {
    // A load that a branch would keep from its neighbours: past the end, the last one again.
    let v = x[row * ((params.k + 3u) / 4u) + min(i, params.k - 1u) / 4u];
    return select(vec4<f32>(0.0), v, vec4<u32>(i, i + 1u, i + 2u, i + 3u) < vec4<u32>(params.k));
}

// Elements i..i+16, in order; i is a multiple of 16. Rows of blocks are whole chunks.
fn x16(row: u32, i: u32) -> mat4x4<f32> {
    if QBLOCK == 1u {
        return mat4x4<f32>(x4(row, i), x4(row, i + 4u), x4(row, i + 8u), x4(row, i + 12u));
    }
    let at = row * (params.k / 4u) + i / 4u;
    return mat4x4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
}

fn vec1(at: u32, i: u32) -> f32 {
    return vecs[(at + i) / 4u][(at + i) % 4u];
}
