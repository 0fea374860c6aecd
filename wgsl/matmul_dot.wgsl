//! matmul_dot: out[r] = epilogue(W x[r] + bias), for many rows (prefill), in int8
//! x (rows, k) as written by `quantize` | w (n, k) any block format of integers | out (rows, n) f32 | residual (rows, n) f32
//! grid: x one workgroup for TILE_N rows of W (gated: half of them gates, half their ups), y one for TILE_M rows of x
//! use: lib/batch, lib/linear, lib/act, lib/tile, <ints>, lib/unpack, lib/int8
//! source: the tile of matmul; dot products of whole blocks, `mul_mmq` in llama.cpp (Gerganov et al.)
//!
//! A half chunk of 16 weights is integers q times d, plus low: its product with x is d d_x Σ q q_x + low d_x Σ q_x. Both sums
//! are exact. They are added to the others in f32, in order of k: the order depends on k alone.
override THREADS_N: u32 = 8u;
const ROWS_X: u32 = 8u;            // set: rows of x of a thread
override THREADS_M: u32 = 8u;
override TILE_K16: u32 = 4u;       // 2 or 4, a chunk or two
override TILE_N: u32 = 8u * THREADS_N;
override TILE_M: u32 = ROWS_X * THREADS_M;
var<workgroup> sh_w: array<vec4<u32>, TILE_N * TILE_K16>;   // quants
var<workgroup> sh_x: array<vec4<u32>, TILE_M * TILE_K16>;
var<workgroup> sh_scale_w: array<vec2<f32>, TILE_N * TILE_K16>;   // d and low of 16 weights
var<workgroup> sh_scale_x: array<vec2<f32>, TILE_M * TILE_K16>;   // d, and d times the sum of the quants

// The index of 16 columns of a row of a tile: neighbouring rows lie side by side.
fn slot_w(row: u32, k16: u32) -> u32 {
    return k16 * TILE_N + row;
}

fn slot_x(row: u32, k16: u32) -> u32 {
    return k16 * TILE_M + row;
}

fn dots(q: Rows4, v: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(vec4<i32>(dot16(q.a, v), dot16(q.b, v), dot16(q.c, v), dot16(q.d, v)));
}

// 16 columns of four rows of W.
struct Rows4 {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

@compute @workgroup_size(THREADS_N * THREADS_M)
fn matmul_dot(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let t = tile_of(group);
    if t.first >= t.rows {
        return;
    }
    let k = params.k;
    let units = int8_units(k);
    let tn = lid % THREADS_N;  // the first of eight rows of W, THREADS_N apart
    let tm = lid / THREADS_N;  // the first of its rows of x, THREADS_M apart
    // low[m] and high[m]: the sums of x's row m with the first and the last four rows of W.
    var low = array<vec4<f32>, ROWS_X>();
    var high = array<vec4<f32>, ROWS_X>();
    let k16s = k / 16u;
    for (var at = 0u; at < k16s; at += TILE_K16) {
        for (var i = lid; i < TILE_N * TILE_K16 / 2u; i += THREADS_N * THREADS_M) {
            let c = at / 2u + i / TILE_N;
            let row = i % TILE_N;
            // The last pass may have one chunk only.
            let weights = tile_chunk(t, row, min(c, k16s / 2u - 1u));
            for (var r = 0u; r < 2u; r++) {
                let ints = ints16(weights, r);
                let to = slot_w(row, i / TILE_N * 2u + r);
                sh_w[to] = ints.q;
                sh_scale_w[to] = vec2<f32>(ints.d, ints.low);
            }
        }
        for (var i = lid; i < TILE_M * TILE_K16; i += THREADS_N * THREADS_M) {
            let k16 = at + i / TILE_M;
            let row = row_of_x(t, i % TILE_M) * units;
            let from_k = chunk_at(min(k16, k16s - 1u) / 2u) + k16 % 2u * HALF_GAP;
            // Zeros where there is no chunk.
            let scales = select(vec4<f32>(0.0), int8_scales(row, from_k), k16 < k16s);
            sh_x[i] = select(vec4<u32>(0u), int8_16(row, from_k), k16 < k16s);
            sh_scale_x[i] = vec2<f32>(scales.x, select(scales.w, scales.z, from_k % 32u == 0u));
        }
        workgroupBarrier();
        for (var r = 0u; r < TILE_K16; r++) {
            let n = slot_w(tn, r);
            let m0 = slot_x(tm, r);
            let a = THREADS_N;  // apart
            let q_low = Rows4(sh_w[n], sh_w[n + a], sh_w[n + 2u * a], sh_w[n + 3u * a]);
            let q_high = Rows4(sh_w[n + 4u * a], sh_w[n + 5u * a], sh_w[n + 6u * a], sh_w[n + 7u * a]);
            let s0 = sh_scale_w[n];
            let s1 = sh_scale_w[n + a];
            let s2 = sh_scale_w[n + 2u * a];
            let s3 = sh_scale_w[n + 3u * a];
            let s4 = sh_scale_w[n + 4u * a];
            let s5 = sh_scale_w[n + 5u * a];
            let s6 = sh_scale_w[n + 6u * a];
            let s7 = sh_scale_w[n + 7u * a];
            let d_low = vec4<f32>(s0.x, s1.x, s2.x, s3.x);
            let d_high = vec4<f32>(s4.x, s5.x, s6.x, s7.x);
            for (var m = 0u; m < ROWS_X; m++) {
                let v = sh_x[m0 + m * THREADS_M];
                let s = sh_scale_x[m0 + m * THREADS_M];
                low[m] += dots(q_low, v) * (d_low * s.x);
                high[m] += dots(q_high, v) * (d_high * s.x);
                if LOWS {
                    low[m] += vec4<f32>(s0.y, s1.y, s2.y, s3.y) * s.y;
                    high[m] += vec4<f32>(s4.y, s5.y, s6.y, s7.y) * s.y;
                }
            }
        }
        workgroupBarrier();
    }
    for (var m = 0u; m < ROWS_X; m++) {
        store_eight(t, tm + m * THREADS_M, tn, THREADS_N, low[m], high[m]);
    }
}
