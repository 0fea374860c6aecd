//! matvec: out[r] = epilogue(W norm(x[r]) + bias), for few rows (decode)
//! x (rows, k) f32 | w (n, k) any block format | out (rows, n) f32 | residual (rows, n) f32
//! grid: x one workgroup for ROW_VEC4S times four rows of W (gated: two gates and their ups), y one for COLS rows of x
//! use: lib/batch, lib/linear, lib/act, <products>, <weights>, lib/unpack, <sums>, lib/results
//! source: mul_mat_vec of llama.cpp (Vulkan); folding norms and epilogues in, our own
override EPI: u32 = 0u;  // 0 nothing, 1 plus residual, 2 act, 3 act(gate) * up, 4 times what out holds
@group(0) @binding(5) var<storage, read> residual: array<f32>;    // (rows, n)
@group(0) @binding(6) var<storage, read_write> out: array<f32>;   // (rows, n)

// Columns of out; gated, each twice: the gate's and the up's.
fn columns(v4: u32) -> vec4<u32> {
    if EPI == 3u {
        return vec4<u32>(2u * v4) + vec4<u32>(0u, 1u, 0u, 1u);
    }
    return vec4<u32>(4u * v4) + vec4<u32>(0u, 1u, 2u, 3u);
}

fn w_rows(v4: u32) -> vec4<u32> {
    let rows = params.row0 + min(columns(v4), vec4<u32>(params.n - 1u));
    if EPI == 3u {
        return rows + vec4<u32>(0u, 0u, params.up, params.up);
    }
    return rows;
}

@compute @workgroup_size(WG)
fn matvec(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let rows = batch[params.rows_at];
    let first = group.y * COLS;
    let cols = min(COLS, rows - min(first, rows));
    if cols == 0u {
        return;
    }
    let v4 = group.x * ROW_VEC4S;
    multiply(v4, first, cols, lid);
    for (var i = lid; i < 4u * cols * ROW_VEC4S; i += WG) {
        let at = i / 4u;
        let lane = i % 4u;
        let j = columns(v4 + at % ROW_VEC4S)[lane];
        if j >= params.n || (EPI == 3u && lane >= 2u) {
            continue;
        }
        var y = sh_results[at][lane];
        if HAS_BIAS {
            y += vec1(params.bias_at, j);
        }
        if EPI == 2u || EPI == 3u {
            y = act(y);
        }
        if EPI == 3u {
            var up = sh_results[at][lane + 2u];
            if HAS_BIAS {
                up += vec1(params.bias_up, j);
            }
            y *= up;
        }
        let to = (first + at / ROW_VEC4S) * params.out_stride + params.out0 + j;
        if EPI == 1u {
            y += residual[to];
        }
        if EPI == 4u {
            y *= out[to];
        }
        out[to] = y;
    }
}
