//! Rows of activations times rows of a matrix: the inner loops of all linear ops on the CPU.

use std::ops::Range;

use crate::ops::cpu::CpuRun;
use crate::ops::weights::WeightView;
use crate::ops::{Part, WeightId};
use crate::quant::{BlockFormat, FloatProducts, Int8Form, LANES, Q8, SECTION, Simd, Tile};

/// Rows of x, (rows, k), as floats and perhaps as int8.
pub(crate) struct X<'a> {
    rows: &'a [f32],
    k: usize,
    eight: Option<(Simd, &'a [Q8])>,
}

impl<'a> X<'a> {
    /// The rows, and, if the executor and the format of a weight ask for it, their int8 form, made in `scratch`, where it is found
    /// by the same thread's later shares of the op.
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
        if simd.is_some() && !run.share.again {
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
    let floats = float_rows(k as usize) * (k as usize + 2 * FLOAT_STRIP);
    floats.max(tiles + ALIGN)
}

/// Panels, of [`LANES`] rows of W each, that are unpacked together: as many as stay in the cache beside x.
fn panels(k: usize) -> usize {
    (CACHE / (k / 32 * size_of::<Tile>()).max(1)).clamp(1, 8)
}

/// Rows of W that are multiplied together in floats: as many as stay in the cache beside x, a section of each at a time.
fn float_rows(k: usize) -> usize {
    (CACHE / (k.min(SECTION) * size_of::<f32>()).max(1)).clamp(4, 64) / 4 * 4
}

/// Bytes of unpacked weights that stay in a core's L2 cache beside activations.
const CACHE: usize = 256 << 10;
/// f32s in a cache line.
const ALIGN: usize = 64 / size_of::<f32>();
/// From so many rows of x on, unpacking W pays.
const MANY: usize = 4;
/// Rows of x between which the tiles of all panels are loaded once.
const STRIP: usize = 48;
/// The same in floats: a multiple of what every form multiplies together.
const FLOAT_STRIP: usize = 48;
/// Up to so many rows of x are multiplied with numbers straight from the file.
const FEW: usize = 6;

/// `store(i, j, y)` with `y[l] = W[j + l] · x[rᵢ] + b[j + l]`, for some rows of W, a few at a time, and the i-th of some rows of
/// x. `store` may change y.
///
/// In int8, four to sixteen rows of W are multiplied together, straight from the blocks, or, for many rows of x, unpacked
/// once. In floats, numbers are multiplied straight from the file for few rows of x; for more, and from blocks, rows of W are
/// decoded once. The order of each sum is the same in either case, so a row's results do not depend on how many there are.
pub(crate) fn product(
    run: &CpuRun<'_>,
    part: &Part,
    columns: Range<usize>,
    x: &X<'_>,
    rows: impl ExactSizeIterator<Item = usize> + Clone,
    scratch: &mut [f32],
    mut store: impl FnMut(usize, usize, &mut [f32]),
) {
    let w = run.weight(part.weight);
    let bias = part.bias.map(|b| run.vector(b));
    let store = |i: usize, j: usize, y: &mut [f32]| {
        if let Some(bias) = bias {
            y.iter_mut().zip(&bias[j..]).for_each(|(y, b)| *y += b);
        }
        store(i, j, y);
    };
    if let (Some((simd, x)), Some(eight)) = (x.eight, w.format.info().eight) {
        return as_int8(simd, eight, &w, columns, x, rows, scratch, store);
    }
    as_floats(&w, columns, x, rows, scratch, store);
}

/// [`product`] in floats.
fn as_floats(
    w: &WeightView<'_>,
    columns: Range<usize>,
    x: &X<'_>,
    rows: impl ExactSizeIterator<Item = usize> + Clone,
    scratch: &mut [f32],
    mut store: impl FnMut(usize, usize, &mut [f32]),
) {
    let count = float_rows(w.k);
    let (decoded, out) = scratch.split_at_mut(count * w.k);
    let (out, more) = out.split_at_mut(count * FLOAT_STRIP);
    // Decoding pays for blocks, and for numbers that are read by more rows of x than are multiplied together. Rows of several
    // sections are copied, if nothing else, so that each section of a panel stays in the cache.
    let straight = |_: &FloatProducts| w.format == BlockFormat::F32 && w.k <= SECTION || rows.len() <= FEW;
    let straight = w.format.info().floats.filter(straight);
    for first in columns.clone().step_by(count) {
        let panel = first..columns.end.min(first + count);
        let decoded = &mut decoded[..panel.len() * w.k];
        if straight.is_none() {
            decode_by_sections(w, panel.clone(), decoded);
        }
        let mut strip: [&[f32]; FLOAT_STRIP] = [&[]; FLOAT_STRIP];
        let (mut left, mut done) = (rows.clone(), 0);
        while left.len() > 0 {
            let n = left.len().min(FLOAT_STRIP);
            strip.iter_mut().zip(&mut left).for_each(|(strip, r)| *strip = x.row(r));
            let out = &mut out[..n * panel.len()];
            match straight {
                Some(products) => products(Simd::best(), w.rows(panel.clone()), &strip[..n], out),
                None => products_by_sections(decoded, &strip[..n], out, more),
            }
            for (i, y) in (done..).zip(out.chunks_exact_mut(panel.len())) {
                store(i, panel.start, y);
            }
            done += n;
        }
    }
}

/// The sections of rows.
fn sections(k: usize) -> impl Iterator<Item = Range<usize>> {
    (0..k).step_by(SECTION).map(move |first| first..k.min(first + SECTION))
}

/// Decodes some rows of W: the first section of each, then the second of each, and so on.
fn decode_by_sections(w: &WeightView<'_>, panel: Range<usize>, decoded: &mut [f32]) {
    for section in sections(w.k) {
        let rows = decoded[panel.len() * section.start..].chunks_exact_mut(section.len());
        panel.clone().zip(rows).for_each(|(j, out)| w.decode_columns(j, section.start, out));
    }
}

/// `out[i * n + j] = W[j] · x[i]` for what [`decode_by_sections`] made of n rows, with `more` for a section's products.
fn products_by_sections(decoded: &[f32], x: &[&[f32]], out: &mut [f32], more: &mut [f32]) {
    let (simd, n, k) = (Simd::best(), out.len() / x.len(), x[0].len());
    let more = &mut more[..out.len()];
    let mut part: [&[f32]; FLOAT_STRIP] = [&[]; FLOAT_STRIP];
    for section in sections(k) {
        let w = &decoded[n * section.start..n * section.end];
        part.iter_mut().zip(x).for_each(|(part, row)| *part = &row[section.clone()]);
        let part = &part[..x.len()];
        if section.start == 0 {
            BlockFormat::floats(simd, w, part, out);
        } else {
            BlockFormat::floats(simd, w, part, more);
            out.iter_mut().zip(&*more).for_each(|(out, more)| *out += *more);
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
    mut store: impl FnMut(usize, usize, &mut [f32]),
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
                store(i, panel.start, &mut y[..panel.len()]);
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
                for (i, y) in (done..).zip(&mut y[..n]) {
                    store(i, panel.start, &mut y[..panel.len()]);
                }
            }
            done += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::file::Bytes;
    use crate::ops::Matrix;

    /// Some rows of numbers as a file has them.
    fn matrix(format: BlockFormat, n: usize, k: usize) -> Matrix {
        let numbers: Vec<f32> = (0..n * k).map(|i| ((i * 7919 + 13) % 2003) as f32 * 1e-3 - 1.0).collect();
        let mut bytes = vec![0; format.row_bytes(k as u64).unwrap() as usize * n];
        format.encode(&numbers, &mut bytes).unwrap();
        let source = Arc::new(Bytes::new("numbers", bytes));
        Matrix::new(source, 0, format, n as u32, k as u32).unwrap()
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_among_many_in_every_format_and_length() {
        for (k, n) in [(64, 70), (2048, 37), (2080, 33), (4096, 35), (8192, 34), (9248, 5)] {
            for format in [BlockFormat::F32, BlockFormat::F16, BlockFormat::BF16, BlockFormat::Q8_0] {
                let matrix = matrix(format, n, k);
                let count = 2 * FLOAT_STRIP + 5;
                let numbers: Vec<f32> =
                    (0..count * k).map(|i| ((i * 104_729 + 7) % 1999) as f32 * 1e-3 - 1.0).collect();
                let x = X { rows: &numbers, k, eight: None };
                let mut scratch = vec![f32::NAN; product_scratch(k as u32)];
                let mut products = |rows: Range<usize>, columns: Range<usize>| {
                    let mut y = vec![f32::NAN; rows.len() * n];
                    as_floats(&matrix.view(), columns, &x, rows, &mut scratch, |i, j, part: &mut [f32]| {
                        y[i * n + j..][..part.len()].copy_from_slice(part);
                    });
                    y
                };
                let many = products(0..count, 0..n);
                for row in 0..count {
                    let alone = products(row..row + 1, 0..n);
                    assert_eq!(many[row * n..][..n], alone, "{} ({n}, {k}), row {row}", format.name());
                    // Every product was made, and of this row.
                    let mut decoded = vec![0.0; k];
                    for j in [0, n / 2, n - 1] {
                        matrix.view().decode(j, &mut decoded);
                        let terms = || decoded.iter().zip(&numbers[row * k..][..k]);
                        let exact: f64 = terms().map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                        let size: f64 = terms().map(|(w, x)| f64::from(w * x).abs()).sum();
                        let most = (k as f64 / 16.0 + 6.0) * 6e-8 * size;
                        assert!((f64::from(alone[j]) - exact).abs() <= most, "{} ({n}, {k}), row {row}", format.name());
                    }
                }
                let some = products(3..FLOAT_STRIP + 7, 2..n - 1);
                for (i, row) in (3..FLOAT_STRIP + 7).enumerate() {
                    assert_eq!(
                        some[i * n + 2..][..n - 3],
                        many[row * n + 2..][..n - 3],
                        "{} ({n}, {k})",
                        format.name()
                    );
                }
            }
        }
    }
}
