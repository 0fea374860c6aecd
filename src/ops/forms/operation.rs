//! What every op says of itself. [`Op`](crate::ops::Op) is made from the list of ops at the end of `ops/mod.rs`.

use crate::Result;
use crate::ops::check::Shapes;
use crate::ops::cpu::CpuRun;
use crate::ops::lower::{KernelTuning, Lower, Lowered};
use crate::ops::matmul::Tile;
use crate::ops::oracle::OracleRun;
use crate::ops::{CacheId, Cost, Load, Op, Part, RopeId, ValueId, VectorId, WeightId};
use crate::quant::BlockFormat;

/// What an op is, apart from how it is computed.
pub(crate) trait Operation: CpuForm + OracleForm + GpuForm {
    /// Its name everywhere: in Rust, WGSL, the profiler and the benches.
    fn name(&self) -> &'static str;

    /// Checks the op's operands against each other, before anything is lowered or run.
    fn check(&self, s: &Shapes<'_>) -> Result<()>;

    /// What distinguishes calls of it in a profile: its shape, and what `formats` makes of its matrices.
    fn shape(&self, formats: &dyn Fn(&[WeightId]) -> String) -> String {
        let _ = formats;
        String::new()
    }

    /// The pages that it reads or writes, and the heads that it takes to be there. Whoever names a cache of pages has them.
    fn pages(&self) -> Option<PageHeads> {
        None
    }

    /// The op's cost with `rows` rows. The default is for ops that read activations alone: beside a model's matrices and
    /// caches, which cost what their bytes cost, it is the dispatch that takes their time.
    fn cost(&self, load: &Load, rows: u32, format: &dyn Fn(WeightId) -> BlockFormat) -> Cost {
        let _ = (load, rows, format);
        Cost::default()
    }

    /// Whether the cost depends on where in its sequence a row stands: it must be asked for each sequence by itself.
    fn cost_depends_on_position(&self) -> bool {
        false
    }

    /// The matrices whose rows the op takes as one: they are contiguous in memory, as are their biases.
    fn stack(&self) -> Option<Stack> {
        None
    }
}

/// A cache of pages as an op takes it to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageHeads {
    pub(crate) cache: CacheId,
    pub(crate) kv_heads: u32,
    /// Elements of a key, and of a value.
    pub(crate) k_dim: u32,
    pub(crate) v_dim: u32,
}

/// The op on the CPU.
pub(crate) trait CpuForm {
    /// Does this thread's share of the op.
    fn cpu(&self, run: &CpuRun<'_>);

    /// Numbers that a thread needs as scratch memory, when the op has `rows` rows.
    fn cpu_scratch(&self, rows: usize) -> usize {
        let _ = rows;
        0
    }
}

/// The op in f64: the oracle of its tests.
pub(crate) trait OracleForm {
    /// Runs the op, as its formula says.
    fn oracle(&self, run: &mut OracleRun<'_>);
}

/// The op on the GPU.
pub(crate) trait GpuForm {
    /// Adds the op's dispatches to a plan.
    fn lower(&self, l: &mut Lower<'_>) -> Lowered;

    /// Fails, by name, if no kernel does this: known before a weight is loaded.
    fn on_gpu(&self) -> Result<()> {
        Ok(())
    }

    /// What the op needs of an executor beside its operands.
    fn gpu_needs(&self) -> GpuNeeds {
        GpuNeeds::default()
    }

    /// The tiles of its mat-mat kernel, if that is what it is computed by; `format` is the block format of a matrix.
    fn tile(&self, tuning: &KernelTuning, format: &dyn Fn(WeightId) -> BlockFormat) -> Option<Tile> {
        let _ = (tuning, format);
        None
    }
}

/// Memory that an op needs on the GPU beside its operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuNeeds {
    /// Bytes that its kernels pass to each other, whatever the number of rows.
    pub(crate) scratch: u64,
    /// The same, for each row.
    pub(crate) scratch_of_row: u64,
    /// Elements of its state, if it is recurrent.
    pub(crate) state: u64,
    /// Bytes of a row of its input in int8, where kernels take that.
    pub(crate) int8_row: u64,
    /// Bytes of one KV split of a row, until the splits are reduced.
    pub(crate) kv_split: u64,
}

impl GpuNeeds {
    /// Bytes that its kernels pass to each other, when the op has `rows` rows.
    pub(crate) fn scratch(&self, rows: u32) -> u64 {
        self.scratch + self.scratch_of_row * u64::from(rows)
    }
}

/// Matrices that are contiguous in memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stack {
    /// In their order.
    pub(crate) parts: Vec<Part>,
    /// Rows that must lie in one buffer: what a workgroup takes, or a head.
    pub(crate) unit: u32,
}

impl Stack {
    /// Rows of a matrix that a workgroup takes at least.
    pub(crate) const UNIT: u32 = 4;
}

/// What an op does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It reads it.
    Read,
    /// It writes it.
    Write,
    /// It reads and writes it: a state.
    Update,
}

impl Access {
    /// Whether the op reads what was there.
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    /// Whether the op changes what was there.
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

macro_rules! operand {
    ($($(#[$doc:meta])* $kind:ident($id:ident),)*) => {
        /// Something that an op names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operand {
            $($(#[$doc])* $kind($id),)*
        }

        /// The same, to be renamed.
        #[derive(Debug)]
        pub enum OperandMut<'a> {
            $($(#[$doc])* $kind(&'a mut $id),)*
        }

        $(
            impl From<&$id> for Operand {
                fn from(id: &$id) -> Self {
                    Self::$kind(*id)
                }
            }

            impl<'a> From<&'a mut $id> for OperandMut<'a> {
                fn from(id: &'a mut $id) -> Self {
                    Self::$kind(id)
                }
            }
        )*
    };
}

operand! {
    /// A value.
    Value(ValueId),
    /// A matrix.
    Weight(WeightId),
    /// A vector.
    Vector(VectorId),
    /// A rope table.
    Rope(RopeId),
    /// A cache: pages are read or written, a state is updated.
    Cache(CacheId),
}

/// Is called with each operand.
pub(crate) type Look<'f> = dyn FnMut(Access, Operand) + 'f;

/// Is called with each operand, and may rename it.
pub(crate) type Rename<'f> = dyn FnMut(Access, OperandMut<'_>) + 'f;

/// An op's operands: implemented by [`operands!`] for a reference (`F` = [`Look`]) and for a mutable one ([`Rename`]).
pub(crate) trait Operands<F: ?Sized> {
    /// Calls `f` with each operand, in the order of the formula; twice, if an operand stands there twice.
    fn operands(self, f: &mut F);
}

/// Enumerates the operands of an op: written once, both for reading and for renaming them.
///
/// The pattern takes the op apart; each operand is a reference, mutable or not.
macro_rules! operands {
    ($op:ident, $f:ident, $pattern:pat => $body:block) => {
        impl $crate::ops::operation::Operands<$crate::ops::operation::Look<'_>> for &$op {
            fn operands(self, $f: &mut $crate::ops::operation::Look<'_>) {
                let $pattern = self;
                $body
            }
        }

        impl $crate::ops::operation::Operands<$crate::ops::operation::Rename<'_>> for &mut $op {
            fn operands(self, $f: &mut $crate::ops::operation::Rename<'_>) {
                let $pattern = self;
                $body
            }
        }
    };
}

pub(crate) use operands;

/// Makes the enum of all ops, and whatever is the same for each of them.
macro_rules! ops {
    ($($op:ident,)*) => {
        /// One operation of a program.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each variant is documented on its type")]
        pub enum Op {
            $($op($op),)*
        }

        $(
            impl From<$op> for Op {
                fn from(op: $op) -> Self {
                    Self::$op(op)
                }
            }
        )*

        impl Op {
            pub(in crate::ops) fn operation(&self) -> &dyn $crate::ops::operation::Operation {
                match self {
                    $(Self::$op(op) => op,)*
                }
            }

            /// Calls `f` with each operand of the op.
            pub fn operands(&self, f: &mut dyn FnMut(Access, Operand)) {
                match self {
                    $(Self::$op(op) => $crate::ops::operation::Operands::operands(op, f),)*
                }
            }

            /// The same; `f` may rename them.
            pub fn operands_mut(&mut self, f: &mut dyn FnMut(Access, OperandMut<'_>)) {
                match self {
                    $(Self::$op(op) => $crate::ops::operation::Operands::operands(op, f),)*
                }
            }
        }
    };
}

pub(crate) use ops;

impl Op {
    /// Its name everywhere: in Rust, WGSL, the profiler and the benches.
    pub fn name(&self) -> &'static str {
        self.operation().name()
    }

    /// Calls `f` with each value that the op reads.
    pub fn reads(&self, f: &mut dyn FnMut(ValueId)) {
        self.operands(&mut |access, operand| match operand {
            Operand::Value(value) if access.reads() => f(value),
            _ => {}
        });
    }

    /// The value that the op writes, if it writes one (a KV write does not).
    pub fn writes(&self) -> Option<ValueId> {
        let mut written = None;
        self.operands(&mut |access, operand| match operand {
            Operand::Value(value) if access.writes() => written = Some(value),
            _ => {}
        });
        written
    }

    /// The state that the op reads and writes, if it is recurrent.
    pub fn state(&self) -> Option<CacheId> {
        let mut state = None;
        self.operands(&mut |access, operand| match operand {
            Operand::Cache(cache) if access == Access::Update => state = Some(cache),
            _ => {}
        });
        state
    }

    /// The op's cost. `rows` is the number of rows it works on, `format` the block format of a matrix.
    pub fn cost(&self, load: &Load, rows: u32, format: &dyn Fn(WeightId) -> BlockFormat) -> Cost {
        self.operation().cost(load, rows, format)
    }

    /// What distinguishes calls of it in a profile: its shape, and what `formats` makes of its matrices.
    pub fn shape(&self, formats: &dyn Fn(&[WeightId]) -> String) -> String {
        self.operation().shape(formats)
    }

    /// The pages that the op reads or writes.
    pub(crate) fn pages(&self) -> Option<PageHeads> {
        self.operation().pages()
    }

    /// Whether the cost depends on where in its sequence a row stands.
    pub(crate) fn cost_depends_on_position(&self) -> bool {
        self.operation().cost_depends_on_position()
    }

    /// Checks the op's operands.
    pub(crate) fn check(&self, s: &Shapes<'_>) -> Result<()> {
        self.operation().check(s)
    }

    /// The matrices whose rows the op takes as one.
    pub(crate) fn stack(&self) -> Option<Stack> {
        self.operation().stack()
    }

    /// Does this thread's share of the op.
    pub(crate) fn cpu(&self, run: &CpuRun<'_>) {
        self.operation().cpu(run);
    }

    /// Numbers that a thread needs as scratch memory, when the op has `rows` rows.
    pub(crate) fn cpu_scratch(&self, rows: usize) -> usize {
        self.operation().cpu_scratch(rows)
    }

    /// Runs the op in f64.
    pub(crate) fn oracle(&self, run: &mut OracleRun<'_>) {
        self.operation().oracle(run);
    }

    /// Fails, by name, if no kernel does this: known before a weight is loaded.
    pub(crate) fn on_gpu(&self) -> Result<()> {
        self.operation().on_gpu()
    }

    /// What the op needs of a GPU executor beside its operands.
    pub(crate) fn gpu_needs(&self) -> GpuNeeds {
        self.operation().gpu_needs()
    }

    /// The tiles of its mat-mat kernel, if that is what it is computed by; `format` is the block format of a matrix.
    pub(crate) fn tile(&self, tuning: &KernelTuning, format: &dyn Fn(WeightId) -> BlockFormat) -> Option<Tile> {
        self.operation().tile(tuning, format)
    }

    /// Adds the op's dispatches to a plan.
    pub(crate) fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        self.operation().lower(l)
    }
}
