//! The forms of matrix times matrix, for the rows of prompts: which one a dispatch takes, and its rows of x.

use super::ValueId;
use super::lower::{Lower, Lowered};
use crate::Result;
use crate::gpu::{Arg, Dim, Kernel, Matmul};
use crate::quant::BlockFormat;

/// Rows of W and of x that make a tile, at most.
pub(super) const TILE: u32 = 64;

/// Rows of x in a tile for steps of few: a tile that is not full costs as much as one that is.
pub(super) const SMALL_TILE: u32 = 16;

/// Steps of so many rows at most have small tiles.
pub(super) const FEW: u32 = 2 * SMALL_TILE;

/// Rows of x in the tiles of a step of so many rows.
pub(super) fn rows_of_tile(rows: u32) -> u32 {
    if rows <= FEW { SMALL_TILE } else { TILE }
}

/// Bytes of a row of k columns in eight bits: quants, then a scale for each 32, in whole units of 16 bytes.
pub(crate) fn quants_bytes(k: u32) -> u64 {
    (u64::from(k) + u64::from(k / 32) * 4).next_multiple_of(16)
}

#[repr(C)]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    k: u32,
    rows_at: u32,
}

impl<'a> Lower<'a> {
    /// The form for weights of a format.
    pub(super) fn matmul(&self, format: BlockFormat) -> Matmul {
        match self.products(format).matmul {
            Matmul::Dot if !format.has_ints() => Matmul::Registers,
            Matmul::Cooperative if self.layout.matrices.is_none() => Matmul::Registers,
            form => form,
        }
    }

    /// The kernel of a form, and the rows of W and of x that make its tile.
    pub(super) fn matmul_kernel(&self, form: Matmul) -> (Kernel, u32) {
        match (form, self.layout.matrices) {
            (Matmul::Cooperative, Some(matrices)) => {
                let mut kernel = self.kernel("matmul_cooperative");
                matrices.lower(&mut kernel);
                (kernel, 4 * matrices.side)
            }
            (Matmul::Dot, _) => (self.kernel("matmul_dot"), TILE),
            _ => (self.kernel("matmul"), TILE),
        }
    }

    /// The rows of x as a form reads them. Rounds them to eight bits, unless the last ones that were are the same.
    pub(super) fn matmul_rows(&mut self, form: Matmul, x: ValueId) -> Result<Arg<'a>> {
        if form == Matmul::Dot && self.quantized != Some(x) {
            self.quantize(x)?;
            self.quantized = Some(x);
        }
        Ok(Arg::read(if form == Matmul::Dot { self.quants } else { &self.value(x).buffer }))
    }

    fn quantize(&mut self, x: ValueId) -> Lowered {
        let x = self.value(x);
        let mut kernel = self.kernel("quantize");
        kernel.overrides.push(("WG", f64::from(super::lower::WIDE)));
        let params = Params { k: x.width, rows_at: x.rows_at() };
        let args = [Arg::read(self.step), Arg::read(&x.buffer), Arg::Write(self.quants)];
        let grid = [super::lower::wide(x.width / 32), x.rows(1), Dim::Fixed(1)];
        self.plan.dispatch(&kernel, &params, &args, grid)
    }
}
