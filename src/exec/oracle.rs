//! The oracle: a whole program in f64, op by op, following the formulas. Slow; both executors are measured against it.

use std::sync::Arc;

use super::packed::Packed;
use super::{CacheOp, Limits, Phase, Step};
use crate::Result;
use crate::model::{CacheSpec, Out, Program, RopeTable};
use crate::ops::cpu::StepRows;
use crate::ops::oracle::{Cache64, OracleRun, Rows64, State64};
use crate::ops::{CpuWeights, GroupId, PerPhase, ValueId};

/// Runs programs in f64 over the decoded weights. What its caches hold survives steps, as an executor's do; reading a position
/// that was never written panics.
pub struct Oracle {
    programs: PerPhase<Program>,
    weights: Arc<CpuWeights>,
    limits: Limits,
    ropes: Vec<RopeTable>,
    values: Vec<Rows64>,
    caches: Vec<(GroupId, Cache64)>,
    states: Vec<State64>,
}

impl Oracle {
    /// An oracle that runs the same program for both phases: the canonical one.
    pub fn new(program: &Program, weights: Arc<CpuWeights>, limits: Limits) -> Self {
        Self::of_phases(PerPhase::by(|_| program.clone()), weights, limits)
    }

    /// An oracle that runs a program for prefill rows and one for decode rows: `fuse`'s.
    pub fn of_phases(programs: PerPhase<Program>, weights: Arc<CpuWeights>, limits: Limits) -> Self {
        let program = &programs.prefill;
        let ropes = program.ropes.clone();
        let group = |cache: &CacheSpec| match cache {
            CacheSpec::Pages { group, .. } => *group,
            CacheSpec::State { .. } => GroupId(u32::MAX), // of no group
        };
        let caches = program.caches.iter().map(|cache| (group(cache), Cache64::new())).collect();
        let states = vec![State64::new(); program.caches.len()];
        Self { weights, limits, ropes, values: Vec::new(), caches, states, programs }
    }

    /// Sets a value that no op writes, a vector a row.
    pub fn set_value(&mut self, id: ValueId, rows: Rows64) {
        self.values.resize(self.values.len().max(id.index() + 1), Vec::new());
        self.values[id.index()] = rows;
    }

    /// A value as the last batch that wrote it left it, a vector a row.
    pub fn value(&self, id: ValueId) -> &Rows64 {
        &self.values[id.index()]
    }

    /// Runs a step, decode rows first; tokens must come from the host. Gives the output rows' logits, decode rows' first.
    pub fn step(&mut self, step: &Step<'_>) -> Result<Rows64> {
        let mut packed = Packed::default();
        packed.pack(step, &self.programs.prefill, &self.limits)?;
        let mut logits = Rows64::new();
        for phase in Phase::ALL {
            let batch = packed.batch(phase);
            if batch.rows.is_empty() {
                continue;
            }
            let program = &self.programs[phase];
            self.values.resize(self.values.len().max(program.values.len()), Vec::new());
            let (ropes, context) = (&self.ropes, self.limits.context);
            let mut run = OracleRun {
                step: &StepRows {
                    rows: &batch.rows,
                    seqs: &batch.seqs,
                    outs: &batch.outs,
                    tables: &batch.tables,
                    table_stride: batch.table_stride as usize,
                    angles: &[], // its own
                    block: self.limits.block as usize,
                    decode: phase == Phase::Decode,
                },
                weights: &self.weights,
                ropes: &|id, pos| (ropes[id.index()].divisors(context), ropes[id.index()].factor(pos)),
                values: &mut self.values,
                caches: &mut self.caches,
                states: &mut self.states,
            };
            for node in &program.nodes {
                node.op.oracle(&mut run);
            }
            for out in &program.outs {
                if let Out::Logits(id) = out {
                    logits.extend(self.values[id.index()].iter().cloned());
                }
            }
        }
        Ok(logits)
    }

    /// Changes the caches as an executor does.
    pub fn cache(&mut self, ops: &[CacheOp]) {
        for op in ops {
            let group = match *op {
                CacheOp::Copy { group, .. } | CacheOp::Zero { group, .. } => group,
                CacheOp::CopyState { from, to } => {
                    for states in &mut self.states {
                        if let Some(state) = states.get(&from).cloned() {
                            states.insert(to, state);
                        }
                    }
                    continue;
                }
            };
            for (_, cache) in self.caches.iter_mut().filter(|(of, _)| *of == group) {
                for slot in 0..self.limits.block as usize {
                    match *op {
                        CacheOp::Copy { from, to, .. } => {
                            if let Some(entry) = cache.get(&(from as usize, slot)).cloned() {
                                cache.insert((to as usize, slot), entry);
                            }
                        }
                        CacheOp::Zero { block, .. } => {
                            if let Some((k, v)) = cache.get_mut(&(block as usize, slot)) {
                                k.iter_mut().chain(v).flatten().for_each(|x| *x = 0.0);
                            }
                        }
                        CacheOp::CopyState { .. } => {}
                    }
                }
            }
        }
    }
}
