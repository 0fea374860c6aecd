//! kv_rows: keys and values of the attention kernels, in this step's rows (encoders): a row sees those of its own sequence.
//! k (rows, kv_heads * k_dim) f32 | v (rows, kv_heads * v_dim) f32
//!
//! The address of a vector is that of its first element.
@group(0) @binding(6) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> v: array<vec4<f32>>;

fn own_position(row: u32, seq: u32) -> u32 { return row - seq_row0(seq); }
fn positions(seq: u32) -> u32 { return seq_rows(seq); }
fn key_at(seq: u32, head: u32, pos: u32) -> u32 { return (seq_row0(seq) + pos) * params.k_stride + head * params.k_dim; }
fn value_at(seq: u32, head: u32, pos: u32) -> u32 { return (seq_row0(seq) + pos) * params.v_stride + head * params.v_dim; }
fn key_vec4(at: u32, i: u32) -> vec4<f32> {
    if !RAGGED {
        return k[at / 4u + i];
    }
    var i4 = vec4<f32>(0.0);
    for (var j = 4u * i; j < min(4u * i + 4u, params.k_dim); j++) {
        i4[j % 4u] = k[(at + j) / 4u][(at + j) % 4u];
    }
    return i4;
}
fn value_vec4(at: u32, i: u32) -> vec4<f32> {
    if !RAGGED {
        return v[at / 4u + i];
    }
    var i4 = vec4<f32>(0.0);
    for (var j = 4u * i; j < min(4u * i + 4u, params.v_dim); j++) {
        i4[j % 4u] = v[(at + j) / 4u][(at + j) % 4u];
    }
    return i4;
}
fn key_scale(seq: u32, head: u32, pos: u32) -> f32 { return 1.0; }
fn value_scale(seq: u32, head: u32, pos: u32) -> f32 { return 1.0; }
