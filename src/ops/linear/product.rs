//! Rows of activations times rows of a matrix: the inner loops of all linear ops on the CPU.

use std::ops::Range;

use crate::cpu::simd;
use crate::ops::cpu::CpuRun;
use crate::ops::weights::WeightView;
use crate::ops::{Part, WeightId};
use crate::quant::{Int8Form, LANES, Q8, Simd, Tile};

/// Rows of W that are decoded together when there are several rows of x: each row of x is loaded once for all of them.
const TILE: usize = 4;

/// Rows of x, (rows, k), as floats and perhaps as int8.
pub(crate) struct X<'a> {
    rows: &'a [f32],
    k: usize,
    eight: Option<(Simd, &'a [Q8])>,
}

impl<'a> X<'a> {
    /// The rows, and, if the executor and the format of a weight ask for it, their int8 form, made in `scratch`.
    pub(crate) fn new(
        run: &CpuRun<'_>,
        rows: &'a [f32],
        k: u32,
        weights: impl IntoIterator<Item = WeightId>,
        scratch: &'a mut [f32],
    ) -> Self {
        let wanted = |weight| run.weight(weight).format.info().eight.is_some();
        let simd = run.int8.filter(|_| k.is_multiple_of(32) && weights.into_iter().any(wanted));
        let eight: &mut [Q8] = bytemuck::cast_slice_mut(scratch);
        if simd.is_some() {
            Q8::quantize(rows, &mut eight[..rows.len() / 32]);
        }
        let eight = &*eight;
        Self { rows, k: k as usize, eight: simd.map(|simd| (simd, &eight[..rows.len() / 32])) }
    }

    fn row(&self, row: usize) -> &'a [f32] {
        &self.rows[row * self.k..(row + 1) * self.k]
    }
}

/// f32s of scratch memory that hold the int8 form of rows.
pub(crate) fn q8_scratch(rows: usize, k: u32) -> usize {
    rows * (k as usize / 32) * (size_of::<Q8>() / size_of::<f32>())
}

/// f32s of scratch memory that [`product`] needs.
pub(crate) fn product_scratch(k: u32) -> usize {
    let tiles = panels(k as usize) * (k as usize / 32) * size_of::<Tile>() / size_of::<f32>();
    (TILE * k as usize).max(tiles + ALIGN)
}

/// Panels, of [`LANES`] rows of W each, that are unpacked together: as many as stay in the cache beside x.
fn panels(k: usize) -> usize {
    (CACHE / (k / 32 * size_of::<Tile>()).max(1)).clamp(1, 8)
}

/// Bytes of unpacked weights that stay in a core's L2 cache beside activations.
const CACHE: usize = 256 << 10;
/// f32s in a cache line.
const ALIGN: usize = 64 / size_of::<f32>();
/// From so many rows of x on, unpacking W pays.
const MANY: usize = 4;
/// Rows of x between which the tiles of all panels are loaded once.
const STRIP: usize = 32;

/// `store(i, j, W[j] · x[rᵢ] + b[j])` for some rows j of W and the i-th of some rows of x.
///
/// In int8, sixteen rows of W are multiplied together, straight from the blocks, or, for many rows of x, unpacked once. In
/// floats, one row of x is multiplied straight from the blocks; for more, rows of W are decoded once. The order of each sum is
/// the same in either case, so a row's results do not depend on how many there are.
pub(crate) fn product(
    run: &CpuRun<'_>,
    part: &Part,
    columns: Range<usize>,
    x: &X<'_>,
    rows: impl ExactSizeIterator<Item = usize> + Clone,
    scratch: &mut [f32],
    mut store: impl FnMut(usize, usize, f32),
) {
    let w = run.weight(part.weight);
    let bias = part.bias.map(|b| run.vector(b));
    let bias = |j: usize| bias.map_or(0.0, |b| b[j]);
    if let (Some((simd, x)), Some(eight)) = (x.eight, w.format.info().eight) {
        let store = |i: usize, j: usize, y: f32| store(i, j, y + bias(j));
        return as_int8(simd, eight, &w, columns, x, rows, scratch, store);
    }
    if rows.len() == 1 {
        for r in rows {
            let x = x.row(r);
            for j in columns.clone() {
                store(0, j, w.format.dot(w.row(j), x) + bias(j));
            }
        }
        return;
    }
    let decoded = &mut scratch[..TILE * w.k];
    for first in columns.clone().step_by(TILE) {
        let tile = first..columns.end.min(first + TILE);
        for (j, row) in tile.clone().zip(decoded.chunks_exact_mut(w.k)) {
            w.decode(j, row);
        }
        for (i, r) in rows.clone().enumerate() {
            // Rows past the tile's end are stale: their sums are not stored.
            let sums = simd::dots::<TILE>(std::array::from_fn(|i| &decoded[i * w.k..(i + 1) * w.k]), x.row(r));
            for (j, sum) in tile.clone().zip(sums) {
                store(i, j, sum + bias(j));
            }
        }
    }
}

/// [`product`] as int8; x has `k / 32` blocks a row.
#[allow(clippy::too_many_arguments, reason = "the operands of a product, and its variant")]
fn as_int8(
    simd: Simd,
    eight: Int8Form,
    w: &WeightView<'_>,
    columns: Range<usize>,
    x: &[Q8],
    rows: impl ExactSizeIterator<Item = usize> + Clone,
    scratch: &mut [f32],
    mut store: impl FnMut(usize, usize, f32),
) {
    let blocks = w.k / 32;
    let x_row = |r: usize| &x[r * blocks..(r + 1) * blocks];
    let panel = |first: usize| first..columns.end.min(first + LANES);
    let firsts = columns.clone().step_by(LANES);
    if rows.len() < MANY {
        for first in firsts {
            let panel = panel(first);
            for (i, r) in rows.clone().enumerate() {
                let mut y = [0.0; LANES];
                (eight.rows)(simd, w.rows(panel.clone()), w.row_bytes, x_row(r), &mut y);
                panel.clone().zip(y).for_each(|(j, y)| store(i, j, y));
            }
        }
        return;
    }
    let skip = scratch.as_ptr().align_offset(size_of::<f32>() * ALIGN).min(ALIGN);
    let count = panels(w.k);
    let tiles: &mut [Tile] =
        bytemuck::cast_slice_mut(&mut scratch[skip..][..count * blocks * size_of::<Tile>() / size_of::<f32>()]);
    for first in firsts.step_by(count) {
        let panels = (first..columns.end).step_by(LANES).take(count).map(panel);
        for (panel, tiles) in panels.clone().zip(tiles.chunks_exact_mut(blocks)) {
            (eight.tiles)(simd, w.rows(panel), w.row_bytes, tiles);
        }
        let mut strip: [&[Q8]; STRIP] = [&[]; STRIP];
        let (mut left, mut done) = (rows.clone(), 0);
        while left.len() > 0 {
            let n = left.len().min(STRIP);
            strip.iter_mut().zip(&mut left).for_each(|(x, r)| *x = x_row(r));
            for (panel, tiles) in panels.clone().zip(tiles.chunks_exact(blocks)) {
                let mut y = [[0.0; LANES]; STRIP];
                (eight.products)(simd, tiles, &strip[..n], &mut y[..n]);
                for (i, y) in (done..).zip(&y[..n]) {
                    panel.clone().zip(y).for_each(|(j, y)| store(i, j, *y));
                }
            }
            done += n;
        }
    }
}
