//! What attention does with keys and values: its products are those of weights, over numbers as pages keep them.

use super::simd::{self, F16, F32, Rows, Simd};
use crate::cpu::FloatRows;

impl FloatRows<'_> {
    /// `out[r][c] += Σ_t by[r][t] self[t][c]`, t in order, for so many rows and columns; rows of `by` and of `out` lie so many
    /// floats apart. Each product and its sum are rounded once where the CPU can.
    pub(crate) fn weighted_sums(
        self,
        simd: Simd,
        by: (&[f32], usize),
        rows: usize,
        columns: usize,
        out: (&mut [f32], usize),
    ) {
        match self {
            Self::F32(x, stride) => {
                let x = Rows { bytes: bytemuck::cast_slice(x), stride };
                simd::weighted_sums::<F32>(simd, by, x, (rows, columns), out);
            }
            Self::F16(x, stride) => {
                let x = Rows { bytes: bytemuck::cast_slice(x), stride };
                simd::weighted_sums::<F16>(simd, by, x, (rows, columns), out);
            }
        }
    }

    /// `out[c][r] = self[r][c]` for so many rows and columns; rows of `out` lie so many floats apart.
    pub(crate) fn transpose(self, simd: Simd, rows: usize, columns: usize, out: (&mut [f32], usize)) {
        match self {
            Self::F32(x, stride) => {
                let x = Rows { bytes: bytemuck::cast_slice(x), stride };
                simd::transpose::<F32>(simd, x, (rows, columns), out);
            }
            Self::F16(x, stride) => {
                let x = Rows { bytes: bytemuck::cast_slice(x), stride };
                simd::transpose::<F16>(simd, x, (rows, columns), out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        // Few enough bits for f16.
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 509) as f32 / 256.0 - 1.0).collect()
    }

    /// Calls `check` with rows of both kinds, that lie apart and are not aligned.
    fn each_kind(count: usize, columns: usize, check: impl Fn(Simd, FloatRows<'_>, &dyn Fn(usize, usize) -> f32)) {
        let stride = columns + 3;
        let x = numbers(count * stride + 1, columns);
        let bits: Vec<u16> = x.iter().map(|x| f16::from_f32(*x).to_bits()).collect();
        for simd in Simd::available() {
            let at = |r: usize, c: usize| x[1 + r * stride + c];
            check(simd, FloatRows::F32(&x[1..], stride), &at);
            check(simd, FloatRows::F16(&bits[1..], stride), &at);
        }
    }

    #[test]
    fn sums_are_close_to_exact_and_the_same_for_any_number_of_rows() {
        for (terms, columns) in [(1, 1), (3, 4), (16, 7), (5, 16), (16, 20), (64, 64), (7, 65), (64, 100), (16, 192)] {
            each_kind(terms, columns, |simd, rows, at| {
                let (most, by_stride, out_stride) = (14, terms + 2, columns + 5);
                let by = numbers(most * by_stride, 5);
                let before = numbers(most * out_stride, 9);
                let mut alone = before.clone();
                for (by, out) in by.chunks(by_stride).zip(alone.chunks_mut(out_stride)) {
                    rows.weighted_sums(simd, (by, by_stride), terms, columns, (out, out_stride));
                }
                for r in 0..most {
                    for c in 0..out_stride {
                        let (y, x) = (alone[r * out_stride + c], before[r * out_stride + c]);
                        if c >= columns {
                            assert_eq!(y, x, "what is beside the columns stays");
                            continue;
                        }
                        let terms_of = || (0..terms).map(|t| f64::from(by[r * by_stride + t]) * f64::from(at(t, c)));
                        let exact = f64::from(x) + terms_of().sum::<f64>();
                        let size = f64::from(x.abs()) + terms_of().map(f64::abs).sum::<f64>();
                        let bound = (terms as f64 + 1.0) * 6e-8 * size;
                        assert!((f64::from(y) - exact).abs() <= bound, "{simd:?} {terms} x {columns}: {y} for {exact}");
                    }
                }
                for many in 1..=most {
                    let mut out = before[..many * out_stride].to_vec();
                    rows.weighted_sums(simd, (&by, by_stride), terms, columns, (&mut out, out_stride));
                    assert_eq!(out, alone[..many * out_stride], "{simd:?} {terms} x {columns}: {many} rows");
                }
                // Terms in two parts.
                let (half, mut out) = (terms / 2, before.clone());
                rows.weighted_sums(simd, (&by, by_stride), half, columns, (&mut out, out_stride));
                rows.after(half).weighted_sums(
                    simd,
                    (&by[half..], by_stride),
                    terms - half,
                    columns,
                    (&mut out, out_stride),
                );
                assert_eq!(out, alone, "{simd:?} {terms} x {columns}: in two parts");
            });
        }
    }

    #[test]
    fn rows_become_columns() {
        for (count, columns) in [(1, 1), (3, 8), (4, 4), (8, 16), (16, 7), (16, 64), (15, 33), (16, 576)] {
            each_kind(count, columns, |simd, rows, at| {
                let stride = count + 1;
                let mut out = vec![9.0; columns * stride];
                rows.transpose(simd, count, columns, (&mut out, stride));
                for (c, out) in out.chunks(stride).enumerate() {
                    let expected: Vec<f32> = (0..count).map(|r| at(r, c)).chain([9.0]).collect();
                    assert_eq!(out, expected, "{simd:?} {count} x {columns}");
                }
            });
        }
    }
}
