//! matvec: out[r] = epilogue(W norm(x[r]) + bias), for few rows
//! x (rows, k) f32 | w (n, k) any block format | out (rows, n) f32 | residual (rows, n) f32
//! grid: x one workgroup for four rows of W (gated: for two gates and their ups), y one for eight rows of x
//! use: lib/step, lib/linear, lib/act, <weights>, <reduce>, lib/matvec
override EPI: u32 = 0u;  // 0 nothing, 1 plus residual, 2 act, 3 act(gate) * up
@group(0) @binding(5) var<storage, read> residual: array<f32>;    // (rows, n)
@group(0) @binding(6) var<storage, read_write> out: array<f32>;   // (rows, n)

@compute @workgroup_size(WG)
fn matvec(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let rows = step[params.rows_at];
    let first = group.y * COLS;
    let cols = min(COLS, rows - min(first, rows));
    if cols == 0u {
        return;
    }
    let last = params.n - 1u;
    var i = vec4<u32>(4u * group.x) + vec4<u32>(0u, 1u, 2u, 3u);
    var at = params.row0 + min(i, vec4<u32>(last));
    if EPI == 3u {
        i = vec4<u32>(2u * group.x) + vec4<u32>(0u, 1u, 0u, 1u);
        at = params.row0 + min(i, vec4<u32>(last)) + vec4<u32>(0u, 0u, params.up, params.up);
    }
    multiply4(at, first, cols, lid);
    let lane = lid % 4u;
    // Four threads store a row of x's results; the others have nothing to do.
    for (var c = lid / 4u; c < cols; c += WG / 4u) {
        let row = first + c;
        let j = i[lane];
        if j >= params.n {
            continue;
        }
        var y = sums[c][lane];
        if EPI == 3u {
            if lane >= 2u {
                continue;
            }
            var up = sums[c][lane + 2u];
            if HAS_BIAS {
                y += vec1(params.bias_at, j);
                up += vec1(params.bias_up, j);
            }
            out[row * params.out_stride + params.out0 + j] = act(y) * up;
            continue;
        }
        if HAS_BIAS {
            y += vec1(params.bias_at, j);
        }
        if EPI == 2u {
            y = act(y);
        }
        let to = row * params.out_stride + params.out0 + j;
        if EPI == 1u {
            y += residual[to];
        }
        out[to] = y;
    }
}
