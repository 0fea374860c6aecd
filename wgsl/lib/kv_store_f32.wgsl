//! kv_store_f32: stores KV elements in `kv: array<u32>`, read and written, one a word.
const KV_LANES: u32 = 1u;         // elements in a word
const KV_SCALED: bool = false;
fn kv_store2(i: u32, v: vec2<f32>) {
    kv[i] = bitcast<u32>(v.x);
    kv[i + 1u] = bitcast<u32>(v.y);
}
fn kv_store4(i: u32, v: vec4<f32>) {
    kv_store2(i, v.xy);
    kv_store2(i + 2u, v.zw);
}
fn kv_insert4(words: vec4<u32>, lane: u32, v: vec4<f32>) -> vec4<u32> { return bitcast<vec4<u32>>(v); }
