//! attend_reduce: out[r, h] = the KV splits of row r and head h that attend left, reduced in order
//! partials (items, heads, 1 + V_VEC4S) f32 in vec4s | sinks (heads) | out (rows, heads * v_dim) f32
//! grid: x one workgroup for a query head, y one for a row with several KV splits
//! use: lib/batch, lib/attend
//! source: paged_attention_v2_reduce of vLLM
override WG: u32 = 64u;

@compute @workgroup_size(WG)
fn attend_reduce(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) id: vec3<u32>) {
    let at = BATCH_SPLIT_ROWS + 4u * id.y;
    for (var i4 = lid; i4 < V_VEC4S; i4 += WG) {
        var merged = Partial(vec4<f32>(MASK_VALUE, 0.0, 0.0, 0.0), vec4<f32>(0.0));
        for (var item = batch[at + 1u]; item < batch[at + 1u] + batch[at + 2u]; item++) {
            let at_partial = (item * params.heads + id.x) * (V_VEC4S + 1u);
            merged = merge(merged, Partial(partials[at_partial], partials[at_partial + 1u + i4]));
        }
        finish(batch[at], id.x, i4, merged);
    }
}
