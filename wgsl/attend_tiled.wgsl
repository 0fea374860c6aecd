//! attend_tiled: attend, for ROWS rows of a sequence at a time
//! q (rows, heads * k_dim) f32 | kv the cache, or k and v of the step's rows | sinks (heads) | out (rows, heads * v_dim) f32
//! grid: x one workgroup for GROUP_HEADS query heads of a KV head, y one for a tile of rows: rows / ROWS + seqs of them
//! use: lib/batch, <cache>, lib/attend, <kv>
//! source: paged_attention_tiled of vllm-metal, after FlashAttention-2, Dao 2023
//!
//! Tiles of rows begin where sequences do. A sequence has rows / ROWS full tiles and perhaps one that is not full, so the grid
//! is an upper bound, and tiles without rows return. A list from the host gives the sequence of each tile, or a binary search
//! over the sequences' first rows finds it (SEARCH). Of a tile of TILE positions, a thread scores KEYS keys for four rows, and
//! sums up VALUES vec4s of a head's value for eight rows: what is loaded, and expanded from 16 or 8 bits, is used often. Tiles of
//! positions are counted from position 0: the order of a row's sums depends on its position alone. Positions that no row of the
//! tile sees are not loaded, and what only some rows see is not added to the others.
const ROWS: u32 = 8u;
const KEYS: u32 = 8u;            // set: positions that a thread scores in a tile, 4 or 8
const VALUES: u32 = 2u;          // set: vec4s of a value that it sums up, 1 or 2
override WG: u32 = 64u;
override TILE: u32 = 64u;        // KEYS * (WG / (2 * GROUP_HEADS))
var<workgroup> sh_max: array<vec4<f32>, WG>;           // [slot][quad]: the maximum of a thread; its denominator
var<workgroup> sh_weight: array<vec4<f32>, 8u * WG>;     // [key of a thread][thread]; sums: [row][thread]
var<workgroup> sh_rescale: array<vec4<f32>, 8>;          // [quad]
var<workgroup> sh_final_max: array<vec4<f32>, 8>;         // [quad]

/// The sequence of a tile of rows.
fn tile_seq(tile: u32) -> u32 {
    if !SEARCH {
        return batch[BATCH_TILES + tile];
    }
    return tile_owner(tile, ROWS);
}

/// weight * value, and 0 where the weight is 0, whatever the value.
fn weighted(weight: f32, value: vec4<f32>) -> vec4<f32> {
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
    let rounds = (params.group + GROUP_HEADS - 1u) / GROUP_HEADS;
    let kv_head = id.x / rounds;
    let head = kv_head * params.group + id.x % rounds * GROUP_HEADS;
    let last_head = (kv_head + 1u) * params.group - 1u;
    // A draft's slot lies past its position in the tree: none sees further back than one at the tree's base would.
    let lowest = min(own_position(first_row, seq), ancestors_of(first_row, own_position(first_row, seq), count).base);
    let begin = seen_by(lowest, count).x;
    let end = seen_by(own_position(last_row, seq), count).y;
    // What all rows of the tile see; what lies before and after it, only some see.
    let seen_by_all = vec2<u32>(seen_by(own_position(last_row, seq), count).x, seen_by(own_position(first_row, seq), count).y);

    // For scores, a thread has a quad: four rows of a head. Rows and heads past the last repeat it, and are dropped.
    let quads = 2u * GROUP_HEADS;
    let slots = WG / quads;
    let quad = lid % quads;
    let slot = lid / quads;
    let quad_head = min(head + quad / 2u, last_head);
    let rows = min(vec4<u32>(first_row + 4u * (quad % 2u)) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(last_row));
    let own = vec4<u32>(own_position(rows.x, seq)) + (rows - rows.x);
    var ancestors = array<Ancestors, 4>(
        ancestors_of(rows.x, own.x, count), ancestors_of(rows.y, own.y, count),
        ancestors_of(rows.z, own.z, count), ancestors_of(rows.w, own.w, count));
    let s0 = seen_by(own.x, count);
    let s1 = seen_by(own.y, count);
    let s2 = seen_by(own.z, count);
    let s3 = seen_by(own.w, count);
    var begins = vec4<u32>(s0.x, s1.x, s2.x, s3.x);
    if TREE != 0u {
        begins = vec4<u32>(begin); // `is_ancestor` decides the rest
    }
    let ends = vec4<u32>(s0.y, s1.y, s2.y, s3.y);
    var slope = 0.0;
    if HAS_SLOPES {
        slope = vec_at(params.slopes + quad_head);
    }
    var running_max = vec4<f32>(MASK_VALUE);
    var denominator = vec4<f32>(0.0);

    // For sums, a thread has VALUES vec4s of a head's value, for every position of its lane.
    let of_value = (V_VEC4S + VALUES - 1u) / VALUES;
    let lanes = WG / (of_value * GROUP_HEADS);
    let i4 = lid % of_value;
    let other4 = min(i4 + of_value, V_VEC4S - 1u);
    let own_head = lid / of_value % GROUP_HEADS;
    let lane = lid / (of_value * GROUP_HEADS);
    var sum_a = array<vec4<f32>, 4>(); // rows 0 to 3
    var sum_b = array<vec4<f32>, 4>(); // rows 4 to 7
    var sum_c = array<vec4<f32>, 4>(); // the same of the other vec4
    var sum_d = array<vec4<f32>, 4>();
    for (var tile = select(end, begin / TILE * TILE, begin < end); tile < end; tile += TILE) {
        var score = array<vec4<f32>, KEYS>();
        var seen = array<vec4<bool>, KEYS>();
        if slot < slots {
            var at = array<u32, KEYS>();
            for (var j = 0u; j < KEYS; j++) {
                at[j] = key_at(seq, kv_head, clamp(tile + slot + j * slots, begin, end - 1u));
            }
            for (var i = 0u; i < K_VEC4S; i++) {
                let q0 = q_vec4(rows.x, quad_head, i);
                let q1 = q_vec4(rows.y, quad_head, i);
                let q2 = q_vec4(rows.z, quad_head, i);
                let q3 = q_vec4(rows.w, quad_head, i);
                for (var j = 0u; j < KEYS; j++) {
                    let key = key_vec4(at[j], i);
                    score[j] += vec4<f32>(dot(key, q0), dot(key, q1), dot(key, q2), dot(key, q3));
                }
            }
            for (var j = 0u; j < KEYS; j++) {
                let t = tile + slot + j * slots;
                let scale = key_scale(seq, kv_head, clamp(t, begin, end - 1u));
                var distance = abs(vec4<f32>(own) - f32(t));
                seen[j] = (vec4<u32>(t) >= begins) & (vec4<u32>(t) < ends);
                if TREE != 0u {
                    for (var r = 0u; r < 4u; r++) {
                        distance[r] = f32(ancestors[r].pos) - f32(tree_pos(ancestors[r], t));
                        seen[j][r] = seen[j][r] && is_ancestor(ancestors[r], t);
                    }
                }
                var own_score = scored(score[j] * scale);
                if HAS_SLOPES {
                    own_score -= slope * distance;
                }
                score[j] = select(vec4<f32>(MASK_VALUE), own_score, seen[j]);
            }
            var tile_max = score[0];
            for (var j = 1u; j < KEYS; j++) {
                tile_max = max(tile_max, score[j]);
            }
            sh_max[lid] = tile_max;
        }
        workgroupBarrier();

        if slot < slots {
            var new_max = running_max;
            for (var i = 0u; i < slots; i++) {
                new_max = max(new_max, sh_max[i * quads + quad]);
            }
            let rescale = exp(running_max - new_max);
            denominator *= rescale;
            for (var j = 0u; j < KEYS; j++) {
                // The mask decides, not the score: where a row sees nothing, `new_max` is MASK_VALUE, too.
                let w = select(vec4<f32>(0.0), exp(score[j] - new_max), seen[j]);
                sh_weight[lid + j * WG] = w;
                denominator += w;
            }
            if slot == 0u {
                sh_rescale[quad] = rescale;
            }
            running_max = new_max;
        }
        workgroupBarrier();

        if lane < lanes {
            let rescale_a = sh_rescale[2u * own_head];
            let rescale_b = sh_rescale[2u * own_head + 1u];
            for (var r = 0u; r < 4u; r++) {
                sum_a[r] *= rescale_a[r];
                sum_b[r] *= rescale_b[r];
                if VALUES == 2u {
                    sum_c[r] *= rescale_a[r];
                    sum_d[r] *= rescale_b[r];
                }
            }
            for (var pos = tile + lane; pos < min(tile + TILE, end); pos += lanes) {
                let clamped = max(pos, begin);
                let scorer = (pos - tile) / slots * WG + (pos - tile) % slots * quads + 2u * own_head;
                let a = sh_weight[scorer];
                let b = sh_weight[scorer + 1u];
                let at = value_at(seq, kv_head, clamped);
                let scale = value_scale(seq, kv_head, clamped);
                let value = value_vec4(at, V_FROM + i4) * scale;
                var second = vec4<f32>(0.0);
                if VALUES == 2u {
                    second = value_vec4(at, V_FROM + other4) * scale;
                }
                if TREE == 0u && pos >= seen_by_all.x && pos < seen_by_all.y {
                    sum_a[0] += a.x * value;
                    sum_a[1] += a.y * value;
                    sum_a[2] += a.z * value;
                    sum_a[3] += a.w * value;
                    sum_b[0] += b.x * value;
                    sum_b[1] += b.y * value;
                    sum_b[2] += b.z * value;
                    sum_b[3] += b.w * value;
                    if VALUES == 2u {
                        sum_c[0] += a.x * second;
                        sum_c[1] += a.y * second;
                        sum_c[2] += a.z * second;
                        sum_c[3] += a.w * second;
                        sum_d[0] += b.x * second;
                        sum_d[1] += b.y * second;
                        sum_d[2] += b.z * second;
                        sum_d[3] += b.w * second;
                    }
                } else {
                    // A value that a row does not see may be infinite or NaN, which a weight of 0 does not undo.
                    for (var r = 0u; r < 4u; r++) {
                        sum_a[r] += weighted(a[r], value);
                        sum_b[r] += weighted(b[r], value);
                        if VALUES == 2u {
                            sum_c[r] += weighted(a[r], second);
                            sum_d[r] += weighted(b[r], second);
                        }
                    }
                }
            }
        }
    }
    // Adds up the lanes' sums and the slots' denominators, in order: first for one vec4 of a value, then for the other.
    for (var pass_id = 0u; pass_id < VALUES; pass_id++) {
        workgroupBarrier();
        for (var r = 0u; r < 4u; r++) {
            sh_weight[r * WG + lid] = sum_a[r];
            sh_weight[(4u + r) * WG + lid] = sum_b[r];
        }
        sh_max[lid] = denominator;
        if lid < quads {
            sh_final_max[quad] = running_max;
        }
        workgroupBarrier();
        for (var i = lid; i < ROWS * of_value * GROUP_HEADS; i += WG) {
            let r = i / (of_value * GROUP_HEADS);
            let first = i % (of_value * GROUP_HEADS); // the thread of lane 0 that has these elements
            let of_head = first / of_value;
            let of_vec4 = first % of_value + pass_id * of_value;
            if first_row + r <= last_row && head + of_head <= last_head && of_vec4 < V_VEC4S {
                let of_quad = 2u * of_head + r / 4u;
                var merged = Partial(vec4<f32>(sh_final_max[of_quad][r % 4u], 0.0, 0.0, 0.0), vec4<f32>(0.0));
                for (var j = 0u; j < slots; j++) {
                    merged.state.y += sh_max[j * quads + of_quad][r % 4u];
                }
                for (var j = 0u; j < lanes; j++) {
                    merged.sum += sh_weight[r * WG + first + j * of_value * GROUP_HEADS];
                }
                finish(first_row + r, head + of_head, of_vec4, merged);
            }
        }
        sum_a = sum_c;
        sum_b = sum_d;
    }
}
