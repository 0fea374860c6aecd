//! matmul: out[r] = epilogue(W x[r] + bias), for many rows
//! x (rows, k) f32 | w (n, k) any block format | out (rows, n) f32 | residual (rows, n) f32
//! grid: x one workgroup for 64 rows of W (gated: 32 gates and their ups), y one for 32 rows of x
//! use: lib/step, lib/linear, lib/act, <weights>
//!
//! A workgroup of 8 x 8 threads makes a tile of 64 x 32 results; a thread, 8 x 4 of them in registers. Tiles of 32 columns
//! of W and x go through workgroup memory, W decoded four values at a time. The order of a sum depends on k alone.
override EPI: u32 = 0u;  // 0 nothing, 1 plus residual, 2 act, 3 act(gate) * up
@group(0) @binding(5) var<storage, read> residual: array<f32>;    // (rows, n)
@group(0) @binding(6) var<storage, read_write> out: array<f32>;   // (rows, n)
const TILE_N: u32 = 64u;
const TILE_M: u32 = 32u;
const TILE_K4: u32 = 8u;  // columns of a tile, in fours
var<workgroup> tile_w: array<vec4<f32>, 512>;  // (TILE_N, TILE_K4)
var<workgroup> tile_x: array<vec4<f32>, 256>;  // (TILE_M, TILE_K4)

// The row of W behind row i of the tile: 0..32 and 32..64 are gates and ups of a gated pair.
fn tile_row(tile: u32, i: u32) -> u32 {
    if EPI == 3u {
        return min(tile * 32u + i % 32u, params.n - 1u) + select(0u, params.up, i >= 32u);
    }
    return min(tile * TILE_N + i, params.n - 1u);
}

fn store(row: u32, j: u32, value: f32, rows: u32) {
    if row >= rows || j >= params.n {
        return;
    }
    var y = value;
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

fn store_gated(row: u32, j: u32, gate: f32, up: f32, rows: u32) {
    if row >= rows || j >= params.n {
        return;
    }
    var y = gate;
    var u = up;
    if HAS_BIAS {
        y += vec1(params.bias_at, j);
        u += vec1(params.bias_up, j);
    }
    out[row * params.out_stride + params.out0 + j] = act(y) * u;
}

@compute @workgroup_size(64)
fn matmul(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let rows = step[params.rows_at];
    let first = group.y * TILE_M;
    if first >= rows {
        return;
    }
    let k = params.k;
    let words = row_words(k);
    let tn = lid % 8u;  // which 4 of the first, and which 4 of the second 32 rows of W
    let tm = lid / 8u;  // which 4 rows of x
    // low[m] and high[m]: the sums of row m of x with four rows of W of the first and the second half of the tile.
    var low0 = vec4<f32>(0.0);
    var low1 = vec4<f32>(0.0);
    var low2 = vec4<f32>(0.0);
    var low3 = vec4<f32>(0.0);
    var high0 = vec4<f32>(0.0);
    var high1 = vec4<f32>(0.0);
    var high2 = vec4<f32>(0.0);
    var high3 = vec4<f32>(0.0);
    for (var k0 = 0u; k0 < k; k0 += 4u * TILE_K4) {
        for (var i = lid; i < TILE_N * TILE_K4; i += 64u) {
            let at = k0 + 4u * (i % TILE_K4);
            var v = vec4<f32>(0.0);
            if at < k {
                v = dequant4((params.row0 + tile_row(group.x, i / TILE_K4)) * words, k, at);
            }
            tile_w[i] = v;
        }
        for (var i = lid; i < TILE_M * TILE_K4; i += 64u) {
            let at = k0 + 4u * (i % TILE_K4);
            var v = vec4<f32>(0.0);
            if at < k && first + i / TILE_K4 < rows {
                v = x4(first + i / TILE_K4, at);
            }
            tile_x[i] = v;
        }
        workgroupBarrier();
        for (var kk = 0u; kk < TILE_K4; kk++) {
            let x0 = tile_x[(4u * tm) * TILE_K4 + kk];
            let x1 = tile_x[(4u * tm + 1u) * TILE_K4 + kk];
            let x2 = tile_x[(4u * tm + 2u) * TILE_K4 + kk];
            let x3 = tile_x[(4u * tm + 3u) * TILE_K4 + kk];
            var wa = tile_w[(4u * tn) * TILE_K4 + kk];
            var wb = tile_w[(4u * tn + 1u) * TILE_K4 + kk];
            var wc = tile_w[(4u * tn + 2u) * TILE_K4 + kk];
            var wd = tile_w[(4u * tn + 3u) * TILE_K4 + kk];
            low0 += vec4<f32>(dot(wa, x0), dot(wb, x0), dot(wc, x0), dot(wd, x0));
            low1 += vec4<f32>(dot(wa, x1), dot(wb, x1), dot(wc, x1), dot(wd, x1));
            low2 += vec4<f32>(dot(wa, x2), dot(wb, x2), dot(wc, x2), dot(wd, x2));
            low3 += vec4<f32>(dot(wa, x3), dot(wb, x3), dot(wc, x3), dot(wd, x3));
            wa = tile_w[(32u + 4u * tn) * TILE_K4 + kk];
            wb = tile_w[(33u + 4u * tn) * TILE_K4 + kk];
            wc = tile_w[(34u + 4u * tn) * TILE_K4 + kk];
            wd = tile_w[(35u + 4u * tn) * TILE_K4 + kk];
            high0 += vec4<f32>(dot(wa, x0), dot(wb, x0), dot(wc, x0), dot(wd, x0));
            high1 += vec4<f32>(dot(wa, x1), dot(wb, x1), dot(wc, x1), dot(wd, x1));
            high2 += vec4<f32>(dot(wa, x2), dot(wb, x2), dot(wc, x2), dot(wd, x2));
            high3 += vec4<f32>(dot(wa, x3), dot(wb, x3), dot(wc, x3), dot(wd, x3));
        }
        workgroupBarrier();
    }
    var low = array<vec4<f32>, 4>(low0, low1, low2, low3);
    var high = array<vec4<f32>, 4>(high0, high1, high2, high3);
    for (var m = 0u; m < 4u; m++) {
        let row = first + 4u * tm + m;
        for (var j = 0u; j < 4u; j++) {
            if EPI == 3u {
                store_gated(row, group.x * 32u + 4u * tn + j, low[m][j], high[m][j], rows);
            } else {
                store(row, group.x * TILE_N + 4u * tn + j, low[m][j], rows);
                store(row, group.x * TILE_N + 32u + 4u * tn + j, high[m][j], rows);
            }
        }
    }
}
