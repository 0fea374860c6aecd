//! The step buffer of single ops: which rows there are, their positions, and the blocks of their sequences' caches.

use crate::gpu::{Buffer, Device, StepCounts};
use crate::ops::attend::gpu::{MAX_SPLITS, max_splits};
use crate::ops::attend::work::{WorkLimits, WorkLists, most_tiles};
use crate::ops::{RowEntry, SeqEntry, StepLayout, StepSizes};
use crate::{Error, Result};

/// What a step buffer has capacity for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Rows.
    pub rows: u32,
    /// Sequences.
    pub seqs: u32,
    /// Blocks of a cache that a sequence has in its table. 0: there are no tables, caches are contiguous.
    pub blocks: u32,
    /// Positions in a block, or of a sequence where there are no tables: rows past them are refused then. 0: unchecked.
    pub slots: u32,
    /// Rows have explicit positions ([`StepBuffer::write_rows`]); else they are consecutive positions of one sequence
    /// ([`StepBuffer::write_run`]). Pipelines depend on it.
    pub pos_ids: bool,
    /// Rows with explicit positions may come in any order. Tiles of rows, searches and writes to vectorised caches need
    /// them in the order of their sequences and positions, and are refused then.
    pub any_order: bool,
    /// Rows may be drafts of a tree ([`StepBuffer::write_tree`]). Pipelines depend on it.
    pub tree: bool,
    /// Attention by rows splits the KV positions of each row, as the engine does where rows are few (`Single::by_rows`).
    pub split_kv: bool,
}

impl Default for StepLimits {
    fn default() -> Self {
        Self { rows: 1, seqs: 1, blocks: 0, slots: 0, pos_ids: false, any_order: false, tree: false, split_kv: false }
    }
}

impl StepLimits {
    /// Positions that a sequence has capacity for, if that is known.
    pub(super) fn positions(&self) -> Option<u32> {
        (self.slots != 0).then(|| self.slots.saturating_mul(self.blocks.max(1)))
    }

    /// Items that attention's work list has for a row, at most.
    pub(super) fn items_of_row(&self) -> u32 {
        if self.split_kv { self.positions().map_or(MAX_SPLITS, max_splits) } else { 1 }
    }

    /// How far attention may split its work.
    pub(super) fn work_limits(&self) -> WorkLimits {
        WorkLimits { splits: if self.split_kv { self.rows * self.items_of_row() } else { 0 }, split_rows: self.rows }
    }
}

/// The rows that ops work on: how many there are, their positions, and the blocks of their sequences' caches.
#[derive(Clone, Debug)]
pub struct StepBuffer {
    pub(super) buffer: Buffer,
    pub(super) layout: StepLayout,
    pub(super) limits: StepLimits,
}

/// The position of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPos {
    /// Its position.
    pub pos: u32,
    /// Its sequence.
    pub seq: u32,
}

impl StepBuffer {
    /// A step without rows.
    pub fn new(device: &Device, limits: StepLimits) -> Result<Self> {
        let most = device.caps().max_groups;
        let items_of_row = limits.items_of_row();
        if u64::from(limits.rows) * u64::from(items_of_row) > u64::from(most) {
            return Err(Error::Limit {
                what: "a step".to_owned(),
                needed: format!("{} rows of up to {items_of_row} KV splits", limits.rows),
                available: format!("{most} workgroups in a dimension on this device"),
                instead: "several steps".to_owned(),
            });
        }
        let layout = StepLayout::new(&StepSizes {
            rows: limits.rows,
            seqs: limits.seqs,
            outs: 0,
            groups: 1,
            blocks: limits.blocks,
            items: limits.rows * items_of_row,
            split_rows: limits.rows,
            tiles: most_tiles(limits.rows, limits.seqs),
            tree: limits.tree,
        });
        let buffer = Buffer::new(device, "step", layout.words * 4)?;
        Ok(Self { buffer, layout, limits })
    }

    /// `count` rows of one sequence, the first at position `first`; its cache lies in the blocks of `table`.
    pub fn write_run(&self, device: &Device, count: u32, first: u32, table: &[u32]) -> Result<StepCounts> {
        if self.limits.pos_ids {
            return Err(Error::argument("write_run", "the rows of this step say where they stand"));
        }
        self.fits(count, 1, table.len())?;
        let end = end(first, count)?;
        self.reaches(table, end)?;
        self.buffer.write(device, 0, &[count, 1, 0, table.len() as u32, first]);
        let seqs = [SeqEntry { row0: 0, rows: count, slot: 0, context: end }];
        self.buffer.write(device, u64::from(self.layout.seqs), &seqs);
        self.buffer.write(device, u64::from(self.layout.tables), table);
        let rows: Vec<_> = (first..end).map(|pos| RowEntry::new(0, pos, 0)).collect();
        let (items, split_rows) = self.write_lists(device, &rows, &seqs);
        Ok(StepCounts { rows: count, seqs: 1, items, split_rows, ..StepCounts::default() })
    }

    /// Rows of any sequences, each sequence's cache in the blocks of its table. Unless [`StepLimits::any_order`] is set,
    /// sequences are in order, and the rows of each lie together, at positions that rise by one.
    pub fn write_rows(&self, device: &Device, rows: &[RowPos], tables: &[&[u32]]) -> Result<StepCounts> {
        if !self.limits.pos_ids {
            return Err(Error::argument("write_rows", "the rows of this step are one sequence's, in a run"));
        }
        let follows = |[a, b]: [RowPos; 2]| b.seq > a.seq || (b.seq == a.seq && Some(b.pos) == a.pos.checked_add(1));
        let jump = rows.array_windows().position(|pair| !follows(*pair)).filter(|_| !self.limits.any_order);
        if let Some(r) = jump {
            let problem =
                format!("row {} is {:?}, after {:?}; `StepLimits::any_order` takes that", r + 1, rows[r + 1], rows[r]);
            return Err(Error::argument("write_rows", problem));
        }
        let stride = tables.iter().map(|t| t.len()).max().unwrap_or(0);
        let seqs = rows.iter().map(|r| r.seq as usize + 1).max().unwrap_or(0).max(tables.len());
        self.fits(rows.len() as u32, seqs as u32, stride)?;
        for row in rows {
            self.reaches(tables.get(row.seq as usize).copied().unwrap_or(&[]), end(row.pos, 1)?)?;
        }
        let rows: Vec<_> = rows.iter().map(|row| RowEntry::new(0, row.pos, row.seq)).collect();
        let mut entries = vec![SeqEntry::default(); seqs];
        for (r, row) in (0..).zip(&rows) {
            let entry = &mut entries[row.seq as usize];
            if entry.rows == 0 {
                (entry.row0, entry.slot) = (r, row.seq);
            }
            entry.rows += 1;
            entry.context = row.pos.saturating_add(1).max(entry.context);
        }
        let mut blocks = vec![0; tables.len() * stride];
        for (table, to) in tables.iter().zip(blocks.chunks_mut(stride.max(1))) {
            to[..table.len()].copy_from_slice(table);
        }
        // A sequence without rows begins where the one before it ends: first rows rise.
        let mut past = 0;
        for entry in &mut entries {
            entry.row0 = if entry.rows == 0 { past } else { entry.row0 };
            past = entry.row0 + entry.rows;
        }
        self.buffer.write(device, 0, &[rows.len() as u32, seqs as u32, 0, stride as u32]);
        self.buffer.write(device, u64::from(StepLayout::HEADER), &rows);
        self.buffer.write(device, u64::from(self.layout.seqs), &entries);
        self.buffer.write(device, u64::from(self.layout.tables), &blocks);
        let (items, split_rows) = self.write_lists(device, &rows, &entries);
        Ok(StepCounts { rows: rows.len() as u32, seqs: seqs as u32, items, split_rows, ..StepCounts::default() })
    }

    /// Drafts of a tree, at most 64, as rows of one sequence that has `first` positions before them. Bit `j` of `ancestors[i]`
    /// says that row `j` is an ancestor of row `i` or row `i` itself; a root has its own bit alone.
    ///
    /// Row `i` is at position `first + i` of the cache, whatever its depth. Attention sees a row's ancestors and itself,
    /// and counts windows and distances among these. A rotation needs a step of its own, whose positions are `first +
    /// depth`.
    pub fn write_tree(&self, device: &Device, first: u32, ancestors: &[u64], table: &[u32]) -> Result<StepCounts> {
        let wrong = |problem: String| Err(Error::argument("write_tree", problem));
        if !self.limits.tree || ancestors.is_empty() || ancestors.len() > 64 {
            return wrong(format!(
                "{} drafts in a step with capacity for {}",
                ancestors.len(),
                if self.limits.tree { 64 } else { 0 }
            ));
        }
        for (i, mask) in ancestors.iter().enumerate() {
            // The mask of its parent, and its own bit.
            let before = mask ^ 1 << i;
            let parent = before.checked_ilog2();
            if before >= 1 << i || parent.is_some_and(|p| ancestors[p as usize] != before) {
                return wrong(format!("row {i} has the mask {mask:#b}, which is no parent's and its own bit"));
            }
        }
        let count = ancestors.len() as u32;
        let counts = if self.limits.pos_ids {
            let rows: Vec<_> = (first..end(first, count)?).map(|pos| RowPos { pos, seq: 0 }).collect();
            self.write_rows(device, &rows, &[table])?
        } else {
            self.write_run(device, count, first, table)?
        };
        // In the kernels a bit stands for one of the last 64 positions, or of all if there are fewer.
        let prefix = first.min(64 - count);
        let bits: Vec<u64> = ancestors.iter().map(|mask| mask << prefix | ((1 << prefix) - 1)).collect();
        self.buffer.write(device, u64::from(self.layout.tree), &bits);
        Ok(counts)
    }

    /// The work lists of attention: rows or their KV splits, which splits belong together, and the sequence of each tile of
    /// rows. Returns how many items there are, and how many rows to reduce.
    fn write_lists(&self, device: &Device, rows: &[RowEntry], seqs: &[SeqEntry]) -> (u32, u32) {
        let mut lists = WorkLists::default();
        // What is split is causal: see `Single::add`.
        lists.fill(rows, seqs, |row| row.pos + 1, self.limits.work_limits());
        let layout = &self.layout;
        self.buffer.write(device, u64::from(layout.items), &lists.items);
        self.buffer.write(device, u64::from(layout.split_rows), &lists.split_rows);
        self.buffer.write(device, u64::from(layout.tiles), &lists.tiles);
        if self.limits.tree {
            self.buffer.write(device, u64::from(layout.tree), &vec![u64::MAX; rows.len()]);
        }
        (lists.items.len() as u32, lists.split_rows.len() as u32)
    }

    /// Fails if so many positions exceed the blocks of a table, or the one block of a sequence that needs no table.
    fn reaches(&self, table: &[u32], positions: u32) -> Result<()> {
        let slots = self.limits.slots;
        let blocks = if self.limits.blocks == 0 { 1 } else { table.len() };
        if slots == 0 || positions.div_ceil(slots) as usize <= blocks {
            return Ok(());
        }
        let problem = format!("{positions} positions in {blocks} blocks of {slots}");
        Err(Error::argument("step", problem))
    }

    fn fits(&self, rows: u32, seqs: u32, blocks: usize) -> Result<()> {
        let limits = self.limits;
        if rows <= limits.rows && seqs <= limits.seqs && blocks <= limits.blocks as usize {
            return Ok(());
        }
        let problem = format!(
            "{rows} rows of {seqs} sequences of {blocks} blocks; at most {}, {} and {} fit",
            limits.rows, limits.seqs, limits.blocks
        );
        Err(Error::argument("step", problem))
    }
}

/// The position after `count` rows from `first` on.
fn end(first: u32, count: u32) -> Result<u32> {
    let problem =
        || Error::argument("step", format!("{count} rows from position {first} on, past the last of 32 bits"));
    first.checked_add(count).ok_or_else(problem)
}
