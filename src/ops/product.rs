//! Rows of activations times rows of a matrix: the inner loops of all linear ops on the CPU.

use std::ops::Range;

use super::cpu::CpuRun;
use super::{Part, WeightId};
use crate::cpu::simd;
use crate::quant::{Q8, Simd};

/// Rows of W that are decoded together when there are several rows of x: each row of x is loaded once for all of them.
pub(super) const TILE: usize = 4;

/// Rows of x, (rows, k), as floats and perhaps as eight-bit numbers.
pub(super) struct X<'a> {
    rows: &'a [f32],
    k: usize,
    eight: Option<(Simd, &'a [Q8])>,
}

impl<'a> X<'a> {
    /// The rows, and, if the executor and a format of a weight want them so, their eight-bit form, made in `scratch`.
    pub(super) fn new(
        run: &CpuRun<'_>,
        rows: &'a [f32],
        k: u32,
        weights: impl IntoIterator<Item = WeightId>,
        scratch: &'a mut [f32],
    ) -> Self {
        let wanted = |weight| run.weight(weight).format.info().dot_q8.is_some();
        let simd = run.eight_bits.filter(|_| k.is_multiple_of(32) && weights.into_iter().any(wanted));
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

/// Numbers of scratch memory that hold the eight-bit form of rows.
pub(super) fn q8_scratch(rows: usize, k: u32) -> usize {
    rows * (k as usize / 32) * (size_of::<Q8>() / size_of::<f32>())
}

/// Numbers of scratch memory that [`product`] needs.
pub(super) fn product_scratch(k: u32) -> usize {
    TILE * k as usize
}

/// `store(i, j, W[j] · x[rᵢ] + b[j])` for some rows j of W and the i-th of some rows of x.
///
/// In eight bits, each row of W meets all rows of x while it is in the cache. In floats, one row of x is multiplied straight
/// from the blocks; for more, rows of W are decoded once. The order of each sum is the same in either case, so a row's
/// results do not depend on how many there are.
pub(super) fn product(
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
    if let Some((simd, eight)) = x.eight.filter(|_| w.format.info().dot_q8.is_some()) {
        let blocks = w.k / 32;
        for j in columns {
            for (i, r) in rows.clone().enumerate() {
                let x = &eight[r * blocks..(r + 1) * blocks];
                // A format that has such a product always gives one.
                store(i, j, w.format.dot_q8(simd, w.row(j), x).unwrap_or(f32::NAN) + bias(j));
            }
        }
        return;
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
            // Rows beyond the tile's end are old ones: their sums are not stored.
            let sums = simd::dots::<TILE>(std::array::from_fn(|i| &decoded[i * w.k..(i + 1) * w.k]), x.row(r));
            for (j, sum) in tile.clone().zip(sums) {
                store(i, j, sum + bias(j));
            }
        }
    }
}
