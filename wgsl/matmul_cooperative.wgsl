//! matmul_cooperative: out[r] = epilogue(W x[r] + bias), for many rows (prefill), by cooperative matrices
//! x (rows, k) f32, taken as f16 | w (n, k) any block format, taken as f16 | out (rows, n) f32 | residual (rows, n) f32
//! grid: x one workgroup for TILE_N rows of W (gated: half of them gates, half their ups), y one for TILE_M rows of x
//! use: <matrices>, <cooperative>, lib/f16, lib/batch, lib/linear, lib/act, lib/tile, <weights>, lib/unpack
//! source: the coopmat1 form of llama.cpp's mul_mm (Vulkan); simdgroup_matrix products of its Metal backend
//!
//! A tile is four quarters, 2 x 2 of them, each the work of one subgroup: ACROSS x DOWN matrices of SIDE x SIDE sums in f32. There
//! are at least two subgroups: fewer than four work in passes; of more than four, some repeat the work of others. Sums leave
//! through workgroup memory, where what lies past the edges is dropped. The reduction order depends on k alone, as far as the
//! device's matrix units have a fixed order. Numbers past f16's range are clamped; a row with one that is not finite becomes NaN.
const THREADS: u32 = 128u;  // set: four subgroups, where those are no larger than 64
const ACROSS: u32 = 2u;     // set: matrices of a quarter, over rows of W
const DOWN: u32 = 2u;       // set: the same over rows of x
const TILE_N: u32 = 2u * ACROSS * SIDE;
const TILE_M: u32 = 2u * DOWN * SIDE;
const STRIDE: u32 = 40u;    // from row to row of a tile: 32 columns, and 8 of padding against bank conflicts
const AREA: u32 = SIDE * SIDE;
const NAN: u32 = 0x7fc00000u;
var<workgroup> sh_tile: array<Half, (TILE_N + TILE_M) * STRIDE>;  // rows of W, then rows of x
var<workgroup> sh_sums: array<f32, 4u * AREA>;                    // a matrix of each quarter, (row of x, row of W)
var<workgroup> sh_broken: array<atomic<u32>, TILE_N + TILE_M>;    // NAN, if a row has a number that is not finite; else 0

// Four columns of a row of the tile, within f16's range.
fn put(row: u32, column: u32, v: vec4<f32>) {
    let h = to_f16(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
    let to = row * STRIDE + column;
    sh_tile[to] = h.x;
    sh_tile[to + 1u] = h.y;
    sh_tile[to + 2u] = h.z;
    sh_tile[to + 3u] = h.w;
}

// Half of chunk c of row i of the tile's rows of W.
fn put_w(t: Tile, i: u32, c: u32, half: u32) {
    let s = scaled16(tile_chunk(t, i, c), half);
    var largest = magnitude(vec4<f32>(s.d, s.low, 0.0, 0.0));
    if !SCALED {
        largest = max(max(magnitude(s.q[0]), magnitude(s.q[1])), max(magnitude(s.q[2]), magnitude(s.q[3])));
    }
    if largest >= NON_FINITE {
        atomicStore(&sh_broken[i], NAN);
    }
    let numbers = decoded(s);
    put(i, 16u * half, numbers[0]);
    put(i, 16u * half + 4u, numbers[1]);
    put(i, 16u * half + 8u, numbers[2]);
    put(i, 16u * half + 12u, numbers[3]);
}

// Eight columns of row i of the tile's rows of x: of the four such of chunk c, number `quarter`.
fn put_x(t: Tile, i: u32, c: u32, quarter: u32) {
    let column = chunk_at(c) + quarter / 2u * HALF_GAP + quarter % 2u * 8u;
    let row = row_of_x(t, i);
    let a = x4(row, column);
    let b = x4(row, column + 4u);
    if max(magnitude(a), magnitude(b)) >= NON_FINITE {
        atomicStore(&sh_broken[TILE_N + i], NAN);
    }
    put(TILE_N + i, 8u * quarter, a);
    put(TILE_N + i, 8u * quarter + 4u, b);
}

// Stores the matrix at (down, across) of each quarter of a pass.
fn store_sums(c: Sums, t: Tile, lid: u32, quarters: vec2<u32>, own: u32, down: u32, across: u32) {
    save_sums(c, own * AREA, SIDE);
    workgroupBarrier();
    for (var e = quarters.x * AREA + lid; e < quarters.y * AREA; e += THREADS) {
        let quarter = e / AREA;
        let i = (quarter / 2u * DOWN + down) * SIDE + e % AREA / SIDE;
        let n = across * SIDE + e % SIDE;
        if t.first + i >= t.rows {
            continue;
        }
        let broken = atomicLoad(&sh_broken[TILE_N + i]);
        let left = sh_sums[e] + bitcast<f32>(broken | atomicLoad(&sh_broken[quarter % 2u * (TILE_N / 2u) + n]));
        if EPI != 3u {
            store(t.first + i, t.number * TILE_N + quarter % 2u * (TILE_N / 2u) + n, left, 0.0);
        } else if quarter % 2u == 0u {
            let up = sh_sums[e + AREA] + bitcast<f32>(broken | atomicLoad(&sh_broken[TILE_N / 2u + n]));
            store(t.first + i, t.number * (TILE_N / 2u) + n, left, up);
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
    for (var i = lid; i < TILE_N + TILE_M; i += THREADS) {
        atomicStore(&sh_broken[i], 0u);
    }
    for (var pass_first = 0u; pass_first < 4u; pass_first += share.y) {
        let quarter = (pass_first + share.x) % 4u;
        let at_w = quarter % 2u * (TILE_N / 2u) * STRIDE;
        let at_x = (TILE_N + quarter / 2u * (TILE_M / 2u)) * STRIDE;
        for (var i = lid; i < AREA; i += THREADS) {
            sh_sums[i] = 0.0;
        }
        workgroupBarrier();
        var sums = array<Sums, DOWN * ACROSS>();
        for (var i = 0u; i < DOWN * ACROSS; i++) {
            sums[i] = load_sums(0u, SIDE);
        }
        for (var c = 0u; c < (k + 31u) / 32u; c++) {
            for (var i = lid; i < 2u * TILE_N; i += THREADS) {
                put_w(t, i / 2u, c, i % 2u);
            }
            for (var i = lid; i < 4u * TILE_M; i += THREADS) {
                put_x(t, i / 4u, c, i % 4u);
            }
            workgroupBarrier();
            for (var s = 0u; s < 32u; s += SIDE) {
                var right = array<Right, ACROSS>();
                for (var n = 0u; n < ACROSS; n++) {
                    right[n] = load_right_t(at_w + n * SIDE * STRIDE + s, STRIDE);
                }
                for (var m = 0u; m < DOWN; m++) {
                    let left = load_left(at_x + m * SIDE * STRIDE + s, STRIDE);
                    for (var n = 0u; n < ACROSS; n++) {
                        sums[m * ACROSS + n] = multiply_add(left, right[n], sums[m * ACROSS + n]);
                    }
                }
            }
            workgroupBarrier();
        }
        let quarters = vec2<u32>(pass_first, min(pass_first + share.y, 4u));
        for (var i = 0u; i < DOWN * ACROSS; i++) {
            // Not `sums[i]`: some compilers do not unroll a loop of this size, and an array with such an index ends in memory.
            var c = sums[0];
            for (var j = 1u; j < DOWN * ACROSS; j++) {
                if i == j {
                    c = sums[j];
                }
            }
            store_sums(c, t, lid, quarters, quarter, i / ACROSS, i % ACROSS);
        }
    }
}
