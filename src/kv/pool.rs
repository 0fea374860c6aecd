//! The blocks of one cache group, counted by reference.

/// The blocks of one cache group. Its memory is taken once, so that no operation allocates.
#[derive(Clone, Debug)]
pub struct Pool {
    /// How many tables hold each block; 0 is free.
    refs: Vec<u32>,
    /// The free blocks; the last is given out next.
    free: Vec<u32>,
}

impl Pool {
    /// `blocks` free blocks, 0 to be given out first.
    pub fn new(blocks: u32) -> Self {
        Self { refs: vec![0; blocks as usize], free: (0..blocks).rev().collect() }
    }

    /// All blocks.
    pub fn capacity(&self) -> u32 {
        self.refs.len() as u32
    }

    /// Free blocks.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// A free block, held once from now on.
    pub fn alloc(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.refs[block as usize] = 1;
        Some(block)
    }

    /// One more holder of a block that is held.
    pub fn retain(&mut self, block: u32) {
        let refs = &mut self.refs[block as usize];
        assert!(*refs > 0, "block {block} is free and cannot be shared");
        *refs += 1;
    }

    /// One holder less; the last one frees the block.
    pub fn release(&mut self, block: u32) {
        let refs = &mut self.refs[block as usize];
        assert!(*refs > 0, "block {block} is free already");
        *refs -= 1;
        if *refs == 0 {
            self.free.push(block);
        }
    }

    /// How many hold a block.
    pub fn holders(&self, block: u32) -> u32 {
        self.refs[block as usize]
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
        let mut held: Vec<u32> = Vec::new();
        for _ in 0..1_000_000 {
            match random.below(5) {
                0 | 1 => match pool.alloc() {
                    Some(block) => {
                        assert!(!held.contains(&block));
                        held.push(block);
                    }
                    None => assert_eq!(pool.free(), 0),
                },
                2 if !held.is_empty() && held.len() < 100 => {
                    let block = held[random.below(held.len() as u32) as usize];
                    pool.retain(block);
                    held.push(block);
                }
                _ if !held.is_empty() => {
                    let block = held.swap_remove(random.below(held.len() as u32) as usize);
                    pool.release(block);
                    assert_eq!(pool.holders(block) as usize, held.iter().filter(|&&b| b == block).count());
                }
                _ => assert_eq!(pool.free(), 24),
            }
        }
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn releasing_a_free_block_is_a_bug() {
        Pool::new(1).release(0);
    }
}
