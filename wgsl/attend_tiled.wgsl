//! attend_tiled: attend, for ROWS rows of a sequence at a time
//! q (rows, heads * k_dim) f32 | kv the cache, or k and v of the step's rows | sinks (heads) | out (rows, heads * v_dim) f32
//! grid: x one workgroup for HEADS query heads of a KV head, y one for a tile of rows: rows / ROWS + seqs of them
//! use: lib/step, <cache>, lib/attend, <kv>
//! source: paged_attention_tiled of vllm-metal, after FlashAttention-2, Dao 2023
//!
//! Tiles of rows begin where sequences do: each has rows / ROWS full ones and perhaps one that is not, so the grid is an upper
//! bound and the tiles that nobody fills return. Whose a tile is tells a list of the host's, or a binary search over the
//! first rows of the sequences (SEARCH). A tile of TILE positions is scored by threads for four rows and eight keys each, and
//! summed up by threads for eight rows and two fours of a head's value: what is loaded, and expanded from 16 or 8 bits, is used often. Tiles are counted from position 0: the order of a
//! row's sums depends on its position alone. Positions that no row of the tile sees are not loaded, and
//! what only some see is not added to the others.
const ROWS: u32 = 8u;
const KEYS: u32 = 8u;            // positions that a thread scores in a tile
override WG: u32 = 64u;
override TILE: u32 = 64u;        // KEYS * (WG / (2 * HEADS))
var<workgroup> most_of: array<vec4<f32>, WG>;           // [slot][quad]: the highest score of a thread
var<workgroup> weight: array<vec4<f32>, KEYS * WG>;     // [position in the tile][quad]
var<workgroup> shrink_of: array<vec4<f32>, 8>;          // [quad]
var<workgroup> highest_of: array<vec4<f32>, 8>;         // [quad]

/// The sequence of a tile of rows: the last whose first tile is not behind this one. Each adds a tile that may not be full, hence + s.
fn tile_seq(tile: u32) -> u32 {
    if !SEARCH {
        return step[STEP_TILES + tile];
    }
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

/// The products of a key with four queries.
fn products(key: vec4<f32>, q0: vec4<f32>, q1: vec4<f32>, q2: vec4<f32>, q3: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dot(key, q0), dot(key, q1), dot(key, q2), dot(key, q3));
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

    // For sums, a thread has two fours of a head's value, and every position that its lane has.
    let halves = (V_FOURS + 1u) / 2u;
    let lanes = WG / (halves * HEADS);
    let four = lid % halves;
    let other = min(four + halves, V_FOURS - 1u);
    let own_head = lid / halves % HEADS;
    let lane = lid / (halves * HEADS);
    var total_a = vec4<f32>(0.0); // of the first four rows
    var total_b = vec4<f32>(0.0);
    var sum_a = array<vec4<f32>, 4>();
    var sum_b = array<vec4<f32>, 4>();
    var sum_c = array<vec4<f32>, 4>(); // the other four of the first rows
    var sum_d = array<vec4<f32>, 4>();
    for (var tile = select(end, begin / TILE * TILE, begin < end); tile < end; tile += TILE) {
        var score = array<vec4<f32>, KEYS>();
        var seen = array<vec4<bool>, KEYS>();
        if slot < slots {
            var at = array<u32, KEYS>();
            for (var j = 0u; j < KEYS; j++) {
                at[j] = key_at(seq, kv_head, clamp(tile + slot + j * slots, begin, end - 1u));
            }
            var d0 = vec4<f32>(0.0);
            var d1 = vec4<f32>(0.0);
            var d2 = vec4<f32>(0.0);
            var d3 = vec4<f32>(0.0);
            var d4 = vec4<f32>(0.0);
            var d5 = vec4<f32>(0.0);
            var d6 = vec4<f32>(0.0);
            var d7 = vec4<f32>(0.0);
            for (var i = 0u; i < K_FOURS; i++) {
                let q0 = q_four(rows.x, quad_head, i);
                let q1 = q_four(rows.y, quad_head, i);
                let q2 = q_four(rows.z, quad_head, i);
                let q3 = q_four(rows.w, quad_head, i);
                d0 += products(key_four(at[0], i), q0, q1, q2, q3);
                d1 += products(key_four(at[1], i), q0, q1, q2, q3);
                d2 += products(key_four(at[2], i), q0, q1, q2, q3);
                d3 += products(key_four(at[3], i), q0, q1, q2, q3);
                d4 += products(key_four(at[4], i), q0, q1, q2, q3);
                d5 += products(key_four(at[5], i), q0, q1, q2, q3);
                d6 += products(key_four(at[6], i), q0, q1, q2, q3);
                d7 += products(key_four(at[7], i), q0, q1, q2, q3);
            }
            let d = array<vec4<f32>, KEYS>(d0, d1, d2, d3, d4, d5, d6, d7);
            for (var j = 0u; j < KEYS; j++) {
                let t = tile + slot + j * slots;
                let scale = key_scale(seq, kv_head, clamp(t, begin, end - 1u));
                var distance = abs(vec4<f32>(own) - f32(t));
                seen[j] = (vec4<u32>(t) >= begins) & (vec4<u32>(t) < ends);
                if TREE != 0u {
                    for (var r = 0u; r < 4u; r++) {
                        distance[r] = f32(paths[r].place) - f32(place_of(paths[r], t));
                        seen[j][r] = seen[j][r] && on_path(paths[r], t);
                    }
                }
                var own_score = scored(d[j] * scale);
                if HAS_SLOPES {
                    own_score -= slope * distance;
                }
                score[j] = select(vec4<f32>(NEVER), own_score, seen[j]);
            }
            var most_here = score[0];
            for (var j = 1u; j < KEYS; j++) {
                most_here = max(most_here, score[j]);
            }
            most_of[lid] = most_here;
        }
        workgroupBarrier();

        if slot < slots {
            var highest = most;
            for (var i = 0u; i < slots; i++) {
                highest = max(highest, most_of[i * quads + quad]);
            }
            for (var j = 0u; j < KEYS; j++) {
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
                sum_c[r] *= shrink_a[r];
                sum_d[r] *= shrink_b[r];
            }
            let stop = min(tile + TILE, end);
            var pos = tile + lane;
            let stop_all = select(tile, min(stop, by_all.y), TREE == 0u && tile >= by_all.x);
            for (; pos < stop_all; pos += lanes) {
                let a = weight[(pos - tile) * quads + 2u * own_head];
                let b = weight[(pos - tile) * quads + 2u * own_head + 1u];
                let at = value_at(seq, kv_head, pos);
                let scale = value_scale(seq, kv_head, pos);
                let value = value_four(at, four) * scale;
                let second = value_four(at, other) * scale;
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
                sum_c[0] += a.x * second;
                sum_c[1] += a.y * second;
                sum_c[2] += a.z * second;
                sum_c[3] += a.w * second;
                sum_d[0] += b.x * second;
                sum_d[1] += b.y * second;
                sum_d[2] += b.z * second;
                sum_d[3] += b.w * second;
            }
            // A value that a row does not see may be infinite or no number, which a weight of 0 does not undo.
            for (; pos < stop; pos += lanes) {
                if pos >= begin {
                    let a = weight[(pos - tile) * quads + 2u * own_head];
                    let b = weight[(pos - tile) * quads + 2u * own_head + 1u];
                    let at = value_at(seq, kv_head, pos);
                    let scale = value_scale(seq, kv_head, pos);
                    let value = value_four(at, four) * scale;
                    let second = value_four(at, other) * scale;
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
                    sum_c[0] += weighed(a.x, second);
                    sum_c[1] += weighed(a.y, second);
                    sum_c[2] += weighed(a.z, second);
                    sum_c[3] += weighed(a.w, second);
                    sum_d[0] += weighed(b.x, second);
                    sum_d[1] += weighed(b.y, second);
                    sum_d[2] += weighed(b.z, second);
                    sum_d[3] += weighed(b.w, second);
                }
            }
        }
    }
    // Lanes add up, in their order: rows 0 to 3, then 4 to 7, first one four and then the other.
    for (var turn = 0u; turn < 4u; turn++) {
        workgroupBarrier();
        for (var r = 0u; r < 4u; r++) {
            weight[r * WG + lid] = sum_a[r];
        }
        most_of[lid] = total_a;
        workgroupBarrier();
        let mine = select(four, four + halves, turn >= 2u);
        if lane == 0u && head + own_head <= last_head && mine < V_FOURS {
            let half = turn % 2u;
            var total = total_a;
            for (var i = 1u; i < lanes; i++) {
                total += most_of[lid + i * halves * HEADS];
            }
            let highest = highest_of[2u * own_head + half];
            for (var r = 0u; r < 4u && first_row + 4u * half + r <= last_row; r++) {
                for (var i = 1u; i < lanes; i++) {
                    sum_a[r] += weight[r * WG + lid + i * halves * HEADS];
                }
                let whole = Part(vec4<f32>(highest[r], total[r], 0.0, 0.0), sum_a[r]);
                finish(first_row + 4u * half + r, head + own_head, mine, whole);
            }
        }
        let total = total_a;
        total_a = total_b;
        total_b = total;
        sum_a = sum_b;
        sum_b = sum_c;
        sum_c = sum_d;
    }
}
