//! The kernel of `attend` for tiles of prefill rows by cooperative matrices, for fast numerics on devices that have them.

use crate::ops::kernels;
use std::ops::Range;

use super::gpu::HEADS;
use super::{Attend, Kv};
use crate::gpu::{Dim, Matrices};
use crate::ops::lower::{Lower, Lowered};

/// Positions of a block, and columns of keys and values that are in workgroup memory at once.
const TILE: u32 = 32;
/// Elements between rows in workgroup memory, of f16s and of floats: 16 bytes, to which Vulkan aligns rows of matrices.
const PADDING: [u32; 2] = [8, 4];
const _: () = assert!(((TILE + PADDING[0]) * 2).is_multiple_of(16) && ((TILE + PADDING[1]) * 4).is_multiple_of(16));
/// Vec4s of the result that a thread keeps, at most.
const MOST: u32 = 16;

/// Vec4s of the result that a thread has: of TILE columns, and of all.
fn kept(matrices: Matrices, heads: u32, value_vec4s: &Range<u32>) -> [u32; 2] {
    let each = (heads * matrices.side * TILE / 4).div_ceil(matrices.threads);
    [each, (value_vec4s.len() as u32).div_ceil(TILE / 4) * each]
}

impl Attend {
    /// The cooperative matrices, and the query heads that share a load of keys and values.
    ///
    /// None where `attend_tiled` is taken: over the step's own rows, for drafts of a tree, in exact numerics, on a device
    /// without cooperative matrices, for heads that are too large for its workgroup memory.
    pub(super) fn cooperative(&self, l: &Lower<'_>, value_vec4s: &Range<u32>) -> Option<(Matrices, u32)> {
        let matrices = l.tuning.attend_matrices?;
        if l.layout.tree != 0 || !matches!(self.kv, Kv::Cache(_)) {
            return None;
        }
        let fits = |heads: &u32| {
            let rows = heads * matrices.side;
            let queries = rows * (self.k_dim.next_multiple_of(TILE) + PADDING[0]);
            let f16s = queries + (rows + TILE) * (TILE + PADDING[0]); // and weights, and a block
            let floats = rows * (TILE + PADDING[1]) + rows + 1;
            let [_, kept] = kept(matrices, *heads, value_vec4s);
            2 * f16s + 4 * floats <= l.plan.device().caps().workgroup_memory && kept <= MOST
        };
        let heads = (1..=self.heads_together(HEADS)).rev().find(fits)?;
        Some((matrices, self.heads_together(heads)))
    }

    pub(super) fn lower_cooperative(
        &self,
        l: &mut Lower<'_>,
        value_vec4s: Range<u32>,
        (matrices, heads): (Matrices, u32),
    ) -> Lowered {
        let mut kernel = l.kernel(kernels::ATTEND_COOPERATIVE);
        matrices.lower(&mut kernel);
        kernel.set("THREADS", matrices.threads);
        kernel.set("GROUP_HEADS", heads);
        let [each, kept] = kept(matrices, heads, &value_vec4s);
        kernel.set("EACH", each);
        kernel.set("KEPT", kept);
        kernel.set("TURNS", (4 * heads * matrices.side).div_ceil(matrices.threads));
        let groups = self.kv_heads * (self.heads / self.kv_heads).div_ceil(heads);
        let mut args = self.bind(l, &mut kernel, &value_vec4s);
        self.bind_kv(l, &mut kernel, &mut args)?;
        let tiles = Dim::Tiles(matrices.side);
        l.plan.dispatch(&kernel, &self.params(l), &args, [Dim::Fixed(groups), tiles, Dim::Fixed(1)])
    }
}
