//! kv_write: each row's K and V to the slot of its position in the cache
//! k (rows, kv_heads * k_dim) f32 | v (rows, kv_heads * v_dim) f32 | kv the cache
//! grid: x one thread for four elements of a head's K or V, y one row
//! use: lib/step, <kv_store>, <cache>, lib/owner
//! source: reshape_and_cache of vLLM; the write of akunu's RoPE kernels
//!
//! A thread stores whole 32-bit words; elements past a head's end are stored as zeros in its padding.
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

fn key4(row: u32, head: u32, i: u32) -> vec4<f32> {
    var four = vec4<f32>(0.0);
    let at = row * params.k_stride + head * params.k_dim;
    for (var j = 0u; j < 4u; j++) {
        if i + j < params.k_dim {
            four[j] = k[at + i + j];
        }
    }
    return four;
}

fn value4(row: u32, head: u32, i: u32) -> vec4<f32> {
    var four = vec4<f32>(0.0);
    let at = row * params.v_stride + head * params.v_dim;
    for (var j = 0u; j < 4u; j++) {
        if i + j < params.v_dim {
            four[j] = v[at + i + j];
        }
    }
    return four;
}

@compute @workgroup_size(WG)
fn kv_write(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    let k_fours = K_DIM / 4u;
    let v_fours = V_DIM / 4u;
    if row >= step[0] || id.x >= KV_HEADS * (k_fours + v_fours) {
        return;
    }
    if id.x < KV_HEADS * k_fours {
        let pos = row_pos(row);
        let head = id.x / k_fours;
        let i = 4u * (id.x % k_fours);
        kv_store4(k_at(page_base(row_seq(row), pos), head, pos) + k_elem(i), key4(row, head, i));
        return;
    }
    let j = id.x - KV_HEADS * k_fours;
    let head = j / max(v_fours, 1u);
    let i = 4u * (j % max(v_fours, 1u));
    let past = row + rows_owned(row);
    for (var r = row; r < past; r++) {
        let pos = row_pos(r);
        let at = v_at(page_base(row_seq(r), pos), head, pos);
        if V_APART {
            store_apart(at, i, value4(r, head, i));
        } else {
            kv_store4(at + i, value4(r, head, i));
        }
    }
}
