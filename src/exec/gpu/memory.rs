//! The GPU executor's memory beside the weights: values, coloured by when they are needed, and caches.

use crate::exec::{CacheOp, Limits};
use crate::gpu::{Buffer, Device, wgpu};
use crate::model::{CacheSpec, Program};
use crate::ops::lower::{CacheBuffer, ValueBuffer, no_kernel};
use crate::ops::{CacheShape, KvLayout, KvStorage};
use crate::{Error, Result};

/// Buffers that values of different lifetimes share; one pool for the programs of both roles, which run one after the other.
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
    /// Gives each value a buffer from its first use to its last (`keep`: for good).
    ///
    /// Results of the program are never shared: they are read after the other role's program has run.
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
            let rows = limits.room(value.rows);
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

/// A buffer for every cache of a program.
pub(super) fn caches(device: &Device, program: &Program, limits: &Limits, f16: bool) -> Result<Vec<CacheBuffer>> {
    let most = device.caps().max_binding;
    let cache = |spec: &CacheSpec| {
        let CacheSpec::Pages { group, kv_heads, k_dim, v_dim, v_in_k, .. } = *spec else {
            let recurrent = program.nodes.iter().find(|node| node.op.state().is_some());
            return Err(no_kernel(recurrent.map_or("a state", |node| node.op.name())));
        };
        let storage = if f16 { KvStorage::F16 } else { KvStorage::F32 };
        let (slots, blocks) = (limits.block, limits.blocks);
        let v_dim = if v_in_k { 0 } else { v_dim };
        let shape = CacheShape { kv_heads, k_dim, v_dim, slots, blocks, storage, layout: KvLayout::Paged };
        let bytes = shape.bytes();
        if bytes > most {
            let positions = most / (shape.block_words() * 4) * u64::from(slots);
            return Err(Error::Limit {
                what: "the KV cache of a layer".to_owned(),
                needed: format!("{bytes} bytes"),
                available: format!("{most} in one binding on this device"),
                instead: format!("a context of {positions} positions fits"),
            });
        }
        Ok(CacheBuffer { buffer: Buffer::new(device, "kv", bytes)?, shape, group: group.0 })
    };
    program.caches.iter().map(cache).collect()
}

/// Runs cache ops in a submission of their own.
pub(super) fn cache_ops(device: &Device, caches: &[CacheBuffer], ops: &[CacheOp]) -> Result<()> {
    let mut encoder = device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let mut vias = Vec::new();
    for op in ops {
        let group = match *op {
            CacheOp::Copy { group, .. } | CacheOp::Zero { group, .. } => group.0,
            CacheOp::CopyState { .. } => return Err(no_kernel("the copy of a state")),
        };
        for cache in caches.iter().filter(|c| c.group == group) {
            let bytes = cache.shape.block_words() * 4;
            let at = |block: u32| {
                let inside = block < cache.shape.blocks;
                inside.then_some(u64::from(block) * bytes).ok_or_else(|| {
                    Error::argument("cache", format!("block {block}, the cache has {}", cache.shape.blocks))
                })
            };
            match *op {
                CacheOp::Zero { block, .. } => encoder.clear_buffer(cache.buffer.raw(), at(block)?, Some(bytes)),
                CacheOp::Copy { from, to, .. } => {
                    // A buffer cannot be copied onto itself: by way of another.
                    let via = Buffer::new(device, "copy", bytes)?;
                    encoder.copy_buffer_to_buffer(cache.buffer.raw(), at(from)?, via.raw(), 0, bytes);
                    encoder.copy_buffer_to_buffer(via.raw(), 0, cache.buffer.raw(), at(to)?, bytes);
                    vias.push(via);
                }
                CacheOp::CopyState { .. } => {}
            }
        }
    }
    device.queue.submit([encoder.finish()]);
    Ok(())
}
