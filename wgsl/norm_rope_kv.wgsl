//! norm_rope_kv: heads of q and k by the root of their mean square, then rotated; q to out, k and v to the cache
//! q (rows, heads * k_dim), k (rows, kv_heads * k_dim), v (rows, kv_heads * v_dim) f32, views of one buffer or of three |
//! weights of the norms (k_dim) f32 | out as q | kv the cache
//! grid: x one workgroup for a head of q, k or v, y one row
//! use: lib/step, <reduce>, <angles>, <head_store>, <cache>, lib/owner
//! source: akunu, head_norm_rope_neox_kv_write
//!
//! A workgroup has a whole head, so that it can also find the scale of a vector that is stored in 8 bits.
struct Params {
    heads: u32,
    k_dim: u32,       // elements of a query and a key
    v_dim: u32,       // elements of a value
    out_stride: u32,  // elements from a row to the next
    q_from: u32,      // first element of a row
    q_stride: u32,
    k_from: u32,
    k_stride: u32,
    v_from: u32,
    v_stride: u32,
    q_norm: u32,      // element of vecs where the weight lies (HAS_Q_NORM_W)
    k_norm: u32,
    q_eps: f32,
    k_eps: f32,
}
override HEAD_ROOM: u32 = 64u;    // the larger of K_DIM and V_DIM
override Q_NORM: bool = false;
override K_NORM: bool = false;
override HAS_Q_NORM_W: bool = false;
override HAS_K_NORM_W: bool = false;
override ROPE_DIMS: u32 = 0u;     // rotated elements of a head, even; 0: none
override NEOX: bool = false;      // pairs are half of ROPE_DIMS apart; else neighbours
const LEAST: f32 = 1.5e-36;       // of a vector of 8 bits, below which its scale would be no normal f32: it is stored as zeros
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> angles: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> k: array<f32>;
@group(0) @binding(5) var<storage, read> v: array<f32>;
@group(0) @binding(6) var<storage, read> vecs: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
@group(0) @binding(8) var<storage, read_write> kv: array<u32>;
var<workgroup> y: array<f32, HEAD_ROOM>;

fn load(row: u32, head: u32, i: u32) -> f32 {
    if head < params.heads {
        return q[params.q_from + row * params.q_stride + head * params.k_dim + i];
    }
    if head < params.heads + KV_HEADS {
        return k[params.k_from + row * params.k_stride + (head - params.heads) * params.k_dim + i];
    }
    return v[params.v_from + row * params.v_stride + (head - params.heads - KV_HEADS) * params.v_dim + i];
}

@compute @workgroup_size(WG)
fn norm_rope_kv(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    let head = group.x;
    if row >= step[0] {
        return;
    }
    let is_q = head < params.heads;
    let is_v = head >= params.heads + KV_HEADS;
    let n = select(params.k_dim, params.v_dim, is_v);
    let room = select(K_DIM, V_DIM, is_v);
    let normed = !is_v && ((is_q && Q_NORM) || (!is_q && K_NORM));
    let weighed = (is_q && HAS_Q_NORM_W) || (!is_q && HAS_K_NORM_W);
    let weight = select(params.k_norm, params.q_norm, is_q);
    var past = row + 1u;
    if is_v {
        past = row + rows_owned(row);
    }
    for (var r = row; r < past; r++) {
        var squares = 0.0;
        for (var i = lid; i < room; i += WG) {
            var x = 0.0;
            if i < n {
                x = load(r, head, i);
            }
            y[i] = x;
            squares += x * x;
        }
        if normed {
            let eps = select(params.k_eps, params.q_eps, is_q);
            let scale = inverseSqrt(wg_sum(squares, lid) / f32(n) + eps);
            for (var i = lid; i < n; i += WG) {
                y[i] *= scale;
                if weighed {
                    y[i] *= vecs[(weight + i) / 4u][(weight + i) % 4u];
                }
            }
        }
        workgroupBarrier();
        if !is_v {
            for (var pair = lid; pair < ROPE_DIMS / 2u; pair += WG) {
                let a = select(2u * pair, pair, NEOX);
                let b = select(a + 1u, a + ROPE_DIMS / 2u, NEOX);
                let t = angle(r, pair);
                let u = y[a];
                let w = y[b];
                y[a] = u * t.x - w * t.y;
                y[b] = u * t.y + w * t.x;
            }
        }
        workgroupBarrier();
        if is_q {
            for (var i = lid; i < n; i += WG) {
                out[r * params.out_stride + head * params.k_dim + i] = y[i];
            }
        } else {
            let pos = row_pos(r);
            let base = page_base(row_seq(r), pos);
            let own = (head - params.heads) % KV_HEADS;
            var by = 1.0;
            var down = 1.0;
            if KV_SCALED {
                // NaN and infinity must stay seen: by their bits, since a maximum may pass over NaN.
                var most = 0u;
                for (var i = lid; i < n; i += WG) {
                    most = max(most, bitcast<u32>(y[i]) & 0x7fffffffu);
                }
                let broken = wg_max(select(0.0, 1.0, most >= 0x7f800000u), lid) > 0.0;
                var largest = wg_max(bitcast<f32>(min(most, 0x7f7fffffu)), lid);
                if largest < LEAST {
                    largest = 0.0;
                    by = 0.0;
                } else {
                    // The inverse of a huge number would be too small for an f32.
                    down = select(1.0, 0.00390625, largest > 1e37);
                    by = 1.0 / (largest * down);
                }
                if lid == 0u {
                    // Scales lie behind the elements, four of which are a word.
                    let scales = base / 4u + KV_HEADS * PAGE_SLOTS * ((K_DIM + V_DIM) / 4u + select(0u, 1u, is_v));
                    kv[scales + own * PAGE_SLOTS + pos % PAGE_SLOTS] = select(bitcast<u32>(largest / 127.0), 0x7fc00000u, broken);
                }
            }
            let at = select(k_at(base, own, pos), v_at(base, own, pos), is_v);
            for (var i = 4u * lid; i < room; i += 4u * WG) {
                let four = by * (down * vec4<f32>(y[i], y[i + 1u], y[i + 2u], y[i + 3u]));
                if is_v && V_APART {
                    store_apart(at, i, four);
                } else {
                    kv_store4(at + select(k_elem(i), i, is_v), four);
                }
            }
        }
        workgroupBarrier();
    }
}
