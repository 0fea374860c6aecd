//! What an op's GPU lowering works with: buffers for its operands, and the plan that it adds dispatches to.

use crate::gpu::compose::lib;
use crate::gpu::{
    Arg, Buffer, Caps, Dim, Fragment, Kernel, KernelSource, Matmul, MatmulTuning, Matrices, Matvec, PlanBuilder, Tuning,
};
use crate::ops::{
    CacheId, CacheShape, KvLayout, KvStorage, RopeId, RopeSpec, Rows, StepLayout, ValueId, VectorId, WeightId,
};
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
    pub(crate) pieces: Vec<WeightRows>,
}

/// The most rows of a matrix in a buffer: a dispatch of four rows a workgroup (two pairs, gated) stays below 65,535 workgroups.
pub(crate) const MAX_ROWS: u32 = 131_072;

/// Consecutive rows of a matrix in a buffer.
#[derive(Clone, Debug)]
pub(crate) struct WeightRows {
    /// Which of the executor's weight buffers.
    pub(crate) buffer: usize,
    /// The first row's place in the buffer, in rows.
    pub(crate) at: u32,
    /// The first row's number in the matrix.
    pub(crate) row: u32,
    /// Rows.
    pub(crate) n: u32,
}

/// A cache's buffer: of pages, or of states.
#[derive(Clone, Debug)]
pub(crate) struct CacheBuffer {
    pub(crate) buffer: Buffer,
    pub(crate) shape: CacheShape,
    /// The group whose block tables say which block holds which positions.
    pub(crate) group: u32,
    /// Elements of a state; 0 if it holds pages.
    pub(crate) state: u32,
}

/// A rope table's angles on the GPU.
#[derive(Clone, Debug)]
pub(crate) struct Angles {
    pub(crate) buffer: Buffer,
    /// The byte of `buffer` where they begin.
    pub(crate) at: u64,
    pub(crate) source: AngleSource,
}

/// Where cosines and sines come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AngleSource {
    /// The host, for each row.
    Host,
    /// Computed from positions and a table of revolutions per position; `factor` multiplies both.
    Turns { factor: f32 },
    /// Computed from positions alone, at `freq_scale / 2π * theta^(-2i/dims)` revolutions per position for pair i.
    Power { factor: f32, theta: f64, freq_scale: f64 },
}

/// What the kernels of an executor are tuned by, on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelTuning {
    /// Reductions use subgroups.
    pub(crate) subgroups: bool,
    /// The smallest subgroup that there may be.
    pub(crate) subgroup_min: u32,
    /// The device's table, with the matmul variant of each block format.
    pub(crate) table: Tuning,
    /// The cooperative matrices of the device, if it has any.
    pub(crate) matrices: Option<Matrices>,
    /// Those of attention, which takes them wherever they fit.
    pub(crate) attend_matrices: Option<Matrices>,
}

impl KernelTuning {
    /// The variants that compute in f32.
    pub(crate) fn exact(caps: &Caps) -> Self {
        Self {
            subgroups: caps.subgroups.is_some(),
            subgroup_min: caps.subgroups.map_or(4, |(least, _)| least.max(1)),
            table: caps.tuning.with_matmul(|_, _| Matmul::Registers).with_matvec(|_, _| Matvec::Registers),
            matrices: caps.cooperative,
            attend_matrices: None,
        }
    }

    /// The variants that are fastest on the device, in int8 or f16 where that pays.
    pub(crate) fn fast(caps: &Caps) -> Self {
        Self { table: caps.fast(), attend_matrices: caps.attend_matrices(), ..Self::exact(caps) }
    }
}

/// How kernels find what they work on, where there is a choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switches {
    /// Rows have positions of their own; else they are one sequence's, from the step's first position on.
    pub(crate) pos_ids: bool,
    /// Tiles of rows search for their sequence instead of looking it up.
    pub(crate) search: bool,
    /// Attention keeps all scores of a row in workgroup memory (V1): of the positions in so many blocks.
    pub(crate) v1: Option<u32>,
}

/// The lowering of one program.
pub(crate) struct Lower<'a> {
    pub(crate) plan: PlanBuilder<'a>,
    pub(crate) layout: StepLayout,
    pub(crate) tuning: KernelTuning,
    pub(crate) switches: Switches,
    pub(crate) values: &'a [ValueBuffer],
    pub(crate) matrices: &'a [Matrix],
    pub(crate) weights: &'a [Buffer],
    pub(crate) vectors: &'a Buffer,
    /// The element of `vectors` where each vector lies; a multiple of 4.
    pub(crate) vector_at: &'a [u32],
    /// The element of `vectors` where the biases of a list of parts are contiguous.
    pub(crate) bias_at: &'a dyn Fn(&[crate::ops::Part]) -> Option<u32>,
    pub(crate) caches: &'a [CacheBuffer],
    pub(crate) step: &'a Buffer,
    /// One for each rope table.
    pub(crate) angles: &'a [Angles],
    /// The rows are those of decode: mat-vec kernels.
    pub(crate) decode: bool,
    /// What an op's kernels pass to each other.
    pub(crate) scratch: &'a Buffer,
    /// The chosen experts whose pairs lie sorted in `scratch`.
    pub(crate) sorted: Option<ValueId>,
    /// Rows of x as int8.
    pub(crate) int8_rows: &'a Buffer,
    /// The value whose rows lie there, and the weight of a norm that they were multiplied by.
    pub(crate) quantized: Option<(ValueId, Option<VectorId>)>,
    /// The tokens sampled last, by slot and position.
    pub(crate) sampled: &'a Buffer,
    /// Partial results of attention's KV splits, until they are reduced.
    pub(crate) partials: &'a Buffer,
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
        id.map_or(Arg::read(self.step), |id| {
            let angles = &self.angles[id.index()];
            Arg::Read(&angles.buffer, angles.at)
        })
    }

    /// Sets the overrides of a kernel that rotates.
    pub(crate) fn rope(&self, kernel: &mut Kernel, spec: Option<&RopeSpec>) {
        let dims = spec.map_or(0, |s| s.dims);
        let neox = spec.is_some_and(|s| s.pairing == crate::ops::Pairing::Neox);
        kernel.set("ROPE_DIMS", dims);
        kernel.set("NEOX", neox);
    }

    /// Fills the slot `angles`: where cosines and sines come from.
    pub(crate) fn angle_source(&self, kernel: &mut Kernel, spec: Option<&RopeSpec>) {
        let source = spec.map_or(AngleSource::Host, |s| self.angles[s.table.index()].source);
        let (fragment, factor) = match source {
            AngleSource::Host => (lib::ANGLES_TABLE, 1.0),
            AngleSource::Turns { factor } | AngleSource::Power { factor, .. } => (lib::ANGLES_COMPUTED, factor),
        };
        kernel.fill("angles", fragment);
        if source != AngleSource::Host {
            kernel.set("ROPE_FACTOR", factor);
        }
        if let (AngleSource::Power { theta, freq_scale, .. }, Some(spec)) = (source, spec) {
            // A logarithm to base 2 in two words, since pair * step must keep 26 bits after the binary point.
            let step = theta.log2() * 2.0 / f64::from(spec.dims) * f64::from(1 << 26);
            let low = ((step - step.floor()) * f64::from(1 << 24)).floor();
            let revolutions = (freq_scale / std::f64::consts::TAU * (1u64 << 32) as f64).floor();
            kernel.set("POW", true);
            kernel.set("ROPE_STEP", step as u32);
            kernel.set("ROPE_STEP_LOW", low as u32);
            kernel.set("ROPE_REVOLUTIONS", revolutions as u32);
        }
    }

    /// A kernel with the overrides of all that read the step's buffer.
    pub(crate) fn kernel(&self, source: KernelSource) -> Kernel {
        let mut kernel = source.kernel();
        if kernel.uses(lib::BATCH) {
            kernel.set("BATCH_SEQS", self.layout.seqs);
            kernel.set("BATCH_OUTS", self.layout.outs);
            kernel.set("BATCH_TABLES", self.layout.tables);
            kernel.set("POS_IDS", self.switches.pos_ids);
        }
        kernel
    }

    /// The tuning of matmuls with weights of a format.
    pub(crate) fn matmul(&self, format: BlockFormat) -> &MatmulTuning {
        self.tuning.table.matmul(format)
    }

    /// Fills the slot `reduce`: how a workgroup of `threads` adds up.
    pub(crate) fn reduce(&self, kernel: &mut Kernel, threads: u32) {
        let fragment = if self.tuning.subgroups { lib::REDUCE_SUBGROUP } else { lib::REDUCE };
        kernel.fill("reduce", fragment);
        kernel.set("WG", threads);
    }

    /// Fills the slot `sums`: how a workgroup of `threads` adds up so many sums at once.
    pub(crate) fn sums(&self, kernel: &mut Kernel, threads: u32, sums: u32) {
        let (mut fragment, mut parts) = (lib::SUMS, threads);
        if self.tuning.subgroups {
            let least = self.tuning.subgroup_min;
            (fragment, parts) = (lib::SUMS_SUBGROUP, (threads / least).max(1));
            kernel.set("SUBGROUP_MIN", least);
        }
        kernel.fill("sums", fragment);
        kernel.set("WG", threads);
        kernel.set("PARTIALS", parts * sums);
    }

    /// Fills the slot `exchange`: how threads of a workgroup learn sums and maxima from one another.
    pub(crate) fn exchange(&self, kernel: &mut Kernel) {
        if self.tuning.subgroups {
            kernel.set("SUBGROUP_MIN", self.tuning.subgroup_min);
        }
        kernel.fill("exchange", if self.tuning.subgroups { lib::EXCHANGE_SUBGROUP } else { lib::EXCHANGE });
    }

    /// Sets the overrides of a cache's layout, and fills the slot `cache` with it where a kernel has that.
    pub(crate) fn paged(&self, kernel: &mut Kernel, cache: &CacheBuffer) -> Lowered {
        let shape = &cache.shape;
        kernel.set("PAGE_SLOTS", shape.slots);
        kernel.set("PAGE_TABLE", cache.group * self.layout.table_words);
        kernel.set("PAGE_TABLES", shape.layout != KvLayout::Contiguous);
        kernel.set("PAGE_BLOCKS", shape.blocks);
        kernel.set("PAGE_EXTRA", shape.extra());
        kernel.set("KV_HEADS", shape.kv_heads);
        kernel.set("K_DIM", shape.padded_k());
        kernel.set("V_DIM", shape.padded_v());
        let vectorised = shape.layout == KvLayout::Vectorised;
        if kernel.has_slot("cache") {
            kernel.fill("cache", if vectorised { lib::VECTORISED } else { lib::PAGED });
        } else if vectorised && !kernel.uses(lib::VECTORISED) {
            return Err(no_kernel(&format!("{} with a vectorised cache", kernel.name)));
        }
        Ok(())
    }

    /// Fills the slot `kv` (`kv_cache`): how KV elements are loaded.
    pub(crate) fn kv_load(&self, kernel: &mut Kernel, cache: &CacheBuffer) {
        let fragment = match cache.shape.storage {
            KvStorage::F32 => lib::KV_F32,
            KvStorage::F16 => lib::KV_F16,
            KvStorage::Q8 => lib::KV_Q8,
        };
        kernel.fill(if kernel.has_slot("kv_cache") { "kv_cache" } else { "kv" }, fragment);
    }

    /// Fills the slot `kv_store` (`head_store`): how KV elements are stored.
    pub(crate) fn kv_store(&self, kernel: &mut Kernel, cache: &CacheBuffer) -> Lowered {
        let whole_heads = kernel.has_slot("head_store");
        let fragment = match cache.shape.storage {
            KvStorage::F32 => lib::KV_STORE_F32,
            KvStorage::F16 => lib::KV_STORE_F16,
            KvStorage::Q8 if whole_heads => lib::KV_STORE_Q8,
            KvStorage::Q8 => return Err(no_kernel(&format!("{} with an 8-bit cache", kernel.name))),
        };
        kernel.fill(if whole_heads { "head_store" } else { "kv_store" }, fragment);
        Ok(())
    }
}

/// Fills the slot `weights` (`ints`): how a block format is decoded.
pub(crate) fn weights(kernel: &mut Kernel, format: BlockFormat) {
    let info = format.info();
    let slot = if kernel.has_slot("ints") { "ints" } else { "weights" };
    kernel.fill(slot, Fragment { name: info.name, source: info.wgsl });
}

/// The error for an op, or a variant of it, that has no kernel yet.
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
