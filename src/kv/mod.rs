//! The bookkeeping of the KV cache: which blocks of the executor's storage belong to which sequence.
//!
//! Nothing here touches a device: a block is a number below [`Limits::blocks`](crate::exec::Limits), and what it holds is
//! the executor's business. Blocks are counted by reference, so that sequences can come to share the blocks of a common
//! prefix. A checkpoint of a recurrent model's states is a number, too.

mod pool;
mod table;

pub use pool::Pool;
pub use table::Table;

/// The pools of all cache groups, from which tables take their blocks.
#[derive(Clone, Debug)]
pub struct Kv {
    pools: Vec<Pool>,
    block: u32,
    /// For each group, the positions that a row sees, if it does not see all.
    windows: Vec<Option<u32>>,
    /// Places for the checkpoints of states; none for models without recurrent layers.
    states: Option<Pool>,
}

/// A group has too few free blocks: not an error, but the moment to evict or to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBlocks {
    /// Blocks that were needed in each group.
    pub needed: u32,
    /// Blocks that are free in the group with the fewest.
    pub free: u32,
}

impl Kv {
    /// `groups` pools of `blocks` blocks of `block` positions.
    pub fn new(groups: u32, blocks: u32, block: u32) -> Self {
        assert!(block > 0, "a block holds at least one position");
        let pools = (0..groups).map(|_| Pool::new(blocks)).collect();
        Self { pools, block, windows: vec![None; groups as usize], states: None }
    }

    /// The same for a model whose groups see windows.
    pub fn with_windows(self, windows: Vec<Option<u32>>) -> Self {
        assert_eq!(windows.len(), self.pools.len(), "a window or none for each group");
        Self { windows, ..self }
    }

    /// The same for a model with recurrent layers, with places for so many checkpoints.
    pub fn with_states(self, checkpoints: u32) -> Self {
        Self { states: Some(Pool::new(checkpoints)), ..self }
    }

    /// Whether sequences have states, which cannot be truncated.
    pub fn recurrent(&self) -> bool {
        self.states.is_some()
    }

    /// A place for a checkpoint, if one is free.
    pub fn take_state(&mut self) -> Option<u32> {
        self.states.as_mut()?.alloc()
    }

    /// Gives the place of a checkpoint back.
    pub fn release_state(&mut self, state: u32) {
        if let Some(states) = &mut self.states {
            states.release(state);
        }
    }

    /// Checkpoints that are kept.
    pub fn states_kept(&self) -> u32 {
        self.states.as_ref().map_or(0, |states| states.capacity() - states.free())
    }

    /// Blocks that hold so many positions.
    pub fn blocks_for(&self, positions: u32) -> u32 {
        positions.div_ceil(self.block)
    }

    /// Free blocks, in the group with the fewest. A model without caches has no end of them.
    pub fn free(&self) -> u32 {
        self.pools.iter().map(Pool::free).min().unwrap_or(u32::MAX)
    }

    /// All blocks of a group.
    pub fn capacity(&self) -> u32 {
        self.pools.first().map_or(u32::MAX, Pool::capacity)
    }

    /// Blocks that would be free in the group with the fewest if some tables gave theirs back.
    pub fn free_without<'a>(&self, tables: impl Iterator<Item = &'a Table> + Clone) -> u32 {
        let of = |(group, pool): (usize, &Pool)| pool.free() + tables.clone().map(|t| t.held(group)).sum::<u32>();
        self.pools.iter().enumerate().map(of).min().unwrap_or(u32::MAX)
    }

    /// A table that owns nothing.
    pub fn table(&self) -> Table {
        Table::new(self.pools.len())
    }

    /// Gives a table the blocks that hold its first `positions` positions: those of every group, or nothing.
    pub fn grow(&mut self, table: &mut Table, positions: u32) -> Result<(), OutOfBlocks> {
        let needed = self.blocks_for(positions).saturating_sub(table.blocks());
        let free = self.free();
        if needed > free {
            return Err(OutOfBlocks { needed, free });
        }
        table.extend(&mut self.pools, needed);
        Ok(())
    }

    /// Removes the blocks that lie wholly after the first `positions` positions.
    pub fn truncate(&mut self, table: &mut Table, positions: u32) {
        let keep = self.blocks_for(positions);
        table.truncate(&mut self.pools, keep);
    }

    /// Gives back the blocks that lie outside the windows of all rows from position `next` on.
    ///
    /// A few more are kept, for a sequence that goes back a little: over tokens computed past its end, or because a
    /// template writes the last turn differently.
    pub fn release_outside_window(&mut self, table: &mut Table, next: u32) {
        const MORE: u32 = 4;
        for (group, window) in self.windows.iter().enumerate() {
            if let Some(window) = window {
                let unseen = (next + 1).saturating_sub(*window) / self.block;
                table.free(&mut self.pools, group, unseen.saturating_sub(MORE));
            }
        }
    }

    /// Whether a row at position `next` finds all that it sees.
    pub fn window_is_resident(&self, table: &Table, next: u32) -> bool {
        let reaches = |(group, window): (usize, &Option<u32>)| {
            let first = window.map_or(0, |window| (next + 1).saturating_sub(window));
            table.freed(group) <= first / self.block
        };
        self.windows.iter().enumerate().all(reaches)
    }

    /// Takes all blocks away.
    pub fn release(&mut self, table: &mut Table) {
        self.truncate(table, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Pools and tables agree with plain counts: each sequence owns so many blocks of each group, and shares none.
    #[test]
    fn a_million_operations_agree_with_counting() {
        let mut random = Random::new(7);
        let (groups, blocks, block) = (2, 64, 4);
        let mut kv = Kv::new(groups, blocks, block);
        let mut tables: Vec<Table> = (0..12).map(|_| kv.table()).collect();
        let mut held = [0u32; 12];
        let mut refused = 0u32;
        for op in 0..1_000_000 {
            let i = random.below(12) as usize;
            let positions = random.below(80);
            let blocks_wanted = positions.div_ceil(block);
            let free = blocks - held.iter().sum::<u32>();
            match random.below(8) {
                0 => {
                    kv.release(&mut tables[i]);
                    held[i] = 0;
                }
                1 | 2 => {
                    kv.truncate(&mut tables[i], positions);
                    held[i] = held[i].min(blocks_wanted);
                }
                _ => {
                    let needed = blocks_wanted.saturating_sub(held[i]);
                    let expected = if needed > free { Err(OutOfBlocks { needed, free }) } else { Ok(()) };
                    assert_eq!(kv.grow(&mut tables[i], positions), expected);
                    match expected {
                        Ok(()) => held[i] += needed,
                        Err(_) => refused += 1,
                    }
                }
            }
            assert_eq!(kv.free(), blocks - held.iter().sum::<u32>());
            if op % 97 == 0 {
                check_ownership(&tables, &held, groups, blocks);
            }
        }
        assert!(refused > 1000, "the pool was never short: {refused}");
        tables.iter_mut().for_each(|t| kv.release(t));
        assert_eq!(kv.free(), blocks);
    }

    /// Whatever is given back, what rows see is there, and what a table holds is bounded.
    #[test]
    fn windows_bound_what_a_table_holds() {
        let (block, window) = (4, 10);
        let mut random = Random::new(5);
        let mut kv = Kv::new(2, 64, block).with_windows(vec![None, Some(window)]);
        let mut table = kv.table();
        let (mut at, mut back) = (0u32, 0);
        for _ in 0..20_000 {
            let next =
                if random.below(20) == 0 { at.saturating_sub(random.below(40)) } else { at + 1 + random.below(7) };
            if next < at {
                kv.truncate(&mut table, next);
                back += 1;
                if !kv.window_is_resident(&table, next) {
                    kv.release(&mut table);
                    at = 0;
                    assert!(kv.window_is_resident(&table, 0));
                    continue;
                }
            } else if kv.grow(&mut table, next).is_err() {
                kv.release(&mut table);
                at = 0;
                continue;
            }
            at = next;
            kv.release_outside_window(&mut table, at);
            assert!(kv.window_is_resident(&table, at));
            let seen = (at + 1).saturating_sub(window) / block..kv.blocks_for(at);
            assert!(seen.clone().all(|i| table.group(1)[i as usize] != crate::ops::FREED));
            assert!(table.held(1) <= seen.len() as u32 + 4 && table.held(0) == table.blocks());
            assert_eq!(kv.free_without(std::iter::once(&table)), 64);
        }
        assert!(back > 500);
        kv.release(&mut table);
        assert_eq!(kv.free(), 64);
    }

    fn check_ownership(tables: &[Table], held: &[u32], groups: u32, blocks: u32) {
        for group in 0..groups as usize {
            let mut owned = vec![false; blocks as usize];
            for (table, &held) in tables.iter().zip(held) {
                assert_eq!(table.group(group).len(), held as usize);
                for &block in table.group(group) {
                    assert!(!std::mem::replace(&mut owned[block as usize], true), "block {block} has two owners");
                }
            }
        }
    }
}
