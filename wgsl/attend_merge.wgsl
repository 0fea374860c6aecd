//! attend_merge: out[r, h] = the parts of row r and head h that attend left, merged in their order
//! parts (items, heads, 1 + V_FOURS) f32 in fours | sinks (heads) | out (rows, heads * v_dim) f32
//! grid: x one workgroup for a query head, y one for a row that was divided
//! use: lib/step, lib/attend
//! source: paged_attention_v2_reduce of vLLM
override WG: u32 = 64u;

@compute @workgroup_size(WG)
fn attend_merge(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) id: vec3<u32>) {
    let at = STEP_MERGES + 4u * id.y;
    for (var four = lid; four < V_FOURS; four += WG) {
        var whole = Part(vec4<f32>(NEVER, 0.0, 0.0, 0.0), vec4<f32>(0.0));
        for (var item = step[at + 1u]; item < step[at + 1u] + step[at + 2u]; item++) {
            let part = (item * params.heads + id.x) * (V_FOURS + 1u);
            whole = merge(whole, Part(parts[part], parts[part + 1u + four]));
        }
        finish(step[at], id.x, four, whole);
    }
}
