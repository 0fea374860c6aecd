//! The f64 form of every op: plain loops that follow the formula, with which both executors are compared. It shares no
//! arithmetic with the CPU forms.

use std::collections::HashMap;

use crate::ops::cpu::StepRows;
use crate::ops::weights::CpuWeights;
use crate::ops::{CacheId, GroupId, RopeId, ValueId, VectorId, WeightId};

/// A matrix of f64: one vector per row.
pub(crate) type Rows64 = Vec<Vec<f64>>;

/// The keys and values of a cache: by (block, slot), for each KV head.
pub(crate) type Cache64 = HashMap<(usize, usize), (Rows64, Rows64)>;

/// The states of a recurrent layer: by slot.
pub(crate) type State64 = HashMap<u32, Rows64>;

/// What an oracle is given.
pub(crate) struct OracleRun<'a> {
    pub(crate) step: &'a StepRows<'a>,
    pub(crate) weights: &'a CpuWeights,
    /// A rope table: the radians per position of each pair, and the factor on cosine and sine.
    pub(crate) ropes: &'a dyn Fn(RopeId, u32) -> (&'a [f64], f64),
    /// For each value, its rows.
    pub(crate) values: &'a mut [Rows64],
    /// For each cache, its group and what it holds.
    pub(crate) caches: &'a mut [(GroupId, Cache64)],
    /// For each cache, its states.
    pub(crate) states: &'a mut [State64],
}

impl OracleRun<'_> {
    /// A decoded row of a matrix.
    pub(in crate::ops) fn weight_row(&self, id: WeightId, row: usize) -> Vec<f64> {
        let matrix = self.weights.matrices[id.index()].view();
        let mut decoded = vec![0.0; matrix.k];
        matrix.decode(row, &mut decoded);
        decoded.into_iter().map(f64::from).collect()
    }

    pub(in crate::ops) fn vector(&self, id: VectorId) -> Vec<f64> {
        self.weights.vectors[id.index()].iter().copied().map(f64::from).collect()
    }

    pub(in crate::ops) fn value(&self, id: ValueId) -> &Rows64 {
        &self.values[id.index()]
    }

    pub(in crate::ops) fn set(&mut self, id: ValueId, rows: Rows64) {
        self.values[id.index()] = rows;
    }

    /// Where the cache of a group keeps a position of a row's sequence.
    pub(in crate::ops) fn slot(&self, cache: CacheId, row: usize, pos: usize) -> (usize, usize) {
        let group = self.caches[cache.index()].0;
        self.step.kv_slot(group.index(), self.step.rows[row].seq as usize, pos)
    }

    /// Takes the state of a sequence, to be put back: `rows` vectors of `n`, zeros if the sequence begins.
    pub(in crate::ops) fn take_state(&mut self, cache: CacheId, seq: usize, rows: usize, n: usize) -> Rows64 {
        let span = self.step.seqs[seq];
        if self.step.rows[span.row0 as usize].pos == 0 {
            return vec![vec![0.0; n]; rows];
        }
        self.states[cache.index()].remove(&span.slot).expect("a sequence that goes on has a state")
    }

    /// Puts the state of a sequence back.
    pub(in crate::ops) fn put_state(&mut self, cache: CacheId, seq: usize, state: Rows64) {
        self.states[cache.index()].insert(self.step.seqs[seq].slot, state);
    }

    /// Stores the key and value heads of a row at its position.
    pub(in crate::ops) fn keep(&mut self, cache: CacheId, row: usize, k: Rows64, v: Rows64) {
        let at = self.slot(cache, row, self.step.rows[row].pos as usize);
        self.caches[cache.index()].1.insert(at, (k, v));
    }
}

/// Splits a row into heads.
pub(in crate::ops) fn heads(row: &[f64], dim: u32) -> Rows64 {
    row.chunks(dim as usize).map(<[f64]>::to_vec).collect()
}
