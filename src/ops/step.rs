//! The rows and sequences of a step as all executors and kernels read them, and where they lie in a step buffer.

use bytemuck::{Pod, Zeroable};

/// A row: 4 words of a step buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct RowEntry {
    /// Token id; not read if the token is the one sampled last.
    pub token: u32,
    /// Bit 0: the token is the one sampled last for the sequence's slot. From bit 1 on, the token's type.
    flags: u32,
    /// Position in its sequence.
    pub pos: u32,
    /// The sequence: an index into the step's.
    pub seq: u32,
}

impl RowEntry {
    /// A row whose token is known.
    pub fn new(token: u32, pos: u32, seq: u32) -> Self {
        Self { token, flags: 0, pos, seq }
    }

    /// A row whose token is the one sampled last.
    pub fn sampled(pos: u32, seq: u32) -> Self {
        Self { token: 0, flags: 1, pos, seq }
    }

    /// Whether the token is the one sampled last.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 != 0
    }

    /// The token's type.
    pub fn kind(&self) -> u32 {
        self.flags >> 1
    }

    /// Sets the token's type.
    pub(crate) fn set_kind(&mut self, kind: u32) {
        self.flags = self.flags & 1 | kind << 1;
    }
}

/// A sequence: 4 words of a step buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct SeqEntry {
    /// Its first row.
    pub row0: u32,
    /// Its rows.
    pub rows: u32,
    /// Its slot: where its states lie.
    pub slot: u32,
    /// Positions in the cache once this step has written its own.
    pub context: u32,
}

/// What a step buffer holds at most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepSizes {
    pub(crate) rows: u32,
    pub(crate) seqs: u32,
    pub(crate) outs: u32,
    /// Groups of caches, each with block tables of its own.
    pub(crate) groups: u32,
    /// Blocks in a sequence's table.
    pub(crate) blocks: u32,
    /// Entries of attention's lists.
    pub(crate) items: u32,
    pub(crate) split_rows: u32,
    pub(crate) tiles: u32,
    /// Rows may be drafts of a tree.
    pub(crate) tree: bool,
}

/// Where the parts of a step buffer begin, in words. After a header of counts lie rows, sequences, outputs, block tables and
/// the work lists of attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLayout {
    /// Rows of a step, at most.
    pub(crate) rows: u32,
    pub(crate) seqs: u32,
    pub(crate) outs: u32,
    /// The first block table.
    pub(crate) tables: u32,
    /// Words of all block tables of a group.
    pub(crate) table_words: u32,
    /// The work list of rows.
    pub(crate) items: u32,
    /// The list of rows whose KV splits are reduced.
    pub(crate) split_rows: u32,
    /// The list of tiles of rows.
    pub(crate) tiles: u32,
    /// The list of ancestors, if rows are drafts of a tree; else 0.
    pub(crate) tree: u32,
    /// All of it.
    pub(crate) words: u64,
}

impl StepLayout {
    /// Words of the header: rows, sequences, outputs, blocks of a table, the first position of rows without positions of their
    /// own. It is `BATCH_ROWS` of `wgsl/lib/batch.wgsl`.
    pub(crate) const HEADER: u32 = 16;

    pub(crate) fn new(sizes: &StepSizes) -> Self {
        let mut words = u64::from(Self::HEADER);
        let mut place = |count: u64, each: u64| {
            let at = words;
            words += count * each;
            // A buffer of more words than u32 counts is refused when it is made.
            at as u32
        };
        let StepSizes { rows, seqs, outs, groups, blocks, items, split_rows, tiles, tree } = *sizes;
        let [rows, seqs, outs, items, split_rows, tiles] = [rows, seqs, outs, items, split_rows, tiles].map(u64::from);
        let table_words = seqs * u64::from(blocks);
        place(rows, 4);
        let (seqs, outs) = (place(seqs, 4), place(outs, 1));
        let tables = place(u64::from(groups), table_words);
        let (items, split_rows, tiles) = (place(items, 4), place(split_rows, 4), place(tiles, 1));
        let tree = if tree { place(rows, 2) } else { 0 };
        let (rows, table_words) = (sizes.rows, table_words as u32);
        Self { rows, seqs, outs, tables, table_words, items, split_rows, tiles, tree, words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another() {
        let sizes = StepSizes {
            rows: 3,
            seqs: 2,
            outs: 5,
            groups: 2,
            blocks: 7,
            items: 4,
            split_rows: 3,
            tiles: 6,
            tree: true,
        };
        let StepLayout { rows, seqs, outs, tables, table_words, items, split_rows, tiles, tree, words } =
            StepLayout::new(&sizes);
        assert_eq!((rows, seqs, outs, tables), (3, 16 + 12, 28 + 8, 36 + 5));
        assert_eq!((table_words, items, split_rows, tiles), (14, 41 + 28, 69 + 16, 85 + 12));
        assert_eq!((tree, words), (97 + 6, 103 + 6));
        let plain = StepLayout::new(&StepSizes { tree: false, ..sizes });
        assert_eq!((plain.tree, plain.words), (0, 103));
    }

    #[test]
    fn rows_hold_a_type_beside_the_token() {
        let mut row = RowEntry::sampled(7, 1);
        row.set_kind(3);
        assert_eq!((row.is_sampled(), row.kind()), (true, 3));
        assert_eq!(bytemuck::cast::<_, [u32; 4]>(row), [0, 7, 7, 1]);
    }
}
