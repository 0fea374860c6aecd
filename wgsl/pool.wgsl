//! pool: out[s] = the mean of the rows of sequence s, its first row, or its last
//! x (rows, n) f32 | out (seqs, n) f32
//! grid: x one thread for an element, y one sequence
//! use: lib/batch
//! source: sentence embeddings, Reimers and Gurevych 2019
struct Params {
    n: u32,
    stride: u32,  // elements from a row to the next, of x and of out
}
override WG: u32 = 64u;
override POOLING: u32 = 0u;  // 0 mean, 1 first, 2 last
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn pool(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.y >= batch[1] || id.x >= params.n {
        return;
    }
    let rows = seq_rows(id.y);
    let first = seq_row0(id.y) * params.stride + id.x;
    var y = x[first];
    switch POOLING {
        case 0u: {
            // In the order of the rows, whoever adds them up.
            for (var r = 1u; r < rows; r++) {
                y += x[first + r * params.stride];
            }
            y /= f32(rows);
        }
        case 2u: { y = x[first + (rows - 1u) * params.stride]; }
        default: {}
    }
    out[id.y * params.stride + id.x] = y;
}
