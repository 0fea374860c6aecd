//! rope_kv: rotates q and k of each row; q to out, k and v to the slot of the row's position in the cache
//! q (rows, heads * head_dim), k, v (rows, kv_heads * head_dim) f32, views of one buffer or of three | out as q | kv the cache
//! grid: x one thread for four elements that make whole words of the cache, y one row
//! use: lib/step, <angles>, lib/rotate, <kv_store>, <cache>, lib/owner
//! source: akunu, rope_qkv_write, rope_neox_qkv_write, rope_batch_kv_write, rope_neox_batch_kv_write
struct Params {
    heads: u32,
    head_dim: u32,    // a multiple of 4
    out_stride: u32,  // elements from a row to the next
    q_from: u32,      // first element of a row
    q_stride: u32,
    k_from: u32,
    k_stride: u32,
    v_from: u32,
    v_stride: u32,
}
override WG: u32 = 64u;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> angles: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> k: array<f32>;
@group(0) @binding(5) var<storage, read> v: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<storage, read_write> kv: array<u32>;

@compute @workgroup_size(WG)
fn rope_kv(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    let fours = params.head_dim / 4u;
    let head = id.x / fours;
    let g = id.x % fours;
    if row >= step[0] || head >= params.heads + 2u * KV_HEADS {
        return;
    }
    let e = elements(g);
    if head < params.heads {
        let at = params.q_from + row * params.q_stride + head * params.head_dim + e;
        let y = rotate(vec4<f32>(q[at.x], q[at.y], q[at.z], q[at.w]), row, g);
        let to = row * params.out_stride + head * params.head_dim + e;
        out[to.x] = y.x;
        out[to.y] = y.y;
        out[to.z] = y.z;
        out[to.w] = y.w;
    } else if head < params.heads + KV_HEADS {
        let own = head - params.heads;
        let at = params.k_from + row * params.k_stride + own * params.head_dim + e;
        let y = rotate(vec4<f32>(k[at.x], k[at.y], k[at.z], k[at.w]), row, g);
        let pos = row_pos(row);
        let to = k_at(page_base(row_seq(row), pos), own, pos);
        kv_store2(to + k_elem(e.x), y.xy);
        kv_store2(to + k_elem(e.z), y.zw);
    } else {
        let own = head - params.heads - KV_HEADS;
        let past = row + rows_owned(row);
        for (var r = row; r < past; r++) {
            let at = params.v_from + r * params.v_stride + own * params.head_dim + 4u * g;
            let y = vec4<f32>(v[at], v[at + 1u], v[at + 2u], v[at + 3u]);
            let pos = row_pos(r);
            let to = v_at(page_base(row_seq(r), pos), own, pos);
            if V_APART {
                store_apart(to, 4u * g, y);
            } else {
                kv_store4(to + 4u * g, y);
            }
        }
    }
}
