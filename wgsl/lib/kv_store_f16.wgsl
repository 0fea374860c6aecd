//! kv_store_f16: stores KV elements in `kv: array<u32>`, read and written: from an even element on, whole words.
const KV_LANES: u32 = 2u;         // elements in a word
const KV_SCALED: bool = false;

// Two f16 as a word. Values past f16's range become infinite and NaN stays NaN, by bit operations: WGSL leaves open what
// packing makes of them, and SwiftShader lets them spill into the other f16.
fn pack_f16(v: vec2<f32>) -> u32 {
    let bits = bitcast<vec2<u32>>(v);
    let size = bits & vec2<u32>(0x7fffffffu);
    let over = size >= vec2<u32>(0x477ff000u);  // 65520, which rounds to infinity
    let word = pack2x16float(select(v, vec2<f32>(0.0), over));
    if !any(over) {
        return word;
    }
    let broken = select(vec2<u32>(0x7c00u), vec2<u32>(0x7e00u), size > vec2<u32>(0x7f800000u));
    let own = select(vec2<u32>(0u), broken | ((bits >> vec2<u32>(16u)) & vec2<u32>(0x8000u)), over);
    return word | own.x | (own.y << 16u);
}
fn kv_store2(i: u32, v: vec2<f32>) {
    kv[i / 2u] = pack_f16(v);
}
fn kv_store4(i: u32, v: vec4<f32>) {
    kv_store2(i, v.xy);
    kv_store2(i + 2u, v.zw);
}
// Four words, in each of which one element is replaced.
fn kv_insert4(words: vec4<u32>, lane: u32, v: vec4<f32>) -> vec4<u32> {
    let own = vec2<u32>(pack_f16(v.xy), pack_f16(v.zw)).xxyy >> vec4<u32>(0u, 16u, 0u, 16u);
    return insertBits(words, own, 16u * lane, 16u);
}
