//! rope: (a, b) -> (a cos - b sin, a sin + b cos) for the pairs of each head's first ROPE_DIMS elements
//! x (rows, heads * head_dim) f32 | angles of ROPE_DIMS / 2 pairs | out as x, or x itself
//! grid: x one thread for two elements, y one row
//! use: lib/batch, <angles>
//! source: akunu, rope and rope_neox; Su et al. 2021
struct Params {
    heads: u32,
    head_dim: u32,
    stride: u32,  // elements from a row to the next
}
override WG: u32 = 64u;
override ROPE_DIMS: u32 = 64u;
override NEOX: bool = false;
override IN_PLACE: bool = false;  // x is out: the binding of x is not read
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> angles: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

fn load(i: u32) -> f32 {
    if IN_PLACE {
        return out[i];
    }
    return x[i];
}

@compute @workgroup_size(WG)
fn rope(@builtin(global_invocation_id) id: vec3<u32>) {
    // Pairs of a head: the rotated ones, then the rest, two by two (the last may be one element).
    let pairs = (params.head_dim + 1u) / 2u;
    let head = id.x / pairs;
    let pair = id.x % pairs;
    if id.y >= batch[0] || head >= params.heads {
        return;
    }
    let base = id.y * params.stride + head * params.head_dim;
    if 2u * pair >= ROPE_DIMS {
        for (var i = 2u * pair; i < min(2u * pair + 2u, params.head_dim); i++) {
            out[base + i] = load(base + i);
        }
        return;
    }
    var a = base + 2u * pair;
    var b = a + 1u;
    if NEOX {
        a = base + pair;
        b = a + ROPE_DIMS / 2u;
    }
    let t = angle(id.y, pair);
    let u = load(a);
    let v = load(b);
    out[a] = u * t.x - v * t.y;
    out[b] = u * t.y + v * t.x;
}
