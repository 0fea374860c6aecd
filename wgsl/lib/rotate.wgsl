//! rotate: four elements of a head that are stored together, and their rotation by `angle(row, pair)`, cosine and sine
//!
//! Where pairs lie half of ROPE_DIMS apart (NeoX), a thread takes two at a time, i, i+1 with i+half, i+half+1, so that it
//! stores complete 32-bit words of a 16-bit cache.
override ROPE_DIMS: u32 = 0u;     // rotated elements of a head, a multiple of 8; 0: none
override NEOX: bool = false;      // pairs are half of ROPE_DIMS apart; else neighbours

// The elements of a head that group g of four makes.
fn elements(g: u32) -> vec4<u32> {
    if NEOX && 4u * g < ROPE_DIMS {
        let half = ROPE_DIMS / 2u;
        return vec4<u32>(2u * g, 2u * g + 1u, half + 2u * g, half + 2u * g + 1u);
    }
    return vec4<u32>(4u * g, 4u * g + 1u, 4u * g + 2u, 4u * g + 3u);
}

fn rotate(v: vec4<f32>, row: u32, g: u32) -> vec4<f32> {
    if 4u * g >= ROPE_DIMS {
        return v;
    }
    let a = angle(row, 2u * g);
    let b = angle(row, 2u * g + 1u);
    if NEOX {
        return vec4<f32>(v.x * a.x - v.z * a.y, v.y * b.x - v.w * b.y, v.x * a.y + v.z * a.x, v.y * b.y + v.w * b.x);
    }
    return vec4<f32>(v.x * a.x - v.y * a.y, v.x * a.y + v.y * a.x, v.z * b.x - v.w * b.y, v.z * b.y + v.w * b.x);
}
