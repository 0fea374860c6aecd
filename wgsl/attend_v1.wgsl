//! attend_v1: attend, with the scores of all positions that a row sees in workgroup memory
//! q (rows, heads * k_dim) f32 | kv a vectorised cache | sinks (heads) | out (rows, heads * v_dim) f32
//! grid: x one workgroup for a query head, y one for a row
//! use: lib/batch, lib/vectorised, lib/attend, <kv_cache>, <reduce>
//! source: paged_attention_v1 of vLLM (Kwon et al. 2023)
//! bench only: attend loads each key once for several heads, and has no longest context
//!
//! A key is multiplied by GROUP neighbouring threads that take every second vec4 of its elements: together they read 16 bytes
//! of f16, and the next threads those of the next position. An element of the result is summed up by COLUMNS neighbouring
//! threads, each over every COLUMNS-th group of four positions, which are contiguous.
const GROUP: u32 = 2u;         // threads per key
override COLUMNS: u32 = 4u;    // threads per element of the result
override SCORES: u32 = 1024u;  // a multiple of 4: positions that a row may see, and up to three before the first
var<workgroup> sh_query: array<vec4<f32>, K_VEC4S>;
var<workgroup> sh_dots: array<f32, 2u * GROUP * WG>;         // of two tiles in turn: [thread of a key][position in the tile]
var<workgroup> sh_scores: array<f32, SCORES>;                // then weights
var<workgroup> sh_sums: array<f32, 4u * V_VEC4S * COLUMNS>;  // [element][column]

@compute @workgroup_size(WG)
fn attend_v1(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) id: vec3<u32>) {
    let row = id.y;
    let head = id.x;
    let kv_head = head / params.group;
    let seq = row_seq(row);
    let own = own_position(row, seq);
    let seen = seen_by(own, positions(seq));
    let begin = seen.x;
    let first = begin / 4u * 4u;
    let end = min(seen.y, first + SCORES);
    for (var i = lid; i < K_VEC4S; i += WG) {
        sh_query[i] = q_vec4(row, head, i);
    }
    workgroupBarrier();

    let slots = WG / GROUP;
    let slot = lid / GROUP;
    let sub_lane = lid % GROUP;
    var buffer = 0u;
    var running_max = MASK_VALUE;
    for (var tile = begin; tile < end; tile += WG) {
        for (var j = slot; j < WG; j += slots) {
            let key = key_at(seq, kv_head, min(tile + j, end - 1u));
            var sum = 0.0;
            for (var i = sub_lane; i < K_VEC4S; i += GROUP) {
                sum += dot(sh_query[i], key_vec4(key, i));
            }
            sh_dots[buffer + sub_lane * WG + j] = sum;
        }
        workgroupBarrier();
        let pos = tile + lid;
        if pos < end {
            let product = (sh_dots[buffer + lid] + sh_dots[buffer + WG + lid]) * key_scale(seq, kv_head, pos);
            var score = scored(vec4<f32>(product)).x;
            if HAS_SLOPES {
                score -= vec_at(params.slopes + head) * abs(f32(own) - f32(pos));
            }
            sh_scores[pos - first] = score;
            running_max = max(running_max, score);
        }
        buffer = GROUP * WG - buffer;
    }
    running_max = wg_max(running_max, lid);

    var denominator = 0.0;
    for (var pos = first + lid; pos < (end + 3u) / 4u * 4u; pos += WG) {
        let inside = pos >= begin && pos < end;
        let weight = select(0.0, exp(sh_scores[pos - first] - running_max), inside);
        sh_scores[pos - first] = weight;
        denominator += weight;
    }
    denominator = wg_sum(denominator, lid);

    let column = lid % COLUMNS;
    for (var e = lid / COLUMNS; e < 4u * V_VEC4S; e += WG / COLUMNS) {
        var sum = 0.0;
        for (var pos = first + 4u * column; pos < end; pos += 4u * COLUMNS) {
            let t = vec4<u32>(pos) + vec4<u32>(0u, 1u, 2u, 3u);
            let i = pos - first;
            let weights = vec4<f32>(sh_scores[i], sh_scores[i + 1u], sh_scores[i + 2u], sh_scores[i + 3u]);
            let scale = vec4<f32>(
                value_scale(seq, kv_head, t.x), value_scale(seq, kv_head, t.y),
                value_scale(seq, kv_head, t.z), value_scale(seq, kv_head, t.w));
            let values = kv_vec4(value_at(seq, kv_head, pos) + v_elem(e)) * scale;
            // Slots that the row does not see may hold NaN.
            let inside = (t >= vec4<u32>(begin)) & (t < vec4<u32>(end));
            sum += dot(weights, select(vec4<f32>(0.0), values, inside));
        }
        sh_sums[e * COLUMNS + column] = sum;
    }
    workgroupBarrier();
    for (var i4 = lid; i4 < V_VEC4S; i4 += WG) {
        var sum = vec4<f32>(0.0);
        for (var j = 0u; j < 4u; j++) {
            for (var i = 0u; i < COLUMNS; i++) {
                sum[j] += sh_sums[(4u * i4 + j) * COLUMNS + i];
            }
        }
        finish(row, head, i4, Partial(vec4<f32>(running_max, denominator, 0.0, 0.0), sum));
    }
}
