//! matmul_cooperative: out[r] = epilogue(W x[r] + bias), for many rows (prefill), by cooperative matrices
//! x (rows, k) f32, taken as f16 | w (n, k) any block format, taken as f16 | out (rows, n) f32 | residual (rows, n) f32
//! grid: x one workgroup for TILE_N rows of W (gated: half of them gates, half their ups), y one for TILE_M rows of x
//! use: <matrices>, <cooperative>, lib/f16, lib/batch, lib/linear, lib/act, lib/tile, <weights>, lib/unpack
//! source: the coopmat1 form of llama.cpp's mul_mm (Vulkan); simdgroup_matrix products of its Metal backend
//!
//! A tile is PARTS parts, two over rows of W, each the work of one subgroup: ACROSS x DOWN matrices of SIDE x SIDE sums in f32.
//! There are at least two subgroups: fewer than parts work in passes; of more, some repeat the work of others. Sums leave through
//! workgroup memory, where what lies past the edges is dropped. The reduction order depends on k alone, as far as the device's
//! matrix units have a fixed order. Numbers past f16's range are clamped; a row with one that is not finite becomes NaN.
const THREADS: u32 = 128u;  // set: a subgroup for each part, where those are as large as expected
const PARTS: u32 = 4u;      // set: of a tile, even
const ACROSS: u32 = 2u;     // set: matrices of a part, over rows of W
const DOWN: u32 = 2u;       // set: the same over rows of x
const TILE_N: u32 = 2u * ACROSS * SIDE;
const TILE_M: u32 = PARTS / 2u * DOWN * SIDE;
const PIECES_W: u32 = 2u * TILE_N;  // of 16 columns, halves of a chunk
const PIECES_X: u32 = 4u * TILE_M;  // of 8 columns
const STRIDE: u32 = 40u;    // from row to row of a tile: 32 columns, and 8 against bank conflicts; Vulkan wants 16 bytes
const AREA: u32 = SIDE * SIDE;
const NAN: u32 = 0x7fc00000u;
var<workgroup> sh_tile: array<Half, (TILE_N + TILE_M) * STRIDE>;  // rows of W, then rows of x
var<workgroup> sh_sums: array<f32, 2u * AREA>;                    // a matrix of each of two parts, (row of x, row of W)

// Four columns of a row of the tile, within f16's range.
fn put(row: u32, column: u32, v: vec4<f32>) {
    let h = to_f16(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
    let to = row * STRIDE + column;
    sh_tile[to] = h.x;
    sh_tile[to + 1u] = h.y;
    sh_tile[to + 2u] = h.z;
    sh_tile[to + 3u] = h.w;
}

// Half of chunk c of row i of the tile's rows of W. Whether a number is not finite.
fn put_w(t: Tile, i: u32, c: u32, half: u32) -> bool {
    let s = scaled16(tile_chunk(t, i, c), half);
    var largest = magnitude(vec4<f32>(s.d, s.low, 0.0, 0.0));
    if !SCALED {
        largest = max(max(magnitude(s.q[0]), magnitude(s.q[1])), max(magnitude(s.q[2]), magnitude(s.q[3])));
    }
    let numbers = decoded(s);
    put(i, 16u * half, numbers[0]);
    put(i, 16u * half + 4u, numbers[1]);
    put(i, 16u * half + 8u, numbers[2]);
    put(i, 16u * half + 12u, numbers[3]);
    return largest >= NON_FINITE;
}

// Eight columns of row i of the tile's rows of x: of the four such of chunk c, number `eight`. Whether one is not finite.
fn put_x(t: Tile, i: u32, c: u32, eight: u32) -> bool {
    let column = chunk_at(c) + eight / 2u * HALF_GAP + eight % 2u * 8u;
    let row = row_of_x(t, i);
    let a = x4(row, column);
    let b = x4(row, column + 4u);
    put(TILE_N + i, 8u * eight, a);
    put(TILE_N + i, 8u * eight + 4u, b);
    return max(magnitude(a), magnitude(b)) >= NON_FINITE;
}

// Keeps which pieces of rows had a number that is not finite, a bit for each that a thread put, in the tile, from `at` on.
fn keep_broken(broken: u32, pieces: u32, at: u32, lid: u32) {
    for (var i = lid; i < pieces; i += THREADS) {
        sh_tile[at + i] = Half((broken >> (i / THREADS)) & 1u);
    }
}

// NAN, if row i of the tile's rows of W, or of x, has a number that is not finite; else 0.
fn broken_w(i: u32) -> u32 {
    return select(0u, NAN, any(vec2<bool>(sh_tile[2u * i] != 0, sh_tile[2u * i + 1u] != 0)));
}

fn broken_x(i: u32) -> u32 {
    let at = PIECES_W + 4u * i;
    return select(0u, NAN, any(vec4<bool>(sh_tile[at] != 0, sh_tile[at + 1u] != 0, sh_tile[at + 2u] != 0, sh_tile[at + 3u] != 0)));
}

// Stores the matrices at (down, across) of the parts 2 pair and 2 pair + 1, which lie in `sh_sums`.
fn store_pair(t: Tile, lid: u32, pair: u32, down: u32, across: u32) {
    for (var e = lid; e < 2u * AREA; e += THREADS) {
        let i = (pair * DOWN + down) * SIDE + e % AREA / SIDE;
        let n = across * SIDE + e % SIDE;
        if t.first + i >= t.rows {
            continue;
        }
        let right = e / AREA;
        let broken = broken_x(i);
        let left = sh_sums[e] + bitcast<f32>(broken | broken_w(right * (TILE_N / 2u) + n));
        if EPI != 3u {
            store(t.first + i, t.number * TILE_N + right * (TILE_N / 2u) + n, left, 0.0);
        } else if right == 0u {
            let up = sh_sums[e + AREA] + bitcast<f32>(broken | broken_w(TILE_N / 2u + n));
            store(t.first + i, t.number * (TILE_N / 2u) + n, left, up);
        }
    }
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
    for (var pass_first = 0u; pass_first < PARTS; pass_first += share.y) {
        let part = (pass_first + share.x) % PARTS;
        let at_w = part % 2u * (TILE_N / 2u) * STRIDE;
        let at_x = (TILE_N + part / 2u * DOWN * SIDE) * STRIDE;
        for (var i = lid; i < AREA; i += THREADS) {
            sh_sums[i] = 0.0;
        }
        workgroupBarrier();
        var sums = array<Sums, DOWN * ACROSS>();
        for (var i = 0u; i < DOWN * ACROSS; i++) {
            sums[i] = load_sums(0u, SIDE);
        }
        // A bit for each piece of a row that the thread puts.
        var broken = vec2<u32>(0u);
        for (var c = 0u; c < (k + 31u) / 32u; c++) {
            for (var n = 0u; n < (PIECES_W + THREADS - 1u) / THREADS; n++) {
                let i = lid + n * THREADS;
                // Known to be true where it can be, so that nothing is compiled for threads without a piece.
                if PIECES_W % THREADS == 0u || i < PIECES_W {
                    broken.x |= u32(put_w(t, i / 2u, c, i % 2u)) << n;
                }
            }
            for (var n = 0u; n < (PIECES_X + THREADS - 1u) / THREADS; n++) {
                let i = lid + n * THREADS;
                if PIECES_X % THREADS == 0u || i < PIECES_X {
                    broken.y |= u32(put_x(t, i / 4u, c, i % 4u)) << n;
                }
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
        keep_broken(broken.x, PIECES_W, 0u, lid);
        keep_broken(broken.y, PIECES_X, PIECES_W, lid);
        for (var pair = pass_first / 2u; 2u * pair < min(pass_first + share.y, PARTS); pair++) {
            for (var i = 0u; i < DOWN * ACROSS; i++) {
                // Not `sums[i]`: some compilers do not unroll a loop of this size, and an array with such an index ends in memory.
                var c = sums[0];
                for (var j = 1u; j < DOWN * ACROSS; j++) {
                    if i == j {
                        c = sums[j];
                    }
                }
                if part / 2u == pair {
                    save_sums(c, part % 2u * AREA, SIDE);
                }
                workgroupBarrier();
                store_pair(t, lid, pair, i / ACROSS, i % ACROSS);
                workgroupBarrier();
            }
        }
    }
}
