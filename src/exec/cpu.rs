//! The CPU executor: a thread pool walks the program, and its threads do shares of every op.
//!
//! A step that was enqueued waits, packed, until [`poll`](Executor::poll) runs it. There is no background thread, so a step
//! never competes with the caller for a core, and nothing ever blocks. All memory is made once, for the limits; a decoding
//! loop allocates nothing.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use web_time::Instant;

use super::packed::{Batch, Packed};
use super::threads::Threads;
use super::{
    CacheOp, Executor, Limits, Numerics, Outs, PerPhase, Phase, Sampled, Step, StepOut, Ticket, Timing, seeded,
};
use crate::cpu::{Cache, Job, MOST_SHARES, PageShape, Pages, Share, Shared, States, bandwidth, zeros};
use crate::file::CountFn;
use crate::model::{CacheSpec, FuseFor, Node, Program, fuse};
use crate::ops::cpu::{CpuRun, Place, StepRows};
use crate::ops::sample::{Best, Logprob, Picker, logprobs};
use crate::ops::{CpuWeights, KvStorage, Load, Op, RING, RowEntry, Rows, ValueId};
use crate::quant::{LANES, Simd};
use crate::{Error, Result};

/// How a CPU executor is made.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads at most, the caller among them, and never more than there are cores; none: as many as there are. Of these, as many
    /// work as prove to be fastest, for prefill and decode rows apart, and as long as they are.
    pub threads: Option<usize>,
    /// Fast: a KV cache in f16, int8 activations.
    pub numerics: Numerics,
    /// How keys and values are stored; none: as the numerics have it.
    pub kv: Option<KvStorage>,
    /// What there is capacity for.
    pub limits: Limits,
    /// Runs the fused programs, not the canonical one.
    pub fuse: bool,
    /// Gives every value a buffer of its own, so that [`CpuExecutor::value`] can read it after a step.
    pub keep_values: bool,
}

impl CpuOptions {
    /// For an engine.
    pub fn new(limits: Limits) -> Self {
        Self { threads: None, numerics: Numerics::default(), kv: None, limits, fuse: true, keep_values: false }
    }
}

/// Runs steps of one program on the CPU.
pub struct CpuExecutor {
    limits: Limits,
    program: Program,
    weights: Arc<CpuWeights>,
    threads: Threads,
    /// Fast numerics: the instructions for integer dot products.
    int8: Option<Simd>,
    /// One a phase.
    schedules: PerPhase<Schedule>,
    kept: bool,
    buffers: Vec<Shared<f32>>,
    caches: Vec<Cache>,
    /// `scratch_len` numbers for each thread.
    scratch: Shared<f32>,
    scratch_len: usize,
    rows: Vec<RowEntry>,
    /// (samples, [`SAMPLE_SHARES`])
    bests: Shared<Best>,
    /// One a share of the region that samples.
    pickers: Vec<Mutex<Picker>>,
    /// What samples report, one list a sample.
    reported: Vec<Mutex<Vec<Logprob>>>,
    /// The tokens sampled last for each slot, by position.
    sampled: Vec<u32>,
    queue: VecDeque<Queued>,
    /// Steps that are not in flight, with their memory.
    #[allow(clippy::vec_box, reason = "they move to the queue and back; boxed, without a copy")]
    free: Vec<Box<Waiting>>,
    next_ticket: u64,
    out: StepOut,
    /// Rows, output rows and sequences of the last batch.
    last: [usize; 3],
    /// When the last batch reached each point, in nanoseconds from its start: before each node, before sampling, at its
    /// end. Empty unless it is profiled.
    marks: Vec<AtomicU64>,
}

/// A program of a phase, ready to run.
struct Schedule {
    program: Program,
    places: Vec<Place>,
    /// One a node.
    efforts: Vec<Effort>,
    effort: Effort,
    logits: Option<usize>,
    pooled: Option<usize>,
}

enum Queued {
    Step(Ticket, Box<Waiting>),
    Cache(CacheOp),
}

/// A step that has not run.
#[derive(Default)]
struct Waiting {
    packed: Packed,
    seqs: Vec<SeqOuts>,
}

/// What a sequence returns: its output rows within its batch, and where they go in the [`StepOut`], which is in the step's
/// order of sequences and not by phase.
struct SeqOuts {
    phase: Phase,
    /// Its index within its batch, and in the step.
    index: [usize; 2],
    slot: u32,
    outs: Range<usize>,
    /// As a sample of its batch, and of the step.
    sampled: Option<[usize; 2]>,
    /// As a row of logits.
    logits: Option<usize>,
}

impl CpuExecutor {
    /// Makes an executor for a program and its weights.
    pub fn new(program: &Program, weights: Arc<CpuWeights>, options: CpuOptions) -> Result<Self> {
        check(program, &weights)?;
        let written: Vec<_> = program.nodes.iter().filter_map(|node| node.op.writes()).collect();
        let ids = (0..program.values.len() as u32).map(ValueId);
        let inputs: Vec<_> = ids.filter(|id| options.keep_values && !written.contains(id)).collect();
        program.check(&inputs)?;
        let limits = options.limits;
        let mut buffers = Buffers { lens: Vec::new(), keep: options.keep_values };
        let mut plan = |phase| {
            let fused = if options.fuse { fuse(program, phase, FuseFor::CPU) } else { program.clone() };
            Schedule::new(fused, &weights, &limits, &mut buffers)
        };
        let schedules = PerPhase::by(&mut plan);
        let int8 = (options.numerics == Numerics::Fast).then(Simd::best);
        let threads = Threads::new(options.threads, &weights, int8);
        let scratch_len =
            schedules.each().into_iter().map(|plan| plan.scratch(&limits)).max().unwrap_or(0).next_multiple_of(16);
        let mut caches = Vec::new();
        for cache in &program.caches {
            let (group, kv_heads, k_dim, v_dim, v_in_k) = match *cache {
                CacheSpec::Pages { group, kv_heads, k_dim, v_dim, v_in_k, window: _ } => {
                    (group, kv_heads, k_dim, v_dim, v_in_k)
                }
                CacheSpec::State { len } => {
                    let count = limits.seqs.saturating_add(limits.checkpoints);
                    fits("the states of a layer", u64::from(len) * u64::from(count))?;
                    caches.push(Cache::State(States::new(len as usize, count as usize)?));
                    continue;
                }
            };
            let [kv_heads, k_dim, v_dim, block] = [kv_heads, k_dim, v_dim, limits.block].map(|d| d as usize);
            let shape = PageShape { kv_heads, k_dim, v_dim, v_in_k, block };
            let blocks = limits.blocks_of(program.window(group));
            fits("the KV cache of a layer", shape.len() as u64 * u64::from(blocks))?;
            let storage = options.kv.unwrap_or(options.numerics.kv());
            caches.push(Cache::Pages(Pages::new(group.index(), shape, blocks as usize, storage.bits())?));
        }
        let mut values = Vec::new();
        for &len in &buffers.lens {
            const VALUE: &str = "the buffer of a value";
            values.push(Shared::zeroed(VALUE, fits(VALUE, len)?)?);
        }
        const SCRATCH: &str = "scratch memory";
        let scratch = Shared::zeroed(SCRATCH, fits(SCRATCH, scratch_len as u64 * threads.most() as u64)?)?;
        let seqs = 2 * limits.seqs as usize;
        let waiting =
            || Box::new(Waiting { packed: Packed::with_capacity(program, &limits), seqs: Vec::with_capacity(seqs) });
        Ok(Self {
            limits,
            program: program.clone(),
            weights,
            schedules,
            int8,
            kept: options.keep_values,
            buffers: values,
            caches,
            scratch,
            scratch_len,
            rows: Vec::with_capacity(limits.rows as usize),
            bests: Shared::zeroed("the samples of a step", limits.seqs as usize * SAMPLE_SHARES)?,
            pickers: std::iter::repeat_with(Mutex::default).take(SAMPLE_SHARES).collect(),
            reported: std::iter::repeat_with(Mutex::default).take(limits.seqs as usize).collect(),
            sampled: zeros("the tokens sampled last", limits.seqs as usize * RING as usize)?,
            queue: VecDeque::with_capacity(limits.in_flight as usize + 64),
            free: (0..limits.in_flight).map(|_| waiting()).collect(),
            next_ticket: 0,
            out: StepOut { sampled: Vec::with_capacity(seqs), ..StepOut::default() },
            last: [0; 3],
            marks: Vec::new(),
            threads,
        })
    }

    /// The program that steps of a phase run.
    pub fn program(&self, phase: Phase) -> &Program {
        &self.schedules[phase].program
    }

    /// A value as the last step left it, (rows, width), if values are kept: of the prefill rows, if there were any. What a
    /// fused program skips is never written.
    pub fn value(&self, id: ValueId) -> Option<&[f32]> {
        let value = self.program.values.get(id.index()).filter(|_| self.kept)?;
        let rows = self.last[value.rows as usize];
        Some(self.buffers[id.index()].slice(0..rows * value.width as usize))
    }

    /// Sets the first rows of a value that no op writes, for programs that are not a model's; values must be kept.
    pub fn set_value(&mut self, id: ValueId, rows: &[f32]) -> Result<()> {
        let buffer = self.buffers.get_mut(id.index()).filter(|_| self.kept);
        let Some(target) = buffer.and_then(|buffer| buffer.all_mut().get_mut(..rows.len())) else {
            return Err(Error::argument("set_value", "values are not kept, or there are too many rows"));
        };
        target.copy_from_slice(rows);
        Ok(())
    }

    /// Fills all pages and states: tests put NaN where nothing has been written.
    pub fn fill_caches(&mut self, value: f32) {
        for cache in &mut self.caches {
            match cache {
                Cache::Pages(pages) => (0..pages.blocks()).for_each(|block| pages.fill(block, value)),
                Cache::State(states) => states.fill(value),
            }
        }
    }

    /// Fills all pages with seeded random numbers, the same as a GPU executor of the same limits.
    pub fn seed_caches(&mut self, seed: u64) {
        for (cache, number) in self.caches.iter_mut().zip(0..) {
            if let Cache::Pages(pages) = cache {
                pages.fill_with(|i| seeded(seed, number, i));
            }
        }
    }

    /// Runs a step; its results are in `out`.
    fn run(&mut self, waiting: &Waiting) {
        let vocab = self.program.vocab as usize;
        let samples = waiting.seqs.iter().filter(|seq| seq.sampled.is_some()).count();
        let logits: usize = waiting.seqs.iter().filter(|seq| seq.logits.is_some()).map(|seq| seq.outs.len()).sum();
        self.out.sampled.clear();
        self.out.sampled.resize(samples, Sampled { slot: 0, token: None });
        self.out.logprobs.resize_with(samples, Vec::new);
        self.out.logprobs.iter_mut().for_each(Vec::clear);
        self.out.logits.resize(logits * vocab, 0.0);
        let pooled = self.program.pooled().map_or(0, |v| self.program.value(v).width as usize);
        self.out.pooled.resize(waiting.seqs.len() * pooled, 0.0);
        for phase in Phase::ALL {
            let batch = waiting.packed.batch(phase);
            if !batch.rows.is_empty() {
                self.load_rows(batch);
                self.run_batch(phase, batch);
                waiting
                    .seqs
                    .iter()
                    .filter(|seq| seq.phase == phase)
                    .for_each(|seq| self.collect(seq, batch, waiting.seqs.len()));
            }
        }
    }

    /// Copies what ops read of a batch; tokens that were sampled here are looked up.
    fn load_rows(&mut self, batch: &Batch) {
        self.rows.clear();
        self.rows.extend(batch.rows.iter().map(|row| {
            let mut row = *row;
            if row.is_sampled() {
                row.token = self.sampled[(batch.seqs[row.seq as usize].slot * RING + row.pos % RING) as usize];
            }
            row
        }));
        self.last = [batch.rows.len(), batch.outs.len(), batch.seqs.len()];
    }

    fn run_batch(&mut self, phase: Phase, batch: &Batch) {
        let plan = &self.schedules[phase];
        let step = &StepRows {
            rows: &self.rows,
            seqs: &batch.seqs,
            outs: &batch.outs,
            tables: &batch.tables,
            table_stride: batch.table_stride as usize,
            angles: &batch.angles,
            block: self.limits.block as usize,
            decode: phase == Phase::Decode,
        };
        let (weights, values, caches) = (&*self.weights, &*self.buffers, &*self.caches);
        let (scratch, scratch_len, bests) = (&self.scratch, self.scratch_len, &self.bests);
        let int8 = self.int8;
        let vocab = self.program.vocab as usize;
        let (pickers, reported, sampled) = (&*self.pickers, &*self.reported, &*self.sampled);
        let samples = !batch.samples.is_empty() && plan.logits.is_some();
        let marks = &*self.marks;
        // Browsers have no clock of this kind, and one thread.
        let started = (!marks.is_empty() || self.threads.learns(phase)).then(Instant::now);
        let mark = |i: usize| {
            if let (Some(started), Some(mark)) = (started, marks.get(i)) {
                mark.store(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        };
        let nodes = plan.program.nodes.len();
        let wanted = self.threads.wanted();
        let rows = self.last;
        let shares = |region: usize, threads: usize| {
            mark(region);
            let Some(node) = plan.program.nodes.get(region) else { return SAMPLE_SHARES };
            let own = node.op.writes().map_or(rows[0], |v| rows[plan.program.value(v).rows as usize]);
            // Work is divided as if all threads that were asked for were there.
            if threads == 1 { 1 } else { plan.efforts[region].shares(&node.op, own, wanted) }
        };
        let work = |region: usize, share: &Share| {
            let Some(node) = plan.program.nodes.get(region) else {
                let Some(logits) = plan.logits else { return };
                let own = share.of(vocab, 16);
                for (d, sample) in batch.samples.iter().enumerate() {
                    let row = sample.out as usize * vocab;
                    // Every share looks at a part of the row where that is enough; else one looks at all of it.
                    let best = if sample.is_best_of_all() {
                        let part = values[logits].slice(row + own.start..row + own.end);
                        Best::of(part, own.start as u32, sample.inv_temperature(), sample.key())
                    } else if d % SAMPLE_SHARES == share.index {
                        let (row, ring) = (values[logits].slice(row..row + vocab), &sampled[ring(sample.slot)]);
                        let mut picker = lock(&pickers[share.index]);
                        let token = picker.pick(sample, &batch.lists, ring, row);
                        if sample.reports() {
                            let mut reported = lock(&reported[d]);
                            reported.clear();
                            logprobs(row, token, sample.reported - 1, &mut reported);
                        }
                        Best::picked(token)
                    } else {
                        Best::NONE
                    };
                    bests.set(d * SAMPLE_SHARES + share.index, best);
                }
                return;
            };
            let (share, places) = (*share, &*plan.places);
            node.op.cpu(&CpuRun { share, step, weights, values, places, caches, int8, scratch, scratch_len });
        };
        let (pool, threads) = self.threads.of(phase);
        pool.run(threads, &Job { regions: nodes + usize::from(samples), shares: &shares, work: &work });
        if !samples {
            mark(nodes);
        }
        mark(nodes + 1);
        let work = plan.effort.seconds(rows);
        if let Some(started) = started {
            self.threads.note(phase, started.elapsed(), work);
        }
    }

    /// Collects the results of a sequence, one of `seqs`, of the batch that just ran.
    fn collect(&mut self, seq: &SeqOuts, batch: &Batch, seqs: usize) {
        let vocab = self.program.vocab as usize;
        let plan = &self.schedules[seq.phase];
        if let (Some([d, at]), Some(_)) = (seq.sampled, plan.logits) {
            let sample = &batch.samples[d];
            let ring = &mut self.sampled[ring(seq.slot)];
            let ended = sample.ended(&batch.lists, ring);
            let parts = self.bests.slice(d * SAMPLE_SHARES..(d + 1) * SAMPLE_SHARES);
            let token = parts.iter().copied().fold(Best::NONE, Best::max).sampled().filter(|_| ended.is_none());
            self.out.sampled[at] = Sampled { slot: seq.slot, token };
            if sample.reports() && token.is_some() {
                let reported = self.reported[d].get_mut().unwrap_or_else(PoisonError::into_inner);
                std::mem::swap(reported, &mut self.out.logprobs[at]);
            }
            // A request without a token ends. Until it does, its rows need some token: a stop token if one was sampled
            // before.
            ring[(sample.pos % RING) as usize] = token.or(ended).unwrap_or(0);
        }
        if let Some(pooled) = plan.pooled {
            let width = self.out.pooled.len() / seqs;
            let [from, to] = seq.index.map(|i| i * width..(i + 1) * width);
            self.out.pooled[to].copy_from_slice(self.buffers[pooled].slice(from));
        }
        let logits = plan.logits;
        if let (Some(at), Some(logits)) = (seq.logits, logits) {
            let from = self.buffers[logits].slice(seq.outs.start * vocab..seq.outs.end * vocab);
            self.out.logits[at * vocab..][..from.len()].copy_from_slice(from);
        }
    }

    /// Threads that work together at the rows of a phase, as far as is known now.
    pub fn threads(&self, phase: Phase) -> usize {
        self.threads.count(phase)
    }

    /// Whether [`CpuExecutor::timings`] reports where the time of a step goes.
    pub fn profile(&mut self, on: bool) {
        let nodes = self.schedules.each().into_iter().map(|plan| plan.program.nodes.len()).max().unwrap_or(0);
        self.marks = (0..if on { nodes + 2 } else { 0 }).map(|_| AtomicU64::new(0)).collect();
    }

    /// How long each node of the last step took, which must have been of one phase, and sampling after them; empty without
    /// [`profile`](Self::profile). Waiting for other threads counts as a node's time.
    pub fn timings(&self, phase: Phase) -> Vec<Timing> {
        let nodes = &self.schedules[phase].program.nodes;
        let at = |i: usize| Some(self.marks.get(i)?.load(Ordering::Relaxed));
        let time = |i| Some(Duration::from_nanos(at(i + 1)?.saturating_sub(at(i)?)));
        let of = |(i, node): (usize, Option<&Node>)| {
            let kernel = node.map_or("sample", |node| node.op.name());
            Some(Timing { node: node.map(|_| i), kernel, time: time(i)? })
        };
        nodes.iter().map(Some).chain([None]).enumerate().filter_map(of).collect()
    }

    /// Bytes a second that the decode threads read from memory.
    pub fn bandwidth(&mut self) -> f64 {
        let (pool, threads) = self.threads.of(Phase::Decode);
        bandwidth(pool, threads)
    }

    fn change_cache(&mut self, op: CacheOp) {
        for cache in &mut self.caches {
            match (cache, op) {
                (Cache::Pages(pages), CacheOp::Copy { group, from, to }) if pages.group == group.index() => {
                    pages.copy(from as usize, to as usize);
                }
                (Cache::Pages(pages), CacheOp::Zero { group, block }) if pages.group == group.index() => {
                    pages.fill(block as usize, 0.0);
                }
                (Cache::State(states), CacheOp::CopyState { from, to }) => states.copy(from as usize, to as usize),
                _ => {}
            }
        }
    }
}

impl Executor for CpuExecutor {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn device(&self) -> String {
        let [prefill, threads] = [Phase::Prefill, Phase::Decode].map(|phase| self.threads.count(phase));
        let prefill = if prefill == threads { String::new() } else { format!(" ({prefill} for prompts)") };
        format!("cpu, {threads} thread{}{prefill}", if threads == 1 { "" } else { "s" })
    }

    async fn plan(&mut self, _: Phase, _: &mut CountFn<'_>) -> Result<()> {
        Ok(()) // there is nothing to compile
    }

    fn enqueue(&mut self, step: &Step<'_>) -> Result<Ticket> {
        let Some(mut waiting) = self.free.pop() else {
            let available = self.limits.in_flight.to_string();
            return Err(Error::Limit {
                what: "a step".to_owned(),
                needed: "a place among those in flight".to_owned(),
                available,
                instead: "poll first".to_owned(),
            });
        };
        if let Err(error) = waiting.pack(step, &self.program, &self.limits) {
            self.free.push(waiting);
            return Err(error);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.queue.push_back(Queued::Step(ticket, waiting));
        Ok(ticket)
    }

    fn cache(&mut self, ops: &[CacheOp]) -> Result<()> {
        for op in ops {
            let (group, blocks) = match *op {
                CacheOp::Copy { group, from, to } => (group, [from, to]),
                CacheOp::Zero { group, block } => (group, [block, block]),
                CacheOp::CopyState { from, to } => {
                    let states = self.limits.seqs.saturating_add(self.limits.checkpoints);
                    if from.max(to) >= states {
                        return Err(Error::argument(format!("{op:?}"), format!("there are {states} states")));
                    }
                    continue;
                }
            };
            let most = self.limits.blocks_of(self.program.window(group));
            if group.0 >= self.program.groups || blocks.iter().any(|&block| block >= most) {
                let problem = format!("{} groups, {most} blocks in this one", self.program.groups);
                return Err(Error::argument(format!("{op:?}"), problem));
            }
        }
        if self.queue.is_empty() {
            ops.iter().for_each(|&op| self.change_cache(op));
        } else {
            self.queue.extend(ops.iter().copied().map(Queued::Cache));
        }
        Ok(())
    }

    /// Runs the oldest step: one for each call, so that a caller with several in flight gets each result as soon as
    /// possible.
    fn poll(&mut self, done: &mut dyn FnMut(Ticket, Result<&StepOut>)) -> usize {
        while let Some(queued) = self.queue.pop_front() {
            match queued {
                Queued::Cache(op) => self.change_cache(op),
                Queued::Step(ticket, waiting) => {
                    self.run(&waiting);
                    self.free.push(waiting);
                    done(ticket, Ok(&self.out));
                    return 1;
                }
            }
        }
        0
    }

    /// Returns at once: the next `poll` finishes a step.
    async fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn blocked(&self) -> u64 {
        0
    }
}

impl Waiting {
    fn pack(&mut self, step: &Step<'_>, program: &Program, limits: &Limits) -> Result<()> {
        self.packed.pack(step, program, limits)?;
        self.seqs.clear();
        let (mut outs, mut of_phase) = (PerPhase::<usize>::default(), PerPhase::<usize>::default());
        let (mut samples, mut sampled_of_phase, mut logits) = (0, PerPhase::<usize>::default(), 0);
        for (at, seq) in step.seqs.iter().enumerate() {
            let count = match seq.outs {
                Outs::None => 0,
                Outs::Last => 1,
                Outs::All => seq.tokens.len(),
            };
            let start = outs[seq.phase];
            outs[seq.phase] += count;
            let sampled = seq.sample.map(|_| [sampled_of_phase[seq.phase], samples]);
            sampled_of_phase[seq.phase] += usize::from(sampled.is_some());
            let read = seq.read_logits.then_some(logits);
            samples += usize::from(sampled.is_some());
            logits += if seq.read_logits { count } else { 0 };
            let index = [of_phase[seq.phase], at];
            of_phase[seq.phase] += 1;
            let outs = start..start + count;
            self.seqs.push(SeqOuts { phase: seq.phase, index, slot: seq.slot, outs, sampled, logits: read });
        }
        Ok(())
    }
}

/// The number of f32 as a `usize`, or an error where memory cannot be that large.
fn fits(what: &str, len: u64) -> Result<usize> {
    let most = isize::MAX as u64 / 4;
    if len > most {
        return Err(Error::Limit {
            what: what.to_owned(),
            needed: format!("{len} numbers"),
            available: format!("{most}"),
            instead: "lower limits".to_owned(),
        });
    }
    Ok(len as usize)
}

/// Weights must be what the program says.
fn check(program: &Program, weights: &CpuWeights) -> Result<()> {
    if weights.matrices.len() != program.weights.len() || weights.vectors.len() != program.vectors.len() {
        let problem = format!(
            "{} matrices of {}, {} vectors of {}",
            weights.matrices.len(),
            program.weights.len(),
            weights.vectors.len(),
            program.vectors.len()
        );
        return Err(Error::argument("weights", problem));
    }
    for (spec, matrix) in program.weights.iter().zip(&weights.matrices) {
        if (spec.n as usize, spec.k as usize) != (matrix.n(), matrix.k()) {
            let problem = format!("({}, {}), the program wants ({}, {})", matrix.n(), matrix.k(), spec.n, spec.k);
            return Err(Error::argument(&spec.tensor, problem));
        }
    }
    for (spec, vector) in program.vectors.iter().zip(&weights.vectors) {
        if spec.n as usize != vector.len() {
            return Err(Error::argument(&spec.tensor, format!("({}), the program wants ({})", vector.len(), spec.n)));
        }
    }
    Ok(())
}

/// The buffers of values, while they are planned. Both phases' programs use the same, one after another.
struct Buffers {
    /// In numbers.
    lens: Vec<u64>,
    /// Every value has its own, with the value's id.
    keep: bool,
}

impl Buffers {
    /// A buffer for a value: the smallest free one that is large enough, or else the largest free one, grown.
    fn take(&mut self, id: usize, len: u64, free: &mut Vec<usize>) -> usize {
        let chosen = if self.keep {
            self.lens.resize(self.lens.len().max(id + 1), 0);
            id
        } else {
            let fit = |&&at: &&usize| (self.lens[at] < len, self.lens[at].abs_diff(len));
            let best = free.iter().min_by_key(fit).copied().unwrap_or_else(|| {
                self.lens.push(0);
                self.lens.len() - 1
            });
            free.retain(|&at| at != best);
            best
        };
        self.lens[chosen] = self.lens[chosen].max(len);
        chosen
    }
}

impl Schedule {
    fn new(program: Program, weights: &CpuWeights, limits: &Limits, buffers: &mut Buffers) -> Self {
        let len = |id: ValueId| {
            let value = program.value(id);
            u64::from(limits.rows_of(value.rows)) * u64::from(value.width)
        };
        // The last node that reads a value; results and kept values live on.
        let mut last_read = vec![None; program.values.len()];
        let mut written = vec![false; program.values.len()];
        for (i, node) in program.nodes.iter().enumerate() {
            node.op.reads(&mut |v| last_read[v.index()] = Some(i));
            node.op.writes().into_iter().for_each(|v| written[v.index()] = true);
        }
        for out in &program.outs {
            last_read[out.value().index()] = Some(usize::MAX);
        }
        let mut places: Vec<_> = program.values.iter().map(|v| Place { buffer: usize::MAX, rows: v.rows }).collect();
        let mut free: Vec<usize> = if buffers.keep { Vec::new() } else { (0..buffers.lens.len()).collect() };
        for id in 0..program.values.len() {
            if buffers.keep || !written[id] && last_read[id].is_some() {
                places[id].buffer = buffers.take(id, len(ValueId(id as u32)), &mut free);
            }
        }
        for (i, node) in program.nodes.iter().enumerate() {
            if let Some(out) = node.op.writes().filter(|out| places[out.index()].buffer == usize::MAX) {
                places[out.index()].buffer = buffers.take(out.index(), len(out), &mut free);
            }
            if !buffers.keep {
                let done = |v: ValueId| written[v.index()] && last_read[v.index()] <= Some(i);
                let mut give_back = |v: ValueId| {
                    let buffer = places[v.index()].buffer;
                    if done(v) && !free.contains(&buffer) {
                        free.push(buffer);
                    }
                };
                node.op.reads(&mut give_back);
                node.op.writes().into_iter().for_each(give_back);
            }
        }
        let efforts: Vec<_> = program.nodes.iter().map(|node| Effort::of(&node.op, &program, weights)).collect();
        let effort = efforts.iter().fold(Effort::default(), |sum, one| sum.plus(one));
        let [logits, pooled] = [program.logits(), program.pooled()].map(|v| Some(places[v?.index()].buffer));
        Self { program, places, efforts, effort, logits, pooled }
    }

    /// Numbers that a thread needs as scratch memory.
    fn scratch(&self, limits: &Limits) -> usize {
        let rows = |op: &Op| op.writes().map_or(limits.rows, |v| limits.rows_of(self.program.value(v).rows));
        self.program.nodes.iter().map(|node| node.op.cpu_scratch(rows(&node.op) as usize)).max().unwrap_or(0)
    }
}

/// Where the tokens lie that were sampled last for a slot.
fn ring(slot: u32) -> Range<usize> {
    let [first, end] = [slot, slot + 1].map(|slot| (slot * RING) as usize);
    first..end
}

/// What only one share uses, so that nobody waits.
fn lock<T>(own: &Mutex<T>) -> MutexGuard<'_, T> {
    own.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shares of the region in which tokens are sampled.
const SAMPLE_SHARES: usize = 16;
/// How long a share takes at least, in predicted seconds: a hundred times what claiming it does.
const SHARE: f64 = 10e-6;
/// Shares a thread at most: what a late one keeps others from is so small a part.
const SHARES: usize = 8;
/// Rows of W that products of many rows unpack together.
const PANELS: usize = 128;

/// About how long one thread takes for a node, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Effort {
    /// To read the weights.
    weights: f64,
    /// For each row of a step, output row and sequence.
    rows: [f64; 3],
}

impl Effort {
    fn of(op: &Op, program: &Program, weights: &CpuWeights) -> Self {
        const BYTES: f64 = 10e9;
        const FLOPS: f64 = 80e9;
        const ELEMENTS: f64 = 2e9;
        let load = Load { rows: 1, pos: 0, kv: KvStorage::F16 };
        let cost = op.cost(&load, 1, &|weight| weights.matrices[weight.index()].view().format);
        let mut effort = Self { weights: cost.bytes / BYTES, rows: [0.0; 3] };
        let value = op.writes().map(|v| program.value(v));
        let (rows, width) = value.map_or((Rows::Step, 0), |value| (value.rows, value.width));
        effort.rows[rows as usize] = cost.flops / FLOPS + f64::from(width) / ELEMENTS;
        effort
    }

    fn plus(self, other: &Self) -> Self {
        Self {
            weights: self.weights + other.weights,
            rows: std::array::from_fn(|kind| self.rows[kind] + other.rows[kind]),
        }
    }

    /// Of one thread, for so many rows of each kind.
    fn seconds(&self, rows: [usize; 3]) -> f64 {
        self.weights + self.rows.iter().zip(rows).map(|(each, rows)| each * rows as f64).sum::<f64>()
    }

    /// Into how many shares a node's work on so many rows is divided for some threads.
    fn shares(&self, op: &Op, rows: usize, threads: usize) -> usize {
        // Columns that a share must have to be worth its beginning.
        let n = match op {
            Op::Linear(op) => op.parts.iter().map(|part| part.n).max().unwrap_or(1),
            Op::ExpertLinear(op) => op.n,
            Op::HeadLinear(op) => op.n,
            // Their costs are not known: they depend on what came before.
            Op::Attend(_) | Op::Scan(_) | Op::Delta(_) => return threads * if rows > 1 { SHARES / 2 } else { 1 },
            _ => u32::MAX,
        };
        let seconds = self.weights + self.rows.iter().sum::<f64>() * rows as f64;
        if seconds < SHARE / 8.0 {
            return 1;
        }
        let each = if rows > 3 { PANELS } else { 2 * LANES };
        let most = (n as usize / (each * threads)).clamp(1, SHARES);
        (threads * ((seconds / (SHARE * threads as f64)) as usize).clamp(1, most)).min(MOST_SHARES)
    }
}
