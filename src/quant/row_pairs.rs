//! Eight long rows of weights times one row of activations, with two blocks of each row beside each other in a vector: a core
//! reads eight rows that lie apart faster than sixteen. The products, and the order of their sums, are those of `row_products`.

use super::q8::{LANES, Q8, Unpack};
use super::simd::{Bytes, Halves, ahead, both, each_pair};

/// Groups of a block, at most.
const GROUPS: usize = 8;

/// [`row_products::body`](super::row_products::body) for whole rows with an even number of blocks, by `2 * PARTS` rows.
#[inline(always)]
pub(super) fn body<U: Unpack<BYTES>, V: Halves, const BYTES: usize>(
    w: &[u8],
    row_bytes: usize,
    x: &[Q8],
    out: &mut [f32; LANES],
) {
    const { assert!(U::GROUPS <= GROUPS) };
    let rows = 2 * V::PARTS;
    // Of a group.
    let scales = 1 + usize::from(U::SCALES_BY_16);
    let ahead = ahead(rows * row_bytes);
    for first in (0..w.len() / row_bytes).step_by(rows) {
        let (mut y, mut mins) = (V::float(0.0), V::float(0.0));
        for b in (0..row_bytes / BYTES).step_by(2) {
            let (mut terms, mut of_mins) = ([[V::float(0.0); 2]; GROUPS], [[V::float(0.0); 2]; GROUPS]);
            each_pair::<U, V, BYTES>(
                w,
                row_bytes,
                first,
                b,
                ahead,
                #[inline(always)]
                |g, group| {
                    let x = [&x[b * U::GROUPS + g], &x[(b + 1) * U::GROUPS + g]];
                    let x_quants = both(
                        #[inline(always)]
                        |half| V::spread(&x[0].low_high()[half]).beside(V::spread(&x[1].low_high()[half])),
                    );
                    let scale = V::two_floats([x[0].scale, x[1].scale]);
                    let above = if U::SIGNED { V::BIAS } else { U::ABOVE };
                    for half in 0..scales {
                        let below = |x: &Q8, half| x.sum_below(above, half);
                        let products = if U::SCALES_BY_16 {
                            let below = V::two_words([below(x[0], half), below(x[1], half)]);
                            group.quants[half].dot(x_quants[half], U::BITS).add(below)
                        } else {
                            let below =
                                V::two_words([below(x[0], 0) + below(x[0], 1), below(x[1], 0) + below(x[1], 1)]);
                            Bytes::dot_both(group.quants, x_quants, U::BITS).add(below)
                        };
                        terms[g][half] = products.scaled(V::mul_floats(group.scale[half], scale));
                        if U::MINS {
                            let sum = if U::SCALES_BY_16 {
                                V::two_floats([x[0].half_sum(half), x[1].half_sum(half)])
                            } else {
                                V::two_floats([x[0].sum, x[1].sum])
                            };
                            of_mins[g][half] = V::mul_floats(group.min[half], sum);
                        }
                    }
                },
            );
            // Those of the first block, then those of the second.
            y = add_terms::<V>(y, &terms[..U::GROUPS], scales);
            if U::MINS {
                mins = add_terms::<V>(mins, &of_mins[..U::GROUPS], scales);
            }
        }
        let mut sums = [0.0; LANES];
        V::store_floats(V::sub_floats(y, mins), &mut sums);
        out[first..][..rows].copy_from_slice(&sums[..rows]);
    }
}

/// Adds terms to the low half of y: what their low halves hold, in order, then what their high halves hold.
#[inline(always)]
fn add_terms<V: Halves>(mut y: V::Floats, terms: &[[V::Floats; 2]], scales: usize) -> V::Floats {
    for terms in terms {
        for term in &terms[..scales] {
            y = V::add_floats(y, *term);
        }
    }
    for terms in terms {
        for term in &terms[..scales] {
            y = V::add_floats(y, V::swap_halves(*term));
        }
    }
    y
}
