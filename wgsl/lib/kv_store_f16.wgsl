//! kv_store_f16: stores KV elements in `kv: array<u32>`, read and written: from an even element on, whole words.
const KV_LANES: u32 = 2u;         // elements in a word
const KV_SCALED: bool = false;
fn kv_store2(i: u32, v: vec2<f32>) {
    kv[i / 2u] = pack2x16float(v);
}
fn kv_store4(i: u32, v: vec4<f32>) {
    kv_store2(i, v.xy);
    kv_store2(i + 2u, v.zw);
}
// A word with one of its elements replaced.
fn kv_insert(word: u32, lane: u32, v: f32) -> u32 {
    return insertBits(word, pack2x16float(vec2<f32>(v, 0.0)) & 0xffffu, 16u * lane, 16u);
}
