//! kv_write: each row's K and V to the slot of its position in the cache's pages
//! k (rows, kv_heads * k_dim) f32 | v (rows, kv_heads * v_dim) f32 | kv the cache
//! grid: x one thread for two elements of a head's K or V, y one row
//! use: lib/step, lib/paged, <kv_store>
//!
//! A thread stores whole 32-bit words; elements past an odd head's end are stored as zeros in its padding.
struct Params {
    k_stride: u32,  // elements from a row of k to the next
    v_stride: u32,
    k_dim: u32,     // elements of a key
    v_dim: u32,
}
override WG: u32 = 64u;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read_write> kv: array<u32>;

@compute @workgroup_size(WG)
fn kv_write(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    let k_words = K_DIM / 2u;
    let v_words = V_DIM / 2u;
    if row >= step[0] || id.x >= KV_HEADS * (k_words + v_words) {
        return;
    }
    let pos = row_pos(row);
    let base = page_base(row_seq(row), pos);
    if id.x < KV_HEADS * k_words {
        let head = id.x / k_words;
        let i = 2u * (id.x % k_words);
        var two = vec2<f32>(0.0);
        let source = row * params.k_stride + head * params.k_dim;
        if i < params.k_dim {
            two.x = k[source + i];
        }
        if i + 1u < params.k_dim {
            two.y = k[source + i + 1u];
        }
        kv_store2(k_at(base, head, pos) + i, two);
    } else {
        let j = id.x - KV_HEADS * k_words;
        let head = j / v_words;
        let i = 2u * (j % v_words);
        var two = vec2<f32>(0.0);
        let source = row * params.v_stride + head * params.v_dim;
        if i < params.v_dim {
            two.x = v[source + i];
        }
        if i + 1u < params.v_dim {
            two.y = v[source + i + 1u];
        }
        kv_store2(v_at(base, head, pos) + i, two);
    }
}
