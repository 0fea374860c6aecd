//! heads: heads of q, k and v on their way to the cache, by units of eight elements: two vec4s that are rotated together
//! q (rows, heads * k_dim), k (rows, kv_heads * k_dim), v (rows, kv_heads * v_dim) f32, views of one buffer or of three
//!
//! Where pairs lie half of ROPE_DIMS apart (NeoX), so do the two vec4s of a unit; else they are neighbours. So loads and stores
//! are of four elements, which are complete words in any cache.
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
override ROPE_DIMS: u32 = 0u;     // rotated elements of a head, even; 0: none
override NEOX: bool = false;      // pairs are half of ROPE_DIMS apart; else neighbours
override THREADS: u32 = 16u;      // threads to a head, a power of two: each makes every THREADS-th unit of it
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> angles: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> v: array<vec4<f32>>;

/// The head that a thread works on: one of q, k or v, with its units of each of the three. Empty loops cost little even where
/// both sides of a branch are run, and neighbouring threads mostly have heads of the same kind.
struct Head {
    own: u32,      // its number among the heads of q, k or v
    first: u32,    // the thread's first unit
    q_units: u32,  // past the last unit of q; 0: none
    k_units: u32,
    v_units: u32,
}
fn head_of(thread: u32) -> Head {
    let head = thread / THREADS;
    let of_k = head - params.heads;
    let of_v = of_k - KV_HEADS;
    if head < params.heads {
        return Head(head, thread % THREADS, (K_DIM + 7u) / 8u, 0u, 0u);
    }
    if of_k < KV_HEADS {
        return Head(of_k, thread % THREADS, 0u, (K_DIM + 7u) / 8u, 0u);
    }
    return Head(of_v, thread % THREADS, 0u, 0u, select(0u, (V_DIM + 7u) / 8u, of_v < KV_HEADS));
}
/// The first element of a head in its buffer.
fn q_at(row: u32, head: u32) -> u32 { return params.q_from + row * params.q_stride + head * params.k_dim; }
fn key_at(row: u32, head: u32) -> u32 { return params.k_from + row * params.k_stride + head * params.k_dim; }
fn value_at(row: u32, head: u32) -> u32 { return params.v_from + row * params.v_stride + head * params.v_dim; }

/// Two vec4s of a head.
struct Unit {
    a: vec4<f32>,
    b: vec4<f32>,
}
/// Where the vec4s of a unit begin.
fn unit_at(u: u32) -> vec2<u32> {
    let half = ROPE_DIMS / 2u;
    return select(vec2<u32>(8u * u, 8u * u + 4u), vec2<u32>(4u * u, 4u * u + half), NEOX && 8u * u < ROPE_DIMS);
}
/// A unit of the head that begins at an element of q, k or v. The second vec4 of a head's last unit may lie past its end: what is
/// loaded for it is not stored.
fn q_unit(at: u32, e: vec2<u32>) -> Unit { return Unit(q[(at + e.x) / 4u], q[(at + min(e.y, K_DIM - 4u)) / 4u]); }
fn k_unit(at: u32, e: vec2<u32>) -> Unit { return Unit(k[(at + e.x) / 4u], k[(at + min(e.y, K_DIM - 4u)) / 4u]); }
fn v_unit(at: u32, e: vec2<u32>) -> Unit { return Unit(v[(at + e.x) / 4u], v[(at + min(e.y, V_DIM - 4u)) / 4u]); }
/// A unit of q or k, rotated. ROPE_DIMS is a multiple of 8.
fn rotated(x: Unit, row: u32, u: u32) -> Unit {
    if 8u * u >= ROPE_DIMS {
        return x;
    }
    let t0 = angle(row, 4u * u);
    let t1 = angle(row, 4u * u + 1u);
    let t2 = angle(row, 4u * u + 2u);
    let t3 = angle(row, 4u * u + 3u);
    let c = vec4<f32>(t0.x, t1.x, t2.x, t3.x);
    let s = vec4<f32>(t0.y, t1.y, t2.y, t3.y);
    if NEOX {
        return Unit(x.a * c - x.b * s, x.a * s + x.b * c);
    }
    let first = vec4<f32>(x.a.xz, x.b.xz);
    let second = vec4<f32>(x.a.yw, x.b.yw);
    let y = first * c - second * s;
    let z = first * s + second * c;
    return Unit(vec4<f32>(y.x, z.x, y.y, z.y), vec4<f32>(y.z, z.z, y.w, z.w));
}
/// Stores a unit of a key.
fn store_key(at: u32, e: vec2<u32>, y: Unit) {
    kv_store4(at + k_elem(e.x), y.a);
    if e.y < K_DIM {
        kv_store4(at + k_elem(e.y), y.b);
    }
}
/// Stores a unit of a value whose elements are contiguous.
fn store_value(at: u32, e: vec2<u32>, y: Unit) {
    kv_store4(at + e.x, y.a);
    if e.y < V_DIM {
        kv_store4(at + e.y, y.b);
    }
}
