//! A step, packed: the flat arrays that both executors read. Memory is reused, so that packing a step of a decoding loop
//! allocates nothing.

use super::{Limits, Outs, Phase, Step, Token};
use crate::model::Program;
use crate::ops::{FREED, GroupId, PerPhase, RowEntry, SampleEntry, SeqEntry};
use crate::{Error, Result};

/// The rows of one phase in a step.
#[derive(Debug, Default)]
pub struct Batch {
    /// One a token.
    pub rows: Vec<RowEntry>,
    /// One a sequence.
    pub seqs: Vec<SeqEntry>,
    /// The row of each output row.
    pub outs: Vec<u32>,
    /// One a token that is sampled.
    pub samples: Vec<SampleEntry>,
    /// Their penalty counts, biases and other lists.
    pub lists: Vec<u32>,
    /// For each group, (seqs, table_stride) block ids.
    pub tables: Vec<Vec<u32>>,
    /// Block ids that each sequence has in each of `tables`.
    pub table_stride: u32,
    /// For each rope table, (rows, pairs) of (cosine, sine).
    pub angles: Vec<Vec<[f32; 2]>>,
}

impl Batch {
    fn clear(&mut self, groups: usize, ropes: usize) {
        self.rows.clear();
        self.seqs.clear();
        self.outs.clear();
        self.samples.clear();
        self.lists.clear();
        self.tables.resize_with(groups, Vec::new);
        self.tables.iter_mut().for_each(Vec::clear);
        self.angles.resize_with(ropes, Vec::new);
        self.angles.iter_mut().for_each(Vec::clear);
        self.table_stride = 0;
    }

    /// The slot in the KV cache of a group where position `pos` of a sequence lies: (block, slot within it).
    pub fn kv_slot(&self, group: usize, seq: u32, pos: u32, block: u32) -> (u32, u32) {
        (self.tables[group][(seq * self.table_stride + pos / block) as usize], pos % block)
    }
}

/// A step as two batches, since the phase of a row chooses its kernels.
#[derive(Debug, Default)]
pub struct Packed {
    batches: PerPhase<Batch>,
}

impl Packed {
    /// With capacity for any step within the limits.
    pub fn with_capacity(program: &Program, limits: &Limits) -> Self {
        let [rows, seqs, outs] = [limits.rows, limits.seqs, limits.outs].map(|n| n as usize);
        let blocks = limits.context.div_ceil(limits.block) as usize;
        let batch = || Batch {
            rows: Vec::with_capacity(rows),
            seqs: Vec::with_capacity(seqs),
            outs: Vec::with_capacity(outs),
            samples: Vec::with_capacity(seqs),
            lists: Vec::new(),
            tables: (0..program.groups).map(|_| Vec::with_capacity(seqs * blocks)).collect(),
            table_stride: 0,
            angles: program.ropes.iter().map(|table| Vec::with_capacity(rows * table.divisors.len())).collect(),
        };
        Self { batches: PerPhase::by(|_| batch()) }
    }

    /// The rows of a phase.
    pub fn batch(&self, phase: Phase) -> &Batch {
        &self.batches[phase]
    }

    /// Checks a step against what there is capacity for and packs it.
    pub fn pack(&mut self, step: &Step<'_>, program: &Program, limits: &Limits) -> Result<()> {
        self.batches.each_mut().into_iter().for_each(|b| b.clear(program.groups as usize, program.ropes.len()));
        for batch_phase in Phase::ALL {
            let seqs = || step.seqs.iter().filter(move |s| s.phase == batch_phase);
            let blocks = seqs().map(|s| (s.pos as usize + s.tokens.len()).div_ceil(limits.block as usize)).max();
            self.batches[batch_phase].table_stride = blocks.unwrap_or(0) as u32;
        }
        for (index, seq) in step.seqs.iter().enumerate() {
            let name = || format!("step, sequence {index}");
            let batch = &mut self.batches[seq.phase];
            let end = seq.pos as u64 + seq.tokens.len() as u64;
            if seq.tokens.is_empty() || end > u64::from(limits.context) {
                let problem =
                    format!("{} tokens at position {}; 1 to {} fit", seq.tokens.len(), seq.pos, limits.context);
                return Err(Error::argument(name(), problem));
            }
            if seq.slot >= limits.seqs || seq.tables.len() != program.groups as usize {
                let problem = format!(
                    "slot {} of {}, {} block tables of {}",
                    seq.slot,
                    limits.seqs,
                    seq.tables.len(),
                    program.groups
                );
                return Err(Error::argument(name(), problem));
            }
            if seq.pos > 0 && program.needs_full_sequence() {
                let problem =
                    format!("starts at position {}; this model needs whole sequences, from position 0", seq.pos);
                return Err(Error::argument(name(), problem));
            }
            if (seq.sample.is_some() || seq.read_logits) && program.logits().is_none() {
                return Err(Error::argument(name(), "asks for logits; this model gives none"));
            }
            if !seq.types.is_empty() && seq.types.len() != seq.tokens.len() {
                let problem = format!("{} token types for {} tokens", seq.types.len(), seq.tokens.len());
                return Err(Error::argument(name(), problem));
            }
            let blocks = (end as usize).div_ceil(limits.block as usize);
            for ((group, table), packed) in (0..).zip(seq.tables).zip(&mut batch.tables) {
                let window = program.window(GroupId(group));
                let seen = window.map_or(0, |window| (seq.pos + 1).saturating_sub(window) / limits.block) as usize;
                let most = limits.blocks_of(window);
                let there = |(i, &b): (usize, &u32)| b < most || (i < seen && b == FREED);
                let used = table.get(..blocks).filter(|t| t.iter().enumerate().all(there));
                let Some(used) = used else {
                    let problem = format!("needs {blocks} blocks below {most}, its table has {}", table.len());
                    return Err(Error::argument(name(), problem));
                };
                packed.extend(used.iter().map(|&block| if block == FREED { 0 } else { block }));
                packed.resize(packed.len() + batch.table_stride as usize - blocks, 0);
            }
            let row0 = batch.rows.len() as u32;
            let seq_index = batch.seqs.len() as u32;
            for (i, token) in seq.tokens.iter().enumerate() {
                let pos = seq.pos + i as u32;
                let mut row = match *token {
                    Token::Host(id) if id < program.vocab => RowEntry::new(id, pos, seq_index),
                    Token::Host(id) => {
                        let problem = format!("token {id}, the vocabulary has {}", program.vocab);
                        return Err(Error::argument(name(), problem));
                    }
                    Token::Sampled => RowEntry::sampled(pos, seq_index),
                };
                row.set_kind(seq.types.get(i).copied().unwrap_or(0));
                batch.rows.push(row);
            }
            let rows = seq.tokens.len() as u32;
            batch.seqs.push(SeqEntry { row0, rows, slot: seq.slot, context: end as u32 });
            let first_out = match seq.outs {
                Outs::None if seq.sample.is_some() => {
                    return Err(Error::argument(name(), "samples a token but gives no logits"));
                }
                Outs::None => rows,
                Outs::Last => rows - 1,
                Outs::All => 0,
            };
            batch.outs.extend((first_out..rows).map(|i| row0 + i));
            if let Some(spec) = &seq.sample {
                let at = [batch.outs.len() as u32 - 1, seq.slot, end as u32];
                batch.samples.push(SampleEntry::new(spec, &seq.lists, at, program.vocab, &mut batch.lists)?);
            }
        }
        for batch in self.batches.each_mut() {
            let counts = [batch.rows.len(), batch.seqs.len(), batch.outs.len()];
            let most = [limits.rows, limits.seqs, limits.outs];
            for ((count, most), what) in counts.into_iter().zip(most).zip(["rows", "sequences", "output rows"]) {
                if count > most as usize {
                    return Err(Error::argument("step", format!("{count} {what} of one phase; {most} fit")));
                }
            }
            for (table, angles) in program.ropes.iter().zip(&mut batch.angles) {
                let divisors = table.divisors(limits.context);
                for row in &batch.rows {
                    let factor = table.factor(row.pos);
                    angles.extend(divisors.iter().map(|divisor| {
                        let (sin, cos) = (f64::from(row.pos) * divisor).sin_cos();
                        [(cos * factor) as f32, (sin * factor) as f32]
                    }));
                }
            }
        }
        Ok(())
    }

    /// Whether the step has no rows.
    pub fn is_empty(&self) -> bool {
        self.batches.each().into_iter().all(|b| b.rows.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::SeqStep;
    use crate::model::Builder;

    /// At far positions an angle is so many radians that f32 would be off by a hundredth of one; the host computes in f64.
    #[test]
    fn angles_are_right_near_and_far() {
        const POSITIONS: [u32; 6] = [0, 1, 1024, 8192, 32_768, 131_072];
        const FACTOR: f32 = 1.25;
        let context = 131_073;
        let divisors: Vec<f64> = (0..64).map(|i| 10_000f64.powf(-f64::from(i) / 64.0)).collect();
        let mut b = Builder::new(1, context);
        b.rope_table(divisors.clone(), FACTOR);
        let program = b.finish(Vec::new());
        let limits = Limits { rows: 6, seqs: 6, outs: 0, block: 16, blocks: 1, context, in_flight: 1, checkpoints: 0 };
        let seq = |(slot, pos)| SeqStep::new(slot, Phase::Decode, &[Token::Host(0)], pos, &[]);
        let seqs: Vec<_> = (0..).zip(POSITIONS).map(seq).collect();
        let mut packed = Packed::with_capacity(&program, &limits);
        packed.pack(&Step { seqs: &seqs }, &program, &limits).unwrap();
        let angles = &packed.batch(Phase::Decode).angles[0];
        assert_eq!(angles.len(), POSITIONS.len() * divisors.len());
        for (row, pos) in angles.chunks(divisors.len()).zip(POSITIONS) {
            for ([cosine, sine], divisor) in row.iter().zip(&divisors) {
                let [cosine, sine] = [cosine, sine].map(|x| f64::from(*x) / f64::from(FACTOR));
                let (s, c) = (f64::from(pos) * divisor).sin_cos();
                let error = (sine * c - cosine * s).atan2(cosine * c + sine * s).abs();
                let length = (cosine.hypot(sine) - 1.0).abs();
                // Kernels that compute angles themselves keep to position * 2⁻²³ + 5e-4; the host's error is less.
                assert!(error < 2e-7 && length < 2e-7, "position {pos}, {divisor} radians each: {error}, {length}");
            }
        }
    }

    #[test]
    fn a_freed_block_inside_a_window_is_refused() {
        let mut b = Builder::new(1, 64);
        for window in [Some(10), None] {
            let group = b.group();
            b.pages(group, 1, 4, 4, window);
        }
        let program = b.finish(Vec::new());
        let limits =
            Limits { rows: 4, seqs: 1, outs: 0, block: 4, blocks: 8, context: 64, in_flight: 1, checkpoints: 0 };
        let mut packed = Packed::with_capacity(&program, &limits);
        let mut pack = |windowed: &[u32], whole: &[u32]| {
            let tables = [windowed, whole];
            let seqs = [SeqStep::new(0, Phase::Decode, &[Token::Host(0)], 20, &tables)];
            packed.pack(&Step { seqs: &seqs }, &program, &limits).map_err(|e| e.to_string())
        };
        // The row at position 20 sees positions 11 to 20, which are in blocks 2 to 5.
        let all = [0, 1, 2, 3, 4, 5];
        pack(&all, &all).unwrap();
        pack(&[FREED, FREED, 2, 3, 4, 5], &all).unwrap();
        for (windowed, whole) in [
            ([FREED, FREED, FREED, 3, 4, 5], all),
            ([0, 1, 2, FREED, 4, 5], all),
            ([0, 1, 2, 3, 4, FREED], all),
            (all, [FREED, 1, 2, 3, 4, 5]),
        ] {
            let refused = pack(&windowed, &whole).unwrap_err();
            assert!(refused.contains("6 blocks"), "{refused}");
        }
    }
}
