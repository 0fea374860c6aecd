//! attend_cooperative: attend, for SIDE rows of a sequence at a time, by products of small matrices
//! q (rows, heads * k_dim) f32, taken as f16 | kv the cache, taken as f16 | sinks (heads) | out (rows, heads * v_dim) f32
//! grid: x one workgroup for HEADS query heads of a KV head, y one for a tile of rows: rows / SIDE + seqs of them
//! use: <matrices>, lib/half, lib/step, <cache>, lib/attend, <kv_cache>, <cooperative>
//! source: FlashAttention-2, Dao 2023, over the pages of paged_attention_tiled of vllm-metal
//!
//! Tiles of rows are those of attend_tiled, of another size; whose one is is searched for. Positions come in blocks of TILE, counted from
//! position 0: keys, then values, TILE columns at a time, are expanded into workgroup memory once for all rows and heads. Scores and sums
//! of a block are products of matrices; scale, mask and softmax are in f32, and each thread keeps its fours of the result in f32, as
//! matrices cannot be scaled row by row. Positions that no row of the tile sees are not loaded. A value that is no finite number is left
//! out of the products, where a weight of 0 would not undo it, and added for the rows that see it; one above f16's largest, 65504, is cut.
//! Never run on a device that has such matrices: tests put plain WGSL in their place.
const THREADS: u32 = 128u;
const TILE: u32 = 32u;    // positions of a block, and columns that are taken at once
const STRIDE: u32 = 40u;  // from row to row of halves: TILE, and 8 that nobody reads, for other banks of the memory
const SUMS: u32 = 36u;    // from row to row of sums: TILE, and 4
const MOST: u32 = 16u;    // fours of the result that a thread has, at most
// Queries, weights, the block's keys or values.
var<workgroup> tile: array<Half, HEADS * SIDE * ((K_FOURS + 7u) / 8u * TILE + 8u + STRIDE) + TILE * STRIDE>;
var<workgroup> sums: array<f32, HEADS * SIDE * SUMS>;  // [row][position], then [row][column]
var<workgroup> most: array<f32, HEADS * SIDE>;
var<workgroup> total: array<f32, HEADS * SIDE>;
var<workgroup> shrink: array<f32, HEADS * SIDE>;
var<workgroup> broken: atomic<u32>;            // a value was no finite number

fn put(to: u32, numbers: vec4<f32>) {
    let h = halves(within(numbers));
    tile[to] = h.x;
    tile[to + 1u] = h.y;
    tile[to + 2u] = h.z;
    tile[to + 3u] = h.w;
}

fn sums_four(at: u32) -> vec4<f32> {
    return vec4<f32>(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
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
    let last = min(SIDE, seq_rows(seq) - in_seq) - 1u;  // row of the tile; those past it are computed as it is, and dropped
    let count = positions(seq);
    let own = own_position(first_row, seq);
    let begin = seen_by(own, count).x;
    let end = seen_by(own + last, count).y;
    let rounds = (params.group + HEADS - 1u) / HEADS;
    let kv_head = id.x / rounds;
    let head = kv_head * params.group + id.x % rounds * HEADS;
    let last_head = (kv_head + 1u) * params.group - 1u;
    let place = place(lid, subgroup_id, num_subgroups);

    // Rows of queries, a head's together, and halves from one to the next; where weights begin in `tile`, and a block's keys or values.
    let rows = HEADS * SIDE;
    let q_stride = (K_FOURS + 7u) / 8u * TILE + 8u;
    let weights_at = rows * q_stride;
    let block_at = weights_at + rows * STRIDE;
    let q_fours = q_stride / 4u - 2u;
    for (var i = lid; i < rows * q_fours; i += THREADS) {
        let row = i / q_fours;
        var four = vec4<f32>(0.0);
        if i % q_fours < K_FOURS {
            four = q_four(first_row + min(row % SIDE, last), min(head + row / SIDE, last_head), i % q_fours);
        }
        put(row * q_stride + 4u * (i % q_fours), four);
    }
    for (var i = lid; i < rows; i += THREADS) {
        most[i] = NEVER;
        total[i] = 0.0;
    }
    for (var i = lid; i < SIDE * SIDE; i += THREADS) {
        sums[i] = 0.0;
    }
    if lid == 0u {
        atomicStore(&broken, 0u);
    }
    workgroupBarrier();
    let zero = load_sums(0u, SIDE);
    workgroupBarrier();

    // Matrices of a block's sums; a thread's fours of the result, as many of each TILE columns.
    let across = TILE / SIDE;
    let matrices = HEADS * across;
    let each = (rows * 8u + THREADS - 1u) / THREADS;
    var mine = array<vec4<f32>, MOST>();
    for (var block = select(end, begin / TILE * TILE, begin < end); block < end; block += TILE) {
        for (var from_four = 0u; from_four < K_FOURS; from_four += 8u) {
            for (var i = lid; i < TILE * 8u; i += THREADS) {
                let pos = block + i / 8u;
                let four = from_four + i % 8u;
                var key = vec4<f32>(0.0);
                if pos >= begin && pos < end && four < K_FOURS {
                    key = key_four(key_at(seq, kv_head, pos), four) * key_scale(seq, kv_head, pos);
                }
                put(block_at + i / 8u * STRIDE + 4u * (i % 8u), key);
            }
            workgroupBarrier();
            for (var i = place.x; i < matrices; i += place.y) {
                let row = i / across * SIDE;
                let column = i % across * SIDE;
                var c = zero;
                if from_four > 0u {
                    c = load_sums(row * SUMS + column, SUMS);
                }
                for (var s = 0u; s < TILE; s += SIDE) {
                    let a = load_left(row * q_stride + 4u * from_four + s, q_stride);
                    c = multiply_add(a, load_right_t(block_at + column * STRIDE + s, STRIDE), c);
                }
                keep_sums(c, row * SUMS + column, SUMS);
            }
            workgroupBarrier();
        }

        for (var i = lid; i < rows * 8u; i += THREADS) {
            let row = i / 8u;
            let at = row * SUMS + 4u * (i % 8u);
            let t = vec4<u32>(block + 4u * (i % 8u)) + vec4<u32>(0u, 1u, 2u, 3u);
            let row_own = own + min(row % SIDE, last);
            let seen = seen_by(row_own, count);
            var score = scored(sums_four(at));
            if HAS_SLOPES {
                let slope = vec_at(params.slopes + min(head + row / SIDE, last_head));
                score -= slope * abs(vec4<f32>(f32(row_own)) - vec4<f32>(t));
            }
            score = select(vec4<f32>(NEVER), score, (t >= vec4<u32>(seen.x)) & (t < vec4<u32>(seen.y)));
            for (var j = 0u; j < 4u; j++) {
                sums[at + j] = score[j];
            }
        }
        workgroupBarrier();
        for (var row = lid; row < rows; row += THREADS) {
            var highest = most[row];
            for (var j = 0u; j < TILE; j++) {
                highest = max(highest, sums[row * SUMS + j]);
            }
            shrink[row] = exp(most[row] - highest);
            most[row] = highest;
        }
        workgroupBarrier();
        for (var i = lid; i < rows * 8u; i += THREADS) {
            let row = i / 8u;
            let at = row * SUMS + 4u * (i % 8u);
            let t = vec4<u32>(block + 4u * (i % 8u)) + vec4<u32>(0u, 1u, 2u, 3u);
            let seen = seen_by(own + min(row % SIDE, last), count);
            // Not the score but the mask decides: where a row sees nothing, the highest is NEVER, too.
            let inside = (t >= vec4<u32>(seen.x)) & (t < vec4<u32>(seen.y));
            let weight = select(vec4<f32>(0.0), exp(sums_four(at) - most[row]), inside);
            for (var j = 0u; j < 4u; j++) {
                sums[at + j] = weight[j];
            }
            put(weights_at + row * STRIDE + 4u * (i % 8u), weight);
        }
        workgroupBarrier();
        for (var row = lid; row < rows; row += THREADS) {
            var all = total[row] * shrink[row];
            for (var j = 0u; j < TILE; j++) {
                all += sums[row * SUMS + j];
            }
            total[row] = all;
        }

        for (var from_four = 0u; from_four < V_FOURS; from_four += 8u) {
            for (var i = lid; i < TILE * 8u; i += THREADS) {
                let pos = block + i / 8u;
                let four = from_four + i % 8u;
                var value = vec4<f32>(0.0);
                if pos >= begin && pos < end && four < V_FOURS {
                    value = value_four(value_at(seq, kv_head, pos), V_FROM + four) * value_scale(seq, kv_head, pos);
                }
                let wrong = is_broken(value);
                if any(wrong) {
                    atomicStore(&broken, 1u);
                }
                put(block_at + i / 8u * STRIDE + 4u * (i % 8u), select(value, vec4<f32>(0.0), wrong));
            }
            workgroupBarrier();
            for (var i = place.x; i < matrices; i += place.y) {
                let row = i / across * SIDE;
                let column = i % across * SIDE;
                var c = zero;
                for (var s = 0u; s < TILE; s += SIDE) {
                    let a = load_left(weights_at + row * STRIDE + s, STRIDE);
                    c = multiply_add(a, load_right(block_at + s * STRIDE + column, STRIDE), c);
                }
                keep_sums(c, row * SUMS + column, SUMS);
            }
            workgroupBarrier();
            for (var j = 0u; j < each; j++) {
                let i = lid + j * THREADS;
                if i >= rows * 8u {
                    continue;
                }
                let row = i / 8u;
                let four = from_four + i % 8u;
                var sum = mine[from_four / 8u * each + j] * shrink[row] + sums_four(row * SUMS + 4u * (i % 8u));
                if atomicLoad(&broken) != 0u && four < V_FOURS {
                    let seen = seen_by(own + min(row % SIDE, last), count);
                    for (var pos = max(block, seen.x); pos < min(block + TILE, seen.y); pos++) {
                        let value = value_four(value_at(seq, kv_head, pos), V_FROM + four) * value_scale(seq, kv_head, pos);
                        sum += select(vec4<f32>(0.0), value, is_broken(value));
                    }
                }
                mine[from_four / 8u * each + j] = sum;
            }
            workgroupBarrier();
        }
    }

    for (var from_four = 0u; from_four < V_FOURS; from_four += 8u) {
        for (var j = 0u; j < each; j++) {
            let i = lid + j * THREADS;
            let row = i / 8u;
            let four = from_four + i % 8u;
            if i < rows * 8u && row % SIDE <= last && head + row / SIDE <= last_head && four < V_FOURS {
                let state = vec4<f32>(most[row], total[row], 0.0, 0.0);
                finish(first_row + row % SIDE, head + row / SIDE, four, Part(state, mine[from_four / 8u * each + j]));
            }
        }
    }
}
