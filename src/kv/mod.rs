//! The bookkeeping of the KV cache: which blocks of the executor's storage hold what, and whose they are.
//!
//! Nothing here touches a device: a block is a number below [`Limits::blocks_of`](crate::exec::Limits), and what it holds is
//! the executor's business. A checkpoint of a recurrent model's states is a number, too.
//!
//! Blocks belong to their content. Once the step that wrote a block has proven good, the block is *published*: a node of an
//! [index](index) holds it, and any sequence that begins with the same tokens, in the same phases, under the same salt and
//! adapter, takes it instead of computing it. Nodes outlive the sequences that made them, until their blocks are needed.
//!
//! - A *hit* ends where every group has what a next token sees: all blocks in a group without a window, the last window in
//!   one with, and a state where layers are recurrent. Where blocks reach further than that, the hit says so
//!   ([`Hit::branch`]): whoever computes on from there keeps what is missing, so that the next one hits.
//! - Within a block, a hit goes on in a copy of another block that begins alike.
//! - *Eviction* takes what was used longest ago: in a group without a window whole nodes, children before parents; in one with
//!   a window first the blocks that lay outside it when their sequence went on, then whole ends.

mod find;
mod index;
mod phases;
mod pool;
mod table;

pub use find::{Attached, Hit, Lack};
pub use index::State;
use index::{Index, NodeId, Removed, Worth};
pub use phases::Phases;
pub use pool::Pool;
pub use table::Table;

use crate::exec::{CacheOp, Limits};
use crate::model::Program;
use crate::ops::FREED;

/// The pools of all cache groups, and the index of what their blocks hold.
#[derive(Debug)]
pub struct Kv {
    pools: Vec<Pool>,
    block: u32,
    /// For each group, the positions that a row sees, if it does not see all.
    windows: Vec<Option<u32>>,
    /// Places for the checkpoints of states; none for models without recurrent layers.
    states: Option<Pool>,
    index: Index,
    /// Copies to be made before the next step.
    copies: Vec<CacheOp>,
    /// Copies that there were.
    copied: u64,
    counts: KvCounts,
}

/// What has become of blocks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCounts {
    /// Tokens of prompts that were looked up.
    pub queried: u64,
    /// Of these, tokens that were found.
    pub found: u64,
    /// Blocks that were published.
    pub published: u64,
    /// Blocks and states that were evicted.
    pub evicted: u64,
}

/// The blocks of a group, by who holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCounts {
    /// Held by nobody.
    pub free: u32,
    /// Used by running sequences.
    pub in_use: u32,
    /// Kept to be found again.
    pub kept: u32,
}

/// A group has too few blocks that can be had: not an error, but the moment to preempt or to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBlocks {
    /// Blocks that were needed in the group.
    pub needed: u32,
    /// Blocks that are free there, or can be evicted.
    pub available: u32,
    /// Whether it is a group with a window.
    pub windowed: bool,
}

impl Kv {
    /// Pools of so many blocks of `block` positions, for groups that see so much.
    pub fn new(pools: &[(u32, Option<u32>)], block: u32) -> Self {
        assert!((1..=64).contains(&block), "a block holds 1 to 64 positions, not {block}");
        let windows: Vec<_> = pools.iter().map(|(_, window)| *window).collect();
        Self {
            index: Index::new(&windows),
            pools: pools.iter().map(|(blocks, _)| Pool::new(*blocks)).collect(),
            block,
            windows,
            states: None,
            copies: Vec::new(),
            copied: 0,
            counts: KvCounts::default(),
        }
    }

    /// The same for a model with recurrent layers, with places for so many checkpoints.
    pub fn with_states(self, checkpoints: u32) -> Self {
        Self { states: Some(Pool::new(checkpoints)), ..self }
    }

    /// Of what an executor with these limits has for a program.
    pub fn of(program: &Program, limits: &Limits) -> Self {
        let pools: Vec<_> = program.windows().into_iter().map(|window| (limits.blocks_of(window), window)).collect();
        let kv = Self::new(&pools, limits.block);
        if program.state_bytes() > 0 { kv.with_states(limits.checkpoints) } else { kv }
    }

    /// For each group, a table of one sequence that has the whole cache: in a group with a window, positions take turns in
    /// its blocks.
    pub fn of_one(program: &Program, limits: &Limits) -> Vec<Vec<u32>> {
        let blocks = limits.context.div_ceil(limits.block);
        let table = |window| (0..blocks).map(|i| i % limits.blocks_of(window)).collect();
        program.windows().into_iter().map(table).collect()
    }

    /// Whether sequences have states, which cannot be truncated.
    pub fn recurrent(&self) -> bool {
        self.states.is_some()
    }

    /// Whether there are groups in which a row does not see all.
    pub fn windowed(&self) -> bool {
        self.windows.iter().any(Option::is_some)
    }

    /// Blocks that hold so many positions.
    pub fn blocks_for(&self, positions: u32) -> u32 {
        positions.div_ceil(self.block)
    }

    /// Positions that the groups that see everything have blocks for.
    pub fn capacity(&self) -> u32 {
        let full = self.pools.iter().zip(&self.windows).filter(|(_, window)| window.is_none());
        full.map(|(pool, _)| pool.capacity().saturating_mul(self.block)).min().unwrap_or(u32::MAX)
    }

    /// What has become of blocks so far.
    pub fn counts(&self) -> KvCounts {
        self.counts
    }

    /// The blocks of each group, by who holds them.
    pub fn blocks(&self) -> Vec<BlockCounts> {
        let of = |pool: &Pool| BlockCounts {
            free: pool.free(),
            in_use: pool.in_use(),
            kept: pool.capacity() - pool.free() - pool.in_use(),
        };
        self.pools.iter().map(of).collect()
    }

    // --- tables -------------------------------------------------------------------------------------------------------

    /// A table that owns nothing.
    pub fn table(&self) -> Table {
        Table::new(self.pools.len())
    }

    /// Gives a table the blocks that hold its first `positions` positions: those of every group, or nothing.
    pub fn grow(&mut self, table: &mut Table, positions: u32) -> Result<(), OutOfBlocks> {
        self.grow_groups(table, positions, |_| true)
    }

    /// The same in groups that see everything. Others are better given their blocks as windows go on.
    pub fn reserve(&mut self, table: &mut Table, positions: u32) -> Result<(), OutOfBlocks> {
        self.grow_groups(table, positions, |window| window.is_none())
    }

    fn grow_groups(
        &mut self,
        table: &mut Table,
        positions: u32,
        takes: impl Fn(Option<u32>) -> bool,
    ) -> Result<(), OutOfBlocks> {
        let blocks = self.blocks_for(positions);
        let needed = |table: &Table, group: usize| blocks.saturating_sub(table.groups[group].len() as u32);
        let groups: Vec<usize> = (0..self.pools.len()).filter(|group| takes(self.windows[*group])).collect();
        for &group in &groups {
            let (needed, available) = (needed(table, group), self.pools[group].available());
            if needed > available {
                return Err(OutOfBlocks { needed, available, windowed: self.windows[group].is_some() });
            }
        }
        for group in groups {
            for _ in 0..needed(table, group) {
                let block = self.alloc(group).expect("there are as many as can be evicted");
                table.groups[group].push(block);
            }
        }
        Ok(())
    }

    /// A block of a group, evicted if none is free.
    fn alloc(&mut self, group: usize) -> Option<u32> {
        loop {
            if let Some(block) = self.pools[group].alloc() {
                return Some(block);
            }
            match self.windows[group] {
                Some(_) => {
                    let block = self.index.evict_window(group)?;
                    self.pools[group].forget(block);
                    self.counts.evicted += 1;
                }
                None => self.evict()?,
            }
        }
    }

    /// Evicts a whole node.
    fn evict(&mut self) -> Option<()> {
        let node = self.index.evict()?;
        self.counts.evicted += node.blocks.len() as u64 + u64::from(node.state.is_some());
        self.drop_node(node);
        Some(())
    }

    fn drop_node(&mut self, Removed { blocks, state }: Removed) {
        blocks.into_iter().for_each(|(group, block)| self.pools[group].forget(block));
        state.into_iter().for_each(|state| self.release_state(state));
    }

    /// Gives back the blocks that lie outside the windows of all rows from position `next` on.
    ///
    /// A few more are kept, for a sequence that goes back a little: because a template writes the last turn differently. What
    /// a next token at one of the positions `ends` would see is found again; of the rest, what is published is the first to be
    /// evicted.
    pub fn release_outside_window(&mut self, table: &mut Table, next: u32, ends: &[u32]) {
        for group in 0..self.windows.len() {
            let Some(window) = self.windows[group] else { continue };
            let first = |pos: u32| (pos + 1).saturating_sub(window) / self.block;
            let end = first(next).saturating_sub(Limits::MORE_BLOCKS).min(table.groups[group].len() as u32);
            for i in table.freed[group]..end {
                let warm = ends.iter().any(|&pos| (first(pos)..self.blocks_for(pos)).contains(&i));
                let block = std::mem::replace(&mut table.groups[group][i as usize], FREED);
                if let Some(&node) = table.path.get(i as usize) {
                    self.index.leave_window(node, group, if warm { Worth::Normal } else { Worth::Little });
                    self.pools[group].release(block);
                } else if warm {
                    table.kept.push((group, i, block));
                } else {
                    self.pools[group].release(block);
                }
            }
            table.freed[group] = table.freed[group].max(end);
        }
    }

    /// Gives back what a table keeps for others beside its own; whether there was any.
    pub fn release_kept(&mut self, table: &mut Table) -> bool {
        let any = !table.kept.is_empty();
        table.kept.drain(..).for_each(|(group, _, block)| self.pools[group].release(block));
        any
    }

    /// Takes all blocks away from a table. Those that are published are found again, until they are evicted.
    pub fn release(&mut self, table: &mut Table) {
        self.release_as(table, Worth::Normal);
    }

    /// The same for a sequence that waits to go on: what it published is evicted after what nobody waits for.
    pub fn release_to_wait(&mut self, table: &mut Table) {
        if let Some(&node) = table.path.iter().rfind(|node| self.index.state(**node).is_some()) {
            self.index.touch_state(node, Worth::Awaited);
        }
        self.release_as(table, Worth::Awaited);
    }

    /// A sequence that was to go on does not.
    pub fn no_longer_waits(&mut self, root: &[u32], tokens: &[u32], phases: &Phases) {
        let mut path = Vec::new();
        let mut next = self.index.get(None, 0, root);
        while let Some(node) = next {
            path.push(node);
            let start = (path.len() as u32 - 1) * self.block;
            let words = tokens.get(start as usize..(start + self.block) as usize);
            next = words.and_then(|words| self.index.get(Some(node), phases.bits(start..start + self.block), words));
        }
        path.iter().for_each(|node| self.index.enter(*node));
        for &node in path.iter().rev() {
            self.index.not_awaited(node);
            self.index.leave(node, Worth::Normal);
        }
    }

    fn release_as(&mut self, table: &mut Table, worth: Worth) {
        let end = table.published() * self.block;
        for (i, &node) in table.path.iter().enumerate().rev() {
            for group in (0..self.pools.len()).filter(|&group| self.windows[group].is_some()) {
                if table.has(group, i as u32) {
                    // What a next token sees is worth keeping, more than what was kept for going back.
                    let first = (end + 1).saturating_sub(self.windows[group].unwrap_or(u32::MAX)) / self.block;
                    self.index.leave_window(node, group, if i as u32 >= first { worth } else { Worth::Little });
                }
            }
            self.index.leave(node, worth);
        }
        table.root.into_iter().for_each(|root| self.index.leave(root, worth));
        for (group, blocks) in table.groups.iter().enumerate() {
            let held = blocks.iter().filter(|block| **block != FREED);
            held.for_each(|block| self.pools[group].release(*block));
        }
        self.release_kept(table);
        *table = self.table();
    }

    // --- publishing ---------------------------------------------------------------------------------------------------

    /// Lets the full blocks of a table's first `proven` positions be found by others. `states` are those that the sequence
    /// kept, by position; those at the ends of these blocks go to them.
    pub fn publish(
        &mut self,
        table: &mut Table,
        tokens: &[u32],
        phases: &Phases,
        proven: u32,
        states: &mut Vec<(u32, State)>,
    ) {
        let Some(mut parent) = table.end() else { return };
        for i in table.published()..proven / self.block {
            let range = i * self.block..(i + 1) * self.block;
            let words = &tokens[range.start as usize..range.end as usize];
            let node = self.index.get_or_add(Some(parent), phases.bits(range.clone()), words);
            self.index.enter(node);
            for group in 0..self.pools.len() {
                self.publish_block(table, node, group, i);
            }
            if let Some(at) = states.iter().position(|(pos, _)| *pos == range.end) {
                self.keep_state(node, states.swap_remove(at).1);
            }
            table.path.push(node);
            parent = node;
        }
        self.bound_nodes();
    }

    /// Gives a node the block of a table that has its tokens, or the table the node's.
    fn publish_block(&mut self, table: &mut Table, node: NodeId, group: usize, i: u32) {
        let pool = &mut self.pools[group];
        let known = self.index.node(node).blocks[group].block;
        if table.has(group, i) {
            let own = &mut table.groups[group][i as usize];
            match known {
                // The same content twice: steps in flight that read the own block run before it is written again.
                Some(known) => {
                    pool.share(known);
                    pool.release(std::mem::replace(own, known));
                }
                None => {
                    pool.keep(*own);
                    self.index.set_block(node, group, *own);
                    self.counts.published += 1;
                }
            }
            if self.windows[group].is_some() {
                self.index.enter_window(node, group);
            }
        } else if let Some(at) = table.kept.iter().position(|(of, at, _)| (*of, *at) == (group, i)) {
            let (.., block) = table.kept.swap_remove(at);
            if known.is_none() {
                pool.keep(block);
                self.index.set_block(node, group, block);
                self.counts.published += 1;
            }
            pool.release(block);
        }
    }

    /// Lets the block after a table's published ones be found, whose first tokens up to `positions` are proven: the end of a
    /// prompt, or of an answer (`owner` may go on in it). `state` are the states after them.
    pub fn keep_end(
        &mut self,
        table: &Table,
        tokens: &[u32],
        phases: &Phases,
        positions: u32,
        state: Option<State>,
        owner: Option<u64>,
    ) {
        let start = table.published() * self.block;
        let parent = table.end().filter(|_| positions >= start && positions - start < self.block);
        let (Some(parent), true) = (parent, state.is_some() || !self.recurrent()) else {
            return state.into_iter().for_each(|state| self.release_state(state));
        };
        let node = if positions == start {
            parent
        } else {
            let words = &tokens[start as usize..positions as usize];
            let bits = Index::bits_of(positions - start, phases.bits(start..positions));
            let node = self.index.get_or_add(Some(parent), bits, words);
            for group in 0..self.pools.len() {
                if self.index.node(node).blocks[group].block.is_none() && table.has(group, table.published()) {
                    let block = table.groups[group][table.published() as usize];
                    self.pools[group].keep(block);
                    self.index.set_block(node, group, block);
                    self.counts.published += 1;
                }
            }
            self.index.set_owner(node, owner);
            node
        };
        state.into_iter().for_each(|state| self.keep_state(node, state));
    }

    fn keep_state(&mut self, node: NodeId, state: State) {
        // A root stands for no position, and its states are all zeros.
        let old =
            if self.index.node(node).end == 0 { Some(state) } else { self.index.set_state(node, state, Worth::Normal) };
        old.into_iter().for_each(|old| self.release_state(old));
    }

    /// Where no group holds blocks of all positions, nothing else bounds the number of nodes.
    fn bound_nodes(&mut self) {
        const MOST: u32 = 1 << 16;
        if self.windows.iter().any(Option::is_none) {
            return;
        }
        while self.index.len() > MOST && self.evict().is_some() {}
    }

    /// Forgets all that nobody uses.
    pub fn clear(&mut self) {
        while let Some(node) = self.index.evict() {
            self.drop_node(node);
        }
    }

    /// As many blocks and checkpoints as an executor with other limits has. Nothing may be in use or kept.
    pub fn resize(&mut self, limits: &Limits) {
        let pools = self.pools.iter_mut().zip(self.windows.iter().map(|window| limits.blocks_of(*window)));
        for (pool, blocks) in pools.chain(self.states.as_mut().map(|states| (states, limits.checkpoints))) {
            assert_eq!(pool.free(), pool.capacity(), "something is in the cache");
            *pool = Pool::new(blocks);
        }
    }

    /// Up to which position a sequence that gives back a table finds it again, if nothing is evicted.
    pub fn goes_on_at(&self, table: &Table) -> u32 {
        let path = if self.recurrent() {
            let with_state = table.path.iter().rposition(|node| self.index.state(*node).is_some());
            with_state.map_or(0, |i| i + 1)
        } else {
            table.path.len()
        };
        path as u32 * self.block
    }

    // --- states, and copies -------------------------------------------------------------------------------------------

    /// Copies a slot's states to a checkpoint, evicted if none is free. `slots` states come before the checkpoints.
    pub fn copy_state(&mut self, slot: u32, slots: u32) -> Option<State> {
        let place = match self.states.as_mut()?.alloc() {
            Some(place) => place,
            None => {
                let state = self.index.evict_state()?;
                self.counts.evicted += 1;
                self.release_state(state);
                self.states.as_mut()?.alloc()?
            }
        };
        let copy = self.copy(CacheOp::CopyState { from: slot, to: slots + place });
        Some(State { place, copy })
    }

    /// Gives the place of states back.
    pub fn release_state(&mut self, state: State) {
        if let Some(states) = &mut self.states {
            states.release(state.place);
        }
    }

    /// Gives up states that a table's sequence kept at a position, if they are still there.
    pub fn drop_state(&mut self, table: &Table, positions: u32, state: State) {
        let node = (positions / self.block).checked_sub(1).and_then(|i| table.path.get(i as usize));
        if let Some(&node) = node.filter(|node| self.index.state(**node) == Some(state)) {
            self.index.take_state(node);
            self.release_state(state);
        }
    }

    /// Checkpoints that are kept.
    pub fn states_kept(&self) -> u32 {
        self.states.as_ref().map_or(0, |states| states.capacity() - states.free())
    }

    /// Orders a copy; returns its number.
    pub fn copy(&mut self, op: CacheOp) -> u64 {
        self.copies.push(op);
        self.copied += 1;
        self.copied - 1
    }

    /// The copies to be made before the next step.
    pub fn take_copies(&mut self) -> Vec<CacheOp> {
        std::mem::take(&mut self.copies)
    }

    /// Copies ordered so far: the number of the next one.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Forgets the states that some copies brought: the device has lost them.
    pub fn retract(&mut self, copies: &std::ops::Range<u64>) {
        let lost = self.index.retract_states(copies);
        lost.into_iter().for_each(|state| self.release_state(state));
    }

    /// Counts a search of an admitted sequence.
    pub fn count(&mut self, queried: u32, found: u32) {
        self.counts.queried += u64::from(queried);
        self.counts.found += u64::from(found);
    }
}

#[cfg(test)]
mod tests;
