//! kv_f16: four KV elements from element i on (a multiple of 4) of `kv: array<u32>`, two a word.
fn kv_load4(i: u32) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(kv[i / 2u]), unpack2x16float(kv[i / 2u + 1u]));
}
