//! experts: parameters and bindings of the kernels of many matrices, of which each part of a row takes one.
struct Params {
    n: u32,              // rows of a matrix in this dispatch
    k: u32,              // columns
    row0: u32,           // row of w where the first matrix begins
    first: u32,          // number of the first matrix that w holds
    count: u32,          // how many it holds; parts whose matrix lies elsewhere are left to another dispatch
    matrices: u32,       // all of the op
    out0: u32,           // the first row of each matrix in this dispatch
    out_n: u32,          // rows of each full matrix, and columns of a part of out
    parts: u32,          // of a row
    rows_at: u32,        // word of batch with the number of rows
    x_stride: u32,       // elements from a row of x to the next
    x_part: u32,         // elements from a part of x to the next; 0: all parts have one x
    chosen_stride: u32,
    out_stride: u32,
    bias_at: u32,        // element of vecs where the biases of all matrices lie, contiguous (HAS_BIAS)
}
override CHOSEN: bool = true;     // a part's matrix is the chosen one; else part j takes matrix j
override ALIGNED: bool = true;    // parts of x begin at multiples of 4
override HAS_BIAS: bool = false;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> chosen: array<f32>;      // (rows, parts or more): numbers of matrices
@group(0) @binding(4) var<storage, read> vecs: array<vec4<f32>>;  // the model's vectors
@group(0) @binding(5) var<storage, read> w: array<vec4<u32>>;     // the matrices, contiguous

// The matrix of a part of a row. The number is stored as a float: it is clamped to a valid one.
fn matrix_of(row: u32, part: u32) -> u32 {
    if CHOSEN {
        return min(u32(max(chosen[row * params.chosen_stride + part], 0.0)), params.matrices - 1u);
    }
    return part;
}

// Elements i..i+4 of a part of a row of x; i is a multiple of 4, and what lies past k is zero.
fn x4(row: u32, part: u32, i: u32) -> vec4<f32> {
    // A load that a branch would keep from its neighbours: past the end, the last one again.
    let at = row * params.x_stride + part * params.x_part + min(i, (params.k - 1u) / 4u * 4u);
    var v = x[at / 4u];
    if !ALIGNED {
        // What lies past the last four of x is past k, too.
        let next = x[min(at / 4u + 1u, arrayLength(&x) - 1u)];
        switch at % 4u {
            case 1u: { v = vec4<f32>(v.yzw, next.x); }
            case 2u: { v = vec4<f32>(v.zw, next.xy); }
            case 3u: { v = vec4<f32>(v.w, next.xyz); }
            default: {}
        }
    }
    return select(vec4<f32>(0.0), v, vec4<u32>(i, i + 1u, i + 2u, i + 3u) < vec4<u32>(params.k));
}

// Stores row j of a matrix's result for a part of a row.
fn store(row: u32, part: u32, matrix: u32, j: u32, sum: f32) {
    if j >= params.n {
        return;
    }
    var y = sum;
    let column = params.out0 + j;
    if HAS_BIAS {
        let at = params.bias_at + matrix * params.out_n + column;
        y += vecs[at / 4u][at % 4u];
    }
    out[row * params.out_stride + part * params.out_n + column] = y;
}
