//! The kernels: one file each in `wgsl/`, named here once.

macro_rules! kernels {
    ($($name:literal,)*) => {
        /// Every kernel.
        pub const KERNELS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../wgsl/", $name, ".wgsl"))),)*];
    };
}

kernels! {
    "embed",
    "norm",
    "matvec",
    "matvec_qkv",
    "matmul",
    "quantize",
    "matmul_dot",
    "matmul_cooperative",
    "rope",
    "kv_write",
    "rope_kv",
    "norm_rope_kv",
    "kv_replicate",
    "kv_blocks",
    "softmax",
    "attend",
    "attend_cooperative",
    "attend_merge",
    "attend_tiled",
    "attend_v1",
    "pointwise",
    "slice",
    "join",
    "pick",
    "pool",
    "row_wise",
    "route",
    "expert_linear",
    "expert_sort",
    "expert_matmul",
    "combine",
    "conv",
    "decay",
    "recur_step",
    "recur_tile",
    "sample_adjust",
    "sample",
    "sample_bins",
    "sample_keep",
    "sample_merge",
    "sample_top",
    "sample_logprobs",
    "stamp",
}

/// The text of a kernel. A name that is not in the table is a mistake of ours, found by the first test that plans the op.
pub(crate) fn source(name: &str) -> &'static str {
    KERNELS.iter().find(|(n, _)| *n == name).map_or("", |(_, source)| source)
}
