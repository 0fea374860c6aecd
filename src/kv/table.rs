//! The block table of a sequence.

use super::index::NodeId;
use crate::ops::FREED;

/// For each cache group, the blocks that hold a sequence's positions, in order.
///
/// Blocks outside a window are given back: [`FREED`] stands in their place. A table must be given back through
/// [`Kv::release`](super::Kv::release): one that is dropped leaks its blocks.
#[derive(Debug)]
pub struct Table {
    pub(super) groups: Vec<Vec<u32>>,
    /// For each group, how many blocks from the first on were given back.
    pub(super) freed: Vec<u32>,
    /// Blocks outside a window that shall be found again: of which group and where, until they are published.
    pub(super) kept: Vec<(usize, u32, u32)>,
    /// The node of each block, as far as they are found or published.
    pub(super) path: Vec<NodeId>,
    /// What the first block's node hangs from.
    pub(super) root: Option<NodeId>,
}

impl Table {
    pub(super) fn new(groups: usize) -> Self {
        Self {
            groups: vec![Vec::new(); groups],
            freed: vec![0; groups],
            kept: Vec::new(),
            path: Vec::new(),
            root: None,
        }
    }

    /// Blocks in each group, those that were given back among them.
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

    /// How many blocks, from the first on, can be found by others.
    pub fn published(&self) -> u32 {
        self.path.len() as u32
    }

    /// The node after which the next block's comes.
    pub(super) fn end(&self) -> Option<NodeId> {
        self.path.last().copied().or(self.root)
    }

    /// Whether a block of a group is there, not given back.
    pub(super) fn has(&self, group: usize, index: u32) -> bool {
        self.groups[group].get(index as usize).is_some_and(|block| *block != FREED)
    }
}
