//! Some rows of weights times one row of activations, straight from the file's blocks: used for decoding.

use super::q8::{LANES, Q8, Unpack};
use super::simd::{Bytes, Vector, ahead, both, each_group, each_pair};

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
                    let halves = both(|half| V::spread(&x.low_high()[half]));
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

/// Groups of a block, at most.
const GROUPS: usize = 8;

/// [`body`] for whole rows with an even number of blocks, by `2 * PARTS` rows: a vector has two blocks of each row beside each
/// other. A core reads eight rows that lie apart faster than sixteen, once they are long.
#[inline(always)]
pub(super) fn pairs<U: Unpack<BYTES>, V: Vector, const BYTES: usize>(
    w: &[u8],
    row_bytes: usize,
    x: &[Q8],
    out: &mut [f32; LANES],
) {
    const { assert!(U::GROUPS <= GROUPS) };
    let rows = 2 * V::PARTS;
    let halves = 1 + usize::from(U::SCALES_BY_16);
    let ahead = ahead(rows * row_bytes);
    for first in (0..w.len() / row_bytes).step_by(rows) {
        let (mut y, mut mins) = (V::float(0.0), V::float(0.0));
        for b in (0..row_bytes / BYTES).step_by(2) {
            let (mut terms, mut less) = ([[V::float(0.0); 2]; GROUPS], [[V::float(0.0); 2]; GROUPS]);
            each_pair::<U, V, BYTES>(
                w,
                row_bytes,
                first,
                b,
                ahead,
                #[inline(always)]
                |g, group| {
                    let x = [&x[b * U::GROUPS + g], &x[(b + 1) * U::GROUPS + g]];
                    let quants = both(
                        #[inline(always)]
                        |half| V::spread(&x[0].low_high()[half]).beside(V::spread(&x[1].low_high()[half])),
                    );
                    let scale = V::two_floats([x[0].scale, x[1].scale]);
                    let above = if U::SIGNED { V::BIAS } else { U::ABOVE };
                    for half in 0..halves {
                        let below = |x: &Q8, half| x.sum_below(above, half);
                        let products = if U::SCALES_BY_16 {
                            let below = V::two_words([below(x[0], half), below(x[1], half)]);
                            group.quants[half].dot(quants[half], U::BITS).add(below)
                        } else {
                            let below =
                                V::two_words([below(x[0], 0) + below(x[0], 1), below(x[1], 0) + below(x[1], 1)]);
                            Bytes::dot_both(group.quants, quants, U::BITS).add(below)
                        };
                        terms[g][half] = products.scaled(V::mul_floats(group.scale[half], scale));
                        if U::MINS {
                            let sum = if U::SCALES_BY_16 {
                                V::two_floats([x[0].half_sum(half), x[1].half_sum(half)])
                            } else {
                                V::two_floats([x[0].sum, x[1].sum])
                            };
                            less[g][half] = V::mul_floats(group.min[half], sum);
                        }
                    }
                },
            );
            // Those of the first block, then those of the second.
            y = add_terms::<V>(y, &terms[..U::GROUPS], halves);
            if U::MINS {
                mins = add_terms::<V>(mins, &less[..U::GROUPS], halves);
            }
        }
        let mut sums = [0.0; LANES];
        V::store_floats(V::sub_floats(y, mins), &mut sums);
        out[first..][..rows].copy_from_slice(&sums[..rows]);
    }
}

/// Adds terms to the low half of y: what their low halves hold, in order, then what their high halves hold.
#[inline(always)]
fn add_terms<V: Vector>(mut y: V::Floats, terms: &[[V::Floats; 2]], halves: usize) -> V::Floats {
    for terms in terms {
        for term in &terms[..halves] {
            y = V::add_floats(y, *term);
        }
    }
    for terms in terms {
        for term in &terms[..halves] {
            y = V::add_floats(y, V::swap_halves(*term));
        }
    }
    y
}
