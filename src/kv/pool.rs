//! The blocks of one cache group, counted by reference.

/// The blocks of one cache group. Its memory is taken once, so that no operation allocates.
///
/// A block has holders of two kinds: tables of running sequences *use* it, nodes of the [index](super::Kv) *keep* it, to be
/// found again. A block without a holder is free. One that is kept and not used can be evicted.
#[derive(Clone, Debug)]
pub struct Pool {
    holders: Vec<Holders>,
    /// The free blocks; the last is given out next.
    free: Vec<u32>,
    /// Blocks that some table uses.
    in_use: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Holders {
    tables: u32,
    nodes: u32,
}

impl Pool {
    /// `blocks` free blocks, 0 to be given out first.
    pub fn new(blocks: u32) -> Self {
        Self { holders: vec![Holders::default(); blocks as usize], free: (0..blocks).rev().collect(), in_use: 0 }
    }

    /// All blocks.
    pub fn capacity(&self) -> u32 {
        self.holders.len() as u32
    }

    /// Free blocks.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Blocks that some table uses.
    pub fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Blocks that are free, or would be if all that no table uses were evicted.
    pub fn available(&self) -> u32 {
        self.capacity() - self.in_use
    }

    /// A free block, used once from now on.
    pub fn alloc(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.holders[block as usize].tables = 1;
        self.in_use += 1;
        Some(block)
    }

    /// One more table uses a block that is held.
    pub fn share(&mut self, block: u32) {
        let holders = self.held(block);
        holders.tables += 1;
        let first = holders.tables == 1;
        self.in_use += u32::from(first);
    }

    /// One more node keeps a block that is held.
    pub fn keep(&mut self, block: u32) {
        self.held(block).nodes += 1;
    }

    /// One table less uses a block; the last holder frees it.
    pub fn release(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        assert!(holders.tables > 0, "no table uses block {block}");
        holders.tables -= 1;
        let (last, free) = (holders.tables == 0, holders.tables + holders.nodes == 0);
        self.in_use -= u32::from(last);
        self.free.extend(free.then_some(block));
    }

    /// One node less keeps a block; the last holder frees it.
    pub fn forget(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        assert!(holders.nodes > 0, "no node keeps block {block}");
        holders.nodes -= 1;
        let free = holders.tables + holders.nodes == 0;
        self.free.extend(free.then_some(block));
    }

    /// How many tables use a block.
    pub fn tables(&self, block: u32) -> u32 {
        self.holders[block as usize].tables
    }

    /// How many nodes keep a block.
    pub fn nodes(&self, block: u32) -> u32 {
        self.holders[block as usize].nodes
    }

    fn held(&mut self, block: u32) -> &mut Holders {
        let holders = &mut self.holders[block as usize];
        assert!(holders.tables + holders.nodes > 0, "block {block} is free and cannot be shared");
        holders
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn a_million_operations_agree_with_a_list_of_holders() {
        let mut random = Random::new(3);
        let mut pool = Pool::new(24);
        // Each holder: a block, and whether a table is it.
        let mut held: Vec<(u32, bool)> = Vec::new();
        for _ in 0..1_000_000 {
            let any = (!held.is_empty()).then(|| random.below(held.len().max(1) as u32) as usize);
            match (random.below(6), any) {
                (0 | 1, _) => match pool.alloc() {
                    Some(block) => {
                        assert!(held.iter().all(|(of, _)| *of != block));
                        held.push((block, true));
                    }
                    None => assert_eq!(pool.free(), 0),
                },
                (2, Some(any)) if held.len() < 100 => {
                    pool.share(held[any].0);
                    held.push((held[any].0, true));
                }
                (3, Some(any)) if held.len() < 100 => {
                    pool.keep(held[any].0);
                    held.push((held[any].0, false));
                }
                (_, Some(any)) => {
                    let (block, table) = held.swap_remove(any);
                    if table {
                        pool.release(block)
                    } else {
                        pool.forget(block)
                    }
                    let of = |table| held.iter().filter(|holder| **holder == (block, table)).count();
                    assert_eq!((pool.tables(block) as usize, pool.nodes(block) as usize), (of(true), of(false)));
                }
                _ => assert_eq!(pool.free(), 24),
            }
            let used = (0..24).filter(|block| held.contains(&(*block, true))).count() as u32;
            assert_eq!((pool.in_use(), pool.available()), (used, 24 - used));
        }
    }

    #[test]
    #[should_panic(expected = "no table uses")]
    fn releasing_a_free_block_is_a_bug() {
        Pool::new(1).release(0);
    }
}
