//! rope_kv: rotates q and k of each row; stores q to out, k and v at the slot of the row's position in the cache
//! q (rows, heads * k_dim), k (rows, kv_heads * k_dim), v (rows, kv_heads * v_dim) f32, views of one buffer or of three | out as q | kv the cache
//! grid: x one workgroup for WG / THREADS heads of q, k or v, y one row
//! use: lib/batch, lib/heads, <angles>, <kv_store>, <cache>, lib/owner
//! source: akunu, rope_qkv_write, rope_neox_qkv_write, rope_batch_kv_write, rope_neox_batch_kv_write
override WG: u32 = 64u;
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> kv: array<u32>;

@compute @workgroup_size(WG)
fn rope_kv(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    if row >= batch[0] {
        return;
    }
    let h = head_of(id.x);
    for (var u = h.first; u < h.q_units; u += THREADS) {
        let e = unit_at(u);
        let y = rotated(q_unit(q_at(row, h.own), e), row, u);
        let to = row * params.out_stride + h.own * params.k_dim;
        out[(to + e.x) / 4u] = y.a;
        if e.y < K_DIM {
            out[(to + e.y) / 4u] = y.b;
        }
    }
    let pos = row_pos(row);
    let base = page_base(row_seq(row), pos);
    for (var u = h.first; u < h.k_units; u += THREADS) {
        let e = unit_at(u);
        store_key(k_at(base, h.own, pos), e, rotated(k_unit(key_at(row, h.own), e), row, u));
    }
    if !V_APART {
        for (var u = h.first; u < h.v_units; u += THREADS) {
            let e = unit_at(u);
            store_value(v_at(base, h.own, pos), e, v_unit(value_at(row, h.own), e));
        }
        return;
    }
    let owned = rows_owned(row);
    let to = v_at(base, h.own, pos);
    for (var i = 4u * h.first; i < select(0u, min(8u * h.v_units, V_DIM), owned > 0u); i += 4u * THREADS) {
        var words = words_apart(to, i, owned == KV_LANES);
        for (var r = 0u; r < KV_LANES; r++) {
            if r < owned {
                words = insert_apart(words, pos + r, v[(value_at(row + r, h.own) + i) / 4u]);
            }
        }
        store_apart(to, i, words);
    }
}
