//! The kernels: one file each in `wgsl/`, named here once, with the parameters that ops hand them.

use super::*;
use crate::gpu::KernelSource;
use crate::gpu::params::Params;
use crate::wgsl::wgsl;

macro_rules! kernels {
    ($($constant:ident = $name:literal, $params:ty;)*) => {
        $(pub(crate) const $constant: KernelSource = KernelSource {
            name: $name,
            source: wgsl!($name),
            params: <$params as Params>::LAYOUT,
        };)*

        /// Every kernel.
        pub const KERNELS: &[KernelSource] = &[$($constant,)*];
    };
}

kernels! {
    EMBED = "embed", rows::embed::Params;
    NORM = "norm", elementwise::norm::Params;
    MATVEC = "matvec", linear::Params;
    MATVEC_QKV = "matvec_qkv", linear::Params;
    MATMUL = "matmul", linear::Params;
    QUANTIZE = "quantize", matmul::Params;
    MATMUL_DOT = "matmul_dot", linear::Params;
    MATMUL_COOPERATIVE = "matmul_cooperative", linear::Params;
    ROPE = "rope", rotary::rope::Params;
    KV_WRITE = "kv_write", cache::kv_write::Params;
    ROPE_KV = "rope_kv", rotary::rope_kv::Params;
    NORM_ROPE_KV = "norm_rope_kv", rotary::rope_kv::Params;
    KV_REPLICATE = "kv_replicate", cache::kv_replicate::Params;
    KV_BLOCKS = "kv_blocks", cache::kv_blocks::Params;
    SOFTMAX = "softmax", attend::softmax::Params;
    ATTEND = "attend", attend::gpu::Params;
    ATTEND_COOPERATIVE = "attend_cooperative", attend::gpu::Params;
    ATTEND_REDUCE = "attend_reduce", attend::gpu::Params;
    ATTEND_TILED = "attend_tiled", attend::gpu::Params;
    ATTEND_V1 = "attend_v1", attend::gpu::Params;
    POINTWISE = "pointwise", elementwise::pointwise::Params;
    SLICE = "slice", rows::slice::Params;
    CONCAT = "concat", rows::concat::Params;
    GATHER = "gather", rows::gather::Params;
    POOL = "pool", rows::pool::Params;
    ROW_WISE = "row_wise", elementwise::row_wise::Params;
    ROUTE = "route", experts::route::Params;
    EXPERT_LINEAR = "expert_linear", experts::Params;
    EXPERT_SORT = "expert_sort", experts::SortParams;
    EXPERT_MATMUL = "expert_matmul", experts::Params;
    COMBINE = "combine", experts::combine::Params;
    CONV = "conv", recurrent::conv::Params;
    DECAY = "decay", recurrent::DecayParams;
    RECUR_STEP = "recur_step", recurrent::Params;
    RECUR_TILE = "recur_tile", recurrent::Params;
    SAMPLE_ADJUST = "sample_adjust", sample::lower::Params;
    SAMPLE = "sample", sample::lower::Params;
    SAMPLE_BINS = "sample_bins", sample::lower::Params;
    SAMPLE_KEEP = "sample_keep", sample::lower::Params;
    SAMPLE_MERGE = "sample_merge", sample::lower::Params;
    SAMPLE_TOP = "sample_top", sample::lower::Params;
    SAMPLE_LOGPROBS = "sample_logprobs", sample::lower::Params;
    MARKER = "marker", marker::Params;
}
