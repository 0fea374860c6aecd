//! The canonical operations: one file an op, with its operands, its check, its cost, its GPU lowering, its CPU form and its
//! f64 oracle. A [`Program`](crate::model::Program) is a list of them over named values.
//!
//! An op holds every dimension that it needs, so that it can be checked, lowered and run without looking at the model.
//! What `fuse` may add to an op (a norm folded into a [`Linear`], an epilogue) is marked *set by fuse only*.

pub(crate) mod attend;
mod cache;
pub(crate) mod check;
mod combine;
mod conv;
mod cost;
pub(crate) mod cpu;
mod delta;
mod embed;
mod expert_linear;
mod experts;
mod head_linear;
mod join;
mod kernels;
mod kv_blocks;
mod kv_replicate;
mod kv_write;
mod linear;
pub(crate) mod lower;
pub(crate) mod matmul;
mod norm;
pub(crate) mod oracle;

mod pick;
mod pointwise;
mod pool;
mod probe;
mod product;
mod recur;
mod role;
mod rope;
mod rope_kv;
mod route;
mod row_wise;
pub(crate) mod sample;
mod scan;
mod single;
mod slice;
mod softmax;
pub(crate) mod stamp;
pub(crate) mod weights;

pub use attend::{Attend, Kv, Mask};
pub use cache::{CacheShape, KvLayout, KvStorage};
pub use combine::Combine;
pub use conv::Conv;
pub use cost::{Cost, Load};
pub use delta::Delta;
pub use embed::{Embed, Index};
pub use expert_linear::ExpertLinear;
pub use head_linear::HeadLinear;
pub use join::Join;
pub use kernels::KERNELS;
pub use kv_blocks::BlockMove;
pub use kv_replicate::KvReplicate;
pub use kv_write::KvWrite;
pub use linear::{Epi, Linear, Part, Pre};
pub use norm::{Norm, NormKind, NormSpec};
pub use pick::Pick;
pub use pointwise::{Act, Pointwise};
pub use pool::{Pool, Pooling};
pub(crate) use probe::Probe;
pub use recur::Decay;
pub use role::{Role, Rows};
pub use rope::{Pairing, Rope, RopeSpec};
pub use rope_kv::{RopeKv, View};
pub use route::{Divide, GroupScore, Groups, Route, RouteSpec, Score};
pub use row_wise::RowWise;
pub use sample::{BIASED, DrawEntry, LOGPROBS, Logprob, Penalties, RING, SEEN, STOPS, SampleLists, SampleSpec};
pub use scan::Scan;
pub use single::{Place, Room, Rotation, Single, StepBuffer};
pub use slice::Slice;
pub use softmax::Softmax;
pub use weights::{CpuWeights, Matrix};

use crate::Result;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
        impl $name {
            /// The id as an index into the list that it numbers.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A value of a program: a matrix of f32, one row for each row of the step (or of its outputs).
    ValueId,
    /// A matrix of weights `(n, k)`, in any block format.
    WeightId,
    /// A vector of weights `(n)`, always f32 in memory.
    VectorId,
    /// A cache that a layer owns: the pages of its keys and values, or its state.
    CacheId,
    /// A set of caches that share one block table.
    GroupId,
    /// A table of rotary divisors; the step carries its cosines and sines for each row.
    RopeId,
}

/// One operation of a program.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is documented on its type")]
pub enum Op {
    Embed(Embed),
    Norm(Norm),
    Linear(Linear),
    Rope(Rope),
    KvWrite(KvWrite),
    RopeKv(RopeKv),
    Attend(Attend),
    Conv(Conv),
    Scan(Scan),
    Delta(Delta),
    Pointwise(Pointwise),
    Slice(Slice),
    Pick(Pick),
    Pool(Pool),
    Route(Route),
    ExpertLinear(ExpertLinear),
    Combine(Combine),
    HeadLinear(HeadLinear),
    Join(Join),
    RowWise(RowWise),
}

impl Op {
    /// Its name everywhere: in Rust, WGSL, the profiler and the benches.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed(_) => "embed",
            Self::Norm(_) => "norm",
            Self::Linear(_) => "linear",
            Self::Rope(_) => "rope",
            Self::KvWrite(_) => "kv_write",
            Self::RopeKv(_) => "rope_kv",
            Self::Attend(_) => "attend",
            Self::Conv(_) => "conv",
            Self::Scan(_) => "scan",
            Self::Delta(_) => "delta",
            Self::Pointwise(p) => p.name(),
            Self::Slice(_) => "slice",
            Self::Pick(_) => "pick",
            Self::Pool(_) => "pool",
            Self::Route(_) => "route",
            Self::ExpertLinear(_) => "expert_linear",
            Self::Combine(_) => "combine",
            Self::HeadLinear(_) => "head_linear",
            Self::Join(_) => "join",
            Self::RowWise(op) => op.name(),
        }
    }

    /// Calls `f` with each value that the op reads.
    pub fn reads(&self, f: &mut dyn FnMut(ValueId)) {
        match self {
            Self::Embed(_) => {}
            Self::Norm(op) => f(op.x),
            Self::Linear(op) => {
                f(op.x);
                if let Epi::Add(residual) = op.epi {
                    f(residual);
                }
            }
            Self::Rope(op) => f(op.x),
            Self::KvWrite(op) => {
                f(op.k);
                op.v.into_iter().for_each(f);
            }
            Self::RopeKv(op) => [op.q.value, op.k.value, op.v.value].into_iter().for_each(f),
            Self::Attend(op) => {
                f(op.q);
                if let Kv::Packed { k, v } = op.kv {
                    f(k);
                    f(v);
                }
            }
            Self::Conv(op) => f(op.x),
            Self::Scan(op) => [op.x, op.b, op.c, op.decay.x].into_iter().for_each(f),
            Self::Delta(op) => [op.q, op.k, op.v, op.beta, op.decay.x].into_iter().for_each(f),
            Self::Pointwise(op) => op.reads(f),
            Self::Slice(op) => f(op.x),
            Self::Pick(op) => f(op.x),
            Self::Pool(op) => f(op.x),
            Self::Route(op) => f(op.x),
            Self::ExpertLinear(op) => {
                f(op.x);
                f(op.chosen);
            }
            Self::Combine(op) => {
                f(op.x);
                f(op.weights);
            }
            Self::HeadLinear(op) => f(op.x),
            Self::RowWise(op) => op.reads(f),
            Self::Join(op) => {
                f(op.a);
                f(op.b);
            }
        }
    }

    /// Fails, by name, if no kernel does this: known before a weight is loaded.
    pub(crate) fn on_gpu(&self) -> Result<()> {
        match self {
            Self::Route(op) => op.on_gpu(),
            _ => Ok(()),
        }
    }

    /// The state that the op reads and writes, if it is recurrent.
    pub fn state(&self) -> Option<CacheId> {
        match self {
            Self::Conv(op) => Some(op.state),
            Self::Scan(op) => Some(op.state),
            Self::Delta(op) => Some(op.state),
            _ => None,
        }
    }

    /// Elements of the state of a recurrent op on the GPU.
    pub(crate) fn gpu_state_len(&self) -> u64 {
        match self {
            Self::Conv(op) => u64::from(Conv::state_len(op.n, op.taps)),
            Self::Scan(op) => op.gpu_state_len(),
            Self::Delta(op) => op.gpu_state_len(),
            _ => 0,
        }
    }

    /// Bytes of memory that the op's kernels hand each other, when it has `rows` rows.
    pub(crate) fn gpu_scratch(&self, rows: u32) -> u64 {
        match self {
            Self::Scan(Scan { heads, .. }) | Self::Delta(Delta { heads, .. }) => recur::gpu_scratch(*heads, rows),
            Self::ExpertLinear(op) => experts::gpu_scratch(op.experts.len(), op.used, rows),
            _ => 0,
        }
    }

    /// The matrices of an op that has many of one shape: they lie one behind the other in memory.
    pub(crate) fn many_parts(&self) -> Option<Vec<Part>> {
        match self {
            Self::ExpertLinear(op) => Some(op.parts()),
            Self::HeadLinear(op) => Some(op.parts()),
            _ => None,
        }
    }

    /// Adds the op's dispatches to a plan.
    pub(crate) fn lower(&self, l: &mut lower::Lower<'_>) -> Result<()> {
        match self {
            Self::Embed(op) => op.lower(l),
            Self::Norm(op) => op.lower(l),
            Self::Linear(op) => op.lower(l),
            Self::Rope(op) => op.lower(l),
            Self::KvWrite(op) => op.lower(l),
            Self::RopeKv(op) => op.lower(l),
            Self::Attend(op) => op.lower(l),
            Self::Pointwise(op) => op.lower(l),
            Self::Slice(op) => op.lower(l),
            Self::Pick(op) => op.lower(l),
            Self::Pool(op) => op.lower(l),
            Self::Conv(op) => op.lower(l),
            Self::Scan(op) => op.lower(l),
            Self::Delta(op) => op.lower(l),
            Self::Route(op) => op.lower(l),
            Self::ExpertLinear(op) => op.lower(l),
            Self::Combine(op) => op.lower(l),
            Self::HeadLinear(op) => op.lower(l),
            Self::Join(op) => op.lower(l),
            Self::RowWise(op) => op.lower(l),
        }
    }

    /// The value that the op writes, if it writes one (a KV write does not).
    pub fn writes(&self) -> Option<ValueId> {
        match self {
            Self::Embed(op) => Some(op.out),
            Self::Norm(op) => Some(op.out),
            Self::Linear(op) => Some(op.out),
            Self::Rope(op) => Some(op.out),
            Self::KvWrite(_) => None,
            Self::RopeKv(op) => Some(op.out),
            Self::Attend(op) => Some(op.out),
            Self::Conv(op) => Some(op.out),
            Self::Scan(op) => Some(op.out),
            Self::Delta(op) => Some(op.out),
            Self::Pointwise(op) => Some(op.out()),
            Self::Slice(op) => Some(op.out),
            Self::Pick(op) => Some(op.out),
            Self::Pool(op) => Some(op.out),
            Self::Route(op) => Some(op.out),
            Self::ExpertLinear(op) => Some(op.out),
            Self::Combine(op) => Some(op.out),
            Self::HeadLinear(op) => Some(op.out),
            Self::Join(op) => Some(op.out),
            Self::RowWise(op) => Some(op.out()),
        }
    }
}
