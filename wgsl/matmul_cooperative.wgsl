//! matmul_cooperative: out[r] = epilogue(W x[r] + bias), for many rows (prefill), by cooperative matrices
//! x (rows, k) f32, taken as f16 | w (n, k) any block format, taken as f16 | out (rows, n) f32 | residual (rows, n) f32
//! grid: x one workgroup for TILE_N rows of W (gated: half of them gates, half their ups), y one for TILE_M rows of x
//! use: <matrices>, <cooperative>, lib/f16, lib/batch, lib/linear, lib/act, lib/tile, <weights>, lib/unpack
//! source: the coopmat1 form of llama.cpp's mul_mm (Vulkan); simdgroup_matrix products of its Metal backend
//!
//! A tile is four quarters, 2 x 2 of them, each the work of one subgroup: 2 x 2 matrices of SIDE x SIDE sums in f32. There are at
//! least two subgroups: fewer than four work in passes; of more than four, some repeat the work of others. Sums leave through
//! workgroup memory, where what lies past the edges is dropped. The reduction order depends on k alone, as far as the device's
//! matrix units have a fixed order.
//! Never run on a device that has such matrices: tests put plain WGSL in their place.
const TILE_N: u32 = 4u * SIDE;
const TILE_M: u32 = 4u * SIDE;
const STRIDE: u32 = 40u;        // from row to row of a tile: 32 columns, and 8 of padding against bank conflicts
const THREADS: u32 = 128u;
const AREA: u32 = SIDE * SIDE;
var<workgroup> sh_tile: array<Half, (TILE_N + TILE_M) * STRIDE>;  // rows of W, then rows of x
var<workgroup> sh_sums: array<f32, 4u * AREA>;                    // a matrix of each quarter, (row of x, row of W)

// 16 columns of a row of the tile.
fn put(row: u32, half: u32, numbers: mat4x4<f32>) {
    var v = numbers;
    for (var j = 0u; j < 4u; j++) {
        let h = to_f16(clamp_f16(v[j]));
        let to = row * STRIDE + 16u * half + 4u * j;
        sh_tile[to] = h.x;
        sh_tile[to + 1u] = h.y;
        sh_tile[to + 2u] = h.z;
        sh_tile[to + 3u] = h.w;
    }
}

// Stores matrix (i, j) of the quarters of a pass: rows of x from i * SIDE on, rows of W from j * SIDE on.
fn store_sums(c: Sums, t: Tile, lid: u32, quarters: vec2<u32>, own: u32, i: u32, j: u32) {
    save_sums(c, own * AREA, SIDE);
    workgroupBarrier();
    for (var e = quarters.x * AREA + lid; e < quarters.y * AREA; e += THREADS) {
        let quarter = e / AREA;
        let row = t.first + quarter / 2u * (2u * SIDE) + i * SIDE + e % AREA / SIDE;
        let n = j * SIDE + e % SIDE;
        if row >= t.rows {
            continue;
        }
        if EPI != 3u {
            store(row, t.number * TILE_N + quarter % 2u * (2u * SIDE) + n, sh_sums[e], 0.0);
        } else if quarter % 2u == 0u {
            store(row, t.number * (TILE_N / 2u) + n, sh_sums[e], sh_sums[e + AREA]);
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(THREADS)
fn matmul_cooperative(
    @builtin(local_invocation_index) lid: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(num_subgroups) num_subgroups: u32,
) {
    let t = tile_of(group);
    if t.first >= t.rows {
        return;
    }
    let k = params.k;
    let share = share(lid, subgroup_id, num_subgroups);
    for (var pass_first = 0u; pass_first < 4u; pass_first += share.y) {
        let quarter = (pass_first + share.x) % 4u;
        let at_w = quarter % 2u * (2u * SIDE) * STRIDE;
        let at_x = (TILE_N + quarter / 2u * (2u * SIDE)) * STRIDE;
        for (var i = lid; i < AREA; i += THREADS) {
            sh_sums[i] = 0.0;
        }
        workgroupBarrier();
        var c00 = load_sums(0u, SIDE);
        var c01 = load_sums(0u, SIDE);
        var c10 = load_sums(0u, SIDE);
        var c11 = load_sums(0u, SIDE);
        for (var c = 0u; c < (k + 31u) / 32u; c++) {
            for (var i = lid; i < 2u * TILE_N; i += THREADS) {
                put(i % TILE_N, i / TILE_N, decode16(tile_chunk(t, i % TILE_N, c), i / TILE_N));
            }
            for (var i = lid; i < 2u * TILE_M; i += THREADS) {
                put(TILE_N + i % TILE_M, i / TILE_M, x16(row_of_x(t, i % TILE_M), chunk_at(c) + i / TILE_M * HALF_GAP));
            }
            workgroupBarrier();
            for (var s = 0u; s < 32u; s += SIDE) {
                let a0 = load_left(at_x + s, STRIDE);
                let a1 = load_left(at_x + SIDE * STRIDE + s, STRIDE);
                let b0 = load_right_t(at_w + s, STRIDE);
                let b1 = load_right_t(at_w + SIDE * STRIDE + s, STRIDE);
                c00 = multiply_add(a0, b0, c00);
                c01 = multiply_add(a0, b1, c01);
                c10 = multiply_add(a1, b0, c10);
                c11 = multiply_add(a1, b1, c11);
            }
            workgroupBarrier();
        }
        let quarters = vec2<u32>(pass_first, min(pass_first + share.y, 4u));
        store_sums(c00, t, lid, quarters, quarter, 0u, 0u);
        store_sums(c01, t, lid, quarters, quarter, 0u, 1u);
        store_sums(c10, t, lid, quarters, quarter, 1u, 0u);
        store_sums(c11, t, lid, quarters, quarter, 1u, 1u);
    }
}
