//! `kv_blocks`: copies and zeros blocks of a cache, and makes the blocks in use contiguous.

use std::collections::HashSet;

use crate::gpu::compose::lib;
use crate::gpu::params::params;
use crate::gpu::{Arg, Buffer, Dim, PlanBuilder};
use crate::ops::lower::WIDE;
use crate::ops::{CacheShape, kernels};
use crate::{Error, Result};

/// A block that is overwritten: by another one, or with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockMove {
    /// The block that is read; none: zeros.
    pub from: Option<u32>,
    /// The block that is overwritten.
    pub to: u32,
}

params! {
    pub(crate) struct Params {
        n: u32,
        first: u32,
        across: u32,
    }
}

impl BlockMove {
    /// Adds the dispatches that do `moves` to a cache, as if one after another.
    pub fn dispatch(plan: &mut PlanBuilder<'_>, kv: &Buffer, shape: &CacheShape, moves: &[Self]) -> Result<()> {
        shape.check()?;
        Self::dispatch_words(plan, kv, ("block", shape.block_words(), shape.blocks), moves)
    }

    /// The same for a buffer of any items of equal size: their name, the words of one, and how many there are.
    pub(crate) fn dispatch_words(
        plan: &mut PlanBuilder<'_>,
        kv: &Buffer,
        (what, words, count): (&str, u64, u32),
        moves: &[Self],
    ) -> Result<()> {
        for block in moves.iter().flat_map(|m| [m.from.unwrap_or(m.to), m.to]) {
            if block >= count {
                return Err(Error::argument("cache", format!("{what} {block}, the cache has {count}")));
            }
        }
        let bytes = words * 4 * u64::from(count);
        if kv.size() < bytes {
            let problem = format!("{count} times {words} words are {bytes} bytes, the buffer has {}", kv.size());
            return Err(Error::argument("cache", problem));
        }
        if moves.is_empty() {
            return Ok(());
        }
        // Fits: a binding has fewer than 2^32 bytes.
        let words = words as u32;
        let (fragment, n) = if words.is_multiple_of(4) { (lib::VEC4, words / 4) } else { (lib::SCALAR, words) };
        let mut kernel = kernels::KV_BLOCKS.kernel();
        kernel.fill("element", fragment);
        let device = plan.device().clone();
        let groups = n.div_ceil(WIDE).min(device.caps().max_groups);
        let list = Buffer::new(&device, "moves", moves.len() as u64 * 8)?;
        let pairs: Vec<[u32; 2]> = moves.iter().map(|m| [m.from.unwrap_or(u32::MAX), m.to]).collect();
        list.write(&device, 0, &pairs);
        let mut at = 0;
        for count in Self::together(moves) {
            let (end, most) = (at + count, device.caps().max_groups as usize);
            while at < end {
                let many = most.min(end - at);
                let grid = [Dim::Fixed(groups), Dim::Fixed(many as u32), Dim::Fixed(1)];
                let params = Params { n, first: at as u32, across: groups * WIDE };
                plan.dispatch(&kernel, &params, &[Arg::read(&list), Arg::Write(kv)], grid)?;
                at += many;
            }
        }
        Ok(())
    }

    /// How many moves, from the first on, may run at once, then how many of the rest, and so on: within such a batch, none reads
    /// or writes what another writes.
    fn together(moves: &[Self]) -> Vec<usize> {
        let mut counts = vec![0];
        let (mut read, mut written) = (HashSet::new(), HashSet::new());
        for m in moves {
            let waits = m.from.is_some_and(|from| written.contains(&from));
            if waits || written.contains(&m.to) || read.contains(&m.to) {
                counts.push(0);
                (read, written) = Default::default();
            }
            read.extend(m.from);
            written.insert(m.to);
            counts.last_mut().into_iter().for_each(|count| *count += 1);
        }
        counts
    }

    /// The moves after which the blocks of `used` are the cache's first: those past that go to free ones. All moves may run at
    /// once.
    pub fn compact(used: &[u32]) -> Vec<Self> {
        let taken: HashSet<u32> = used.iter().copied().collect();
        let count = taken.len() as u32;
        let free = (0..count).filter(|block| !taken.contains(block));
        let mut after: Vec<u32> = taken.iter().copied().filter(|&block| block >= count).collect();
        after.sort_unstable();
        after.into_iter().zip(free).map(|(from, to)| Self { from: Some(from), to }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(from: u32, to: u32) -> BlockMove {
        BlockMove { from: Some(from), to }
    }

    #[test]
    fn moves_that_depend_on_others_wait_for_them() {
        let zero = BlockMove { from: None, to: 9 };
        for (moves, counts) in [
            (&[copy(0, 1), copy(0, 2), zero][..], &[3][..]),
            (&[copy(0, 1), copy(1, 2)], &[1, 1]), // reads what was written
            (&[copy(0, 1), copy(2, 0)], &[1, 1]), // writes what was read
            (&[copy(0, 1), copy(2, 1), copy(3, 4)], &[1, 2]), // writes it again
        ] {
            assert_eq!(BlockMove::together(moves), counts, "{moves:?}");
        }
    }

    #[test]
    fn blocks_in_use_come_first() {
        assert_eq!(BlockMove::compact(&[7, 1, 3]), [copy(3, 0), copy(7, 2)]);
        assert_eq!(BlockMove::compact(&[0, 2, 1]), []);
        let moves = BlockMove::compact(&[5, 6, 7, 8]);
        assert_eq!(moves, [copy(5, 0), copy(6, 1), copy(7, 2), copy(8, 3)]);
        assert_eq!(BlockMove::together(&moves), [4]);
    }
}
