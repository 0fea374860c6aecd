//! How much of attention's work a step may divide.

use crate::exec::Limits;
use crate::model::Program;
use crate::ops::attend::gpu::{MAX_PARTS, part_size};
use crate::ops::attend::work::WorkLimits;

/// Bytes that parts may take until they are merged.
const PARTS_BYTES: u64 = 64 << 20;
/// Rows that are divided into parts, at most: more of them keep any device busy as they are.
const DIVIDED_ROWS: u32 = 32;

/// What a program's steps may divide, and the bytes of a part.
pub(super) fn work_limits(program: &Program, limits: &Limits) -> (WorkLimits, u64) {
    let part_bytes = program.nodes.iter().map(|node| node.op.gpu_needs().kv_split).fold(16, u64::max);
    let fit = u32::try_from(PARTS_BYTES / part_bytes).unwrap_or(u32::MAX);
    let merges = limits.rows.min(DIVIDED_ROWS);
    let parts = (merges * MAX_PARTS.min(limits.context.div_ceil(part_size(0)))).min(fit);
    (WorkLimits { parts, merges }, part_bytes)
}
