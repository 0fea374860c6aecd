//! Noise keyed by (seed, position, token). Stands in until `ops/sample.rs` has it.

pub(super) fn uniform(seed: u64, pos: u32, token: u32) -> f32 {
    let mut x = seed ^ (u64::from(pos) << 32 | u64::from(token));
    for _ in 0..2 {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    ((x >> 40) as f32 + 0.5) / 16_777_216.0
}

pub(super) fn gumbel(seed: u64, pos: u32, token: u32) -> f32 {
    -(-uniform(seed, pos, token).ln()).ln()
}
