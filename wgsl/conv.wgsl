//! conv: out[t, c] = bias[c] + sum_j weight[c, j] * x[t - (kernel_size - 1) + j, c], with zeros before the first position
//! x (rows, n) f32 | w (n, kernel_size) any block format | state (kernel_size - 1, n) f32: the last rows of x | out (rows, n) f32
//! grid: x one thread for a column, y one sequence
//! use: lib/batch, <weights>, lib/unpack
//! source: the short convolutions of Mamba, Gu and Dao 2023
struct Params {
    n: u32,          // columns of x
    first: u32,      // the first column in this dispatch
    count: u32,      // columns in this dispatch
    row0: u32,       // row of w of the first
    kernel_size: u32,
    bias: u32,       // element of vecs where the bias lies (HAS_BIAS)
    stride: u32,     // elements from a row to the next, of x and of out
    state_len: u32,  // elements of a state
}
override WG: u32 = 64u;
override HAS_BIAS: bool = false;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> vecs: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> state: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn conv(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.y >= batch[1] || id.x >= params.count {
        return;
    }
    let c = params.first + id.x;
    let row0 = seq_row0(id.y);
    let rows = seq_rows(id.y);
    let before = params.kernel_size - 1u;
    let kept = seq_slot(id.y) * params.state_len + c;
    if row_pos(row0) == 0u {
        for (var i = 0u; i < before; i++) {
            state[kept + i * params.n] = 0.0;
        }
    }
    let base = (params.row0 + id.x) * row_words(params.kernel_size);
    var bias = 0.0;
    if HAS_BIAS {
        bias = vecs[(params.bias + c) / 4u][(params.bias + c) % 4u];
    }
    // Rows by their number in the state followed by the step: row r of the step is number before + r.
    for (var r = 0u; r < rows; r++) {
        var sum = bias;
        for (var j = 0u; j < params.kernel_size; j += 4u) {
            let weights = dequant4(base, params.kernel_size, j);
            for (var i = j; i < min(j + 4u, params.kernel_size); i++) {
                var v = 0.0;
                if r + i < before {
                    v = state[kept + (r + i) * params.n];
                } else {
                    v = x[(row0 + r + i - before) * params.stride + c];
                }
                sum += weights[i - j] * v;
            }
        }
        out[(row0 + r) * params.stride + c] = sum;
    }
    for (var i = 0u; i < before; i++) {
        var v = 0.0;
        if rows + i < before {
            v = state[kept + (rows + i) * params.n];
        } else {
            v = x[(row0 + rows + i - before) * params.stride + c];
        }
        state[kept + i * params.n] = v;
    }
}
