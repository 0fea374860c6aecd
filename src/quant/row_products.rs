//! Some rows of weights times one row of activations, straight from the file's blocks: used for decoding.

use super::q8::{LANES, Q8, Unpack};
use super::simd::{Bytes, Vector, both, each_group};

/// The body of all forms: `out[i] = row i · x`.
#[inline(always)]
pub(super) fn body<U: Unpack<BYTES>, V: Vector, const BYTES: usize>(
    w: &[u8],
    row_bytes: usize,
    x: &[Q8],
    out: &mut [f32; LANES],
) {
    let rows = 4 * V::PARTS;
    for (first, out) in (0..w.len() / row_bytes).step_by(rows).zip(out.chunks_exact_mut(rows)) {
        let (mut y, mut mins) = (V::float(0.0), V::float(0.0));
        each_group::<U, V, BYTES>(
            w,
            row_bytes,
            first,
            #[inline(always)]
            |g, group| {
                let x = &x[g];
                // How much larger quants are than what they stand for.
                let above = if U::SIGNED { V::BIAS } else { U::ABOVE };
                if U::SCALES_BY_16 {
                    for half in 0..2 {
                        let below = V::word(x.sum_below(above, half));
                        let products = group.quants[half].dot(V::spread(&x.low_high()[half]), U::BITS).add(below);
                        y = V::add_scaled(y, group.scale[half], x.scale, products);
                        if U::MINS {
                            mins = V::add_product(mins, group.min[half], x.half_sum(half));
                        }
                    }
                } else {
                    let below = V::word(x.sum_below(above, 0) + x.sum_below(above, 1));
                    let halves = both(
                        #[inline(always)]
                        |half| V::spread(&x.low_high()[half]),
                    );
                    let products = Bytes::dot_both(group.quants, halves, U::BITS).add(below);
                    y = V::add_scaled(y, group.scale[0], x.scale, products);
                    if U::MINS {
                        mins = V::add_product(mins, group.min[0], x.sum);
                    }
                }
            },
        );
        V::store_floats(V::sub_floats(y, mins), out);
    }
}
