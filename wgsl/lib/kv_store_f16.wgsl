//! kv_store_f16: two KV elements at element i (even) of `kv: array<u32>`, read and written: one whole word.
fn kv_store2(i: u32, v: vec2<f32>) {
    kv[i / 2u] = pack2x16float(v);
}
