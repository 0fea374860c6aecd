//! recur: parameters and bindings of the recurrent kernels, and where the state of a head lies.
//!
//! A workgroup has WG columns of S, a thread one: an element of the head's values. Its part of a state, in f32:
//! S (k, WG) | updates (TILE, WG) | count (WG): rows of the tile that are not in S | keys (TILE, k) | decays (TILE)
struct Params {
    heads: u32,
    key_heads: u32,   // heads of q and k
    tiled: u32,       // 1: head h has key head h mod key_heads; 0: neighbours share one
    k: u32,           // elements of a key
    v: u32,           // elements of a value
    q_stride: u32,
    k_stride: u32,
    x_stride: u32,
    out_stride: u32,
    skip: u32,        // element of vecs where the skips lie (HAS_SKIP)
    state_len: u32,   // elements of a state
    part_len: u32,    // elements of a workgroup's part of it
}
const TILE: u32 = 16u;
override WG: u32 = 64u;
override CORRECTS: bool = false;  // the delta rule
override HAS_SKIP: bool = false;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;             // (rows, key_heads * k)
@group(0) @binding(3) var<storage, read> keys: array<f32>;          // (rows, key_heads * k)
@group(0) @binding(4) var<storage, read> x: array<f32>;             // (rows, heads * v)
@group(0) @binding(5) var<storage, read> gates: array<vec2<f32>>;   // (rows, heads): gain, g
@group(0) @binding(6) var<storage, read> vecs: array<vec4<f32>>;    // the model's vectors
@group(0) @binding(7) var<storage, read_write> state: array<f32>;
@group(0) @binding(8) var<storage, read_write> out: array<f32>;     // (rows, heads * v)

// The first element of a workgroup's part of the state of a sequence's slot.
fn part_at(seq: u32, head: u32, block: u32) -> u32 {
    let blocks = (params.v + WG - 1u) / WG;
    return seq_slot(seq) * params.state_len + (head * blocks + block) * params.part_len;
}
fn updates_at(part: u32) -> u32 { return part + params.k * WG; }
fn count_at(part: u32) -> u32 { return updates_at(part) + TILE * WG; }
fn keys_at(part: u32) -> u32 { return count_at(part) + WG; }
fn decays_at(part: u32) -> u32 { return keys_at(part) + TILE * params.k; }

// The key head's first element in a row of q and k.
fn key_of(head: u32) -> u32 {
    if params.tiled != 0u {
        return head % params.key_heads * params.k;
    }
    return head / (params.heads / params.key_heads) * params.k;
}

// Clears the state, where a sequence begins.
fn forget(part: u32, lid: u32) {
    for (var i = 0u; i < params.k; i++) {
        state[part + i * WG + lid] = 0.0;
    }
    state[count_at(part) + lid] = 0.0;
}

fn store(row: u32, head: u32, j: u32, y: f32, own: f32) {
    var sum = y;
    if HAS_SKIP {
        sum += vecs[(params.skip + head) / 4u][(params.skip + head) % 4u] * own;
    }
    out[row * params.out_stride + head * params.v + j] = sum;
}
