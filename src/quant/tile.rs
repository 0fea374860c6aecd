//! Rows of weights times many rows of activations: the weights are unpacked once, into tiles whose vectors hold four neighbouring
//! columns of sixteen rows, so that a product needs no sum across lanes. Prompts are read this way.

use super::q8::{LANES, Q8, Unpack};
use super::row_products;
use super::simd::Arithmetic;

/// 32 columns of [`LANES`] rows of weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct Tile {
    /// `quants[c][4 r + i]` is column `4 c + i` of row r, with the bias of the form.
    quants: [[u8; 4 * LANES]; 8],
    /// Of each half of the columns.
    scale: [[f32; LANES]; 2],
    min: [[f32; LANES]; 2],
}

/// Rows of activations that are multiplied together: a tile is loaded once for all of them.
const ROWS: usize = 4;

/// Unpacks [`LANES`] rows; those beyond the last repeat it.
#[inline(always)]
pub(super) fn unpack<U: Unpack<BYTES>, A: Arithmetic, const BYTES: usize>(
    w: &[u8],
    row_bytes: usize,
    out: &mut [Tile],
) {
    row_products::groups::<U, A, BYTES>(
        w,
        row_bytes,
        #[inline(always)]
        |g, group| {
            let tile = &mut out[g];
            A::columns(&group.quants, &mut tile.quants);
            (tile.scale, tile.min) = (group.scale, group.min);
        },
    );
}

/// The body of all forms: `out[i][j] = row j · x[i]`.
#[inline(always)]
pub(super) fn products<A: Arithmetic, const HALVES: bool, const MINS: bool>(
    tiles: &[Tile],
    x: &[&[Q8]],
    out: &mut [[f32; LANES]],
) {
    let ((x, x_rest), (out, out_rest)) = (x.as_chunks::<ROWS>(), out.as_chunks_mut::<ROWS>());
    for (x, out) in x.iter().zip(out) {
        some::<A, HALVES, MINS, ROWS>(tiles, x, out);
    }
    for (x, out) in x_rest.as_chunks().0.iter().zip(out_rest.as_chunks_mut().0) {
        some::<A, HALVES, MINS, 1>(tiles, x, out);
    }
}

#[inline(always)]
fn some<A: Arithmetic, const HALVES: bool, const MINS: bool, const N: usize>(
    tiles: &[Tile],
    x: &[&[Q8]; N],
    out: &mut [[f32; LANES]; N],
) {
    let x = x.map(|x| &x[..tiles.len()]);
    let (mut y, mut mins) = ([A::floats(0.0); N], [A::floats(0.0); N]);
    for (g, tile) in tiles.iter().enumerate() {
        let mut w = [A::quads(&tile.quants[0]); 8];
        for (w, quants) in w.iter_mut().zip(&tile.quants) {
            *w = A::quads(quants);
        }
        let scale = A::load(&tile.scale[0]);
        let min = A::load(&tile.min[0]);
        for i in 0..N {
            let x = &x[i][g];
            let correction = |half: usize| A::ints(if A::BIAS == 0 { 0 } else { x.corrections[half] });
            let mut sums = [correction(0), correction(1)];
            let fours = x.quants.as_chunks::<4>().0;
            for j in 0..4 {
                sums[0] = A::dot4(sums[0], w[j], &fours[j]);
                sums[1] = A::dot4(sums[1], w[4 + j], &fours[4 + j]);
            }
            let by = A::floats(x.scale);
            if HALVES {
                y[i] = A::add(y[i], A::mul(A::mul(scale, by), A::to_floats(sums[0])));
                y[i] = A::add(y[i], A::mul(A::mul(A::load(&tile.scale[1]), by), A::to_floats(sums[1])));
                if MINS {
                    mins[i] = A::add(mins[i], A::mul(min, A::floats(x.half_sum(0))));
                    mins[i] = A::add(mins[i], A::mul(A::load(&tile.min[1]), A::floats(x.half_sum(1))));
                }
            } else {
                let sum = A::to_floats(A::add_ints(sums[0], sums[1]));
                y[i] = A::add(y[i], A::mul(A::mul(scale, by), sum));
                if MINS {
                    mins[i] = A::add(mins[i], A::mul(min, A::floats(x.sum)));
                }
            }
        }
    }
    for i in 0..N {
        A::store(A::sub(y[i], mins[i]), &mut out[i]);
    }
}
