//! The block table of a sequence.

use super::Pool;

/// For each cache group, the blocks that hold a sequence's positions, in order.
///
/// It must be given back through [`Kv::release`](super::Kv::release): a table that is dropped leaks its blocks.
#[derive(Debug)]
pub struct Table {
    groups: Vec<Vec<u32>>,
}

impl Table {
    pub(super) fn new(groups: usize) -> Self {
        Self { groups: vec![Vec::new(); groups] }
    }

    /// Blocks in each group.
    pub fn blocks(&self) -> u32 {
        self.groups.first().map_or(0, |g| g.len() as u32)
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

    pub(super) fn truncate(&mut self, pools: &mut [Pool], keep: u32) {
        for (table, pool) in self.groups.iter_mut().zip(pools) {
            while table.len() > keep as usize {
                if let Some(block) = table.pop() {
                    pool.release(block);
                }
            }
        }
    }
}
