//! The kernels: one file each in `wgsl/`, named here once, with the parameters that ops hand them.

use super::*;
use crate::gpu::KernelSource;
use crate::gpu::params::Params;

macro_rules! kernels {
    ($($constant:ident = $name:literal, $params:ty;)*) => {
        $(pub(crate) const $constant: KernelSource = KernelSource {
            name: $name,
            source: include_str!(concat!("../../wgsl/", $name, ".wgsl")),
            params: <$params as Params>::LAYOUT,
        };)*

        /// Every kernel.
        pub const KERNELS: &[KernelSource] = &[$($constant,)*];
    };
}

kernels! {
    EMBED = "embed", embed::Params;
    NORM = "norm", norm::Params;
    MATVEC = "matvec", linear::Params;
    MATVEC_QKV = "matvec_qkv", linear::Params;
    MATMUL = "matmul", linear::Params;
    QUANTIZE = "quantize", matmul::Params;
    MATMUL_DOT = "matmul_dot", linear::Params;
    MATMUL_COOPERATIVE = "matmul_cooperative", linear::Params;
    ROPE = "rope", rope::Params;
    KV_WRITE = "kv_write", kv_write::Params;
    ROPE_KV = "rope_kv", rope_kv::Params;
    NORM_ROPE_KV = "norm_rope_kv", rope_kv::Params;
    KV_REPLICATE = "kv_replicate", kv_replicate::Params;
    KV_BLOCKS = "kv_blocks", kv_blocks::Params;
    SOFTMAX = "softmax", softmax::Params;
    ATTEND = "attend", attend::gpu::Params;
    ATTEND_COOPERATIVE = "attend_cooperative", attend::gpu::Params;
    ATTEND_MERGE = "attend_merge", attend::gpu::Params;
    ATTEND_TILED = "attend_tiled", attend::gpu::Params;
    ATTEND_V1 = "attend_v1", attend::gpu::Params;
    POINTWISE = "pointwise", pointwise::Params;
    SLICE = "slice", slice::Params;
    JOIN = "join", join::Params;
    PICK = "pick", pick::Params;
    POOL = "pool", pool::Params;
    ROW_WISE = "row_wise", row_wise::Params;
    ROUTE = "route", route::Params;
    EXPERT_LINEAR = "expert_linear", experts::Params;
    EXPERT_SORT = "expert_sort", experts::SortParams;
    EXPERT_MATMUL = "expert_matmul", experts::Params;
    COMBINE = "combine", combine::Params;
    CONV = "conv", conv::Params;
    DECAY = "decay", recur::DecayParams;
    RECUR_STEP = "recur_step", recur::Params;
    RECUR_TILE = "recur_tile", recur::Params;
    SAMPLE_ADJUST = "sample_adjust", sample::lower::Params;
    SAMPLE = "sample", sample::lower::Params;
    SAMPLE_BINS = "sample_bins", sample::lower::Params;
    SAMPLE_KEEP = "sample_keep", sample::lower::Params;
    SAMPLE_MERGE = "sample_merge", sample::lower::Params;
    SAMPLE_TOP = "sample_top", sample::lower::Params;
    SAMPLE_LOGPROBS = "sample_logprobs", sample::lower::Params;
    STAMP = "stamp", stamp::Params;
}
