//! attend_tiled: attend, for ROWS rows of a sequence at a time
//! q (rows, heads * k_dim) f32 | kv the cache, or k and v of the step's rows | sinks (heads) | out (rows, heads * v_dim) f32
//! grid: x one workgroup for HEADS query heads of a KV head, y one for a tile of rows: rows / ROWS + seqs of them
//! use: lib/step, <cache>, lib/attend, <kv>
//! source: paged_attention_tiled of vllm-metal, after FlashAttention-2, Dao 2023
//!
//! Tiles of rows begin where sequences do: each has rows / ROWS full ones and perhaps one that is not, so the grid is an upper
//! bound and the tiles that nobody fills return. Whose a tile is tells a list of the host's, or a binary search over the
//! first rows of the sequences (SEARCH). A tile of TILE positions is scored by threads for four rows and four keys each, and
//! summed up by threads for eight rows and four elements of a head's value. Tiles are counted from position 0: the order of a
//! row's sums depends on its position alone. Positions that no row of the tile sees are not loaded, and
//! what only some see is not added to the others.
const ROWS: u32 = 8u;
override WG: u32 = 64u;
override TILE: u32 = 32u;        // 4 * (WG / (2 * HEADS)): each thread has four positions
override SEARCH: bool = false;
var<workgroup> most_of: array<vec4<f32>, WG>;           // [slot][quad]: the highest score of a thread
var<workgroup> weight: array<vec4<f32>, 4u * WG>;       // [position in the tile][quad]
var<workgroup> shrink_of: array<vec4<f32>, 8>;          // [quad]
var<workgroup> highest_of: array<vec4<f32>, 8>;         // [quad]

/// The sequence of a tile of rows.
fn tile_seq(tile: u32) -> u32 {
    if !SEARCH {
        return step[STEP_TILES + tile];
    }
    // The last sequence whose first tile is not behind this one. Each adds a tile that may not be full, hence + s.
    var low = 0u;
    var high = step[1] - 1u;
    while low < high {
        let middle = (low + high + 1u) / 2u;
        if seq_row0(middle) / ROWS + middle <= tile {
            low = middle;
        } else {
            high = middle - 1u;
        }
    }
    return low;
}

/// weight * value, and 0 where the weight is 0, whatever the value.
fn weighed(weight: f32, value: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(0.0), weight * value, weight != 0.0);
}

@compute @workgroup_size(WG)
fn attend_tiled(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) id: vec3<u32>) {
    let seq = tile_seq(id.y);
    let row0 = seq_row0(seq);
    let in_seq = ROWS * (id.y - (row0 / ROWS + seq));
    if in_seq >= seq_rows(seq) {
        return;
    }
    let first_row = row0 + in_seq;
    let last_row = min(first_row + ROWS, row0 + seq_rows(seq)) - 1u;
    let count = positions(seq);
    let rounds = (params.group + HEADS - 1u) / HEADS;
    let kv_head = id.x / rounds;
    let head = kv_head * params.group + id.x % rounds * HEADS;
    let last_head = (kv_head + 1u) * params.group - 1u;
    // Drafts of a tree stand side by side: none sees more in front of it than one that stood at the tree's beginning would.
    let lowest = min(own_position(first_row, seq), path_of(first_row, own_position(first_row, seq), count).base);
    let begin = seen_by(lowest, count).x;
    let end = seen_by(own_position(last_row, seq), count).y;
    // What all rows of the tile see; in front of it and behind it stands what only some do.
    let by_all = vec2<u32>(seen_by(own_position(last_row, seq), count).x, seen_by(own_position(first_row, seq), count).y);

    // For scores, a thread has a quad: four rows of a head; rows and heads past the last are computed as it is, and dropped.
    let quads = 2u * HEADS;
    let slots = WG / quads;
    let quad = lid % quads;
    let slot = lid / quads;
    let quad_head = min(head + quad / 2u, last_head);
    let rows = min(vec4<u32>(first_row + 4u * (quad % 2u)) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(last_row));
    let own = vec4<u32>(own_position(rows.x, seq)) + (rows - rows.x);
    var paths = array<Path, 4>(
        path_of(rows.x, own.x, count), path_of(rows.y, own.y, count),
        path_of(rows.z, own.z, count), path_of(rows.w, own.w, count));
    let s0 = seen_by(own.x, count);
    let s1 = seen_by(own.y, count);
    let s2 = seen_by(own.z, count);
    let s3 = seen_by(own.w, count);
    var begins = vec4<u32>(s0.x, s1.x, s2.x, s3.x);
    if TREE != 0u {
        begins = vec4<u32>(begin); // and `on_path` says the rest
    }
    let ends = vec4<u32>(s0.y, s1.y, s2.y, s3.y);
    var slope = 0.0;
    if HAS_SLOPES {
        slope = vec_at(params.slopes + quad_head);
    }
    var most = vec4<f32>(NEVER);
    if lid < quads {
        highest_of[quad] = most;
    }

    // For sums, a thread has four elements of a head's value, and every position that its lane has.
    let lanes = WG / (V_FOURS * HEADS);
    let four = lid % V_FOURS;
    let own_head = lid / V_FOURS % HEADS;
    let lane = lid / (V_FOURS * HEADS);
    var total_a = vec4<f32>(0.0);
    var total_b = vec4<f32>(0.0);
    var sum_a = array<vec4<f32>, 4>();
    var sum_b = array<vec4<f32>, 4>();
    for (var tile = select(end, begin / TILE * TILE, begin < end); tile < end; tile += TILE) {
        var score = array<vec4<f32>, 4>();
        var seen = array<vec4<bool>, 4>();
        let t = vec4<u32>(tile + slot) + slots * vec4<u32>(0u, 1u, 2u, 3u);
        if slot < slots {
            let near = clamp(t, vec4<u32>(begin), vec4<u32>(end - 1u));
            let a0 = key_at(seq, kv_head, near.x);
            let a1 = key_at(seq, kv_head, near.y);
            let a2 = key_at(seq, kv_head, near.z);
            let a3 = key_at(seq, kv_head, near.w);
            var d0 = vec4<f32>(0.0);
            var d1 = vec4<f32>(0.0);
            var d2 = vec4<f32>(0.0);
            var d3 = vec4<f32>(0.0);
            for (var i = 0u; i < K_FOURS; i++) {
                let q0 = q_four(rows.x, quad_head, i);
                let q1 = q_four(rows.y, quad_head, i);
                let q2 = q_four(rows.z, quad_head, i);
                let q3 = q_four(rows.w, quad_head, i);
                let k0 = key_four(a0, i);
                let k1 = key_four(a1, i);
                let k2 = key_four(a2, i);
                let k3 = key_four(a3, i);
                d0 += vec4<f32>(dot(k0, q0), dot(k0, q1), dot(k0, q2), dot(k0, q3));
                d1 += vec4<f32>(dot(k1, q0), dot(k1, q1), dot(k1, q2), dot(k1, q3));
                d2 += vec4<f32>(dot(k2, q0), dot(k2, q1), dot(k2, q2), dot(k2, q3));
                d3 += vec4<f32>(dot(k3, q0), dot(k3, q1), dot(k3, q2), dot(k3, q3));
            }
            d0 *= key_scale(seq, kv_head, near.x);
            d1 *= key_scale(seq, kv_head, near.y);
            d2 *= key_scale(seq, kv_head, near.z);
            d3 *= key_scale(seq, kv_head, near.w);
            score = array<vec4<f32>, 4>(scored(d0), scored(d1), scored(d2), scored(d3));
            for (var j = 0u; j < 4u; j++) {
                var distance = abs(vec4<f32>(own) - f32(t[j]));
                seen[j] = (vec4<u32>(t[j]) >= begins) & (vec4<u32>(t[j]) < ends);
                if TREE != 0u {
                    for (var r = 0u; r < 4u; r++) {
                        distance[r] = f32(paths[r].place) - f32(place_of(paths[r], t[j]));
                        seen[j][r] = seen[j][r] && on_path(paths[r], t[j]);
                    }
                }
                if HAS_SLOPES {
                    score[j] -= slope * distance;
                }
                score[j] = select(vec4<f32>(NEVER), score[j], seen[j]);
            }
            most_of[lid] = max(max(score[0], score[1]), max(score[2], score[3]));
        }
        workgroupBarrier();

        if slot < slots {
            var highest = most;
            for (var i = 0u; i < slots; i++) {
                highest = max(highest, most_of[i * quads + quad]);
            }
            for (var j = 0u; j < 4u; j++) {
                // Not the score but the mask decides: where a row sees nothing, `highest` is NEVER, too.
                weight[(slot + j * slots) * quads + quad] = select(vec4<f32>(0.0), exp(score[j] - highest), seen[j]);
            }
            if slot == 0u {
                shrink_of[quad] = exp(most - highest);
                highest_of[quad] = highest;
            }
            most = highest;
        }
        workgroupBarrier();

        if lane < lanes {
            let shrink_a = shrink_of[2u * own_head];
            let shrink_b = shrink_of[2u * own_head + 1u];
            total_a *= shrink_a;
            total_b *= shrink_b;
            for (var r = 0u; r < 4u; r++) {
                sum_a[r] *= shrink_a[r];
                sum_b[r] *= shrink_b[r];
            }
            let stop = min(tile + TILE, end);
            var pos = tile + lane;
            let stop_all = select(tile, min(stop, by_all.y), TREE == 0u && tile >= by_all.x);
            for (; pos < stop_all; pos += lanes) {
                let a = weight[(pos - tile) * quads + 2u * own_head];
                let b = weight[(pos - tile) * quads + 2u * own_head + 1u];
                let value = value_four(value_at(seq, kv_head, pos), four) * value_scale(seq, kv_head, pos);
                total_a += a;
                total_b += b;
                sum_a[0] += a.x * value;
                sum_a[1] += a.y * value;
                sum_a[2] += a.z * value;
                sum_a[3] += a.w * value;
                sum_b[0] += b.x * value;
                sum_b[1] += b.y * value;
                sum_b[2] += b.z * value;
                sum_b[3] += b.w * value;
            }
            // A value that a row does not see may be infinite or no number, which a weight of 0 does not undo.
            for (; pos < stop; pos += lanes) {
                if pos >= begin {
                    let a = weight[(pos - tile) * quads + 2u * own_head];
                    let b = weight[(pos - tile) * quads + 2u * own_head + 1u];
                    let value = value_four(value_at(seq, kv_head, pos), four) * value_scale(seq, kv_head, pos);
                    total_a += a;
                    total_b += b;
                    sum_a[0] += weighed(a.x, value);
                    sum_a[1] += weighed(a.y, value);
                    sum_a[2] += weighed(a.z, value);
                    sum_a[3] += weighed(a.w, value);
                    sum_b[0] += weighed(b.x, value);
                    sum_b[1] += weighed(b.y, value);
                    sum_b[2] += weighed(b.z, value);
                    sum_b[3] += weighed(b.w, value);
                }
            }
        }
    }
    // Lanes add up, in their order, first rows 0 to 3, then 4 to 7.
    for (var half = 0u; half < 2u; half++) {
        workgroupBarrier();
        for (var r = 0u; r < 4u; r++) {
            weight[r * WG + lid] = sum_a[r];
        }
        most_of[lid] = total_a;
        workgroupBarrier();
        if lane == 0u && head + own_head <= last_head {
            for (var i = 1u; i < lanes; i++) {
                total_a += most_of[lid + i * V_FOURS * HEADS];
            }
            let highest = highest_of[2u * own_head + half];
            for (var r = 0u; r < 4u && first_row + 4u * half + r <= last_row; r++) {
                for (var i = 1u; i < lanes; i++) {
                    sum_a[r] += weight[r * WG + lid + i * V_FOURS * HEADS];
                }
                let whole = Part(vec4<f32>(highest[r], total_a[r], 0.0, 0.0), sum_a[r]);
                finish(first_row + 4u * half + r, head + own_head, four, whole);
            }
        }
        total_a = total_b;
        sum_a = sum_b;
    }
}
