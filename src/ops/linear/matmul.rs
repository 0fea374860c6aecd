//! The mat-mat variants, for prefill rows: which one a dispatch takes, and its rows of x.

use crate::Result;
use crate::gpu::compose::lib;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim, Kernel, Matmul, MatrixTile};
use crate::ops::kernels;
use crate::ops::lower::{self, KernelTuning, Lower, Lowered};
use crate::ops::{Phase, ValueId, VectorId};
use crate::quant::BlockFormat;

/// Rows of x in a tile for steps of few rows: a tile that is not full costs as much as one that is.
const SMALL_TILE: u32 = 16;

/// Steps of at most so many rows have small tiles, but those of cooperative matrices.
const FEW: u32 = 2 * SMALL_TILE;

/// Results of a thread in each direction of a tile; in a small one, fewer over rows of x.
const OF_THREAD: u32 = 8;

/// The tile sizes of a kernel variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// Rows of W.
    pub(crate) w: u32,
    /// Rows of x.
    pub(crate) x: u32,
    /// Rows of x, for steps of few rows.
    pub(crate) few: u32,
    /// The most rows of a step of few.
    pub(crate) most_few: u32,
    /// Rows of x that a workgroup of the mat-vec kernels takes, if there are several.
    pub(crate) cols: u32,
}

impl Tile {
    /// Rows of x in the tiles of a step of so many rows.
    pub(crate) fn rows(self, rows: u32) -> u32 {
        if rows <= self.most_few { self.few } else { self.x }
    }

    /// The rows of x that kernels compute for so many: empty rows of a tile cost as much as the others.
    pub(crate) fn made_rows(self, phase: Phase, rows: u32) -> u32 {
        match phase {
            Phase::Prefill => rows.next_multiple_of(self.rows(rows)),
            Phase::Decode if rows > 1 => rows.next_multiple_of(self.cols),
            Phase::Decode => rows,
        }
    }
}

impl KernelTuning {
    /// The tile sizes of the variant for weights of a format.
    pub(crate) fn tile(&self, format: BlockFormat) -> Tile {
        let products = self.table.matmul(format);
        match (products.matmul, self.matrices) {
            // Empty rows cost little beside unpacking W.
            (Matmul::Cooperative, Some(matrices)) => {
                let [[_, few], [w, x]] = matrices.tiles.map(|tile| tile.rows(matrices.side));
                Tile { w, x, few, most_few: few, cols: products.cols }
            }
            _ => Tile { w: products.tile_w, x: products.tile_x, few: SMALL_TILE, most_few: FEW, cols: products.cols },
        }
    }
}

/// The overrides of a tile of `w` rows of W and `x` rows of x, of which a thread has `rows_x`: its threads, and how many times 16
/// columns go through workgroup memory at a time, as many as fit.
fn overrides(form: Matmul, w: u32, [x, rows_x]: [u32; 2], memory: u32) -> [(&'static str, u32); 4] {
    // The most runs of 16 columns, and the bytes of one row of a run: floats, or int8 with their scale and their sum.
    let (most, bytes) = match form {
        Matmul::Dot => (4, 16 + 8),
        Matmul::F16 => (2, 16 * 2),
        Matmul::Registers | Matmul::Cooperative => (2, 16 * 4),
    };
    let runs = if most * bytes * (w + x) <= memory { most } else { most / 2 };
    [("THREADS_N", w / OF_THREAD), ("THREADS_M", x / rows_x), ("TILE_K16", runs), ("ROWS_X", rows_x)]
}

/// Bytes of a row of k columns as int8: of each 32, the quants and four floats.
pub(crate) fn int8_row_bytes(k: u32) -> u64 {
    u64::from(k / 32) * 48
}

params! {
    pub(crate) struct Params {
        k: u32,
        rows_at: u32,
        norm_w: u32,
    }
}

impl<'a> Lower<'a> {
    /// The kernel for weights of a format, and the same for few rows of x if it has smaller tiles for them.
    pub(in crate::ops) fn matmul_kernels(
        &self,
        mut kernel: Kernel,
        form: Matmul,
        tile: Tile,
        small_x: u32,
    ) -> (Kernel, Option<Kernel>) {
        if let (Matmul::Cooperative, Some(matrices)) = (form, self.tuning.matrices) {
            let of = |tile: MatrixTile| {
                let mut kernel = kernel.clone();
                let [across, down] = tile.of_part;
                let numbers = [("THREADS", tile.threads), ("PARTS", tile.parts), ("ACROSS", across), ("DOWN", down)];
                numbers.into_iter().for_each(|(name, n)| kernel.set(name, n));
                kernel
            };
            let [few, many] = matrices.tiles;
            return (of(many), (few != many).then(|| of(few)));
        }
        let memory = self.plan.device().caps().workgroup_memory;
        let mut small = kernel.clone();
        overrides(form, tile.w, [tile.few, small_x], memory).into_iter().for_each(|(name, n)| small.set(name, n));
        overrides(form, tile.w, [tile.x, OF_THREAD], memory).into_iter().for_each(|(name, n)| kernel.set(name, n));
        (kernel, Some(small))
    }

    /// The kernel of a variant.
    pub(in crate::ops) fn matmul_kernel(&self, form: Matmul) -> Kernel {
        let held = |fragment| {
            let mut kernel = self.kernel(kernels::MATMUL);
            kernel.fill("held", fragment);
            kernel
        };
        match (form, self.tuning.matrices) {
            (Matmul::Cooperative, Some(matrices)) => {
                let mut kernel = self.kernel(kernels::MATMUL_COOPERATIVE);
                matrices.lower(&mut kernel);
                kernel
            }
            (Matmul::Dot, _) => self.kernel(kernels::MATMUL_DOT),
            (Matmul::F16, _) => held(lib::TILE_F16),
            _ => held(lib::TILE_F32),
        }
    }

    /// The rows of x in int8, times the weight of a norm. Makes them, unless they are those that were made last.
    pub(in crate::ops) fn int8_rows(&mut self, x: ValueId, norm: Option<VectorId>) -> Result<Arg<'a>> {
        if self.quantized != Some((x, norm)) {
            self.quantize(x, norm)?;
            self.quantized = Some((x, norm));
        }
        Ok(Arg::read(self.int8_rows))
    }

    fn quantize(&mut self, x: ValueId, norm: Option<VectorId>) -> Lowered {
        let x = self.value(x);
        let mut kernel = self.kernel(kernels::QUANTIZE);
        kernel.set("WG", lower::WIDE);
        let mut params = Params { k: x.width, rows_at: x.rows_at(), norm_w: 0 };
        if let Some(weight) = norm {
            kernel.set("HAS_NORM_W", true);
            params.norm_w = self.vector(weight) / 4;
        }
        let args = [Arg::read(self.step), Arg::read(&x.buffer), Arg::read(self.vectors), Arg::Write(self.int8_rows)];
        let grid = [lower::wide(x.width / 32), x.rows(1), Dim::Fixed(1)];
        self.plan.dispatch(&kernel, &params, &args, grid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every device has, in bytes.
    const MEMORY: u32 = 16 << 10;

    #[test]
    fn tiles_take_as_many_runs_as_fit() {
        let runs = |form, w, x, memory| overrides(form, w, [x, OF_THREAD], memory)[2].1;
        assert_eq!(
            overrides(Matmul::Registers, 128, [64, OF_THREAD], MEMORY),
            [("THREADS_N", 16), ("THREADS_M", 8), ("TILE_K16", 1), ("ROWS_X", 8)]
        );
        assert_eq!(runs(Matmul::Registers, 128, 64, 2 * MEMORY), 2);
        assert_eq!(runs(Matmul::Registers, 64, 64, MEMORY), 2);
        assert_eq!(runs(Matmul::F16, 128, 64, MEMORY), 2);
        assert_eq!([64, 128].map(|w| runs(Matmul::Dot, w, 64, MEMORY)), [4, 2]);
        // All fit everywhere.
        for (w, x) in [64, 128].into_iter().flat_map(|w| [SMALL_TILE, 64, 128].map(|x| (w, x))) {
            assert!(runs(Matmul::Registers, w, x, MEMORY) * 64 * (w + x) <= MEMORY);
            assert!(runs(Matmul::Dot, w, x, MEMORY) * 24 * (w + x) <= MEMORY);
            assert!(w * x / OF_THREAD.pow(2) <= 256, "{w} x {x}");
        }
    }
}
