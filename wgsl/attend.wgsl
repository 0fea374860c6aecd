//! attend: out[r, h] = sum_t softmax_t(scale * q[r, h] . k[t, h / g]) v[t, h / g] over the positions that the mask allows
//! q (rows, heads * k_dim) f32 | kv the cache | sinks (heads) | out (rows, heads * v_dim) f32
//! grid: x one workgroup for a query head, y one for a row
//! use: lib/step, lib/paged, <kv>, <reduce>
//!
//! Online softmax (Milakov & Gimelshein 2018) over tiles of WG positions, counted from position 0: the order of a row's sums
//! depends on its position alone. Positions outside the mask are neither loaded nor multiplied: pages may hold anything.
struct Params {
    group: u32,       // query heads to a KV head
    k_dim: u32,
    v_dim: u32,
    q_stride: u32,    // elements from a row of q to the next
    out_stride: u32,
    sinks: u32,       // element of vecs where the sinks lie (HAS_SINKS)
    window: u32,      // positions that a row sees, its own included
    full: u32,        // 1: also those behind it
    scale: f32,
    softcap: f32,     // 0: none
}
override HAS_SINKS: bool = false;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> vecs: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> kv: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
const NEVER: f32 = -1e30;
var<workgroup> query: array<vec4<f32>, (K_DIM + 3u) / 4u>;
var<workgroup> weight: array<f32, WG>;
var<workgroup> parts: array<vec4<f32>, WG>;

@compute @workgroup_size(WG)
fn attend(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    if row >= step[0] {
        return;
    }
    let head = group.x;
    let kv_head = head / params.group;
    let seq = row_seq(row);
    let pos = row_pos(row);
    var end = pos + 1u;
    if params.full != 0u {
        end = step[STEP_SEQS + 4u * seq + 3u];
    }
    let begin = pos + 1u - min(params.window, pos + 1u);
    for (var i = lid; i < K_DIM / 4u; i += WG) {
        var v = vec4<f32>(0.0);
        for (var j = 0u; j < min(4u, params.k_dim - 4u * i); j++) {
            v[j] = q[row * params.q_stride + head * params.k_dim + 4u * i + j];
        }
        query[i] = v;
    }
    workgroupBarrier();

    // Threads share a position's value: thread t takes elements 4 (t % fours).. of every positions t / fours, + lanes, …
    let fours = V_DIM / 4u;
    let lanes = WG / fours;
    let four = lid % fours;
    let lane = lid / fours;
    var most = NEVER;
    var total = 0.0;
    if HAS_SINKS {
        most = vecs[(params.sinks + head) / 4u][(params.sinks + head) % 4u];
        total = 1.0;
    }
    var sum = vec4<f32>(0.0);
    for (var tile = begin / WG * WG; tile < end; tile += WG) {
        let t = tile + lid;
        let seen = t >= begin && t < end;
        var score = NEVER;
        if seen {
            let at = k_at(page_base(seq, t), kv_head, t);
            var s = vec4<f32>(0.0);
            for (var i = 0u; i < K_DIM / 4u; i++) {
                s += query[i] * kv_load4(at + 4u * i);
            }
            score = ((s.x + s.y) + (s.z + s.w)) * params.scale;
            if params.softcap != 0.0 {
                let e = exp(-2.0 * abs(score / params.softcap));
                score = params.softcap * sign(score) * (1.0 - e) / (1.0 + e);
            }
        }
        let highest = max(most, wg_max(score, lid));
        let shrink = exp(most - highest);
        most = highest;
        var p = 0.0;
        if seen {
            p = exp(score - most);
        }
        weight[lid] = p;
        total = total * shrink + wg_sum(p, lid);  // its barriers also publish `weight`
        sum *= shrink;
        if lane < lanes {
            let first = max(tile, begin);
            let past = min(tile + WG, end);
            // Canonical: a lane takes the slots lane, lane + lanes, … of the tile.
            for (var slot = lane; slot < past - tile; slot += lanes) {
                let at_pos = tile + slot;
                if at_pos >= first {
                    sum += weight[slot] * kv_load4(v_at(page_base(seq, at_pos), kv_head, at_pos) + 4u * four);
                }
            }
        }
        workgroupBarrier();
    }
    parts[lid] = sum;
    workgroupBarrier();
    if lane == 0u {
        for (var i = 1u; i < lanes; i++) {
            sum += parts[i * fours + four];
        }
        if total > 0.0 {
            sum /= total;
        }
        for (var j = 0u; j < min(4u, params.v_dim - 4u * four); j++) {
            out[row * params.out_stride + head * params.v_dim + 4u * four + j] = sum[j];
        }
    }
}
