//! The work lists of attention, made once a step for all layers.

use crate::exec::{Batch, Limits};
use crate::model::Program;
use crate::ops::attend::gpu::{ALL_PARTS, MAX_PARTS, TILE_ROWS, part_size};

/// Bytes that parts may take until they are merged.
const PARTS_BYTES: u64 = 64 << 20;
/// Rows that are divided into parts, at most: more of them keep any device busy as they are.
const DIVIDED_ROWS: u32 = 32;

/// How many entries each list has room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Items that are parts of rows.
    pub(super) parts: u32,
    /// Bytes of one such part.
    pub(super) part_bytes: u64,
    /// Rows that are divided.
    pub(super) merges: u32,
    /// Items.
    pub(super) items: u32,
    /// Tiles of rows.
    pub(super) tiles: u32,
}

impl Room {
    pub(super) fn new(program: &Program, limits: &Limits) -> Self {
        let part_bytes = program.nodes.iter().map(|node| node.op.gpu_needs().kv_split).fold(16, u64::max);
        let fit = u32::try_from(PARTS_BYTES / part_bytes).unwrap_or(u32::MAX);
        let merges = limits.rows.min(DIVIDED_ROWS);
        let parts = (merges * MAX_PARTS.min(limits.context.div_ceil(part_size(0)))).min(fit);
        let tiles = limits.rows / TILE_ROWS + limits.seqs;
        Self { parts, part_bytes, merges, items: limits.rows + parts, tiles }
    }
}

/// The lists of a batch: whole rows or parts of them, rows whose parts are merged, tiles of rows.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// (row, part or [`ALL_PARTS`], size of a part, 0)
    pub(super) items: Vec<[u32; 4]>,
    /// (row, first item, items, 0)
    pub(super) merges: Vec<[u32; 4]>,
    /// The sequence of each tile, those included that are not there: see `attend_tiled`.
    pub(super) tiles: Vec<u32>,
}

impl Work {
    /// A few rows of long sequences are divided, so that there is enough to do at once; which rows are changes no result.
    pub(super) fn fill(&mut self, batch: &Batch, room: Room) {
        self.items.clear();
        self.merges.clear();
        self.tiles.clear();
        let few = batch.rows.len() as u32 <= room.merges;
        let parts = |row: &crate::exec::RowEntry| batch.seqs[row.seq as usize].context.div_ceil(part_size(row.pos));
        // Parts come first: their numbers say where their results lie.
        for (row, entry) in (0..).zip(&batch.rows) {
            let (first, count) = (self.items.len() as u32, parts(entry));
            if few && count > 1 && first + count <= room.parts {
                self.items.extend((0..count).map(|part| [row, part, part_size(entry.pos), 0]));
                self.merges.push([row, first, count, 0]);
            }
        }
        let mut divided = self.merges.iter().map(|m| m[0]).peekable();
        for (row, entry) in (0..).zip(&batch.rows) {
            if divided.next_if_eq(&row).is_none() {
                self.items.push([row, ALL_PARTS, part_size(entry.pos), 0]);
            }
        }
        for (seq, span) in (0..).zip(&batch.seqs) {
            let past = (span.row0 + span.rows) / TILE_ROWS + seq + 1;
            self.tiles.resize(past as usize, seq);
        }
    }
}
