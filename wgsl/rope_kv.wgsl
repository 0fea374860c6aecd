//! rope_kv: rotates the q and k of a row of q | k | v; q to out, k and v to the cache's pages
//! qkv (rows, (heads + 2 kv_heads) * head_dim) f32 | angles (rows, ROPE_DIMS / 2) | out (rows, heads * head_dim) f32 | kv
//! grid: x one thread for four elements that make whole words of the cache, y one row
//! use: lib/step, lib/paged, lib/rotate, <kv_store>
struct Params {
    heads: u32,
    head_dim: u32,
    stride: u32,      // elements from a row of qkv to the next
    out_stride: u32,
}
override WG: u32 = 64u;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> qkv: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read_write> kv: array<u32>;

@compute @workgroup_size(WG)
fn rope_kv(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    let fours = params.head_dim / 4u;
    let head = id.x / fours;
    let g = id.x % fours;
    if row >= step[0] || head >= params.heads + 2u * KV_HEADS {
        return;
    }
    let is_v = head >= params.heads + KV_HEADS;
    var e = vec4<u32>(4u * g) + vec4<u32>(0u, 1u, 2u, 3u);
    if !is_v {
        e = elements(g);
    }
    let source = row * params.stride + head * params.head_dim + e;
    var y = vec4<f32>(qkv[source.x], qkv[source.y], qkv[source.z], qkv[source.w]);
    if !is_v {
        y = rotate(y, row, g);
    }
    if head < params.heads {
        let to = row * params.out_stride + head * params.head_dim + e;
        out[to.x] = y.x;
        out[to.y] = y.y;
        out[to.z] = y.z;
        out[to.w] = y.w;
        return;
    }
    let pos = row_pos(row);
    let base = page_base(row_seq(row), pos);
    var to = 0u;
    if is_v {
        to = v_at(base, head - params.heads - KV_HEADS, pos);
    } else {
        to = k_at(base, head - params.heads, pos);
    }
    kv_store2(to + e.x, y.xy);
    kv_store2(to + e.z, y.zw);
}
