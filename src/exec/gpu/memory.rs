//! The GPU executor's memory beside the weights: values, which share buffers by lifetime, and caches.

use crate::exec::{CacheOp, Limits};
use crate::gpu::{Buffer, Device, PlanBuilder};
use crate::model::{CacheSpec, Program};
use crate::ops::lower::{CacheBuffer, KernelTuning, ValueBuffer};
use crate::ops::{BlockMove, CacheId, CacheShape, KvLayout, KvStorage, PerPhase};
use crate::{Error, Result};

/// A buffer for the rows of x that products take in int8, if some do.
pub(super) fn int8_rows(
    device: &Device,
    programs: &PerPhase<Program>,
    tuning: &KernelTuning,
    limits: &Limits,
) -> Result<Buffer> {
    let nodes = programs.each().into_iter().flat_map(|program| &program.nodes);
    let row = nodes.map(|node| node.op.gpu_needs().int8_row).max();
    let row = row.filter(|_| tuning.table.rounds_rows()).unwrap_or(0);
    let rows = limits.rows.max(limits.seqs).max(limits.outs);
    Buffer::new(device, "int8_rows", (row * u64::from(rows)).max(16))
}

/// Buffers that values of different lifetimes share; one pool for the programs of both phases, which run one after another.
#[derive(Debug, Default)]
pub(super) struct Pool {
    buffers: Vec<Buffer>,
}

/// The buffer of every value of a program.
#[derive(Debug)]
pub(super) struct Values {
    pub(super) buffers: Vec<ValueBuffer>,
}

impl Values {
    /// Gives each value a buffer from its first use to its last (`keep`: for ever).
    ///
    /// Results of the program are never shared: they are read after the other phase's program has run.
    pub(super) fn new(
        device: &Device,
        program: &Program,
        limits: &Limits,
        pool: &mut Pool,
        keep: bool,
    ) -> Result<Self> {
        let count = program.values.len();
        let mut first = vec![usize::MAX; count];
        let mut last = vec![0; count];
        for (i, node) in program.nodes.iter().enumerate() {
            let mut touch = |v: crate::ops::ValueId| {
                first[v.index()] = first[v.index()].min(i);
                last[v.index()] = last[v.index()].max(i);
            };
            node.op.reads(&mut touch);
            if let Some(out) = node.op.writes() {
                touch(out);
            }
        }
        let results: Vec<usize> = program.outs.iter().map(|o| o.value().index()).collect();
        let bytes = |v: usize| {
            let value = &program.values[v];
            let rows = limits.rows_of(value.rows);
            u64::from(value.width.next_multiple_of(4)) * u64::from(rows) * 4
        };
        let mut chosen: Vec<Option<Buffer>> = vec![None; count];
        let mut free: Vec<usize> = (0..pool.buffers.len()).collect();
        let mut held: Vec<(usize, usize)> = Vec::new();
        for i in 0..program.nodes.len() {
            for v in (0..count).filter(|&v| first[v] == i) {
                if keep || results.contains(&v) {
                    chosen[v] = Some(Buffer::new(device, &program.values[v].name, bytes(v))?);
                    continue;
                }
                let fits = free.iter().enumerate().filter(|(_, b)| pool.buffers[**b].size() >= bytes(v));
                let best = fits.min_by_key(|(_, b)| pool.buffers[**b].size()).map(|(at, _)| at);
                let buffer = match best {
                    Some(at) => free.swap_remove(at),
                    None => {
                        pool.buffers.push(Buffer::new(device, "values", bytes(v))?);
                        pool.buffers.len() - 1
                    }
                };
                held.push((buffer, last[v]));
                chosen[v] = Some(pool.buffers[buffer].clone());
            }
            held.retain(|&(buffer, last)| {
                if last == i {
                    free.push(buffer);
                }
                last != i
            });
        }
        let unused = Buffer::new(device, "unused", 16)?;
        let buffers = chosen.into_iter().zip(&program.values).map(|(buffer, value)| ValueBuffer {
            buffer: buffer.unwrap_or_else(|| unused.clone()),
            width: value.width,
            rows: value.rows,
        });
        Ok(Self { buffers: buffers.collect() })
    }
}

/// States that there are: those of the slots, then the checkpoints.
fn states(limits: &Limits) -> u32 {
    limits.seqs + limits.checkpoints
}

/// The caches of a program, and the limits that they have: with fewer blocks and checkpoints where those that are wanted do not
/// fit, as the device says. Fails where not even a single sequence of the whole context fits.
pub(super) async fn caches_that_fit(
    device: &Device,
    program: &Program,
    mut limits: Limits,
    storage: KvStorage,
) -> Result<(Vec<CacheBuffer>, Limits)> {
    loop {
        let made = device.checked("the KV cache", || caches(device, program, &limits, storage)).await;
        match (made, smaller(&limits)) {
            (Ok(made), _) => return Ok((made, limits)),
            (Err(Error::Limit { .. }), Some(smaller)) => limits = smaller,
            (Err(error), _) => return Err(error),
        }
    }
}

/// Limits with three quarters of the blocks and of the checkpoints, or as many as there must be; none if there are no more.
fn smaller(limits: &Limits) -> Option<Limits> {
    // One sequence's, and a block that each of the others begins with.
    let least = limits.context.div_ceil(limits.block) + limits.seqs - 1;
    let blocks = (limits.blocks / 4 * 3).max(least).min(limits.blocks);
    let smaller = Limits { blocks, checkpoints: limits.checkpoints / 4 * 3, ..*limits };
    (smaller != *limits).then_some(smaller)
}

/// A buffer for every cache of a program.
pub(super) fn caches(
    device: &Device,
    program: &Program,
    limits: &Limits,
    storage: KvStorage,
) -> Result<Vec<CacheBuffer>> {
    let empty = CacheShape {
        kv_heads: 0,
        k_dim: 0,
        v_dim: 0,
        slots: limits.block,
        blocks: limits.blocks,
        storage,
        layout: KvLayout::Paged,
    };
    let buffer = |name: &str, what: &str, each: u64, bytes: u64, instead: &dyn Fn(u64) -> String| {
        let most = device.caps().max_binding;
        if bytes > most {
            return Err(Error::Limit {
                what: what.to_owned(),
                needed: format!("{bytes} bytes"),
                available: format!("{most} in one binding on this device"),
                instead: instead(most / each),
            });
        }
        Buffer::new(device, name, bytes)
    };
    let cache = |(id, spec): (u32, &CacheSpec)| match *spec {
        CacheSpec::Pages { group, kv_heads, k_dim, v_dim, v_in_k, .. } => {
            let v_dim = if v_in_k { 0 } else { v_dim };
            let blocks = limits.blocks_of(program.window(group));
            let shape = CacheShape { kv_heads, k_dim, v_dim, blocks, ..empty };
            let fits = |blocks| format!("a context of {} positions fits", blocks * u64::from(limits.block));
            let buffer = buffer("kv", "the KV cache of a layer", shape.block_words() * 4, shape.bytes(), &fits)?;
            Ok(CacheBuffer { buffer, shape, group: group.0, state: 0 })
        }
        CacheSpec::State { .. } => {
            let op = program.nodes.iter().find(|node| node.op.state() == Some(CacheId(id)));
            let len = op.map_or(0, |node| node.op.gpu_needs().state);
            let bytes = len * 4 * u64::from(states(limits));
            let fits = |states| format!("{states} sequences and checkpoints fit");
            let buffer = buffer("state", "the states of a layer", len * 4, bytes, &fits)?;
            Ok(CacheBuffer { buffer, shape: empty, group: u32::MAX, state: len as u32 })
        }
    };
    let caches: Vec<CacheBuffer> = (0..).zip(&program.caches).map(cache).collect::<Result<_>>()?;
    debug_assert!(
        caches.iter().map(|cache| cache.buffer.size()).sum::<u64>() <= limits.cache_bytes(program, empty.storage),
        "caches take more than was counted"
    );
    Ok(caches)
}

/// Adds cache ops to a plan.
pub(super) fn cache_ops(
    plan: &mut PlanBuilder<'_>,
    caches: &[CacheBuffer],
    limits: &Limits,
    ops: &[CacheOp],
) -> Result<()> {
    for cache in caches {
        let of_cache = |op: &CacheOp| match *op {
            CacheOp::Copy { group, from, to } if group.0 == cache.group => Some(BlockMove { from: Some(from), to }),
            CacheOp::Zero { group, block } if group.0 == cache.group => Some(BlockMove { from: None, to: block }),
            CacheOp::CopyState { from, to } if cache.state > 0 => Some(BlockMove { from: Some(from), to }),
            _ => None,
        };
        let moves: Vec<_> = ops.iter().filter_map(of_cache).collect();
        if cache.state > 0 {
            let words = u64::from(cache.state);
            BlockMove::dispatch_words(plan, &cache.buffer, ("state", words, states(limits)), &moves)?;
        } else {
            BlockMove::dispatch(plan, &cache.buffer, &cache.shape, &moves)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_shrink_to_one_sequence() {
        let limits =
            Limits { rows: 32, seqs: 4, outs: 4, block: 16, blocks: 400, context: 500, in_flight: 2, checkpoints: 9 };
        let mut steps = vec![limits];
        while let Some(next) = smaller(steps.last().unwrap()) {
            steps.push(next);
        }
        assert_eq!(steps.iter().map(|l| l.blocks).collect::<Vec<_>>(), [400, 300, 225, 168, 126, 93, 69, 51, 36, 35]);
        assert_eq!(steps.last().unwrap().checkpoints, 0);
        assert!(steps.iter().all(|l| l.context == 500 && l.seqs == 4));
    }
}
