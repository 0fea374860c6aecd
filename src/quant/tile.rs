//! Rows of weights times many rows of activations: the weights are unpacked once, into tiles whose vectors hold four neighbouring
//! columns of sixteen rows, so that a product needs no sum across lanes. Prompts are read this way.

use super::q8::{LANES, Q8, Unpack};
use super::simd::{Vector, columns, each_group};

/// 32 columns of [`LANES`] rows of weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct Tile {
    /// `quants[c][4 r + i]` is column `4 c + i` of row r: without a sign and too large by the format's `ABOVE`, or with a sign and
    /// the bias of the form.
    quants: [[u8; 4 * LANES]; 8],
    /// Of each half of the columns.
    scale: [[f32; LANES]; 2],
    min: [[f32; LANES]; 2],
}

/// Rows of activations that are multiplied together: a tile is loaded once for all of them.
const ROWS: usize = 4;

/// Unpacks [`LANES`] rows, or as many as `w` has.
#[inline(always)]
pub(super) fn unpack<U: Unpack<BYTES>, V: Vector, const BYTES: usize>(w: &[u8], row_bytes: usize, out: &mut [Tile]) {
    let rows = 4 * V::PARTS;
    for first in (0..w.len() / row_bytes).step_by(rows) {
        each_group::<U, V, BYTES>(
            w,
            row_bytes,
            first,
            #[inline(always)]
            |g, group| {
                let tile = &mut out[g];
                for half in 0..2 {
                    columns(group.quants[half], first, &mut tile.quants[4 * half..]);
                    V::store_floats(group.scale[half], &mut tile.scale[half][first..][..rows]);
                    V::store_floats(group.min[half], &mut tile.min[half][first..][..rows]);
                }
            },
        );
    }
}

/// `ABOVE` of quants that have a sign.
pub(super) const SIGNED: u8 = 255;

/// The body of all forms: `out[i][j] = row j · x[i]`.
#[inline(always)]
pub(super) fn products<V: Vector, const SCALES_BY_16: bool, const MINS: bool, const ABOVE: u8>(
    tiles: &[Tile],
    x: &[&[Q8]],
    out: &mut [[f32; LANES]],
) {
    let ((x, x_rest), (out, out_rest)) = (x.as_chunks::<ROWS>(), out.as_chunks_mut::<ROWS>());
    for first in (0..LANES).step_by(4 * V::PARTS) {
        for (x, out) in x.iter().zip(&mut *out) {
            some::<V, SCALES_BY_16, MINS, ABOVE, ROWS>(tiles, first, x, out);
        }
        for (x, out) in x_rest.as_chunks().0.iter().zip(out_rest.as_chunks_mut().0) {
            some::<V, SCALES_BY_16, MINS, ABOVE, 1>(tiles, first, x, out);
        }
    }
}

/// The products of the rows from lane `first` on.
#[inline(always)]
fn some<V: Vector, const SCALES_BY_16: bool, const MINS: bool, const ABOVE: u8, const N: usize>(
    tiles: &[Tile],
    first: usize,
    x: &[&[Q8]; N],
    out: &mut [[f32; LANES]; N],
) {
    let rows = 4 * V::PARTS;
    let x = x.map(|x| &x[..tiles.len()]);
    let (mut y, mut mins) = ([V::float(0.0); N], [V::float(0.0); N]);
    for (g, tile) in tiles.iter().enumerate() {
        let mut w = [V::word(0); 8];
        for (w, quants) in w.iter_mut().zip(&tile.quants) {
            *w = V::from_bytes(&quants[4 * first..][..4 * rows]);
        }
        let (mut scale, mut min) = ([V::float(0.0); 2], [V::float(0.0); 2]);
        for half in 0..2 {
            scale[half] = V::load_floats(&tile.scale[half][first..][..rows]);
            min[half] = V::load_floats(&tile.min[half][first..][..rows]);
        }
        for i in 0..N {
            let x = &x[i][g];
            let above = if ABOVE == SIGNED { V::BIAS } else { ABOVE };
            let mut sums = [V::word(x.sum_below(above, 0)), V::word(x.sum_below(above, 1))];
            let words: &[i32; 8] = bytemuck::cast_ref(&x.quants);
            for (half, sum) in sums.iter_mut().enumerate() {
                for j in (4 * half..4 * half + 4).step_by(2) {
                    let (w, x) = ([w[j], w[j + 1]], [V::word(words[j]), V::word(words[j + 1])]);
                    *sum = if ABOVE == SIGNED {
                        V::dot_signed(V::dot_signed(*sum, w[0], x[0]), w[1], x[1])
                    } else {
                        V::add_dot_pair(*sum, w, x)
                    };
                }
            }
            if SCALES_BY_16 {
                for half in 0..2 {
                    y[i] = V::add_scaled(y[i], scale[half], x.scale, sums[half]);
                    if MINS {
                        mins[i] = V::add_product(mins[i], min[half], x.half_sum(half));
                    }
                }
            } else {
                y[i] = V::add_scaled(y[i], scale[0], x.scale, sums[0].add(sums[1]));
                if MINS {
                    mins[i] = V::add_product(mins[i], min[0], x.sum);
                }
            }
        }
    }
    for (out, (y, mins)) in out.iter_mut().zip(y.into_iter().zip(mins)) {
        V::store_floats(V::sub_floats(y, mins), &mut out[first..][..rows]);
    }
}
