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
