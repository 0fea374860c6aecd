//! Rows of floats times rows of activations, straight from the file's bytes.
//!
//! **The reduction order**: columns are summed in sections of [`SECTION`], with 16 running sums: the product of column i is added
//! to sum `i mod 16`, product and sum rounded once where the CPU has fused multiply-add; then halves of the sums are added
//! (8 + 8, 4 + 4, ...), and sections to each other, the first one first. It depends on the length alone: a row gives the same
//! bits alone and in a prompt, in one piece or by sections, and a block format gives those of its decoded row.
#![allow(unsafe_code, reason = "loads at offsets within rows whose length was checked")]

use std::ops::Range;

use super::super::f16_at;
use super::vector::Vector;

/// Running sums.
const SUMS: usize = 16;
/// Columns that are summed before their sum is added to others'. Sections of many rows stay in a core's cache where whole rows
/// would not.
pub(crate) const SECTION: usize = 2048;

/// Bytes, at least, between the rows that are multiplied and what is fetched.
const AHEAD: usize = 8 << 10;
/// Up to so many rows of x, and no more than are multiplied together, are multiplied by one row of W at a time: a core reads one
/// stream faster than several (1.36 times for one row of x of BF16, 160M). For five and six it took up to 1.5 times as long.
const FEW: usize = 4;

/// A number as files store it.
pub(in super::super) trait Number: Copy {
    /// Bytes of a number.
    const BYTES: usize;

    /// Consecutive numbers, as many as a vector has floats.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn floats<V: Vector>(at: *const u8) -> V::Floats;

    /// Number i of those that each word holds.
    fn of_word<V: Vector>(word: V, i: usize) -> V::Floats;

    /// The first number.
    fn number(bytes: &[u8]) -> f32;
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $floats:ident, |$word:ident, $i:ident| $of_word:expr, |$at:ident| $number:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(in super::super) struct $name;

        impl Number for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn floats<V: Vector>(at: *const u8) -> V::Floats {
                // SAFETY: as the caller says.
                unsafe { V::$floats(at) }
            }

            #[inline(always)]
            fn of_word<V: Vector>($word: V, $i: usize) -> V::Floats {
                $of_word
            }

            #[inline(always)]
            fn number($at: &[u8]) -> f32 {
                $number
            }
        }
    };
}

number! {
    /// 32 bits.
    F32, 4, floats_at, |word, _i| word.as_floats(), |at| f32::from_le_bytes([at[0], at[1], at[2], at[3]])
}
number! {
    /// 16 bits as IEEE has them.
    F16, 2, f16s_at, |word, i| word.shr(16 * i as u32).f16_to_f32(), |at| f16_at(at, 0)
}
number! {
    /// The upper 16 of 32 bits.
    Bf16, 2, bf16s_at,
    |word, i| word.shr(16 * i as u32).shl(16).as_floats(),
    |at| f32::from_bits(u32::from(u16::from_le_bytes([at[0], at[1]])) << 16)
}

/// The body of all forms: `out[i * n + j] = row j · x[i]` for the n rows of `w`. A vector is one of `PARTS` that hold the running
/// sums; `ROWS` rows of W are multiplied by `MANY` of x together, as many as leave their sums in registers.
#[inline(always)]
pub(super) fn body<N: Number, V: Vector, const PARTS: usize, const ROWS: usize, const MANY: usize>(
    w: &[u8],
    x: &[&[f32]],
    out: &mut [f32],
) {
    let Some(k) = x.first().map(|x| x.len()) else { return };
    let n = out.len() / x.len();
    assert!(w.len() == n * k * N::BYTES && x.iter().all(|x| x.len() == k), "{n} rows of {k} in {} bytes", w.len());
    let mut j = 0;
    while x.len() > FEW.min(MANY) && j + ROWS <= n {
        some::<N, V, PARTS, ROWS, MANY>(w, x, j, out);
        j += ROWS;
    }
    while j < n {
        some::<N, V, PARTS, 1, MANY>(w, x, j, out);
        j += 1;
    }
}

/// `ROWS` rows of W from row j on, and all of x.
#[inline(always)]
fn some<N: Number, V: Vector, const PARTS: usize, const ROWS: usize, const MANY: usize>(
    w: &[u8],
    x: &[&[f32]],
    j: usize,
    out: &mut [f32],
) {
    let n = out.len() / x.len();
    let (many, mut left) = x.as_chunks::<MANY>();
    let mut at = j;
    for x in many {
        tile::<N, V, PARTS, ROWS, MANY>(w, x, j, &mut out[at..], n);
        at += MANY * n;
    }
    if MANY > 4
        && let Some((x, rest)) = left.split_first_chunk()
    {
        tile::<N, V, PARTS, ROWS, 4>(w, x, j, &mut out[at..], n);
        (left, at) = (rest, at + 4 * n);
    }
    if MANY > 2
        && let Some((x, rest)) = left.split_first_chunk()
    {
        tile::<N, V, PARTS, ROWS, 2>(w, x, j, &mut out[at..], n);
        (left, at) = (rest, at + 2 * n);
    }
    for x in left {
        tile::<N, V, PARTS, ROWS, 1>(w, &[*x], j, &mut out[at..], n);
        at += n;
    }
}

/// `out[i * n + r] = row j + r · x[i]`
#[inline(always)]
fn tile<N: Number, V: Vector, const PARTS: usize, const ROWS: usize, const MANY: usize>(
    w: &[u8],
    x: &[&[f32]; MANY],
    j: usize,
    out: &mut [f32],
    n: usize,
) {
    let k = x[0].len();
    // Of rows without columns the sums are zeros.
    for first in (0..k.max(1)).step_by(SECTION) {
        section::<N, V, PARTS, ROWS, MANY>(w, x, j, first..k.min(first + SECTION), out, n);
    }
}

/// [`tile`] for some columns: the first ones' sums are stored, later ones' are added.
#[inline(always)]
fn section<N: Number, V: Vector, const PARTS: usize, const ROWS: usize, const MANY: usize>(
    w: &[u8],
    x: &[&[f32]; MANY],
    j: usize,
    columns: Range<usize>,
    out: &mut [f32],
    n: usize,
) {
    let k = x[0].len();
    let part = 4 * V::PARTS;
    let mut sums = [[[V::float(0.0); PARTS]; ROWS]; MANY];
    let from = &w[j * k * N::BYTES..][..ROWS * k * N::BYTES];
    let rows = from.as_ptr();
    let ahead = (ROWS * k * N::BYTES).max(AHEAD);
    let whole = columns.end - columns.len() % SUMS;
    for column in (columns.start..whole).step_by(SUMS) {
        if MANY == 1 || ROWS == 1 {
            // Later rows, which lie after these, while these are multiplied.
            V::fetch_after(from, ahead + ROWS * column * N::BYTES, SUMS * N::BYTES * ROWS);
        }
        for p in 0..PARTS {
            let at = column + p * part;
            let mut w = [V::float(0.0); ROWS];
            for (r, w) in w.iter_mut().enumerate() {
                // SAFETY: `ROWS` rows of k numbers lie there; `SUMS` from `column` on are of the row.
                *w = unsafe { N::floats::<V>(rows.add((r * k + at) * N::BYTES)) };
            }
            for (x, sums) in x.iter().zip(&mut sums) {
                // SAFETY: every row of x is as long (`body`).
                let x = unsafe { V::floats_at(x.as_ptr().add(at).cast()) };
                for (w, sums) in w.iter().zip(sums) {
                    sums[p] = V::add_product_floats(sums[p], *w, x);
                }
            }
        }
    }
    let left = columns.end - whole;
    if left > 0 {
        // Filled up with zeros, which change no sum.
        let mut padded = [[0u8; SUMS * 4]; ROWS];
        for (r, padded) in padded.iter_mut().enumerate() {
            let row = &w[(j + r) * k * N::BYTES..][..k * N::BYTES];
            padded[..left * N::BYTES].copy_from_slice(&row[whole * N::BYTES..]);
        }
        for (x, sums) in x.iter().zip(&mut sums) {
            let mut x_padded = [0.0; SUMS];
            x_padded[..left].copy_from_slice(&x[whole..]);
            for (w, sums) in padded.iter().zip(sums) {
                for (p, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: the copy holds `SUMS` numbers.
                    let w = unsafe { N::floats::<V>(w.as_ptr().add(p * part * N::BYTES)) };
                    *sum = V::add_product_floats(*sum, w, V::load_floats(&x_padded[p * part..]));
                }
            }
        }
    }
    for (i, sums) in sums.into_iter().enumerate() {
        // Parts are added first, halves of them until one is left.
        let sums = sums.map(
            #[inline(always)]
            |mut parts| {
                let mut half = PARTS / 2;
                while half > 0 {
                    for p in 0..half {
                        parts[p] = V::add_floats(parts[p], parts[p + half]);
                    }
                    half /= 2;
                }
                parts[0]
            },
        );
        let out = &mut out[i * n..][..ROWS];
        let (whole, rest) = out.as_chunks_mut::<4>();
        let (sums, sums_rest) = sums.as_chunks::<4>();
        for (out, sums) in whole.iter_mut().zip(sums) {
            let totals = V::totals(*sums);
            for (out, total) in out.iter_mut().zip(totals) {
                *out = if columns.start == 0 { total } else { *out + total };
            }
        }
        for (out, sum) in rest.iter_mut().zip(sums_rest) {
            let total = V::total(*sum);
            *out = if columns.start == 0 { total } else { *out + total };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::quant::{BlockFormat, Simd};

    const FORMATS: [BlockFormat; 3] = [BlockFormat::F32, BlockFormat::F16, BlockFormat::BF16];

    fn rows(count: usize, k: usize, seed: usize) -> Vec<f32> {
        (0..count * k).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 * 1e-3 - 1.0).collect()
    }

    fn encoded(format: BlockFormat, w: &[f32]) -> Vec<u8> {
        let mut out = vec![0; w.len() * format.info().bytes];
        format.encode(w, &mut out).unwrap();
        out
    }

    #[test]
    fn products_are_close_to_exact_and_the_same_for_any_number_of_rows() {
        for (k, n) in [
            (1, 1),
            (15, 3),
            (16, 4),
            (17, 5),
            (48, 2),
            (100, 9),
            (257, 7),
            (768, 6),
            (1031, 13),
            (2048, 5),
            (2049, 3),
            (6151, 4),
        ] {
            for format in FORMATS {
                let w = encoded(format, &rows(n, k, k));
                let mut decoded = vec![0.0; n * k];
                format.decode(&w, &mut decoded).unwrap();
                // At an odd place, since rows of a file may lie anywhere.
                let mut moved = vec![0; w.len() + 1];
                moved[1..].copy_from_slice(&w);
                let all = rows(17, k, 3);
                for simd in Simd::available() {
                    let alone: Vec<f32> = all
                        .chunks(k)
                        .flat_map(|x| {
                            let mut out = vec![0.0; n];
                            format.info().floats.unwrap()(simd, &moved[1..], &[x], &mut out);
                            out
                        })
                        .collect();
                    for (i, y) in alone.iter().enumerate() {
                        let terms = || decoded[i % n * k..][..k].iter().zip(&all[i / n * k..][..k]);
                        let exact: f64 = terms().map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                        let size: f64 = terms().map(|(w, x)| f64::from(w * x).abs()).sum();
                        // Each of k/16 + 4 sums, and each product, is off by half a unit of the last place at most.
                        let most = (k as f64 / 16.0 + 6.0) * 6e-8 * size;
                        assert!(
                            (f64::from(*y) - exact).abs() <= most,
                            "{} {simd:?} k = {k}: {y} for {exact}",
                            format.name()
                        );
                    }
                    for many in 1..=17 {
                        let x: Vec<&[f32]> = all.chunks(k).take(many).collect();
                        let mut out = vec![f32::NAN; many * n];
                        format.info().floats.unwrap()(simd, &w, &x, &mut out);
                        assert_eq!(out, alone[..many * n], "{} {simd:?}: {many} rows of x", format.name());
                        BlockFormat::floats(simd, &decoded, &x, &mut out);
                        assert_eq!(out, alone[..many * n], "{} {simd:?}: {many} rows of x, decoded", format.name());
                    }
                }
            }
        }
    }

    #[test]
    fn infinities_and_nans_stay() {
        for simd in Simd::available() {
            for at in [0, 15, 16, 20] {
                let (mut w, x) = (vec![1.0; 21], vec![2.0; 21]);
                w[at] = f32::INFINITY;
                let mut out = [0.0];
                BlockFormat::floats(simd, &w, &[&x], &mut out);
                assert_eq!(out, [f32::INFINITY]);
                w[(at + 1) % 21] = f32::NAN;
                BlockFormat::floats(simd, &w, &[&x], &mut out);
                assert!(out[0].is_nan());
            }
        }
    }

    /// Without vector instructions the fastest form would be no faster than plain code.
    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn the_fastest_form_is_made_of_vector_instructions() {
        // Both copies of the matrix fit into the first cache: otherwise the faster form would wait for memory, which others
        // use, too.
        let (k, n) = (512, 4);
        let rows_of_x = rows(12, k, 1);
        // A step of decode, and rows of a prompt.
        for (format, count) in FORMATS.into_iter().flat_map(|format| [(format, 1), (format, 12)]) {
            let x: Vec<&[f32]> = rows_of_x.chunks(k).take(count).collect();
            let w = encoded(format, &rows(n, k, 2));
            let mut decoded = vec![0.0; n * k];
            format.decode(&w, &mut decoded).unwrap();
            // One running sum, which no compiler may divide among lanes.
            let plain = |out: &mut [f32]| {
                for (w, out) in decoded.chunks(k).zip(out.chunks_mut(x.len())) {
                    for (x, out) in x.iter().zip(out) {
                        *out = w.iter().zip(*x).fold(0.0, |sum, (w, x)| sum + w * x);
                    }
                }
            };
            let vector = |out: &mut [f32]| format.info().floats.unwrap()(Simd::best(), &w, &x, out);
            let mut out = vec![0.0; n * x.len()];
            let mut time = |form: &dyn Fn(&mut [f32])| {
                let started = Instant::now();
                for _ in 0..16 {
                    form(std::hint::black_box(&mut out));
                }
                started.elapsed()
            };
            // The best of several in turns: others may use the CPU, too.
            let mut best = [Duration::MAX; 2];
            for _ in 0..40 {
                best = [best[0].min(time(&plain)), best[1].min(time(&vector))];
            }
            // Most of the time of a build with checks goes into those of pointers and of overflow: with AVX2 it was 2.2 times as
            // fast (Zen 3). Instructions that are calls, not vector instructions, would be slower than plain code in any build.
            let least = if cfg!(debug_assertions) { 1.25 } else { 4.0 };
            let times = best[0].as_secs_f64() / best[1].as_secs_f64();
            assert!(times > least, "{}, {count} rows of x: {times:.2} times as fast, {best:?}", format.name());
        }
    }
}
