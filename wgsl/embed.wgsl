//! embed: out[r] = scale * table[index(r)]
//! w: rows row0 .. row0 + chunk of the table (n, dim), any block format | out (rows, dim) f32
//! grid: x one thread for 16 elements, y one row
//! use: lib/batch, <weights>, lib/unpack
//! source: get_rows of llama.cpp; the scale, and decoding in registers, our own
struct Params {
    n: u32,          // rows of the table
    dim: u32,
    row0: u32,       // the first row of the table that w holds
    chunk: u32,      // how many it holds; rows that lie elsewhere are left to another dispatch
    by_pos: u32,     // 0: by token; 1: by position; 2: by token, and 0 for one past the table; 3: by the token's type
    offset: u32,     // added to the position
    scale: f32,
    at: u32,         // row of w that holds row row0
}
override WG: u32 = 64u;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> sampled: array<u32>;           // (slots, 16): the tokens sampled last, by position
@group(0) @binding(3) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;  // (rows, dim)

@compute @workgroup_size(WG)
fn embed(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    let c = id.x / 2u;
    let half = id.x % 2u;
    let i = chunk_at(c) + half * HALF_GAP;
    if row >= batch[0] || i >= params.dim {
        return;
    }
    var index = row_token(row);
    if row_sampled(row) {
        index = sampled[seq_slot(row_seq(row)) * 16u + row_pos(row) % 16u];
    }
    if params.by_pos == 1u {
        index = row_pos(row) + params.offset;
    }
    if params.by_pos == 3u {
        index = row_type(row);
    }
    if params.by_pos == 2u && index >= params.n {
        index = 0u;
    }
    index = min(index, params.n - 1u);
    if index < params.row0 || index >= params.row0 + params.chunk {
        return;
    }
    let runs = chunk((params.at + index - params.row0) * row_words(params.dim), params.dim, c);
    var weights = decode16(runs, 0u);
    if half == 1u {
        weights = decode16(runs, 1u);
    }
    let width = (params.dim + 3u) / 4u;
    for (var j = 0u; j < min(4u, width - i / 4u); j++) {
        let v = weights[j];
        out[row * width + i / 4u + j] = params.scale * v;
    }
}
