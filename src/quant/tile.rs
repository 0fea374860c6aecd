//! Rows of weights times many rows of activations: the weights are unpacked once, into tiles whose vectors hold four neighbouring
//! columns of sixteen rows, so that a product needs no sum across lanes. Prompts are read this way.

use super::q8::{LANES, Q8, Unpack, above};
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

/// The body of all forms: `out[i][j] = row j · x[i]`, for quants as [`Unpack`] describes them. `WIDE` vectors of rows of
/// weights are multiplied by `MANY` rows of activations together, as many as leave their sums in registers.
#[inline(always)]
pub(super) fn products<
    V: Vector,
    const SCALES_BY_16: bool,
    const MINS: bool,
    const BITS: u32,
    const WIDE: usize,
    const MANY: usize,
>(
    tiles: &[Tile],
    x: &[&[Q8]],
    out: &mut [[f32; LANES]],
) {
    let ((x, x_rest), (out, out_rest)) = (x.as_chunks::<MANY>(), out.as_chunks_mut::<MANY>());
    for first in (0..LANES).step_by(4 * V::PARTS * WIDE) {
        for (x, out) in x.iter().zip(&mut *out) {
            some::<V, SCALES_BY_16, MINS, BITS, WIDE, MANY>(tiles, first, x, out);
        }
        for (x, out) in x_rest.as_chunks().0.iter().zip(out_rest.as_chunks_mut().0) {
            some::<V, SCALES_BY_16, MINS, BITS, WIDE, 1>(tiles, first, x, out);
        }
    }
}

/// The products of the rows from lane `first` on.
#[inline(always)]
fn some<
    V: Vector,
    const SCALES_BY_16: bool,
    const MINS: bool,
    const BITS: u32,
    const WIDE: usize,
    const MANY: usize,
>(
    tiles: &[Tile],
    first: usize,
    x: &[&[Q8]; MANY],
    out: &mut [[f32; LANES]; MANY],
) {
    if V::PARTS == 1 {
        return row_by_row::<V, SCALES_BY_16, MINS, BITS, MANY>(tiles, first, x, out);
    }
    let (rows, signed) = (4 * V::PARTS, BITS == 8);
    let above = if signed { V::BIAS } else { above(MINS, BITS) };
    let short = V::SHORT && !signed;
    // Halves of the columns that share scales; words of columns whose products make one sum before it is added to others.
    let halves = if SCALES_BY_16 { 1 } else { 2 };
    let together = if short { V::short_sums(BITS).min(4 * halves) } else { 4 };
    let mut x_rows = [&[][..]; MANY];
    for i in 0..MANY {
        x_rows[i] = &x[i][..tiles.len()];
    }
    let (mut y, mut mins) = ([[V::float(0.0); MANY]; WIDE], [[V::float(0.0); MANY]; WIDE]);
    for (g, tile) in tiles.iter().enumerate() {
        for half in (0..2).step_by(halves) {
            let mut sums = [[V::word(0); MANY]; WIDE];
            for from in (4 * half..4 * (half + halves)).step_by(together) {
                let mut added = [[V::word(0); MANY]; WIDE];
                for i in 0..MANY {
                    let below = V::word(x_rows[i][g].sum_below(above, from / 4));
                    for added in &mut added {
                        added[i] = if short { added[i] } else { below };
                    }
                }
                for j in from..from + together {
                    let mut w = [V::word(0); WIDE];
                    for (w, quants) in w.iter_mut().zip(tile.quants[j][4 * first..].chunks_exact(4 * rows)) {
                        *w = V::from_bytes(quants);
                    }
                    for i in 0..MANY {
                        let words: &[i32; 8] = bytemuck::cast_ref(&x_rows[i][g].quants);
                        let x = V::word(words[j]);
                        for v in 0..WIDE {
                            let dot = if signed { V::dot_signed } else { V::dot_short };
                            added[v][i] = dot(added[v][i], w[v], x);
                        }
                    }
                }
                for v in 0..WIDE {
                    for i in 0..MANY {
                        let more = if short { added[v][i].long() } else { added[v][i] };
                        sums[v][i] = sums[v][i].add(more);
                    }
                }
            }
            for v in 0..WIDE {
                let at = first + v * rows;
                let scale = V::load_floats(&tile.scale[half][at..][..rows]);
                let min = V::load_floats(&tile.min[half][at..][..rows]);
                for i in 0..MANY {
                    let x = &x_rows[i][g];
                    if short {
                        let below: i32 = (half..half + halves).map(|half| x.sum_below(above, half)).sum();
                        sums[v][i] = sums[v][i].add(V::word(below));
                    }
                    let y = (&mut y[v][i], &mut mins[v][i]);
                    add_products::<V>(y, (scale, MINS.then_some(min)), x, SCALES_BY_16.then_some(half), sums[v][i]);
                }
            }
        }
    }
    for v in 0..WIDE {
        for i in 0..MANY {
            V::store_floats(V::sub_floats(y[v][i], mins[v][i]), &mut out[i][first + v * rows..][..rows]);
        }
    }
}

/// [`some`] for one vector of one part: in WebAssembly, whose loops stay loops, the words of a tile are loaded first and each row
/// of activations has its sums in registers. It reads prompts twice as fast as the other order.
#[inline(always)]
fn row_by_row<V: Vector, const SCALES_BY_16: bool, const MINS: bool, const BITS: u32, const MANY: usize>(
    tiles: &[Tile],
    first: usize,
    x: &[&[Q8]; MANY],
    out: &mut [[f32; LANES]; MANY],
) {
    let (rows, signed) = (4 * V::PARTS, BITS == 8);
    let above = if signed { V::BIAS } else { above(MINS, BITS) };
    let dot = if signed { V::dot_signed } else { V::dot };
    let x = x.map(|x| &x[..tiles.len()]);
    let (mut y, mut mins) = ([V::float(0.0); MANY], [V::float(0.0); MANY]);
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
        for i in 0..MANY {
            let x = &x[i][g];
            let mut sums = [V::word(x.sum_below(above, 0)), V::word(x.sum_below(above, 1))];
            let words: &[i32; 8] = bytemuck::cast_ref(&x.quants);
            for (half, sum) in sums.iter_mut().enumerate() {
                for j in (4 * half..4 * half + 4).step_by(2) {
                    let (w, x) = ([w[j], w[j + 1]], [V::word(words[j]), V::word(words[j + 1])]);
                    *sum = dot(dot(*sum, w[0], x[0]), w[1], x[1]);
                }
            }
            if SCALES_BY_16 {
                for half in 0..2 {
                    let y = (&mut y[i], &mut mins[i]);
                    add_products::<V>(y, (scale[half], MINS.then_some(min[half])), x, Some(half), sums[half]);
                }
            } else {
                let (y, sum) = ((&mut y[i], &mut mins[i]), sums[0].add(sums[1]));
                add_products::<V>(y, (scale[0], MINS.then_some(min[0])), x, None, sum);
            }
        }
    }
    for (out, (y, mins)) in out.iter_mut().zip(y.into_iter().zip(mins)) {
        V::store_floats(V::sub_floats(y, mins), &mut out[first..][..rows]);
    }
}

/// Adds what products of 32 columns, or of one half of them, come to: with their scale to one running sum, and, if they have a
/// minimum, that to another.
#[inline(always)]
fn add_products<V: Vector>(
    (y, mins): (&mut V::Floats, &mut V::Floats),
    (scale, min): (V::Floats, Option<V::Floats>),
    x: &Q8,
    half: Option<usize>,
    products: V,
) {
    *y = V::add_scaled(*y, scale, x.scale, products);
    if let Some(min) = min {
        let sum = match half {
            Some(half) => x.half_sum(half),
            None => x.sum,
        };
        *mins = V::add_product(*mins, min, sum);
    }
}
