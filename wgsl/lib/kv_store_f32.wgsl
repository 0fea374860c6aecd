//! kv_store_f32: two KV elements at element i (even) of `kv: array<u32>`, read and written, one a word.
fn kv_store2(i: u32, v: vec2<f32>) {
    kv[i] = bitcast<u32>(v.x);
    kv[i + 1u] = bitcast<u32>(v.y);
}
