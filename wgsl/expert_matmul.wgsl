//! expert_matmul: out[r, j] = W[e] x + bias[e], e = chosen[r, j] (or j itself), x = x[r] or x[r, j], for many rows (prefill)
//! x (rows, k) or (rows, parts * k) f32 | w (matrices * n, k) any block format | out (rows, parts * n) f32
//! grid: x one workgroup for 64 rows of a matrix, y one for TILE_M pairs of row and part, z one matrix
//! use: lib/batch, lib/experts, <weights>, lib/unpack
//! source: tokens grouped by expert, MegaBlocks, Gale et al. 2022; the tile of matmul
//!
//! A matrix is read once for all pairs of a tile. A workgroup of 8 x THREADS_M threads computes 64 rows of a matrix for TILE_M
//! pairs; a thread, 8 x 4 results, for four pairs that it looks up once. The reduction order depends on k alone, not on the tile.
@group(0) @binding(6) var<storage, read> order: array<u32>;      // starts, then pairs, by matrix (CHOSEN)
@group(0) @binding(7) var<storage, read_write> out: array<f32>;  // (rows, parts * n)
override THREADS_M: u32 = 8u;
override TILE_M: u32 = 4u * THREADS_M;
const TILE_N: u32 = 64u;
const TILE_K4: u32 = 8u;  // columns of a tile, in vec4s
var<workgroup> sh_w: array<vec4<f32>, 512>;               // (TILE_N, TILE_K4)
var<workgroup> sh_x: array<vec4<f32>, TILE_M * TILE_K4>;  // (TILE_M, TILE_K4)

// Row and part of pair i of a matrix.
fn pair_of(matrix: u32, i: u32) -> vec2<u32> {
    if CHOSEN {
        let pair = order[params.matrices + 1u + order[matrix] + i];
        return vec2<u32>(pair / params.parts, pair % params.parts);
    }
    return vec2<u32>(i, matrix);
}

@compute @workgroup_size(8u * THREADS_M)
fn expert_matmul(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let rows = batch[params.rows_at];
    let matrix = params.first + group.z;
    var pairs = rows;
    if CHOSEN {
        pairs = order[matrix + 1u] - order[matrix];
    }
    let k = params.k;
    let words = row_words(k);
    let tn = lid % 8u;  // which four of the first 32 rows of W, and which of the second 32
    let tm = lid / 8u;  // the first of four pairs, THREADS_M apart
    // One iteration, unless a row chose a matrix more than once.
    let tiles = (rows + TILE_M - 1u) / TILE_M;
    for (var first = group.y * TILE_M; first < pairs; first += tiles * TILE_M) {
        // Past the end, the last pair again.
        var own = array<vec2<u32>, 4>();
        for (var m = 0u; m < 4u; m++) {
            own[m] = pair_of(matrix, min(first + tm + m * THREADS_M, pairs - 1u));
        }
        var low = array<vec4<f32>, 4>();   // of each pair, the sums of four rows of the first half of the tile
        var high = array<vec4<f32>, 4>();  // and of the second
        for (var k0 = 0u; k0 < k; k0 += 4u * TILE_K4) {
            for (var i = lid; i < TILE_N; i += 8u * THREADS_M) {
                let j = min(group.x * TILE_N + i, params.n - 1u);
                let weights = chunk((params.row0 + group.z * params.n + j) * words, k, k0 / 32u);
                for (var half = 0u; half < 2u; half++) {
                    let v = decode16(weights, half);
                    for (var q = 0u; q < 4u; q++) {
                        sh_w[i * TILE_K4 + 4u * half + q] = v[q];
                    }
                }
            }
            let at = chunk_at(k0 / 32u) + tn / 4u * HALF_GAP + 4u * (tn % 4u);
            for (var m = 0u; m < 4u; m++) {
                sh_x[(tm + m * THREADS_M) * TILE_K4 + tn] = x4(own[m].x, own[m].y, at);
            }
            workgroupBarrier();
            for (var kk = 0u; kk < TILE_K4; kk++) {
                let a0 = sh_w[(4u * tn) * TILE_K4 + kk];
                let a1 = sh_w[(4u * tn + 1u) * TILE_K4 + kk];
                let a2 = sh_w[(4u * tn + 2u) * TILE_K4 + kk];
                let a3 = sh_w[(4u * tn + 3u) * TILE_K4 + kk];
                let b0 = sh_w[(32u + 4u * tn) * TILE_K4 + kk];
                let b1 = sh_w[(33u + 4u * tn) * TILE_K4 + kk];
                let b2 = sh_w[(34u + 4u * tn) * TILE_K4 + kk];
                let b3 = sh_w[(35u + 4u * tn) * TILE_K4 + kk];
                for (var m = 0u; m < 4u; m++) {
                    let v = sh_x[(tm + m * THREADS_M) * TILE_K4 + kk];
                    low[m] += vec4<f32>(dot(a0, v), dot(a1, v), dot(a2, v), dot(a3, v));
                    high[m] += vec4<f32>(dot(b0, v), dot(b1, v), dot(b2, v), dot(b3, v));
                }
            }
            workgroupBarrier();
        }
        for (var m = 0u; m < 4u; m++) {
            if first + tm + m * THREADS_M < pairs {
                let pair = own[m];
                for (var j = 0u; j < 4u; j++) {
                    store(pair.x, pair.y, matrix, group.x * TILE_N + 4u * tn + j, low[m][j]);
                    store(pair.x, pair.y, matrix, group.x * TILE_N + 32u + 4u * tn + j, high[m][j]);
                }
            }
        }
    }
}
