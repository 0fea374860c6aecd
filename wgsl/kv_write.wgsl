//! kv_write: stores each row's K and V at the slot of its position in the cache
//! k (rows, kv_heads * k_dim) f32 | v (rows, kv_heads * v_dim) f32 | kv the cache
//! grid: x one thread for four elements of a head's K and four of its V, y one row
//! use: lib/batch, <kv_store>, <cache>, lib/owner
//! source: reshape_and_cache of vLLM; the write of akunu's RoPE kernels
//!
//! A thread stores complete 32-bit words; past a head's end, the padding is filled with zeros.
struct Params {
    k_stride: u32,  // elements from a row of k to the next
    v_stride: u32,
    k_dim: u32,     // elements of a key
    v_dim: u32,
}
override WG: u32 = 64u;
override RAGGED: bool = false;  // k_dim or v_dim is not a multiple of 4
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> kv: array<u32>;

fn key4(row: u32, head: u32, i: u32) -> vec4<f32> {
    let at = row * params.k_stride + head * params.k_dim + i;
    if !RAGGED {
        return k[at / 4u];
    }
    var four = vec4<f32>(0.0);
    for (var j = 0u; j < 4u; j++) {
        if i + j < params.k_dim {
            four[j] = k[(at + j) / 4u][(at + j) % 4u];
        }
    }
    return four;
}

fn value4(row: u32, head: u32, i: u32) -> vec4<f32> {
    let at = row * params.v_stride + head * params.v_dim + i;
    if !RAGGED {
        return v[at / 4u];
    }
    var four = vec4<f32>(0.0);
    for (var j = 0u; j < 4u; j++) {
        if i + j < params.v_dim {
            four[j] = v[(at + j) / 4u][(at + j) % 4u];
        }
    }
    return four;
}

@compute @workgroup_size(WG)
fn kv_write(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    let vec4s = max(K_DIM, V_DIM) / 4u;
    let head = id.x / vec4s;
    let i = 4u * (id.x % vec4s);
    if row >= batch[0] || head >= KV_HEADS {
        return;
    }
    let pos = row_pos(row);
    let base = page_base(row_seq(row), pos);
    if i < K_DIM {
        kv_store4(k_at(base, head, pos) + k_elem(i), key4(row, head, i));
    }
    if i >= V_DIM {
        return;
    }
    let at = v_at(base, head, pos);
    if !V_APART {
        kv_store4(at + i, value4(row, head, i));
        return;
    }
    let owned = rows_owned(row);
    if owned == 0u {
        return;
    }
    var words = words_apart(at, i, owned == KV_LANES);
    for (var r = 0u; r < KV_LANES; r++) {
        if r < owned {
            words = insert_apart(words, pos + r, value4(row + r, head, i));
        }
    }
    store_apart(at, i, words);
}
