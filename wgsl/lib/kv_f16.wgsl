//! kv_f16: keys and values of the attention kernels, in a cache of f16, two elements a word.
//! The cache's layout (lib/paged) says where vectors lie.
@group(0) @binding(6) var<storage, read> kv: array<vec2<u32>>;
const KV_LANES: u32 = 2u;  // elements in a word
const FITS_F16: bool = true;  // no element is past f16's largest

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
fn kv_vec4(i: u32) -> vec4<f32> { return vec4<f32>(unpack2x16float(kv[i / 4u].x), unpack2x16float(kv[i / 4u].y)); }
fn kv_one(i: u32) -> f32 { return unpack2x16float(kv[i / 4u][i / 2u % 2u])[i % 2u]; }
fn key_scale(seq: u32, head: u32, pos: u32) -> f32 { return 1.0; }
fn value_scale(seq: u32, head: u32, pos: u32) -> f32 { return 1.0; }
