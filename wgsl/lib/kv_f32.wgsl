//! kv_f32: four KV elements from element i on (a multiple of 4) of `kv: array<u32>`, one a word.
fn kv_load4(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(kv[i], kv[i + 1u], kv[i + 2u], kv[i + 3u]));
}
