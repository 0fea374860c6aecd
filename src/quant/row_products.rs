//! A few rows of weights times one row of activations, straight from the file's blocks: what decoding does.

use super::q8::{LANES, Q8, Unpack};
use super::simd::Arithmetic;

/// The most groups that a block has.
const MOST: usize = 8;

/// 32 columns of [`LANES`] rows, unpacked.
#[derive(Clone, Copy)]
pub(super) struct Group {
    /// With the bias of the form.
    pub(super) quants: [[u8; 32]; LANES],
    /// Of each half of the columns.
    pub(super) scale: [[f32; LANES]; 2],
    pub(super) min: [[f32; LANES]; 2],
}

/// Calls `each` with every 32 columns of the rows, in order; lanes beyond the last row repeat it.
#[inline(always)]
pub(super) fn groups<U: Unpack<BYTES>, A: Arithmetic, const BYTES: usize>(
    w: &[u8],
    row_bytes: usize,
    mut each: impl FnMut(usize, &Group),
) {
    let last = w.len() / row_bytes - 1;
    let mut rows: [&[[u8; BYTES]]; LANES] = [&[]; LANES];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = w[i.min(last) * row_bytes..][..row_bytes].as_chunks().0;
    }
    let empty = Group { quants: [[0; 32]; LANES], scale: [[0.0; LANES]; 2], min: [[0.0; LANES]; 2] };
    let mut groups = [empty; MOST];
    for b in 0..rows[0].len() {
        for (lane, row) in rows.iter().enumerate() {
            // A copy, so that the compiler knows that what is written below does not change it.
            let block = &{ row[b] };
            for (i, group) in groups[..U::GROUPS].iter_mut().enumerate() {
                let part = U::part::<A>(block, i);
                group.quants[lane] = part.biased::<A>();
                for half in 0..2 {
                    (group.scale[half][lane], group.min[half][lane]) = (part.scale[half], part.min[half]);
                }
            }
        }
        for (i, group) in groups[..U::GROUPS].iter().enumerate() {
            each(b * U::GROUPS + i, group);
        }
    }
}

/// The body of all forms. Each lane is a row.
#[inline(always)]
pub(super) fn body<U: Unpack<BYTES>, A: Arithmetic, const BYTES: usize>(
    w: &[u8],
    row_bytes: usize,
    x: &[Q8],
    out: &mut [f32; LANES],
) {
    let (mut y, mut mins) = (A::floats(0.0), A::floats(0.0));
    groups::<U, A, BYTES>(
        w,
        row_bytes,
        #[inline(always)]
        |g, group| {
            let x = &x[g];
            let mut products = [A::NOTHING; LANES];
            for (products, q) in products.iter_mut().zip(&group.quants) {
                *products = A::products(q, &x.quants);
            }
            let mut sums = A::across(&products);
            if A::BIAS != 0 {
                for (sums, correction) in sums.iter_mut().zip(x.corrections) {
                    *sums = A::add_ints(*sums, A::ints(correction));
                }
            }
            let by = A::floats(x.scale);
            if U::HALVES {
                for (half, sums) in sums.into_iter().enumerate() {
                    y = A::add(y, A::mul(A::mul(A::load(&group.scale[half]), by), A::to_floats(sums)));
                    if U::MINS {
                        mins = A::add(mins, A::mul(A::load(&group.min[half]), A::floats(x.half_sum(half))));
                    }
                }
            } else {
                let sum = A::to_floats(A::add_ints(sums[0], sums[1]));
                y = A::add(y, A::mul(A::mul(A::load(&group.scale[0]), by), sum));
                if U::MINS {
                    mins = A::add(mins, A::mul(A::load(&group.min[0]), A::floats(x.sum)));
                }
            }
        },
    );
    A::store(A::sub(y, mins), out);
}
