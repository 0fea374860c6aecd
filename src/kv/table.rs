//! The block table of a sequence.

use super::Pool;
use crate::ops::FREED;

/// For each cache group, the blocks that hold a sequence's positions, in order.
///
/// Blocks outside a window are given back: [`FREED`] stands in their place. A table must be given back through
/// [`Kv::release`](super::Kv::release): one that is dropped leaks its blocks.
#[derive(Debug)]
pub struct Table {
    groups: Vec<Vec<u32>>,
    /// For each group, how many blocks from the first on were given back.
    freed: Vec<u32>,
}

impl Table {
    pub(super) fn new(groups: usize) -> Self {
        Self { groups: vec![Vec::new(); groups], freed: vec![0; groups] }
    }

    /// Blocks in each group, those that were given back among them.
    pub fn blocks(&self) -> u32 {
        self.groups.first().map_or(0, |g| g.len() as u32)
    }

    /// Blocks that a group holds.
    pub fn held(&self, group: usize) -> u32 {
        self.groups[group].len() as u32 - self.freed[group]
    }

    /// How many blocks of a group, from the first on, were given back.
    pub(super) fn freed(&self, group: usize) -> u32 {
        self.freed[group]
    }

    /// The blocks of a group.
    pub fn group(&self, group: usize) -> &[u32] {
        &self.groups[group]
    }

    /// The blocks of every group.
    pub fn groups(&self) -> impl Iterator<Item = &[u32]> {
        self.groups.iter().map(Vec::as_slice)
    }

    /// Adds blocks that the pools are known to have.
    pub(super) fn extend(&mut self, pools: &mut [Pool], blocks: u32) {
        for (table, pool) in self.groups.iter_mut().zip(pools) {
            for _ in 0..blocks {
                table.push(pool.alloc().expect("the caller has counted the free blocks"));
            }
        }
    }

    /// Gives the first `blocks` blocks of a group back.
    pub(super) fn free(&mut self, pools: &mut [Pool], group: usize, blocks: u32) {
        let (table, freed) = (&mut self.groups[group], &mut self.freed[group]);
        let end = blocks.min(table.len() as u32);
        for block in &mut table[*freed as usize..(*freed).max(end) as usize] {
            pools[group].release(std::mem::replace(block, FREED));
        }
        *freed = (*freed).max(end);
    }

    pub(super) fn truncate(&mut self, pools: &mut [Pool], keep: u32) {
        for ((table, freed), pool) in self.groups.iter_mut().zip(&mut self.freed).zip(pools) {
            while table.len() > keep as usize {
                if let Some(block) = table.pop().filter(|block| *block != FREED) {
                    pool.release(block);
                }
            }
            *freed = (*freed).min(table.len() as u32);
        }
    }
}
