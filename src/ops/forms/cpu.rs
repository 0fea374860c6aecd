//! What a CPU form is given: the step's rows, the buffers, the weights, and which share of the work it does.
//!
//! An op is called once for each of its shares of the rows or columns, by several threads at the same time. The next op begins
//! when all shares are complete.

use crate::cpu::{Cache, Pages, Share, Shared};
use crate::ops::weights::{CpuWeights, WeightView};
use crate::ops::{CacheId, RowEntry, Rows, SeqEntry, ValueId, VectorId, WeightId};
use crate::quant::Simd;

/// The rows of one phase in a step, as ops read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRows<'a> {
    pub(crate) rows: &'a [RowEntry],
    pub(crate) seqs: &'a [SeqEntry],
    /// The row of each output row.
    pub(crate) outs: &'a [u32],
    /// For each group, (seqs, table_stride) block ids.
    pub(crate) tables: &'a [Vec<u32>],
    pub(crate) table_stride: usize,
    /// For each rope table, (rows, pairs) of (cosine, sine).
    pub(crate) angles: &'a [Vec<[f32; 2]>],
    /// Positions in a block.
    pub(crate) block: usize,
    /// The rows are those of decode.
    pub(crate) decode: bool,
}

impl StepRows<'_> {
    /// The (block, slot) of a position of a sequence.
    pub(crate) fn kv_slot(&self, group: usize, seq: usize, pos: usize) -> (usize, usize) {
        (self.tables[group][seq * self.table_stride + pos / self.block] as usize, pos % self.block)
    }
}

/// Everything that a CPU form works with.
pub(crate) struct CpuRun<'a> {
    pub(crate) share: Share,
    pub(crate) step: &'a StepRows<'a>,
    pub(crate) weights: &'a CpuWeights,
    /// The buffer of each value; values that are not alive together may have the same.
    pub(crate) values: &'a [Shared<f32>],
    /// For each value, its buffer and what its rows stand for.
    pub(crate) places: &'a [Place],
    pub(crate) caches: &'a [Cache],
    /// Activations are rounded to int8 where a block format multiplies integers, by these instructions.
    pub(crate) int8: Option<Simd>,
    /// This thread's own memory, as large as [`Op::cpu_scratch`](crate::ops::Op::cpu_scratch) asked for.
    pub(crate) scratch: &'a Shared<f32>,
    pub(crate) scratch_len: usize,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) buffer: usize,
    pub(crate) rows: Rows,
}

impl<'a> CpuRun<'a> {
    pub(in crate::ops) fn value(&self, id: ValueId) -> &'a Shared<f32> {
        &self.values[self.places[id.index()].buffer]
    }

    /// Rows of a value in this step.
    pub(in crate::ops) fn rows(&self, id: ValueId) -> usize {
        match self.places[id.index()].rows {
            Rows::Step => self.step.rows.len(),
            Rows::Outs => self.step.outs.len(),
            Rows::Seqs => self.step.seqs.len(),
        }
    }

    pub(crate) fn weight(&self, id: WeightId) -> WeightView<'a> {
        self.weights.matrices[id.index()].view()
    }

    pub(in crate::ops) fn vector(&self, id: VectorId) -> &'a [f32] {
        &self.weights.vectors[id.index()]
    }

    pub(in crate::ops) fn cache(&self, id: CacheId) -> &'a Pages {
        match &self.caches[id.index()] {
            Cache::Pages(pages) => pages,
            Cache::State(_) => panic!("the program was checked: an op that needs pages has them"),
        }
    }

    /// `len` elements of the state of a slot, from element `start` on: only this share's until the op is complete.
    #[allow(clippy::mut_from_ref, reason = "shares take disjoint parts")]
    pub(in crate::ops) fn state(&self, id: CacheId, slot: u32, start: usize, len: usize) -> &'a mut [f32] {
        match &self.caches[id.index()] {
            Cache::State(state) => state.part(slot as usize, start, len),
            Cache::Pages(_) => panic!("the program was checked: an op that needs a state has it"),
        }
    }

    /// This thread's own memory. What another share of the same op left is still there if the share says [`Share::again`].
    #[allow(clippy::mut_from_ref, reason = "an op takes it once")]
    pub(crate) fn scratch(&self) -> &'a mut [f32] {
        let start = self.share.thread * self.scratch_len;
        self.scratch.slice_mut(start..start + self.scratch_len)
    }
}
