//! kv_store_q8: stores KV elements in `kv: array<u32>`, read and written, as 8-bit integers: v * 127, v from -1 to 1.
//! An element is its integer times its vector's scale, which is kept in the block (lib/paged).
const KV_LANES: u32 = 4u;         // elements in a word
const KV_SCALED: bool = true;
fn kv_store4(i: u32, v: vec4<f32>) {
    kv[i / 4u] = pack4x8snorm(v);
}
// A word with one of its elements replaced.
fn kv_insert(word: u32, lane: u32, v: f32) -> u32 {
    return insertBits(word, pack4x8snorm(vec4<f32>(v, 0.0, 0.0, 0.0)) & 0xffu, 8u * lane, 8u);
}
