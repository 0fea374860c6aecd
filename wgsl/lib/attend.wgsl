//! attend: what the attention kernels share: parameters, bindings, which positions a row sees, the softmax's pieces.
//!
//! An online softmax keeps (m, l, sum): the highest score, the denominator and the weighted sum of the values, all weights
//! relative to m. A score of minus infinity weighs nothing; where no score is higher, the result is 0.
struct Params {
    heads: u32,       // query heads
    group: u32,       // query heads per KV head
    k_dim: u32,
    v_dim: u32,
    q_stride: u32,    // elements from a row of q to the next
    out_stride: u32,
    sinks: u32,       // element of vecs where the sinks lie (HAS_SINKS)
    slopes: u32,      // element of vecs where the slopes lie (HAS_SLOPES)
    before: u32,      // positions that a row sees, its own and those before
    after: u32,       // positions that it sees after its own
    scale: f32,
    softcap: f32,     // 0: none
    k_stride: u32,    // elements from a row of k to the next (lib/kv_rows)
    v_stride: u32,
    zero: u32,        // 0, which no compiler knows: see `rounded`
}
override HAS_SINKS: bool = false;
override HAS_SLOPES: bool = false;
override HAS_SOFTCAP: bool = false;
override K_VEC4S: u32 = 16u;       // vec4s of elements in a key
override V_VEC4S: u32 = 16u;       // vec4s of a value that this dispatch sums up
override V_FROM: u32 = 0u;         // the first of those
override V_IN_K: bool = false;     // a value is the first elements of its key
override RAGGED: bool = false;     // k_dim or v_dim is not a multiple of 4
const GROUP_HEADS: u32 = 4u;       // set: query heads of a workgroup: 1 to 4
override BATCH_ITEMS: u32 = 0u;     // word of the batch's list of (row, split, split size, 0)
override BATCH_SPLIT_ROWS: u32 = 0u;    // word of the batch's list of (row, first item, items, 0)
override BATCH_TILES: u32 = 0u;     // word of the batch's list of tiles: the sequence of each
override TREE: u32 = 0u;           // word of the batch's list of ancestor masks (two words a row), if rows are drafts of a tree
override SEARCH: bool = false;     // the sequence of a row or tile is found by binary search over the sequences' first rows
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;            // (rows, heads * k_dim)
@group(0) @binding(3) var<storage, read> vecs: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;          // (rows, heads * v_dim)
@group(0) @binding(5) var<storage, read_write> partials: array<vec4<f32>>;  // (items, heads, 1 + V_VEC4S): m, l; sum
const MASK_VALUE: f32 = -3.4028234663852886e38;  // the lowest f32: no finite score lies below it
const ALL_SPLITS: u32 = 0xffffffffu;

/// The sequence of a row: the last that does not begin after it. Of two that begin at the same row, the first has none.
fn owner_of(row: u32) -> u32 {
    if !SEARCH {
        return row_seq(row);
    }
    var low = 0u;
    var high = batch[1] - 1u;
    while low < high {
        let middle = (low + high + 1u) / 2u;
        if seq_row0(middle) <= row {
            low = middle;
        } else {
            high = middle - 1u;
        }
    }
    return low;
}
/// The sequence of a tile of `size` rows: the last whose first tile is not after this one. Each sequence may add a tile that is
/// not full, hence `+ middle`.
fn tile_owner(tile: u32, size: u32) -> u32 {
    var low = 0u;
    var high = batch[1] - 1u;
    while low < high {
        let middle = (low + high + 1u) / 2u;
        if seq_row0(middle) / size + middle <= tile {
            low = middle;
        } else {
            high = middle - 1u;
        }
    }
    return low;
}
/// What a row sees of its sequence's last positions, where they are drafts of a tree: bit j stands for position base + j. `pos`
/// is how many ancestors the row has.
struct Ancestors {
    bits: vec2<u32>,
    base: u32,
    pos: u32,
}
/// The ancestors of a row whose own position is `own`, of `count`.
fn ancestors_of(row: u32, own: u32, count: u32) -> Ancestors {
    if TREE == 0u {
        return Ancestors(vec2<u32>(0u), count, own);
    }
    var ancestors = Ancestors(vec2<u32>(batch[TREE + 2u * row], batch[TREE + 2u * row + 1u]), max(count, 64u) - 64u, 0u);
    ancestors.pos = tree_pos(ancestors, own);
    return ancestors;
}
/// Position t, counted among those ancestors.
fn tree_pos(ancestors: Ancestors, t: u32) -> u32 {
    if TREE == 0u || t < ancestors.base {
        return t;
    }
    let j = t - ancestors.base;
    let low = extractBits(ancestors.bits.x, 0u, min(j, 32u));
    let high = extractBits(ancestors.bits.y, 0u, max(j, 32u) - 32u);
    return ancestors.base + countOneBits(low) + countOneBits(high);
}
/// Whether a position up to the row's own is an ancestor of the row, and no further back than the mask allows.
fn is_ancestor(ancestors: Ancestors, t: u32) -> bool {
    if TREE == 0u {
        return true;
    }
    let j = max(t, ancestors.base) - ancestors.base;
    let passed = t < ancestors.base || ((ancestors.bits[j / 32u % 2u] >> (j % 32u)) & 1u) != 0u;
    return passed && ancestors.pos - tree_pos(ancestors, t) < params.before;
}
/// The first position that a row sees, and the one past the last; `own` is the row's position, of `count`.
fn seen_by(own: u32, count: u32) -> vec2<u32> {
    return vec2<u32>(own + 1u - min(params.before, own + 1u), own + 1u + min(params.after, count - own - 1u));
}
/// Elements 4 i.. of a query, with zeros past its end.
fn q_vec4(row: u32, head: u32, i: u32) -> vec4<f32> {
    let at = row * params.q_stride + head * params.k_dim + 4u * i;
    if !RAGGED {
        return q[at / 4u];
    }
    var i4 = vec4<f32>(0.0);
    // Always four iterations: lavapipe unrolls it, and ends every loop of a kernel after 65535 iterations in all.
    for (var j = 0u; j < 4u; j++) {
        if 4u * i + j < params.k_dim {
            i4[j] = q[(at + j) / 4u][(at + j) % 4u];
        }
    }
    return i4;
}
fn vec_at(at: u32) -> f32 {
    return vecs[at / 4u][at % 4u];
}
/// Scores of dot products.
fn scored(dots: vec4<f32>) -> vec4<f32> {
    var score = dots * params.scale;
    if HAS_SOFTCAP {
        // tanh by exp: some drivers' own is inaccurate near 0.
        let e = exp(-2.0 * abs(score / params.softcap));
        score = params.softcap * sign(score) * (1.0 - e) / (1.0 + e);
    }
    return score;
}
/// x, rounded: an integer operation that a compiler cannot leave out keeps a product from being fused with the sum that follows.
/// Two kernels reduce KV splits, and must give the same bits.
fn rounded(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) ^ vec4<u32>(params.zero));
}
/// The softmax of one head over some positions: (running maximum m, denominator l, 0, 0) and four elements of the sum.
struct Partial {
    state: vec4<f32>,
    sum: vec4<f32>,
}
fn merge(a: Partial, b: Partial) -> Partial {
    if b.state.y == 0.0 {
        return a;
    }
    let running_max = max(a.state.x, b.state.x);
    let x = exp(a.state.x - running_max);
    let y = exp(b.state.x - running_max);
    let denominator = rounded(vec4<f32>(a.state.y * x, b.state.y * y, 0.0, 0.0));
    return Partial(vec4<f32>(running_max, denominator.x + denominator.y, 0.0, 0.0), rounded(a.sum * x) + rounded(b.sum * y));
}
/// Stores a vec4 of a head's result, counted from V_FROM.
fn finish(row: u32, head: u32, i4: u32, merged: Partial) {
    var result = merged;
    if HAS_SINKS {
        result = merge(result, Partial(vec4<f32>(vec_at(params.sinks + head), 1.0, 0.0, 0.0), vec4<f32>(0.0)));
    }
    if result.state.y > 0.0 {
        result.sum /= result.state.y;
    }
    let first = 4u * (V_FROM + i4);
    for (var j = 0u; j < min(4u, params.v_dim - first); j++) {
        out[row * params.out_stride + head * params.v_dim + first + j] = result.sum[j];
    }
}
