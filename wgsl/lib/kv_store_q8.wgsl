//! kv_store_q8: stores KV elements in `kv: array<u32>`, read and written, as 8-bit integers: v * 127, v from -1 to 1.
//! An element is its integer times its vector's scale, which is kept in the block (lib/paged).
const KV_LANES: u32 = 4u;         // elements in a word
const KV_SCALED: bool = true;
fn kv_store4(i: u32, v: vec4<f32>) {
    kv[i / 4u] = pack4x8snorm(v);
}
// Four words, in each of which one element is replaced.
fn kv_insert4(words: vec4<u32>, lane: u32, v: vec4<f32>) -> vec4<u32> {
    let own = vec4<u32>(pack4x8snorm(v)) >> vec4<u32>(0u, 8u, 16u, 24u);
    return insertBits(words, own, 8u * lane, 8u);
}
