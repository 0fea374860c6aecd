//! The canonical operations: one file an op, with its operands, its check, its cost, its GPU lowering, its CPU form and its
//! f64 oracle. A [`Program`](crate::model::Program) is a list of them over named values.
//!
//! An op holds every dimension that it needs, so that it can be checked, lowered and run without looking at the model.
//! What `fuse` may add to an op (a norm folded into a [`Linear`], an epilogue) is marked *set by fuse only*.

pub(crate) mod attend;
mod cache;
mod elementwise;
mod experts;
mod forms;
mod ids;
mod kernels;
mod linear;
pub(crate) mod marker;
mod recurrent;
mod rotary;
mod rows;
pub(crate) mod sample;
pub(crate) mod step;

pub use attend::softmax::Softmax;
pub use attend::{Attend, Kv, Mask};
pub use cache::kv_blocks::BlockMove;
pub use cache::kv_replicate::KvReplicate;
pub use cache::kv_write::KvWrite;
pub use cache::{CacheShape, FREED, KvLayout, KvStorage};
pub use elementwise::norm::{Norm, NormKind, NormSpec};
pub use elementwise::pointwise::{Act, Pointwise};
pub use elementwise::row_wise::RowWise;
pub use experts::combine::Combine;
pub use experts::expert_linear::ExpertLinear;
pub use experts::head_linear::HeadLinear;
pub use experts::route::{Divide, GroupScore, Groups, Route, RouteSpec, Score};
internal!(use forms::cost::{Cost, Load});
pub(crate) use forms::operation::Stack;
internal!(use forms::operation::{Access, Operand, OperandMut});
internal!(use forms::weights::{CpuWeights, Matrix});
pub(crate) use forms::{check, cost, cpu, lower, operation, oracle, weights};
pub use ids::{CacheId, GroupId, PerPhase, Phase, RopeId, Rows, ValueId, VectorId, WeightId};
internal!(use kernels::KERNELS);
pub use linear::{Epi, Linear, Part, Pre};
pub(crate) use linear::{matmul, product};
pub use recurrent::Decay;
pub use recurrent::conv::Conv;
pub use recurrent::delta::Delta;
pub use recurrent::scan::Scan;
pub use rotary::rope::{Pairing, Rope, RopeSpec};
pub use rotary::rope_kv::{RopeKv, RopeKvSpec, View};
pub use rows::concat::Concat;
pub use rows::embed::{Embed, Index};
pub use rows::gather::Gather;
pub use rows::pool::{Pool, Pooling};
pub use rows::slice::Slice;
pub use sample::{Logprob, Penalties};
internal!(use sample::{BIASED, SampleEntry, LOGPROBS, RING, SEEN, STOPS, SampleLists, SampleSpec});
internal!(use step::{RowEntry, SeqEntry});
pub(crate) use step::{StepLayout, StepSizes};

operation::ops! {
    Embed,
    Norm,
    Linear,
    Rope,
    KvWrite,
    RopeKv,
    Attend,
    Conv,
    Scan,
    Delta,
    Pointwise,
    Slice,
    Gather,
    Pool,
    Route,
    ExpertLinear,
    Combine,
    HeadLinear,
    Concat,
    RowWise,
}
