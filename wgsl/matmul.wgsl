//! matmul: out[r] = epilogue(W x[r] + bias), for many rows (prefill)
//! x (rows, k) f32 | w (n, k) any block format | out (rows, n) f32 | residual (rows, n) f32
//! grid: x one workgroup for TILE_N rows of W (gated: half of them gates, half their ups), y one for TILE_M rows of x
//! use: lib/f16, lib/batch, lib/linear, lib/act, lib/tile, <held>, <weights>, lib/unpack
//! source: the register tiles of llama.cpp's mul_mm (Vulkan); order of loads our own
//!
//! A workgroup of THREADS_N x THREADS_M threads computes a tile of results; a thread, 8 x ROWS_X of them in registers. 16 * TILE_K16
//! columns of W and x at a time go through workgroup memory, W unpacked once. Products are in f32, whatever a tile holds: the
//! product of two f16 may exceed f16. The reduction order depends on k alone, not on the tile.
const ROWS_X: u32 = 8u;            // set: rows of x of a thread
override THREADS_N: u32 = 8u;
override THREADS_M: u32 = 8u;
override TILE_K16: u32 = 2u;       // 1 or 2
override TILE_N: u32 = 8u * THREADS_N;
override TILE_M: u32 = ROWS_X * THREADS_M;
var<workgroup> sh_w: array<Held, TILE_N * 4u * TILE_K16>;
var<workgroup> sh_x: array<Held, TILE_M * 4u * TILE_K16>;

// The index of vec4 i of a row of a tile: neighbouring rows lie in different memory banks.
fn slot(row: u32, i: u32) -> u32 {
    return row * (4u * TILE_K16) + (i ^ (row * TILE_K16 / 2u % (4u * TILE_K16)));
}

fn of_w(row: u32, i: u32) -> vec4<f32> {
    return vec4<f32>(sh_w[slot(row, i)]);
}

@compute @workgroup_size(THREADS_N * THREADS_M)
fn matmul(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let t = tile_of(group);
    if t.first >= t.rows {
        return;
    }
    let k = params.k;
    let tn = lid % THREADS_N;  // the first of eight rows of W, THREADS_N apart
    let tm = lid / THREADS_N;  // the first of its rows of x, THREADS_M apart
    // low[m] and high[m]: the sums of x's row m with the first and the last four rows of W.
    var low = array<vec4<f32>, ROWS_X>();
    var high = array<vec4<f32>, ROWS_X>();
    for (var at = 0u; at < (k + 31u) / 32u * 2u; at += TILE_K16) {
        for (var i = lid; i < TILE_N; i += THREADS_N * THREADS_M) {
            let weights = tile_chunk(t, i, at / 2u);
            for (var r = 0u; r < TILE_K16; r++) {
                let v = decode16(weights, (2u - TILE_K16) * (at % 2u) + r);
                for (var j = 0u; j < 4u; j++) {
                    sh_w[slot(i, 4u * r + j)] = held(v[j]);
                }
            }
        }
        for (var i = lid; i < TILE_M * TILE_K16; i += THREADS_N * THREADS_M) {
            let r = i / TILE_M;
            let v = x16(row_of_x(t, i % TILE_M), chunk_at(at / 2u) + ((at + r) % 2u) * HALF_GAP);
            for (var j = 0u; j < 4u; j++) {
                sh_x[slot(i % TILE_M, 4u * r + j)] = held(v[j]);
            }
        }
        workgroupBarrier();
        for (var i = 0u; i < 4u * TILE_K16; i++) {
            let a = transpose(mat4x4<f32>(of_w(tn, i), of_w(tn + THREADS_N, i), of_w(tn + 2u * THREADS_N, i), of_w(tn + 3u * THREADS_N, i)));
            let b = transpose(mat4x4<f32>(of_w(tn + 4u * THREADS_N, i), of_w(tn + 5u * THREADS_N, i), of_w(tn + 6u * THREADS_N, i),
                of_w(tn + 7u * THREADS_N, i)));
            for (var m = 0u; m < ROWS_X; m++) {
                let v = vec4<f32>(sh_x[slot(tm + m * THREADS_M, i)]);
                low[m] += a[0] * v.x;
                low[m] += a[1] * v.y;
                low[m] += a[2] * v.z;
                low[m] += a[3] * v.w;
                high[m] += b[0] * v.x;
                high[m] += b[1] * v.y;
                high[m] += b[2] * v.z;
                high[m] += b[3] * v.w;
            }
        }
        workgroupBarrier();
    }
    for (var m = 0u; m < ROWS_X; m++) {
        store_eight(t, tm + m * THREADS_M, tn, THREADS_N, low[m], high[m]);
    }
}
