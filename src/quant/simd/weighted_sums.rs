//! What attention multiplies: sums of rows of numbers, each times a factor, and rows turned into columns.
//!
//! Vectors hold neighbouring columns, so no sum crosses lanes, and a sum has one order: that of its terms.
#![allow(unsafe_code, reason = "loads at offsets within rows whose length was checked")]

use super::float_products::Number;
use super::vector::{Bytes, Vector};

/// Rows of numbers, `stride` numbers apart.
#[derive(Clone, Copy)]
pub(in super::super) struct Rows<'a> {
    pub(in super::super) bytes: &'a [u8],
    pub(in super::super) stride: usize,
}

impl Rows<'_> {
    /// Row r's number c, once it is known that so many rows of so many columns are there.
    fn check<N: Number>(&self, rows: usize, columns: usize) {
        let last = rows.saturating_sub(1) * self.stride + columns;
        assert!(rows == 0 || self.bytes.len() >= last * N::BYTES, "{rows} rows of {columns} in {}", self.bytes.len());
    }
}

/// The body of all forms: `out[r][c] += Σ_t by[r][t] rows[t][c]`, t in order, for `terms` rows and `columns` columns, with `by`
/// and `out` rows so many floats apart. `MANY` rows of `out` and `PARTS` vectors of columns are summed together.
#[inline(always)]
pub(super) fn body<N: Number, V: Vector, const PARTS: usize, const MANY: usize>(
    (by, by_stride): (&[f32], usize),
    rows: Rows<'_>,
    (terms, columns): (usize, usize),
    (out, out_stride): (&mut [f32], usize),
) {
    let lanes = 4 * V::PARTS;
    let count = out.len().div_ceil(out_stride);
    rows.check::<N>(terms, columns);
    assert!(count == 0 || out.len() >= (count - 1) * out_stride + columns, "{count} rows of {columns}");
    assert!(count == 0 || by.len() >= (count - 1) * by_stride + terms, "{count} rows of {terms} factors");
    let mut c = 0;
    while c < columns {
        let wide = if columns - c >= PARTS * lanes { PARTS } else { 1 };
        let mut r = 0;
        while r < count {
            let many = if count - r >= MANY { MANY } else { 1 };
            let by = &by[r * by_stride..];
            let at = r * out_stride + c;
            if columns - c < lanes {
                tail::<N, V>(by, rows, (terms, c), &mut out[at..r * out_stride + columns]);
                r += 1;
                continue;
            }
            // SAFETY: `terms` rows have these columns, `many` rows of `out` and of `by` are there, as was checked.
            unsafe {
                let from = rows.bytes.as_ptr().add(c * N::BYTES);
                let (by, out) = (by.as_ptr(), out[at..].as_mut_ptr());
                let strides = [by_stride, rows.stride, out_stride];
                match (many == MANY, wide == PARTS) {
                    (true, true) => tile::<N, V, PARTS, MANY>(by, from, out, strides, terms),
                    (true, false) => tile::<N, V, 1, MANY>(by, from, out, strides, terms),
                    (false, true) => tile::<N, V, PARTS, 1>(by, from, out, strides, terms),
                    (false, false) => tile::<N, V, 1, 1>(by, from, out, strides, terms),
                }
            }
            r += many;
        }
        c += wide * lanes;
    }
}

/// # Safety
/// `MANY` rows of `by` have `terms` floats, so many rows have `PARTS` vectors of numbers, and `MANY` rows of `out` as many
/// floats; they lie `strides` apart.
#[inline(always)]
unsafe fn tile<N: Number, V: Vector, const PARTS: usize, const MANY: usize>(
    by: *const f32,
    rows: *const u8,
    out: *mut f32,
    [by_stride, stride, out_stride]: [usize; 3],
    terms: usize,
) {
    let lanes = 4 * V::PARTS;
    // SAFETY: as the caller says.
    unsafe {
        let mut sums = [[V::float(0.0); PARTS]; MANY];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (p, sum) in sums.iter_mut().enumerate() {
                *sum = V::floats_at(out.add(r * out_stride + p * lanes).cast());
            }
        }
        for t in 0..terms {
            let mut x = [V::float(0.0); PARTS];
            for (p, x) in x.iter_mut().enumerate() {
                *x = N::floats::<V>(rows.add((t * stride + p * lanes) * N::BYTES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let by = V::float(*by.add(r * by_stride + t));
                for (sum, x) in sums.iter_mut().zip(&x) {
                    *sum = V::add_product_floats(*sum, by, *x);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (p, sum) in sums.iter().enumerate() {
                V::store_floats(*sum, std::slice::from_raw_parts_mut(out.add(r * out_stride + p * lanes), lanes));
            }
        }
    }
}

/// The columns from c on, fewer than a vector has, of one row.
#[inline(always)]
fn tail<N: Number, V: Vector>(by: &[f32], rows: Rows<'_>, (terms, c): (usize, usize), out: &mut [f32]) {
    let mut padded = [0.0; 16];
    padded[..out.len()].copy_from_slice(out);
    let mut sum = V::load_floats(&padded);
    for (t, by) in by[..terms].iter().enumerate() {
        let mut bytes = [0u8; 64];
        let at = (t * rows.stride + c) * N::BYTES;
        bytes[..out.len() * N::BYTES].copy_from_slice(&rows.bytes[at..][..out.len() * N::BYTES]);
        // SAFETY: the copy is as long as a vector's numbers.
        let x = unsafe { N::floats::<V>(bytes.as_ptr()) };
        sum = V::add_product_floats(sum, V::float(*by), x);
    }
    V::store_floats(sum, &mut padded[..4 * V::PARTS]);
    out.copy_from_slice(&padded[..out.len()]);
}

/// The body of all forms: `out[c * out_stride + r] = rows[r][c]` for so many rows and columns.
#[inline(always)]
pub(super) fn transpose<N: Number, V: Vector>(
    rows: Rows<'_>,
    (count, columns): (usize, usize),
    (out, out_stride): (&mut [f32], usize),
) {
    let lanes = 4 * V::PARTS;
    rows.check::<N>(count, columns);
    let step = 16 / N::BYTES;
    let (whole_rows, whole) = (count - count % lanes, columns - columns % step);
    for r in (0..whole_rows).step_by(lanes) {
        for c in (0..whole).step_by(step) {
            let mut bytes = [V::word(0); 4];
            for (e, bytes) in bytes.iter_mut().enumerate() {
                let at = ((r + e) * rows.stride + c) * N::BYTES;
                // SAFETY: `lanes` rows from r on have these columns, as was checked.
                *bytes = unsafe { V::load(rows.bytes.as_ptr().add(at), 4 * rows.stride * N::BYTES) };
            }
            for (word, first) in Bytes(bytes).words().into_iter().zip((c..).step_by(4 / N::BYTES)) {
                for i in 0..4 / N::BYTES {
                    V::store_floats(N::of_word(word, i), &mut out[(first + i) * out_stride + r..][..lanes]);
                }
            }
        }
    }
    for r in 0..count {
        let row = &rows.bytes[r * rows.stride * N::BYTES..];
        for c in if r < whole_rows { whole } else { 0 }..columns {
            out[c * out_stride + r] = N::number(&row[c * N::BYTES..]);
        }
    }
}
