//! Eight scales and eight minima of six bits in twelve bytes, as Q4_K and Q5_K keep them: bytes 0..4 hold scales 0..4,
//! bytes 4..8 minima 0..4, and bytes 8..12 the low four bits of scales 4..8 and, above them, of minima 4..8, whose high two
//! bits are the top bits of the bytes 0..8. Source: `get_scale_min_k4` in ggml.

use super::simd::Vector;

/// The scale and the minimum of group `g`.
#[inline(always)]
pub(super) fn get(packed: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        let high = |byte: u8| byte >> 6 << 4;
        (packed[g + 4] & 15 | high(packed[g - 4]), packed[g + 4] >> 4 | high(packed[g]))
    }
}

/// The scales, then the minima, of some rows, four a word; given the twelve bytes as words.
#[inline(always)]
pub(super) fn all<V: Vector>([first, second, third]: [V; 3]) -> ([V; 2], [V; 2]) {
    let scales = [first.bits(0, 63, 0), third.bits(0, 15, 0).or(first.bits(6, 3, 4))];
    let mins = [second.bits(0, 63, 0), third.bits(4, 15, 0).or(second.bits(6, 3, 4))];
    (scales, mins)
}

/// Stores them all; `packed` is zeroed.
pub(super) fn put(packed: &mut [u8], scales: &[u8], mins: &[u8]) {
    for g in 0..4 {
        packed[g] = scales[g] | scales[g + 4] >> 4 << 6;
        packed[g + 4] = mins[g] | mins[g + 4] >> 4 << 6;
        packed[g + 8] = scales[g + 4] & 15 | mins[g + 4] << 4;
    }
}
