//! attend_cooperative: attend, for SIDE rows of a sequence at a time, by cooperative matrices
//! q (rows, heads * k_dim) f32, taken as f16 | kv the cache, taken as f16 | sinks (heads) | out (rows, heads * v_dim) f32
//! grid: x one workgroup for GROUP_HEADS query heads of a KV head, y one for a tile of rows: rows / SIDE + seqs of them
//! use: <matrices>, lib/f16, lib/batch, <cache>, lib/attend, <kv_cache>, <cooperative>
//! source: FlashAttention-2, Dao 2023, over the pages of paged_attention_tiled of vllm-metal
//!
//! Tiles of rows are those of attend_tiled, of another size; a binary search finds each tile's sequence. Positions come in blocks
//! of TILE, counted from position 0. Keys, then values, TILE columns at a time, are expanded into workgroup memory once for all
//! rows and heads. Scores and sums of a block are products of cooperative matrices; scale, mask and softmax are in f32. Each
//! thread keeps its vec4s of the result in f32, as cooperative matrices cannot be scaled row by row. Positions that no row of the
//! tile sees are not loaded. A value that is not finite is left out of the products, where a weight of 0 would not undo it, and
//! added for the rows that see it; one past ±65504, f16's largest, is clamped.
const THREADS: u32 = 128u;  // set: four subgroups, where those are no larger than 64
const TILE: u32 = 32u;    // positions of a block, and columns that are taken at once
const STRIDE: u32 = 40u;  // from row to row of f16s: TILE, and 8 against bank conflicts; Vulkan wants 16 bytes
const LOADS: u32 = TILE * 8u / THREADS;  // vec4s of TILE columns of a block that a thread loads
const SUMS: u32 = 36u;    // from row to row of sums: TILE, and 4 of padding
const EACH: u32 = 4u;     // set: vec4s of the result that a thread has of TILE columns
const KEPT: u32 = 16u;    // set: and of all columns
const TURNS: u32 = 1u;    // set: rows of which a thread has a quarter of the scores
// Queries, weights, the block's keys or values.
var<workgroup> sh_tile: array<Half, GROUP_HEADS * SIDE * ((K_VEC4S + 7u) / 8u * TILE + 8u + STRIDE) + TILE * STRIDE>;
// [row][position], then [row][column]; at last [row]: maximum, denominator.
var<workgroup> sh_sums: array<f32, GROUP_HEADS * SIDE * SUMS>;
var<workgroup> sh_rescale: array<f32, GROUP_HEADS * SIDE>;
var<workgroup> sh_broken: atomic<u32>;            // a value was not finite

fn put(to: u32, numbers: vec4<f32>) {
    let h = to_f16(numbers);
    sh_tile[to] = h.x;
    sh_tile[to + 1u] = h.y;
    sh_tile[to + 2u] = h.z;
    sh_tile[to + 3u] = h.w;
}

// Of keys and values: clamped, where the cache holds what f16 does not.
fn put_kv(to: u32, numbers: vec4<f32>) {
    if FITS_F16 {
        put(to, numbers);
    } else {
        put(to, clamp_f16(numbers));
    }
}

fn sums_vec4(at: u32) -> vec4<f32> {
    return vec4<f32>(sh_sums[at], sh_sums[at + 1u], sh_sums[at + 2u], sh_sums[at + 3u]);
}

// The greatest of eight scores of each of four neighbouring threads, and their sum.
fn max_of_four(a: vec4<f32>, b: vec4<f32>) -> f32 {
    let v = max(a, b);
    let own = max(max(v.x, v.y), max(v.z, v.w));
    let two = max(own, quadSwapX(own));
    return max(two, quadSwapY(two));
}

fn sum_of_four(a: vec4<f32>, b: vec4<f32>) -> f32 {
    let v = a + b;
    let own = (v.x + v.y) + (v.z + v.w);
    let two = own + quadSwapX(own);
    return two + quadSwapY(two);
}

// Scores of a row at four positions from t0 on, without the mask.
fn scores_at(at: u32, t0: u32, row_own: u32, slope: f32) -> vec4<f32> {
    let score = scored(sums_vec4(at));
    if !HAS_SLOPES {
        return score;
    }
    return score - slope * abs(vec4<f32>(f32(row_own)) - vec4<f32>(positions_from(t0)));
}

fn positions_from(t0: u32) -> vec4<u32> {
    return vec4<u32>(t0) + vec4<u32>(0u, 1u, 2u, 3u);
}

@compute @workgroup_size(THREADS)
fn attend_cooperative(
    @builtin(local_invocation_index) lid: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(num_subgroups) num_subgroups: u32,
) {
    let seq = tile_owner(id.y, SIDE);
    let row0 = seq_row0(seq);
    let in_seq = SIDE * (id.y - (row0 / SIDE + seq));
    if in_seq >= seq_rows(seq) {
        return;
    }
    let first_row = row0 + in_seq;
    let last = min(SIDE, seq_rows(seq) - in_seq) - 1u;  // last row of the tile; those past it repeat it, and are dropped
    let count = positions(seq);
    let own = own_position(first_row, seq);
    let begin = seen_by(own, count).x;
    let end = seen_by(own + last, count).y;
    let rounds = (params.group + GROUP_HEADS - 1u) / GROUP_HEADS;
    let kv_head = id.x / rounds;
    let head = kv_head * params.group + id.x % rounds * GROUP_HEADS;
    let last_head = (kv_head + 1u) * params.group - 1u;
    let share = share(lid, subgroup_id, num_subgroups);

    // Rows of queries, those of a head contiguous, and the f16s from one to the next; then where in `sh_tile` the weights begin,
    // and a block's keys or values.
    let rows = GROUP_HEADS * SIDE;
    let q_stride = (K_VEC4S + 7u) / 8u * TILE + 8u;
    let weights_at = rows * q_stride;
    let block_at = weights_at + rows * STRIDE;
    let q_vec4s = q_stride / 4u - 1u;
    for (var i = lid; i < rows * q_vec4s; i += THREADS) {
        let row = i / q_vec4s;
        var i4 = vec4<f32>(0.0);
        if i % q_vec4s < K_VEC4S {
            i4 = q_vec4(first_row + min(row % SIDE, last), min(head + row / SIDE, last_head), i % q_vec4s);
        }
        put(row * q_stride + 4u * (i % q_vec4s), clamp_f16(i4));
    }
    for (var i = lid; i < SIDE * SIDE; i += THREADS) {
        sh_sums[i] = 0.0;
    }
    if lid == 0u {
        atomicStore(&sh_broken, 0u);
    }
    workgroupBarrier();
    let zero = load_sums(0u, SIDE);
    workgroupBarrier();

    // Cooperative matrices of a block's sums; a thread's vec4s of the result, as many for each TILE columns.
    let across = TILE / SIDE;
    let matrices = GROUP_HEADS * across;
    var acc = array<vec4<f32>, KEPT>();
    // Of the rows whose scores it has: the maximum, the denominator.
    var state = array<vec2<f32>, TURNS>();
    for (var n = 0u; n < TURNS; n++) {
        state[n].x = MASK_VALUE;
    }
    for (var block = select(end, begin / TILE * TILE, begin < end); block < end; block += TILE) {
        // Where the thread's keys and values lie; of positions that no row sees, the nearest's, whose weights are 0.
        var keys = array<u32, LOADS>();
        var values = array<u32, LOADS>();
        var scales = array<vec2<f32>, LOADS>();
        for (var n = 0u; n < LOADS; n++) {
            let pos = clamp(block + (lid + n * THREADS) / 8u, begin, end - 1u);
            keys[n] = key_at(seq, kv_head, pos);
            values[n] = value_at(seq, kv_head, pos);
            scales[n] = vec2<f32>(key_scale(seq, kv_head, pos), value_scale(seq, kv_head, pos));
        }
        for (var from_vec4 = 0u; from_vec4 < K_VEC4S; from_vec4 += 8u) {
            for (var n = 0u; n < LOADS; n++) {
                let i = lid + n * THREADS;
                let i4 = from_vec4 + i % 8u;
                var key = vec4<f32>(0.0);
                if K_VEC4S % 8u == 0u || i4 < K_VEC4S {
                    key = key_vec4(keys[n], i4) * scales[n].x;
                }
                put_kv(block_at + i / 8u * STRIDE + 4u * (i % 8u), key);
            }
            workgroupBarrier();
            for (var i = share.x; i < matrices; i += share.y) {
                let row = i / across * SIDE;
                let column = i % across * SIDE;
                var c = zero;
                if from_vec4 > 0u {
                    c = load_sums(row * SUMS + column, SUMS);
                }
                for (var s = 0u; s < TILE; s += SIDE) {
                    let a = load_left(row * q_stride + 4u * from_vec4 + s, q_stride);
                    c = multiply_add(a, load_right_t(block_at + column * STRIDE + s, STRIDE), c);
                }
                save_sums(c, row * SUMS + column, SUMS);
            }
            workgroupBarrier();
        }

        // Four neighbouring threads have a row, eight positions each.
        for (var n = 0u; n < TURNS; n++) {
            let i = lid + n * THREADS;
            let row = i / 4u;
            if row >= rows {
                continue;
            }
            let t0 = block + 8u * (i % 4u);
            let row_own = own + min(row % SIDE, last);
            let seen = seen_by(row_own, count);
            // The mask decides, not the score: where a row sees nothing, the maximum is MASK_VALUE, too.
            let inside_a = (positions_from(t0) >= vec4<u32>(seen.x)) & (positions_from(t0) < vec4<u32>(seen.y));
            let inside_b = (positions_from(t0 + 4u) >= vec4<u32>(seen.x)) & (positions_from(t0 + 4u) < vec4<u32>(seen.y));
            var slope = 0.0;
            if HAS_SLOPES {
                slope = vec_at(params.slopes + min(head + row / SIDE, last_head));
            }
            let at = row * SUMS + 8u * (i % 4u);
            let a = select(vec4<f32>(MASK_VALUE), scores_at(at, t0, row_own, slope), inside_a);
            let b = select(vec4<f32>(MASK_VALUE), scores_at(at + 4u, t0 + 4u, row_own, slope), inside_b);
            let new_max = max(state[n].x, max_of_four(a, b));
            let rescale = exp(state[n].x - new_max);
            let weight_a = select(vec4<f32>(0.0), exp(a - new_max), inside_a);
            let weight_b = select(vec4<f32>(0.0), exp(b - new_max), inside_b);
            state[n] = vec2<f32>(new_max, state[n].y * rescale + sum_of_four(weight_a, weight_b));
            put(weights_at + row * STRIDE + 8u * (i % 4u), weight_a);
            put(weights_at + row * STRIDE + 8u * (i % 4u) + 4u, weight_b);
            if i % 4u == 0u {
                sh_rescale[row] = rescale;
            }
        }

        for (var from_vec4 = 0u; from_vec4 < V_VEC4S; from_vec4 += 8u) {
            for (var n = 0u; n < LOADS; n++) {
                let i = lid + n * THREADS;
                let i4 = from_vec4 + i % 8u;
                var value = vec4<f32>(0.0);
                if V_VEC4S % 8u == 0u || i4 < V_VEC4S {
                    value = value_vec4(values[n], V_FROM + i4) * scales[n].y;
                }
                let non_finite = is_non_finite(value);
                if any(non_finite) {
                    atomicStore(&sh_broken, 1u);
                }
                put_kv(block_at + i / 8u * STRIDE + 4u * (i % 8u), select(value, vec4<f32>(0.0), non_finite));
            }
            workgroupBarrier();
            for (var i = share.x; i < matrices; i += share.y) {
                let row = i / across * SIDE;
                let column = i % across * SIDE;
                var c = zero;
                for (var s = 0u; s < TILE; s += SIDE) {
                    let a = load_left(weights_at + row * STRIDE + s, STRIDE);
                    c = multiply_add(a, load_right(block_at + s * STRIDE + column, STRIDE), c);
                }
                save_sums(c, row * SUMS + column, SUMS);
            }
            workgroupBarrier();
            if atomicLoad(&sh_broken) != 0u {
                for (var i = lid; i < rows * 8u; i += THREADS) {
                    let row = i / 8u;
                    let i4 = from_vec4 + i % 8u;
                    let seen = seen_by(own + min(row % SIDE, last), count);
                    var sum = vec4<f32>(0.0);
                    for (var pos = max(block, seen.x); i4 < V_VEC4S && pos < min(block + TILE, seen.y); pos++) {
                        let value = value_vec4(value_at(seq, kv_head, pos), V_FROM + i4) * value_scale(seq, kv_head, pos);
                        sum += select(vec4<f32>(0.0), value, is_non_finite(value));
                    }
                    for (var j = 0u; j < 4u; j++) {
                        sh_sums[row * SUMS + 4u * (i % 8u) + j] += sum[j];
                    }
                }
            }
            // Over all of the array: with an index that is not known, it ends in memory.
            for (var n = 0u; n < KEPT; n++) {
                let i = lid + n % EACH * THREADS;
                if n / EACH == from_vec4 / 8u && i < rows * 8u {
                    acc[n] = acc[n] * sh_rescale[i / 8u] + sums_vec4(i / 8u * SUMS + 4u * (i % 8u));
                }
            }
        }
    }

    workgroupBarrier();
    for (var n = 0u; n < TURNS; n++) {
        let i = lid + n * THREADS;
        if i % 4u == 0u && i / 4u < rows {
            sh_sums[i / 2u] = state[n].x;
            sh_sums[i / 2u + 1u] = state[n].y;
        }
    }
    workgroupBarrier();
    for (var n = 0u; n < KEPT; n++) {
        let i = lid + n % EACH * THREADS;
        let row = i / 8u;
        let i4 = n / EACH * 8u + i % 8u;
        if i < rows * 8u && row % SIDE <= last && head + row / SIDE <= last_head && i4 < V_VEC4S {
            let row_state = vec4<f32>(sh_sums[2u * row], sh_sums[2u * row + 1u], 0.0, 0.0);
            finish(first_row + row % SIDE, head + row / SIDE, i4, Partial(row_state, acc[n]));
        }
    }
}
