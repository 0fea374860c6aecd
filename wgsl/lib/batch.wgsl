//! batch: reads the step's buffer, `batch: array<u32>`, as ops/step.rs lays it out.
//! words: 0 rows, 1 seqs, 2 outs, 3 table_stride, 4 first position; then the rows (4 words each: token, sampled + 2 * type, pos,
//! seq), the sequences (4: row0, rows, slot, context), the outputs (1: row), the block tables, the work lists of attention.
override BATCH_SEQS: u32 = 0u;    // word of the first sequence
override BATCH_OUTS: u32 = 0u;    // word of the first output
override BATCH_TABLES: u32 = 0u;  // word of the first block table
override POS_IDS: bool = true;   // rows have positions; else they are one sequence's, from the first position on
const BATCH_ROWS: u32 = 16u;      // word of the first row

fn row_token(r: u32) -> u32 { return batch[BATCH_ROWS + 4u * r]; }
fn row_sampled(r: u32) -> bool { return (batch[BATCH_ROWS + 4u * r + 1u] & 1u) != 0u; }
fn row_type(r: u32) -> u32 { return batch[BATCH_ROWS + 4u * r + 1u] >> 1u; }
fn row_pos(r: u32) -> u32 {
    if POS_IDS {
        return batch[BATCH_ROWS + 4u * r + 2u];
    }
    return batch[4] + r;
}
fn row_seq(r: u32) -> u32 {
    if POS_IDS {
        return batch[BATCH_ROWS + 4u * r + 3u];
    }
    return 0u;
}
fn seq_row0(s: u32) -> u32 { return batch[BATCH_SEQS + 4u * s]; }
fn seq_rows(s: u32) -> u32 { return batch[BATCH_SEQS + 4u * s + 1u]; }
fn seq_slot(s: u32) -> u32 { return batch[BATCH_SEQS + 4u * s + 2u]; }
fn seq_context(s: u32) -> u32 { return batch[BATCH_SEQS + 4u * s + 3u]; }
fn out_row(o: u32) -> u32 { return batch[BATCH_OUTS + o]; }
