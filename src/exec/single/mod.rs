//! Single ops on a caller's buffers: for programs with a wgpu device of their own that want a kernel, not an engine.
//!
//! ```no_run
//! # async fn f(device: wgslm::gpu::Device, x: wgslm::gpu::Buffer) -> wgslm::Result<()> {
//! use wgslm::exec::single::{StepLimits, Rotation, Single, StepBuffer};
//! use wgslm::ops::{Op, Pairing, Rope, RopeSpec};
//!
//! // 8 heads of 64 elements in 5 rows, which stand at positions 100 to 104 of a sequence.
//! let step = StepBuffer::new(&device, StepLimits { rows: 16, ..StepLimits::default() })?;
//! let counts = step.write_run(&device, 5, 100, &[])?;
//! let mut pipelines = wgslm::gpu::Pipelines::new(&device);
//! let mut single = Single::new(&mut pipelines, &step);
//! let x = single.value(&x, 8 * 64)?;
//! let table = single.rotation(Rotation::Power { theta: 10_000.0, dims: 64, scale: 1.0, factor: 1.0 })?;
//! let spec = RopeSpec { table, pairing: Pairing::Neox, dims: 64 };
//! single.add(Op::Rope(Rope { x, heads: 8, head_dim: 64, spec, out: x }))?;
//! single.finish()?.submit(&device, counts);
//! # Ok(()) }
//! ```

mod rotation;
mod step_buffer;

pub use rotation::Rotation;
pub use step_buffer::{RowPos, StepBuffer, StepLimits};

use crate::gpu::{Buffer, Pipelines, Plan, PlanBuilder};
use crate::ops::check::Shapes;
use crate::ops::lower::{
    Angles, CacheBuffer, KernelTuning, Lower, MAX_ROWS, Matrix, Switches, ValueBuffer, WeightRows,
};
use crate::ops::matmul::int8_row_bytes;
use crate::ops::operation::PageHeads;
use crate::ops::{
    Attend, CacheId, CacheShape, Kv, KvLayout, Mask, Op, Operand, RopeId, Rows, ValueId, VectorId, WeightId,
};
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// Collects ops, each on buffers of the caller's, and makes a plan of them.
///
/// What can be added: [`Linear`](crate::ops::Linear) as it is before fusing, [`Norm`](crate::ops::Norm),
/// [`Rope`](crate::ops::Rope), [`KvWrite`](crate::ops::KvWrite), [`RopeKv`](crate::ops::RopeKv),
/// [`Pointwise`](crate::ops::Pointwise), [`Slice`](crate::ops::Slice), [`Attend`]. They run in the order in which they were
/// added.
#[derive(Debug)]
pub struct Single<'a> {
    pipelines: &'a mut Pipelines,
    step: &'a StepBuffer,
    values: Vec<ValueBuffer>,
    vectors: Option<Buffer>,
    vector_lens: Vec<u32>,
    vector_at: Vec<u32>,
    matrices: Vec<Matrix>,
    weights: Vec<Buffer>,
    /// Rows and columns of each matrix.
    sizes: Vec<(u32, u32)>,
    caches: Vec<CacheBuffer>,
    angles: Vec<Angles>,
    pairs: Vec<usize>,
    ops: Vec<Op>,
    decode: bool,
    fast: bool,
    v1: bool,
    search: bool,
}

impl<'a> Single<'a> {
    /// No ops yet, on the rows of `step`.
    pub fn new(pipelines: &'a mut Pipelines, step: &'a StepBuffer) -> Self {
        let (values, caches, angles, ops) = Default::default();
        let (vectors, vector_lens, vector_at, pairs) = Default::default();
        let (matrices, weights, sizes) = Default::default();
        Self {
            pipelines,
            step,
            values,
            vectors,
            vector_lens,
            vector_at,
            matrices,
            weights,
            sizes,
            caches,
            angles,
            pairs,
            ops,
            decode: false,
            fast: false,
            v1: false,
            search: false,
        }
    }

    /// Attention and matmul take each row by itself, as decoding does; without this, they take tiles of consecutive rows.
    pub fn by_rows(&mut self) {
        self.decode = true;
    }

    /// Matmul and attention by tiles use the device's best variant, in int8 or f16; without this, f32.
    pub fn fast(&mut self) {
        self.fast = true;
    }

    /// Attention takes each row by itself and keeps its scores in workgroup memory, as vLLM's V1 does: over vectorised
    /// caches, for as many positions as that memory has capacity for.
    pub fn v1(&mut self) {
        self.v1 = true;
    }

    /// Attention finds the sequence of a row, or of a tile of rows, by a binary search over the sequences' first rows.
    /// Without this, it looks the sequence up in a list that the host made. The bits are the same.
    pub fn search(&mut self) {
        self.search = true;
    }

    /// The blocks that scores are kept of, in V1.
    fn v1_blocks(&self) -> Option<u32> {
        self.v1.then_some(self.step.limits.blocks)
    }

    /// A value: a row of `width` f32 for each row of the step, rows as far apart as `width` rounded up to 4.
    pub fn value(&mut self, buffer: &Buffer, width: u32) -> Result<ValueId> {
        let bytes = u64::from(width.next_multiple_of(4)) * 4 * u64::from(self.step.limits.rows);
        self.holds("a value", buffer, bytes)?;
        self.values.push(ValueBuffer { buffer: buffer.clone(), width, rows: Rows::Step });
        Ok(ValueId(self.values.len() as u32 - 1))
    }

    /// Vectors of weights, f32, contiguous in one buffer, each from a multiple of four elements on.
    pub fn vectors(&mut self, buffer: &Buffer, lens: &[u32]) -> Result<Vec<VectorId>> {
        let bytes = lens.iter().map(|&n| u64::from(n.next_multiple_of(4)) * 4).sum();
        self.holds("vectors", buffer, bytes)?;
        self.vectors = Some(buffer.clone());
        self.vector_lens = lens.to_vec();
        let from = |next: &mut u32, &n: &u32| {
            *next += n.next_multiple_of(4);
            Some(*next - n.next_multiple_of(4))
        };
        self.vector_at = lens.iter().scan(0, from).collect();
        Ok((0..lens.len() as u32).map(VectorId).collect())
    }

    /// A matrix of `n` rows of `k` weights in a buffer, each row as [`BlockFormat::repack_row`] makes it of a file's.
    pub fn matrix(&mut self, buffer: &Buffer, format: BlockFormat, n: u32, k: u32) -> Result<WeightId> {
        if n == 0 || n > MAX_ROWS {
            return Err(Error::argument(
                "a matrix",
                format!("{n} rows; 1 to {MAX_ROWS} work, more in several matrices"),
            ));
        }
        self.holds("a matrix", buffer, u64::from(format.gpu_row_words(u64::from(k))?) * 4 * u64::from(n))?;
        let piece = WeightRows { buffer: self.weights.len(), at: 0, row: 0, n };
        self.matrices.push(Matrix { format, pieces: vec![piece] });
        self.weights.push(buffer.clone());
        self.sizes.push((n, k));
        Ok(WeightId(self.sizes.len() as u32 - 1))
    }

    /// A cache of keys and values.
    pub fn cache(&mut self, buffer: &Buffer, shape: CacheShape) -> Result<CacheId> {
        shape.check()?;
        self.holds("a cache", buffer, shape.bytes())?;
        let limits = &self.step.limits;
        if shape.layout == KvLayout::Contiguous && limits.seqs > shape.blocks {
            let problem = format!("{} sequences in a step, the cache has {}", limits.seqs, shape.blocks);
            return Err(Error::argument("cache", problem));
        }
        if let Some(positions) = limits.positions() {
            let fits = match shape.layout {
                KvLayout::Contiguous => positions <= shape.slots,
                KvLayout::Paged | KvLayout::Vectorised => limits.slots == shape.slots && limits.blocks > 0,
            };
            if !fits {
                let problem =
                    format!("blocks of {} positions, the step has {} of {}", shape.slots, limits.blocks, limits.slots);
                return Err(Error::argument("cache", problem));
            }
        }
        self.caches.push(CacheBuffer { buffer: buffer.clone(), shape, group: 0, state: 0 });
        Ok(CacheId(self.caches.len() as u32 - 1))
    }

    /// Angles for a [`RopeSpec`](crate::ops::RopeSpec).
    pub fn rotation(&mut self, rotation: Rotation<'_>) -> Result<RopeId> {
        let device = self.pipelines.device().clone();
        let (angles, pairs) = rotation.angles(&device, &self.step.buffer)?;
        if let Rotation::Host { angles, pairs } = rotation {
            self.holds("angles", angles, u64::from(pairs) * 8 * u64::from(self.step.limits.rows))?;
        }
        self.angles.push(angles);
        self.pairs.push(pairs);
        Ok(RopeId(self.angles.len() as u32 - 1))
    }

    /// Adds an op. Fails, with nothing added, if its operands do not fit each other, or if it needs more than buffers.
    pub fn add(&mut self, op: Op) -> Result<()> {
        let fits =
            matches!(op, Op::Norm(_) | Op::Rope(_) | Op::KvWrite(_) | Op::RopeKv(_) | Op::Pointwise(_) | Op::Slice(_));
        let plain = matches!(&op, Op::Linear(linear) if linear.is_canonical());
        if !fits && !plain && !matches!(op, Op::Attend(_)) {
            return Err(Error::unsupported(
                format!("{} as a single op", op.name()),
                "an executor runs it in a program",
            ));
        }
        self.known(&op)?;
        op.check(&Shapes {
            width: &|id| self.values[id.index()].width,
            matrix: &|id| self.sizes[id.index()],
            vector: &|id| self.vector_lens[id.index()],
            pairs: &|id| self.pairs[id.index()],
            state: &|_| 0,
        })?;
        self.ops.push(op);
        Ok(())
    }

    /// Fails if an op names something that is not there, or a cache of another shape.
    fn known(&self, op: &Op) -> Result<()> {
        let there = |what: &str, index: usize, count: usize| match index < count {
            true => Ok(()),
            false => Err(Error::argument(op.name(), format!("{what} {index} of {count}"))),
        };
        let mut known = Ok(());
        op.operands(&mut |_, operand| {
            let (what, index, count) = match operand {
                Operand::Value(id) => ("value", id.index(), self.values.len()),
                Operand::Weight(id) => ("matrix", id.index(), self.sizes.len()),
                Operand::Vector(id) => ("vector", id.index(), self.vector_lens.len()),
                Operand::Rope(id) => ("rotation", id.index(), self.pairs.len()),
                Operand::Cache(id) => ("cache", id.index(), self.caches.len()),
            };
            if known.is_ok() {
                known = there(what, index, count);
            }
        });
        known?;
        // A buffer cannot be bound for reading and for writing at once; a rope may have one value for both.
        let mut overlap = false;
        if let Some(out) = op.writes() {
            let own = &self.values[out.index()].buffer;
            op.reads(&mut |id| {
                let in_place = id == out && matches!(op, Op::Rope(_));
                overlap |= !in_place && self.values[id.index()].buffer.is(own);
            });
        }
        if overlap {
            return Err(Error::argument(op.name(), "out lies in the buffer of an operand"));
        }
        if let Op::Attend(Attend { mask, kv, .. }) = op {
            let causal = matches!(mask, Mask::Causal | Mask::Window(_)) && matches!(kv, Kv::Cache(_)) && !self.v1;
            if self.step.limits.tree && !causal {
                return Err(Error::unsupported(
                    "drafts of a tree in V1, among a step's rows or with rows past a position",
                    "attention over a cache, causal or with a window, takes them",
                ));
            }
            if self.step.limits.split_kv && !matches!(mask, Mask::Causal | Mask::Window(_)) {
                return Err(Error::unsupported(
                    "KV splits of rows that see rows after them",
                    "a step without `StepLimits::split_kv` takes them whole",
                ));
            }
            let in_order = matches!(kv, Kv::Packed { .. }) || self.search || !(self.decode || self.v1);
            if self.step.limits.any_order && in_order {
                return Err(Error::unsupported(
                    "attention of rows in any order, in tiles, by search or over themselves",
                    "`Single::by_rows` over a cache takes them",
                ));
            }
            op.on_gpu()?;
        }
        let mut cached = false;
        op.operands(&mut |_, operand| cached |= matches!(operand, Operand::Cache(_)));
        if cached && op.pages().is_none() {
            return Err(Error::unsupported(format!("{} over a cache, as a single op", op.name()), "a program runs it"));
        }
        if let Some(PageHeads { cache, kv_heads, k_dim, v_dim }) = op.pages() {
            let shape = &self.caches[cache.index()].shape;
            if (shape.kv_heads, shape.k_dim, shape.v_dim) != (kv_heads, k_dim, v_dim) {
                let problem = format!(
                    "{kv_heads} heads of {k_dim} and {v_dim} elements, but the cache has {} of {} and {}",
                    shape.kv_heads, shape.k_dim, shape.v_dim
                );
                return Err(Error::argument(op.name(), problem));
            }
            if self.step.limits.any_order && shape.layout == KvLayout::Vectorised && !matches!(op, Op::Attend(_)) {
                return Err(Error::unsupported(
                    "rows in any order that go to a vectorised cache",
                    "a paged one takes them",
                ));
            }
            if let (Op::Attend(op), Some(blocks)) = (op, self.v1_blocks()) {
                let caps = self.pipelines.device().caps();
                op.v1_scores(shape, blocks, &KernelTuning::exact(caps), caps)?;
            }
        }
        Ok(())
    }

    /// The plan: its dispatches in order, to be submitted as often as the buffers change.
    pub fn finish(self) -> Result<Plan> {
        // V1, which supports less, may have been chosen after an op was added.
        self.ops.iter().try_for_each(|op| self.known(op))?;
        let step = &self.step.buffer;
        let caps = self.pipelines.device().caps();
        let tuning = if self.fast { KernelTuning::fast(caps) } else { KernelTuning::exact(caps) };
        let switches = Switches { pos_ids: self.step.limits.pos_ids, search: self.search, v1: self.v1_blocks() };
        let split_bytes = self.ops.iter().map(|op| op.gpu_needs().kv_split);
        let limits = &self.step.limits;
        let partials = if self.decode && !self.v1 { u64::from(limits.work_limits().splits) } else { 0 };
        let partials = partials * split_bytes.max().unwrap_or(0);
        let widest = self.sizes.iter().map(|&(_, k)| k).max().filter(|_| self.fast).unwrap_or(0);
        let int8_rows = int8_row_bytes(widest) * u64::from(self.step.limits.rows);
        // Something must be bound.
        let [partials, int8_rows] = [("partials", partials), ("int8_rows", int8_rows)]
            .map(|(name, bytes)| Buffer::new(self.pipelines.device(), name, bytes.max(16)));
        let (partials, int8_rows) = (partials?, int8_rows?);
        self.holds("partial results of attention", &partials, 0)?;
        self.holds("rows in int8", &int8_rows, 0)?;
        let mut lower = Lower {
            plan: PlanBuilder::new(self.pipelines),
            layout: self.step.layout,
            tuning,
            switches,
            values: &self.values,
            matrices: &self.matrices,
            weights: &self.weights,
            vectors: self.vectors.as_ref().unwrap_or(step),
            vector_at: &self.vector_at,
            bias_at: &|parts| parts[0].bias.map(|bias| self.vector_at[bias.index()]),
            caches: &self.caches,
            step,
            angles: &self.angles,
            decode: self.decode,
            scratch: step,
            sorted: None,
            int8_rows: &int8_rows,
            quantized: None,
            sampled: step,
            partials: &partials,
        };
        for op in &self.ops {
            op.lower(&mut lower)?;
            // Unlike in a program, a value may be written again, or lie in the buffer of another.
            lower.quantized = None;
        }
        lower.plan.finish()
    }

    /// Fails unless a buffer holds so many bytes, and a binding too.
    fn holds(&self, what: &str, buffer: &Buffer, bytes: u64) -> Result<()> {
        if buffer.size() < bytes {
            let problem = format!("{bytes} bytes are needed, the buffer has {}", buffer.size());
            return Err(Error::argument(what, problem));
        }
        let most = self.pipelines.device().caps().max_binding;
        if buffer.size() > most {
            return Err(Error::Limit {
                what: what.to_owned(),
                needed: format!("{} bytes", buffer.size()),
                available: format!("{most} in one binding on this device"),
                instead: "fewer rows a step, several buffers".to_owned(),
            });
        }
        Ok(())
    }
}
