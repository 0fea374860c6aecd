//! The cases that run a kernel, for whoever works on one.

use super::*;

/// The cases of a kernel, by its file's name in `wgsl/`. Some of them run others, too; none for a name that no kernel has.
pub fn of_kernel(kernel: &str) -> Vec<Case> {
    match kernel {
        "embed" => formats(),
        "norm" => norm(),
        "matvec" => [linear(), formats(), tunings(), int8_vectors()].concat(),
        "matmul" => [registers(), f16_tiles(), tiles()].concat(),
        "matmul_dot" => dots(),
        "quantize" => [dots(), int8_vectors()].concat(),
        "matmul_cooperative" => cooperative(0, u32::MAX),
        "rope" => [rope(), rotations(), angles()].concat(),
        "kv_write" | "rope_kv" | "norm_rope_kv" => writes(),
        "kv_replicate" | "kv_blocks" => copies(),
        "softmax" => softmaxes(),
        "attend" | "attend_reduce" | "attend_tiled" => [attend(), attend_caches()].concat(),
        "attend_v1" => attend_caches(),
        "attend_cooperative" => cooperative_attention(),
        "pointwise" => pointwise(),
        "slice" | "concat" | "gather" | "pool" => moves(),
        "row_wise" => row_wise(),
        "route" => route(),
        "expert_linear" | "expert_sort" | "expert_matmul" | "combine" => [expert_layers(), expert_formats()].concat(),
        "conv" => [recurrences(), conv_formats()].concat(),
        "decay" | "recur_step" | "recur_tile" => recurrences(),
        "matvec_qkv" => [models(), int8_models()].concat(),
        "marker" => models(),
        sample if sample.starts_with("sample") => [samples(), all_samples()].concat(),
        _ => Vec::new(),
    }
}
