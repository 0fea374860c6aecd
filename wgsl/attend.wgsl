//! attend: out[r, h] = sum_t softmax_t(scale * q[r, h] . k[t, h / g]) v[t, h / g] over the positions that the mask allows
//! q (rows, heads * k_dim) f32 | kv the cache, or k and v of the step's rows | sinks (heads) | out (rows, heads * v_dim) f32
//! grid: x one workgroup for GROUP_HEADS query heads of a KV head, y one for an item of the work list
//! use: lib/batch, <cache>, lib/attend, <kv>, <exchange>
//! source: the partitions of paged_attention_v2 of vLLM and of FlashDecoding 2023; online softmax, Milakov and Gimelshein 2018
//!
//! For single rows. An item is one KV split, a range of the positions that a row sees, or all splits of a row in order. Splits
//! begin at multiples of a size that follows from the row's position. They are reduced in order, here or by attend_reduce: a
//! row's sums do not depend on how it was split. Within a split, online softmax runs over tiles of WG positions. Each key is
//! read once for all heads of the workgroup, by THREADS_PER_KEY neighbouring threads that take every fourth vec4 of it; each
//! vec4 of a value by one thread. Positions outside what a row sees are not loaded. Of drafts that are not its ancestors, keys
//! are loaded and their scores dropped; values are not loaded.
const THREADS_PER_KEY: u32 = 4u;  // each has four keys at a time, so that a tile has WG
const KEPT: u32 = 4u;  // set: vec4s of the results that a thread keeps, at most
var<workgroup> sh_weight: array<vec4<f32>, WG>;  // [position in the tile]: the weight for each head
var<workgroup> sh_sum: array<vec4<f32>, WG>;     // [lane][vec4 of the value]: a head's

/// A vec4 of a position's value.
fn value_of(seq: u32, kv_head: u32, pos: u32, i4: u32) -> vec4<f32> {
    return value_vec4(value_at(seq, kv_head, pos), V_FROM + i4) * value_scale(seq, kv_head, pos);
}

/// Whether the value at position t counts: it lies from `first` on, before `stop`, and is the row's or an ancestor's.
fn is_value(ancestors: Ancestors, t: u32, first: u32, stop: u32) -> bool {
    return t >= first && t < stop && is_ancestor(ancestors, t);
}

@compute @workgroup_size(WG)
fn attend(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) id: vec3<u32>) {
    let item = BATCH_ITEMS + 4u * id.y;
    let row = batch[item];
    let seq = owner_of(row);
    let rounds = (params.group + GROUP_HEADS - 1u) / GROUP_HEADS;
    let kv_head = id.x / rounds;
    let head = kv_head * params.group + id.x % rounds * GROUP_HEADS;
    let last = (kv_head + 1u) * params.group - 1u;
    // Heads past the group's last repeat it, and their results are dropped.
    let heads = min(vec4<u32>(head) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(last));
    let own = own_position(row, seq);
    let count = positions(seq);
    let ancestors = ancestors_of(row, own, count);
    let seen = vec2<u32>(seen_by(ancestors.pos, count).x, seen_by(own, count).y);
    let size = batch[item + 2u];
    var split = batch[item + 1u];
    var past = split + 1u;
    if split == ALL_SPLITS {
        split = seen.x / size;
        past = (seen.y + size - 1u) / size;
    }
    var slopes = vec4<f32>(0.0);
    if HAS_SLOPES {
        for (var h = 0u; h < GROUP_HEADS; h++) {
            slopes[h] = vec_at(params.slopes + heads[h]);
        }
    }

    let slots = WG / THREADS_PER_KEY;
    let slot = lid / THREADS_PER_KEY;
    let lanes = WG / V_VEC4S;
    let i4 = lid % V_VEC4S;
    let lane = lid / V_VEC4S;
    // The thread's position of a tile, once the dot products are there.
    let own_slot = slot + lid % THREADS_PER_KEY * slots;
    // The thread's vec4s of the results: of all heads', one in WG.
    var merged = array<Partial, KEPT>();
    for (var n = 0u; n < KEPT; n++) {
        merged[n].state.x = MASK_VALUE;
    }
    for (; split < past; split++) {
        let begin = max(seen.x, split * size);
        let end = min(seen.y, (split + 1u) * size);
        var running_max = vec4<f32>(MASK_VALUE);
        var denominator = vec4<f32>(0.0);
        var sum = array<vec4<f32>, GROUP_HEADS>();
        for (var tile = select(end, begin / WG * WG, begin < end); tile < end; tile += WG) {
            let t = vec4<u32>(tile + slot) + slots * vec4<u32>(0u, 1u, 2u, 3u);
            let clamped = clamp(t, vec4<u32>(begin), vec4<u32>(end - 1u));
            let a0 = key_at(seq, kv_head, clamped.x);
            let a1 = key_at(seq, kv_head, clamped.y);
            let a2 = key_at(seq, kv_head, clamped.z);
            let a3 = key_at(seq, kv_head, clamped.w);
            var d0 = vec4<f32>(0.0);
            var d1 = vec4<f32>(0.0);
            var d2 = vec4<f32>(0.0);
            var d3 = vec4<f32>(0.0);
            for (var i = lid % THREADS_PER_KEY; i < K_VEC4S; i += THREADS_PER_KEY) {
                let k0 = key_vec4(a0, i);
                let k1 = key_vec4(a1, i);
                let k2 = key_vec4(a2, i);
                let k3 = key_vec4(a3, i);
                for (var h = 0u; h < GROUP_HEADS; h++) {
                    let v = q_vec4(row, heads[h], i);
                    d0[h] += dot(k0, v);
                    d1[h] += dot(k1, v);
                    d2[h] += dot(k2, v);
                    d3[h] += dot(k3, v);
                }
            }
            let dots = sum_of_four(mat4x4<f32>(d0 * key_scale(seq, kv_head, clamped.x), d1 * key_scale(seq, kv_head, clamped.y),
                d2 * key_scale(seq, kv_head, clamped.z), d3 * key_scale(seq, kv_head, clamped.w)), lid);

            let pos = tile + own_slot;
            let inside = pos >= begin && pos < end && is_ancestor(ancestors, pos);
            var score = vec4<f32>(MASK_VALUE);
            if inside {
                score = scored(dots);
                if HAS_SLOPES {
                    score -= slopes * abs(f32(ancestors.pos) - f32(tree_pos(ancestors, pos)));
                }
            }
            let new_max = max(running_max, wg_max4(score, lid));
            let rescale = exp(running_max - new_max);
            running_max = new_max;
            sh_weight[own_slot] = select(vec4<f32>(0.0), exp(score - running_max), inside);
            workgroupBarrier();

            denominator *= rescale;
            for (var h = 0u; h < GROUP_HEADS; h++) {
                sum[h] *= rescale[h];
            }
            if lane < lanes {
                // A lane takes the positions lane, lane + lanes, … of the tile.
                let first = max(tile, begin);
                let stop = min(tile + WG, end);
                // Four at a time, whose loads do not wait for one another; of what is not seen, the nearest that is.
                for (var at = tile + lane; at < stop; at += 4u * lanes) {
                    let t = vec4<u32>(at) + lanes * vec4<u32>(0u, 1u, 2u, 3u);
                    let near = clamp(t, vec4<u32>(first), vec4<u32>(stop - 1u));
                    let inside = vec4<bool>(is_value(ancestors, t.x, first, stop), is_value(ancestors, t.y, first, stop),
                        is_value(ancestors, t.z, first, stop), is_value(ancestors, t.w, first, stop));
                    let values = mat4x4<f32>(value_of(seq, kv_head, near.x, i4), value_of(seq, kv_head, near.y, i4),
                        value_of(seq, kv_head, near.z, i4), value_of(seq, kv_head, near.w, i4));
                    for (var j = 0u; j < 4u; j++) {
                        // A value that is not seen may be infinite or NaN, which a weight of 0 does not undo.
                        let value = select(vec4<f32>(0.0), values[j], inside[j]);
                        let w = select(vec4<f32>(0.0), sh_weight[near[j] - tile], inside[j]);
                        denominator += w;
                        for (var h = 0u; h < GROUP_HEADS; h++) {
                            sum[h] += w[h] * value;
                        }
                    }
                }
            }
        }
        // Adds up the lanes, in order, head by head.
        workgroupBarrier();
        sh_weight[lid] = denominator;
        for (var h = 0u; h < GROUP_HEADS; h++) {
            sh_sum[lid] = sum[h];
            workgroupBarrier();
            for (var n = 0u; n < KEPT; n++) {
                let e = n * WG + lid;
                if e / V_VEC4S == h {
                    let own = e % V_VEC4S;
                    var all = Partial(vec4<f32>(running_max[h], sh_weight[own][h], 0.0, 0.0), sh_sum[own]);
                    for (var i = own + V_VEC4S; i < lanes * V_VEC4S; i += V_VEC4S) {
                        all.state.y += sh_weight[i][h];
                        all.sum += sh_sum[i];
                    }
                    merged[n] = merge(merged[n], all);
                }
            }
            workgroupBarrier();
        }
    }
    for (var n = 0u; n < KEPT; n++) {
        let e = n * WG + lid;
        let h = e / V_VEC4S;
        if h >= GROUP_HEADS || head + h > last {
            continue;
        }
        if batch[item + 1u] == ALL_SPLITS {
            finish(row, head + h, e % V_VEC4S, merged[n]);
        } else {
            let to = (id.y * params.heads + head + h) * (V_VEC4S + 1u);
            partials[to] = merged[n].state;
            partials[to + 1u + e % V_VEC4S] = merged[n].sum;
        }
    }
}
