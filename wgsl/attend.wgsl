//! attend: out[r, h] = sum_t softmax_t(scale * q[r, h] . k[t, h / g]) v[t, h / g] over the positions that the mask allows
//! q (rows, heads * k_dim) f32 | kv the cache, or k and v of the step's rows | sinks (heads) | out (rows, heads * v_dim) f32
//! grid: x one workgroup for HEADS query heads of a KV head, y one for an item of the work list
//! use: lib/step, <cache>, lib/attend, <kv>, <max>
//! source: the partitions of paged_attention_v2 of vLLM and of FlashDecoding 2023; online softmax, Milakov and Gimelshein 2018
//!
//! For single rows. An item is a part of the positions that a row sees, or all its parts one after the other. Parts begin at
//! multiples of a size that follows from the row's position, and are merged in their order, here or by attend_merge: a row's sums
//! do not depend on how it was divided. Within a part, online softmax over tiles of WG
//! positions: each key is read once for all heads of the workgroup, by FOURS neighbouring threads that take every fourth four
//! of its elements; each value by one thread for four elements. Positions in front of those that a row
//! sees and behind them are not loaded; of drafts that are not on its way, keys are and their scores dropped, values are not.
const FOURS: u32 = 4u;  // threads to a key
const KEYS: u32 = 4u;   // keys of a thread, so that a tile has WG
var<workgroup> dots: array<vec4<f32>, WG * FOURS>;  // [thread of a key][position in the tile]: the dot product of each head
var<workgroup> weight: array<vec4<f32>, WG>;        // [position in the tile]: the weight for each head

/// The products of a key with each query.
fn products(key: vec4<f32>, q0: vec4<f32>, q1: vec4<f32>, q2: vec4<f32>, q3: vec4<f32>) -> vec4<f32> {
    var y = vec4<f32>(dot(key, q0), 0.0, 0.0, 0.0);
    if HEADS > 1u {
        y.y = dot(key, q1);
    }
    if HEADS > 2u {
        y.z = dot(key, q2);
    }
    if HEADS > 3u {
        y.w = dot(key, q3);
    }
    return y;
}

@compute @workgroup_size(WG)
fn attend(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) id: vec3<u32>) {
    let item = STEP_ITEMS + 4u * id.y;
    let row = step[item];
    let seq = owner_of(row);
    let rounds = (params.group + HEADS - 1u) / HEADS;
    let kv_head = id.x / rounds;
    let head = kv_head * params.group + id.x % rounds * HEADS;
    let last = (kv_head + 1u) * params.group - 1u;
    // Heads past the group's last are computed as it is, and dropped.
    let heads = min(vec4<u32>(head) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(last));
    let own = own_position(row, seq);
    let count = positions(seq);
    let path = path_of(row, own, count);
    let seen = vec2<u32>(seen_by(path.place, count).x, seen_by(own, count).y);
    let size = step[item + 2u];
    var part = step[item + 1u];
    var past = part + 1u;
    if part == ALL {
        part = seen.x / size;
        past = (seen.y + size - 1u) / size;
    }
    var slopes = vec4<f32>(0.0);
    if HAS_SLOPES {
        for (var h = 0u; h < HEADS; h++) {
            slopes[h] = vec_at(params.slopes + heads[h]);
        }
    }

    let slots = WG / FOURS;
    let slot = lid / FOURS;
    let lanes = WG / V_FOURS;
    let four = lid % V_FOURS;
    let lane = lid / V_FOURS;
    let none = Part(vec4<f32>(NEVER, 0.0, 0.0, 0.0), vec4<f32>(0.0));
    var whole = array<Part, 4>(none, none, none, none);
    for (; part < past; part++) {
        let begin = max(seen.x, part * size);
        let end = min(seen.y, (part + 1u) * size);
        var most = vec4<f32>(NEVER);
        var total = vec4<f32>(0.0);
        var sum = array<vec4<f32>, 4>();
        for (var tile = select(end, begin / WG * WG, begin < end); tile < end; tile += WG) {
            let t = vec4<u32>(tile + slot) + slots * vec4<u32>(0u, 1u, 2u, 3u);
            let near = clamp(t, vec4<u32>(begin), vec4<u32>(end - 1u));
            let a0 = key_at(seq, kv_head, near.x);
            let a1 = key_at(seq, kv_head, near.y);
            let a2 = key_at(seq, kv_head, near.z);
            let a3 = key_at(seq, kv_head, near.w);
            var d0 = vec4<f32>(0.0);
            var d1 = vec4<f32>(0.0);
            var d2 = vec4<f32>(0.0);
            var d3 = vec4<f32>(0.0);
            for (var i = lid % FOURS; i < K_FOURS; i += FOURS) {
                let q0 = q_four(row, heads.x, i);
                var q1 = q0;
                var q2 = q0;
                var q3 = q0;
                if HEADS > 1u {
                    q1 = q_four(row, heads.y, i);
                }
                if HEADS > 2u {
                    q2 = q_four(row, heads.z, i);
                }
                if HEADS > 3u {
                    q3 = q_four(row, heads.w, i);
                }
                d0 += products(key_four(a0, i), q0, q1, q2, q3);
                d1 += products(key_four(a1, i), q0, q1, q2, q3);
                d2 += products(key_four(a2, i), q0, q1, q2, q3);
                d3 += products(key_four(a3, i), q0, q1, q2, q3);
            }
            let at = lid % FOURS * WG + slot;
            dots[at] = d0 * key_scale(seq, kv_head, near.x);
            dots[at + slots] = d1 * key_scale(seq, kv_head, near.y);
            dots[at + 2u * slots] = d2 * key_scale(seq, kv_head, near.z);
            dots[at + 3u * slots] = d3 * key_scale(seq, kv_head, near.w);
            workgroupBarrier();

            // From here on a thread has the position tile + lid.
            let inside = tile + lid >= begin && tile + lid < end && on_path(path, tile + lid);
            var score = vec4<f32>(NEVER);
            if inside {
                score = scored((dots[lid] + dots[WG + lid]) + (dots[2u * WG + lid] + dots[3u * WG + lid]));
                if HAS_SLOPES {
                    score -= slopes * abs(f32(path.place) - f32(place_of(path, tile + lid)));
                }
            }
            let highest = max(most, wg_max4(score, lid));
            let shrink = exp(most - highest);
            most = highest;
            weight[lid] = select(vec4<f32>(0.0), exp(score - most), inside);
            workgroupBarrier();

            total *= shrink;
            for (var h = 0u; h < HEADS; h++) {
                sum[h] *= shrink[h];
            }
            if lane < lanes {
                // A lane takes the positions lane, lane + lanes, … of the tile.
                let first = max(tile, begin);
                let stop = min(tile + WG, end);
                for (var pos = tile + lane; pos < stop; pos += lanes) {
                    if pos >= first && on_path(path, pos) {
                        let w = weight[pos - tile];
                        let value = value_four(value_at(seq, kv_head, pos), V_FROM + four) * value_scale(seq, kv_head, pos);
                        total += w;
                        sum[0] += w.x * value;
                        if HEADS > 1u {
                            sum[1] += w.y * value;
                        }
                        if HEADS > 2u {
                            sum[2] += w.z * value;
                        }
                        if HEADS > 3u {
                            sum[3] += w.w * value;
                        }
                    }
                }
            }
        }
        // Lanes add up, in their order; `dots` and `weight` were last read before a barrier.
        workgroupBarrier();
        for (var h = 0u; h < HEADS; h++) {
            dots[h * WG + lid] = sum[h];
        }
        weight[lid] = total;
        workgroupBarrier();
        if lane == 0u {
            for (var i = 1u; i < lanes; i++) {
                total += weight[i * V_FOURS + four];
            }
            for (var h = 0u; h < HEADS; h++) {
                for (var i = 1u; i < lanes; i++) {
                    sum[h] += dots[h * WG + i * V_FOURS + four];
                }
                whole[h] = merge(whole[h], Part(vec4<f32>(most[h], total[h], 0.0, 0.0), sum[h]));
            }
        }
        workgroupBarrier();
    }
    if lane != 0u {
        return;
    }
    for (var h = 0u; h < HEADS && head + h <= last; h++) {
        if step[item + 1u] == ALL {
            finish(row, head + h, four, whole[h]);
        } else {
            let to = (id.y * params.heads + head + h) * (V_FOURS + 1u);
            parts[to] = whole[h].state;
            parts[to + 1u + four] = whole[h].sum;
        }
    }
}
