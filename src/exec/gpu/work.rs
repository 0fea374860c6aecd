//! How far a step may split attention's work.

use crate::exec::Limits;
use crate::model::Program;
use crate::ops::attend::gpu::{MAX_SPLITS, split_size};
use crate::ops::attend::work::WorkLimits;

/// Bytes that KV splits may take until they are reduced.
const PARTIAL_BYTES: u64 = 64 << 20;
/// Rows whose KV is split, at most: more rows keep any device busy without it.
const MAX_SPLIT_ROWS: u32 = 32;

/// The limits of a program's work lists, and the bytes of a KV split.
pub(super) fn work_limits(program: &Program, limits: &Limits) -> (WorkLimits, u64) {
    let split_bytes = program.nodes.iter().map(|node| node.op.gpu_needs().kv_split).fold(16, u64::max);
    let fit = u32::try_from(PARTIAL_BYTES / split_bytes).unwrap_or(u32::MAX);
    let split_rows = limits.rows.min(MAX_SPLIT_ROWS);
    let splits = (split_rows * MAX_SPLITS.min(limits.context.div_ceil(split_size(0)))).min(fit);
    (WorkLimits { splits, split_rows }, split_bytes)
}
