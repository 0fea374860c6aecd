//! The work lists of attention, made once a step for all layers.

use super::gpu::{ALL_SPLITS, TILE_ROWS, split_size};
use crate::ops::{RowEntry, SeqEntry};

/// How many entries the lists have capacity for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkLimits {
    /// Items that are KV splits of rows.
    pub(crate) splits: u32,
    /// Rows that are split.
    pub(crate) split_rows: u32,
}

/// The lists: items, which are rows or KV splits of rows; rows whose splits are reduced; tiles of rows.
#[derive(Debug, Default)]
pub(crate) struct WorkLists {
    /// (row, KV split or [`ALL_SPLITS`], size of a split, 0)
    pub(crate) items: Vec<[u32; 4]>,
    /// (row, first item, items, 0)
    pub(crate) split_rows: Vec<[u32; 4]>,
    /// The sequence of each tile, tiles without rows included: see `attend_tiled`.
    pub(crate) tiles: Vec<u32>,
}

/// The most tiles of a step: one per [`TILE_ROWS`] rows, and one more per sequence.
pub(crate) fn most_tiles(rows: u32, seqs: u32) -> u32 {
    rows / TILE_ROWS + seqs
}

impl WorkLists {
    /// If a step has few rows, those of long sequences are split, so that there is enough parallel work; which ones are split
    /// changes no result. `seen`: how many positions a row may see.
    pub(crate) fn fill(
        &mut self,
        rows: &[RowEntry],
        seqs: &[SeqEntry],
        seen: impl Fn(&RowEntry) -> u32,
        limits: WorkLimits,
    ) {
        self.items.clear();
        self.split_rows.clear();
        self.tiles.clear();
        let few = rows.len() as u32 <= limits.split_rows;
        // KV splits come first: an item's number says where its partial result lies.
        for (row, entry) in (0..).zip(rows) {
            let size = split_size(entry.pos);
            let (first, count) = (self.items.len() as u32, seen(entry).div_ceil(size));
            if few && count > 1 && first + count <= limits.splits {
                self.items.extend((0..count).map(|split| [row, split, size, 0]));
                self.split_rows.push([row, first, count, 0]);
            }
        }
        let mut split_rows = self.split_rows.iter().map(|m| m[0]).peekable();
        for (row, entry) in (0..).zip(rows) {
            if split_rows.next_if_eq(&row).is_none() {
                self.items.push([row, ALL_SPLITS, split_size(entry.pos), 0]);
            }
        }
        for (seq, entry) in (0..).zip(seqs) {
            let past = most_tiles(entry.row0 + entry.rows, seq) + 1;
            self.tiles.resize(past as usize, seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_rows_are_divided_where_workgroup_memory_allows() {
        let rows = [RowEntry::new(1, 300, 0), RowEntry::new(1, 0, 1), RowEntry::new(1, 700, 2)];
        let seq = |row0, context| SeqEntry { row0, rows: 1, slot: row0, context };
        let seqs = [seq(0, 301), seq(1, 1), seq(2, 701)];
        let mut lists = WorkLists::default();
        let mut fill = |splits, split_rows| {
            lists.fill(&rows, &seqs, |row| row.pos + 1, WorkLimits { splits, split_rows });
            (lists.items.clone(), lists.split_rows.clone(), lists.tiles.clone())
        };
        let whole = |row| [row, ALL_SPLITS, 256, 0];
        let split = |row, split| [row, split, 256, 0];
        let all = vec![split(0, 0), split(0, 1), split(2, 0), split(2, 1), split(2, 2), whole(1)];
        assert_eq!(fill(5, 3), (all, vec![[0, 0, 2, 0], [2, 2, 3, 0]], vec![0, 1, 2]));
        let one = vec![split(0, 0), split(0, 1), whole(1), whole(2)];
        assert_eq!(fill(4, 3), (one, vec![[0, 0, 2, 0]], vec![0, 1, 2]));
        for (splits, split_rows) in [(0, 3), (5, 2)] {
            assert_eq!(fill(splits, split_rows).0, [0, 1, 2].map(whole));
        }
    }
}
