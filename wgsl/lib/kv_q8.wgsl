//! kv_q8: keys and values of the attention kernels, in a cache of 8-bit integers, four elements a word, and a scale for each vector.
//! The cache's layout (lib/paged) says where vectors lie.
@group(0) @binding(6) var<storage, read> kv: array<u32>;
const KV_LANES: u32 = 4u;  // elements in a word
const FITS_F16: bool = false;  // no element is past f16's largest

fn own_position(row: u32, seq: u32) -> u32 { return row_pos(row); }
fn positions(seq: u32) -> u32 { return seq_context(seq); }
fn key_at(seq: u32, head: u32, pos: u32) -> u32 { return k_at(page_base(seq, pos), head, pos); }
fn value_at(seq: u32, head: u32, pos: u32) -> u32 {
    if V_IN_K {
        return key_at(seq, head, pos);
    }
    return v_at(page_base(seq, pos), head, pos);
}
fn key_vec4(at: u32, i: u32) -> vec4<f32> { return kv_vec4(at + k_elem(4u * i)); }
fn value_vec4(at: u32, i: u32) -> vec4<f32> {
    if V_APART {
        let j = 4u * i;
        return vec4<f32>(
            kv_one(at + v_elem(j)), kv_one(at + v_elem(j + 1u)), kv_one(at + v_elem(j + 2u)), kv_one(at + v_elem(j + 3u)));
    }
    return kv_vec4(at + v_elem(4u * i));
}
fn kv_vec4(i: u32) -> vec4<f32> { return unpack4x8snorm(kv[i / 4u]); }
fn kv_one(i: u32) -> f32 { return unpack4x8snorm(kv[i / 4u])[i % 4u]; }
// After the values of a block lie the scales of its keys, then those of its values. A scale multiplies the integers as they
// are, not the integers / 127.
fn scale_at(seq: u32, head: u32, pos: u32) -> u32 {
    return (page_base(seq, pos) + KV_HEADS * PAGE_SLOTS * (K_DIM + V_DIM)) / 4u + head * PAGE_SLOTS + pos % PAGE_SLOTS;
}
fn key_scale(seq: u32, head: u32, pos: u32) -> f32 { return 127.0 * bitcast<f32>(kv[scale_at(seq, head, pos)]); }
fn value_scale(seq: u32, head: u32, pos: u32) -> f32 {
    return 127.0 * bitcast<f32>(kv[scale_at(seq, head, pos) + KV_HEADS * PAGE_SLOTS]);
}
