//! What an op's GPU lowering works with: buffers for its operands, and the plan that it adds dispatches to.

use super::{CacheId, RopeId, Rows, ValueId, VectorId, WeightId};
use crate::gpu::compose::lib;
use crate::gpu::{Arg, Buffer, Dim, Fragment, Kernel, PlanBuilder};
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// A value's buffer. Rows are `stride` elements apart: the width, rounded up to 4 so that kernels load `vec4<f32>`.
#[derive(Clone, Debug)]
pub(crate) struct ValueBuffer {
    pub(crate) buffer: Buffer,
    pub(crate) width: u32,
    /// What its rows stand for.
    pub(crate) rows: Rows,
}

impl ValueBuffer {
    pub(crate) fn stride(&self) -> u32 {
        self.width.next_multiple_of(4)
    }

    /// The word of the step buffer that counts its rows.
    pub(crate) fn rows_at(&self) -> u32 {
        match self.rows {
            Rows::Step => 0,
            Rows::Seqs => 1,
            Rows::Outs => 2,
        }
    }

    /// Workgroups, if each takes `per` rows.
    pub(crate) fn rows(&self, per: u32) -> Dim {
        match self.rows {
            Rows::Step => Dim::Rows(per),
            Rows::Seqs => Dim::Seqs(per),
            Rows::Outs => Dim::Outs(per),
        }
    }
}

/// Where a matrix lies: some rows of one buffer, or, past a binding's limit, of several.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) format: BlockFormat,
    pub(crate) pieces: Vec<Piece>,
}

/// Consecutive rows of a matrix in a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Which of the executor's weight buffers.
    pub(crate) buffer: usize,
    /// The first row's place in the buffer, in rows.
    pub(crate) at: u32,
    /// The first row's number in the matrix.
    pub(crate) row: u32,
    /// Rows.
    pub(crate) n: u32,
}

/// A cache's buffer.
#[derive(Clone, Debug)]
pub(crate) struct CacheBuffer {
    pub(crate) buffer: Buffer,
    pub(crate) kv_heads: u32,
    pub(crate) k_dim: u32,
    pub(crate) v_dim: u32,
    pub(crate) group: u32,
    pub(crate) blocks: u32,
}

/// How the step buffer is laid out, and what holds for all kernels of an executor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Word of the first sequence.
    pub(crate) seqs: u32,
    /// Word of the first output.
    pub(crate) outs: u32,
    /// Word of the first block table.
    pub(crate) tables: u32,
    /// Words of all block tables of a group.
    pub(crate) table_words: u32,
    /// Positions in a block.
    pub(crate) block: u32,
    /// KV elements are f16.
    pub(crate) f16: bool,
    /// Reductions use subgroups.
    pub(crate) subgroups: bool,
    /// Threads of a workgroup that reduces.
    pub(crate) reduce: u32,
}

/// The lowering of one program.
pub(crate) struct Lower<'a> {
    pub(crate) plan: PlanBuilder<'a>,
    pub(crate) layout: Layout,
    pub(crate) values: &'a [ValueBuffer],
    pub(crate) matrices: &'a [Matrix],
    pub(crate) weights: &'a [Buffer],
    pub(crate) vectors: &'a Buffer,
    /// The element of `vectors` where each vector lies; a multiple of 4.
    pub(crate) vector_at: &'a [u32],
    /// The element of `vectors` where the biases of a list of parts lie one behind the other.
    pub(crate) bias_at: &'a dyn Fn(&[super::Part]) -> Option<u32>,
    pub(crate) caches: &'a [CacheBuffer],
    pub(crate) step: &'a Buffer,
    pub(crate) angles: &'a Buffer,
    /// The byte of `angles` where each table begins.
    pub(crate) angles_at: &'a [u64],
    /// The rows are generated ones: matrix times vector.
    pub(crate) generated: bool,
    /// The token drawn last, by slot.
    pub(crate) drawn: &'a Buffer,
}

impl<'a> Lower<'a> {
    pub(crate) fn value(&self, id: ValueId) -> &'a ValueBuffer {
        &self.values[id.index()]
    }

    pub(crate) fn matrix(&self, id: WeightId) -> &'a Matrix {
        &self.matrices[id.index()]
    }

    pub(crate) fn cache(&self, id: CacheId) -> &'a CacheBuffer {
        &self.caches[id.index()]
    }

    /// The element of `vectors` where a vector lies.
    pub(crate) fn vector(&self, id: VectorId) -> u32 {
        self.vector_at[id.index()]
    }

    /// The angles of a rope table; without one, something that can be bound.
    pub(crate) fn angles(&self, id: Option<RopeId>) -> Arg<'a> {
        Arg::Read(self.angles, id.map_or(0, |id| self.angles_at[id.index()]))
    }

    /// A kernel with the overrides that every step reader has.
    pub(crate) fn kernel(&self, name: &'static str) -> Kernel {
        let l = &self.layout;
        let source = super::kernels::source(name);
        let mut kernel = Kernel { name, source, roles: Vec::new(), overrides: Vec::new() };
        if source.contains("lib/step") {
            kernel.overrides.extend([("STEP_SEQS", f64::from(l.seqs)), ("STEP_OUTS", f64::from(l.outs))]);
            kernel.overrides.push(("STEP_TABLES", f64::from(l.tables)));
        }
        kernel
    }

    /// Fills the role `reduce`: how a workgroup of `threads` adds up.
    pub(crate) fn reduce(&self, kernel: &mut Kernel, threads: u32) {
        let fragment = if self.layout.subgroups { lib::REDUCE_SUBGROUP } else { lib::REDUCE };
        kernel.roles.push(("reduce", fragment));
        kernel.overrides.push(("WG", f64::from(threads)));
    }

    /// Sets the overrides of lib/paged for a cache.
    pub(crate) fn paged(&self, kernel: &mut Kernel, cache: &CacheBuffer) {
        kernel.overrides.extend([
            ("PAGE_SLOTS", f64::from(self.layout.block)),
            ("PAGE_TABLE", f64::from(cache.group * self.layout.table_words)),
            ("PAGE_BLOCKS", f64::from(cache.blocks)),
            ("KV_HEADS", f64::from(cache.kv_heads)),
            ("K_DIM", f64::from(cache.k_dim.next_multiple_of(4))),
            ("V_DIM", f64::from(cache.v_dim.next_multiple_of(4))),
        ]);
    }

    /// Fills the role `kv`: how KV elements are loaded.
    pub(crate) fn kv_load(&self, kernel: &mut Kernel) {
        kernel.roles.push(("kv", if self.layout.f16 { lib::KV_F16 } else { lib::KV_F32 }));
    }

    /// Fills the role `kv_store`: how KV elements are stored.
    pub(crate) fn kv_store(&self, kernel: &mut Kernel) {
        kernel.roles.push(("kv_store", if self.layout.f16 { lib::KV_STORE_F16 } else { lib::KV_STORE_F32 }));
    }
}

/// Fills the role `weights`: how a block format is decoded.
pub(crate) fn weights(kernel: &mut Kernel, format: BlockFormat) {
    let info = format.info();
    kernel.roles.push(("weights", Fragment { name: info.name, source: info.wgsl }));
}

/// An op, or a form of it, that has no kernel yet.
pub(crate) fn no_kernel(op: &str) -> Error {
    Error::unsupported(format!("{op} on the GPU"), "--device cpu runs it")
}

/// Threads of an element-wise kernel's workgroup, as its override WG has it.
pub(crate) const WIDE: u32 = 64;

/// Workgroups of element-wise kernels for n elements.
pub(crate) fn wide(n: u32) -> Dim {
    Dim::Fixed(n.div_ceil(WIDE))
}

/// The result of a lowering.
pub(crate) type Lowered = Result<()>;
