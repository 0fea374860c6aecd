//! The GPU executor: a program's plans, the buffers of its steps, and the ring of steps in flight.
//!
//! Short decode steps are recorded until they fill a submission, or until somebody wants results.
//!
//! Three kinds of step data are three kinds of buffers, since wgpu tracks usage by whole buffers: what the host writes (the
//! step and its angles, one of each a phase), what the device keeps (the sampled tokens), and what it gives back (results).

mod budget;
mod inspect;
mod marker;
mod memory;
mod submission;
#[cfg(test)]
mod tests;
mod weights;
mod work;

use std::collections::VecDeque;
use std::time::Duration;

use super::{
    CacheOp, Executor, Limits, Numerics, Outs, Packed, PerPhase, Phase, SeqStep, SmallerCache, Step, StepOut, Ticket,
};
use crate::file::CountFn;
use crate::gpu::{Buffer, Device, Pipelines, Plan, PlanBuilder, StepCounts, Timer, wgpu};
use crate::model::{FuseFor, Program, WeightSource};
use crate::ops::attend::work::{WorkLimits, WorkLists, most_tiles};
use crate::ops::lower::{AngleSource, Angles, CacheBuffer, KernelTuning, Lower, Switches};
use crate::ops::matmul::Tile;
use crate::ops::sample::{self, LOGPROB_WORDS, SampleBuffers};
use crate::ops::{KvStorage, Part, RING, RowEntry, SampleEntry, StepLayout, StepSizes};
use crate::{Error, Result};
use budget::{OWN, Rates, SHARED};
use marker::CompletionMarkers;
use memory::Values;
use submission::{
    MARK, Recorded, RecordedSample, Recording, Submission, SubmissionPacing, TARGET_SUBMISSIONS, UPLOAD, Writes,
};
use weights::Weights;
use work::work_limits;

/// What a GPU executor is made with.
#[derive(Clone, Copy, Debug)]
pub struct GpuOptions {
    /// How exact.
    pub numerics: Numerics,
    /// How keys and values are stored; none: as the numerics have it.
    pub kv: Option<KvStorage>,
    /// Capacity for rows, sequences and cache.
    pub limits: Limits,
    /// Runs the canonical program as it is: the oracle of fusion.
    pub unfused: bool,
    /// Gives every value a buffer of its own, so that it can be read after a step.
    pub keep_values: bool,
}

/// Runs a program's steps on a GPU.
#[derive(Debug)]
pub struct GpuExecutor {
    device: Device,
    pipelines: Pipelines,
    limits: Limits,
    /// What the cache holds, if that is less than the caller asked for.
    smaller_cache: Option<SmallerCache>,
    layout: StepLayout,
    tuning: KernelTuning,
    switches: Switches,
    weights: Weights,
    buffers: Buffers,
    work_limits: WorkLimits,
    work: WorkLists,
    phases: PerPhase<PhaseState>,
    packed: Packed,
    writes: Writes,
    pacing: SubmissionPacing,
    markers: CompletionMarkers,
    kv: KvStorage,
    /// The largest tile of prefill matmuls.
    tile: Tile,
    /// How long steps of each phase take.
    rates: PerPhase<Option<Rates>>,
    /// Moves of cache blocks that the next submission begins with.
    moves: Vec<Plan>,
    recording: Option<Recording>,
    in_flight: VecDeque<Submission>,
    idle_staging: Vec<Buffer>,
    next_ticket: u64,
    blocked: u64,
    out: StepOut,
    timer: Option<Timer>,
}

/// What the steps of both phases share.
#[derive(Debug)]
struct Buffers {
    caches: Vec<CacheBuffer>,
    /// The tokens sampled last, by slot.
    sampled: Buffer,
    /// KV splits of attention, until they are reduced.
    partials: Buffer,
    /// Rows of x as int8.
    int8_rows: Buffer,
    upload: Buffer,
}

/// What belongs to the steps of one phase.
#[derive(Debug)]
struct PhaseState {
    program: Program,
    values: Values,
    step: Buffer,
    angles: Buffer,
    angles_at: Vec<u64>,
    samples: SampleBuffers,
    scratch: Buffer,
    plan: Option<(Plan, Plan)>,
    /// Of the step that was uploaded last.
    counts: StepCounts,
}

impl PhaseState {
    fn new(
        device: &Device,
        program: Program,
        options: &GpuOptions,
        step_words: u64,
        pool: &mut memory::Pool,
        shared: &sample::Scratch,
    ) -> Result<Self> {
        let limits = &options.limits;
        let mut angles_at = Vec::new();
        let mut bytes = 0u64;
        for table in &program.ropes {
            angles_at.push(bytes);
            bytes += (u64::from(limits.rows) * table.divisors.len() as u64 * 8).next_multiple_of(256);
        }
        let scratch = program.nodes.iter().map(|node| node.op.gpu_needs().scratch(limits.rows)).max();
        Ok(Self {
            values: Values::new(device, &program, limits, pool, options.keep_values)?,
            step: Buffer::new(device, "step", step_words * 4)?,
            angles: Buffer::new(device, "angles", bytes.max(256))?,
            angles_at,
            samples: SampleBuffers::new(device, limits.seqs, sampled_vocab(&program), shared)?,
            scratch: Buffer::new(device, "scratch", scratch.unwrap_or(0).max(16))?,
            plan: None,
            counts: StepCounts::default(),
            program,
        })
    }
}

/// Tokens that a step may sample: none where there are no logits.
fn sampled_vocab(program: &Program) -> u32 {
    if program.logits().is_some() { program.vocab } else { 0 }
}

/// Where things lie in the step buffers of a program.
fn step_layout(program: &Program, limits: &Limits, work: &WorkLimits) -> StepLayout {
    StepLayout::new(&StepSizes {
        rows: limits.rows,
        seqs: limits.seqs,
        outs: limits.outs,
        groups: program.groups.max(1),
        blocks: limits.context.div_ceil(limits.block),
        items: limits.rows + work.splits,
        split_rows: work.split_rows,
        tiles: most_tiles(limits.rows, limits.seqs),
        tree: false,
    })
}

impl GpuExecutor {
    /// Loads a program's weights and allocates its steps. `progress` receives the bytes done and the bytes in all.
    pub async fn load(
        device: &Device,
        program: &Program,
        source: &impl WeightSource,
        mut options: GpuOptions,
        progress: &mut CountFn<'_>,
    ) -> Result<Self> {
        device.check()?;
        let limits = options.limits;
        if limits.in_flight > RING {
            let problem = format!("{} steps in flight: a sample sees the last {RING} tokens", limits.in_flight);
            return Err(Error::argument("limits", problem));
        }
        let kv = options.kv.unwrap_or(options.numerics.kv());
        let fuse = |phase| match options.unfused {
            true => program.clone(),
            false => crate::model::fuse(program, phase, FuseFor::gpu(kv)),
        };
        let programs = PerPhase::by(fuse);
        for program in programs.each() {
            program.on_gpu(kv)?;
        }
        let weights = Weights::load(device, &programs, source, progress).await?;

        let (caches, limits) = memory::caches_that_fit(device, program, limits, kv).await?;
        let smaller_cache = SmallerCache::of(&limits, &options.limits);
        options.limits = limits;
        let (work_limits, split_bytes) = work_limits(program, &limits);
        let layout = step_layout(program, &limits, &work_limits);
        let tuning = match options.numerics {
            Numerics::Fast => KernelTuning::fast(device.caps()),
            Numerics::Exact => KernelTuning::exact(device.caps()),
        };
        let buffers = Buffers {
            int8_rows: memory::int8_rows(device, &programs, &tuning, &limits)?,
            caches,
            sampled: Buffer::new(device, "sampled", u64::from(limits.seqs * RING) * 4)?,
            partials: Buffer::new(device, "partials", u64::from(work_limits.splits.max(1)) * split_bytes)?,
            upload: Buffer::new(device, "upload", UPLOAD)?,
        };
        let shared = sample::Scratch::new(device, limits.seqs, sampled_vocab(program))?;
        let mut pool = memory::Pool::default();
        let PerPhase { prefill, decode } = programs;
        let mut state = |program| PhaseState::new(device, program, &options, layout.words, &mut pool, &shared);
        let phases = PerPhase { prefill: state(prefill)?, decode: state(decode)? };
        let mut pipelines = Pipelines::new(device);
        let markers = device.checked("kernels", || CompletionMarkers::new(&mut pipelines)).await?;
        Ok(Self {
            device: device.clone(),
            pipelines,
            limits,
            smaller_cache,
            layout,
            tile: budget::largest_tile(&tuning, &weights),
            tuning,
            switches: Switches { pos_ids: true, search: false, v1: None },
            weights,
            buffers,
            work_limits,
            work: WorkLists::default(),
            phases,
            packed: Packed::default(),
            writes: Writes::default(),
            pacing: SubmissionPacing::new(limits.in_flight, if device.is_shared() { SHARED } else { OWN }),
            markers,
            kv,
            rates: PerPhase::default(),
            moves: Vec::new(),
            recording: None,
            in_flight: VecDeque::new(),
            idle_staging: Vec::new(),
            next_ticket: 0,
            blocked: 0,
            out: StepOut::default(),
            timer: None,
        })
    }

    /// The plan of a phase, made if it is new. Browsers compile its pipelines in the background.
    fn make_plan(&mut self, phase: Phase) -> Result<()> {
        let state = &mut self.phases[phase];
        if state.plan.is_some() {
            return Ok(());
        }
        let angles = |&at: &u64| Angles { buffer: state.angles.clone(), at, source: AngleSource::Host };
        let angles: Vec<_> = state.angles_at.iter().map(angles).collect();
        let bias_at = |parts: &[Part]| self.weights.bias_at(parts);
        let mut l = Lower {
            plan: PlanBuilder::new(&mut self.pipelines),
            layout: self.layout,
            tuning: self.tuning,
            switches: self.switches,
            values: &state.values.buffers,
            matrices: &self.weights.matrices,
            weights: &self.weights.buffers,
            vectors: &self.weights.vectors,
            vector_at: &self.weights.vector_at,
            bias_at: &bias_at,
            caches: &self.buffers.caches,
            step: &state.step,
            angles: &angles,
            decode: phase == Phase::Decode,
            scratch: &state.scratch,
            sorted: None,
            int8_rows: &self.buffers.int8_rows,
            quantized: None,
            sampled: &self.buffers.sampled,
            partials: &self.buffers.partials,
        };
        for (i, node) in state.program.nodes.iter().enumerate() {
            (l.plan.layer, l.plan.node) = (node.layer, Some(i));
            node.op.lower(&mut l)?;
        }
        let forward = l.plan.finish()?;
        (l.plan.layer, l.plan.node) = (None, None);
        if let Some(logits) = state.program.logits() {
            sample::lower(&mut l, logits, &state.samples, self.limits.seqs)?;
        }
        let sample = l.plan.finish()?;
        state.plan = Some((forward, sample));
        Ok(())
    }

    /// Collects what a packed batch writes into the buffers of its phase.
    fn write(&mut self, phase: Phase) {
        let batch = self.packed.batch(phase);
        let state = &mut self.phases[phase];
        let (writes, layout) = (&mut self.writes, &self.layout);
        let counts = [batch.rows.len(), batch.seqs.len(), batch.outs.len(), batch.table_stride as usize];
        let mut header = [0; StepLayout::HEADER as usize];
        header[..4].copy_from_slice(&counts.map(|n| n as u32));
        writes.push(&state.step, 0, &header);
        writes.push(&state.step, u64::from(StepLayout::HEADER), &batch.rows);
        writes.push(&state.step, u64::from(layout.seqs), &batch.seqs);
        writes.push(&state.step, u64::from(layout.outs), &batch.outs);
        writes.push(&state.samples.samples, 0, &batch.samples);
        writes.push(&state.samples.samples, u64::from(state.samples.lists), &batch.lists);
        for (group, table) in batch.tables.iter().enumerate() {
            writes.push(&state.step, u64::from(layout.tables + group as u32 * layout.table_words), table);
        }
        let seen = |row: &RowEntry| batch.seqs[row.seq as usize].context;
        self.work.fill(&batch.rows, &batch.seqs, seen, self.work_limits);
        writes.push(&state.step, u64::from(layout.items), &self.work.items);
        writes.push(&state.step, u64::from(layout.split_rows), &self.work.split_rows);
        writes.push(&state.step, u64::from(layout.tiles), &self.work.tiles);
        for (angles, at) in batch.angles.iter().zip(&state.angles_at) {
            writes.push(&state.angles, at / 4, angles);
        }
        let [rows, outs, seqs] = [batch.rows.len(), batch.outs.len(), batch.seqs.len()].map(|n| n as u32);
        let [items, split_rows] = [self.work.items.len(), self.work.split_rows.len()].map(|n| n as u32);
        let kinds: [fn(&SampleEntry) -> bool; 3] =
            [SampleEntry::is_filtered, SampleEntry::is_adjusted, SampleEntry::reports];
        let [samples_if_filtered, samples_if_adjusted, samples_if_reported] =
            kinds.map(|is| samples_if_any(&batch.samples, is));
        let samples = batch.samples.len() as u32;
        state.counts = StepCounts {
            rows,
            outs,
            seqs,
            items,
            split_rows,
            samples,
            samples_if_filtered,
            samples_if_adjusted,
            samples_if_reported,
        };
    }

    /// Columns of what the program pools; 0 if it does not.
    fn pooled_width(&self) -> u64 {
        let program = &self.phases.prefill.program;
        program.pooled().map_or(0, |pooled| u64::from(program.value(pooled).width))
    }

    /// A buffer for so many bytes of results, completion markers among them.
    fn staging(&mut self, bytes: u64) -> Result<Buffer> {
        if let Some(at) = self.idle_staging.iter().position(|b| b.size() >= bytes) {
            return Ok(self.idle_staging.swap_remove(at));
        }
        self.device.checked_now("results", || Buffer::readback(&self.device, "results", bytes))
    }

    /// Steps that are recorded or submitted, and not read.
    fn in_flight(&self) -> usize {
        self.recording.as_ref().map_or(0, Recording::len) + self.in_flight.iter().map(Submission::len).sum::<usize>()
    }

    /// Whether a step may share a submission: it decodes one row of each sequence (it does not recompute a text that the
    /// cache lost), and returns no more than samples.
    fn is_short(&self, step: &Step<'_>) -> bool {
        let short = |seq: &SeqStep<'_>| seq.phase == Phase::Decode && seq.tokens.len() == 1 && !seq.read_logits;
        let decodes = step.seqs.iter().all(short);
        decodes && self.pooled_width() == 0 && self.timer.is_none()
    }

    /// Where the results of a packed step will lie, and the rows of logits that it reads. Results of a phase lie in its
    /// buffers in the order of its batch. They are returned in the order of the step: tokens of both phases, probabilities
    /// of both, logits, pooled rows.
    fn results(&self, step: &Step<'_>) -> (Recorded, Vec<(Phase, u64)>) {
        let mut words = 0;
        let mut place = |n: usize| {
            words += n;
            words - n
        };
        // In the order in which `give` copies them.
        let [decode, prefill] = self.phases.each().map(|state| place(state.counts.samples as usize));
        let mut next_token = PerPhase { prefill, decode };
        let logprobs = |state: &PhaseState| (state.counts.samples_if_reported * LOGPROB_WORDS) as usize;
        let [decode, prefill] = self.phases.each().map(|state| place(logprobs(state)));
        let first_logprobs = PerPhase { prefill, decode };
        let (mut next, mut next_sample) = (PerPhase::<u64>::default(), PerPhase::<usize>::default());
        let (mut samples, mut reads) = (Vec::new(), Vec::new());
        for seq in step.seqs {
            let outs = match seq.outs {
                Outs::None => 0,
                Outs::Last => 1,
                Outs::All => seq.tokens.len() as u64,
            };
            if seq.read_logits {
                reads.extend((next[seq.phase]..next[seq.phase] + outs).map(|row| (seq.phase, row)));
            }
            next[seq.phase] += outs;
            if seq.sample.is_some() {
                let sample: usize = next_sample[seq.phase];
                let reported_at = first_logprobs[seq.phase] + sample * LOGPROB_WORDS as usize;
                let reported = (reported_at, self.packed.batch(seq.phase).samples[sample].reported as usize);
                samples.push(RecordedSample { slot: seq.slot, token: next_token[seq.phase], reported });
                next_token[seq.phase] += 1;
                next_sample[seq.phase] += 1;
            }
        }
        let recorded = Recorded {
            ticket: Ticket(self.next_ticket),
            samples,
            words,
            logits: reads.len() * self.phases.prefill.program.vocab as usize,
            pooled: step.seqs.len() * self.pooled_width() as usize,
        };
        (recorded, reads)
    }

    /// Encodes the plans of a packed step, split where a submission would take too long. A profile is of whole steps.
    fn encode(&mut self, recording: &mut Recording, split_points: &PerPhase<Vec<usize>>) {
        if let Some(timer) = &mut self.timer {
            timer.restart();
        }
        for phase in Phase::ALL {
            let split_points = &split_points[phase];
            let state = &self.phases[phase];
            let counts = state.counts;
            let Some((forward, sample)) = state.plan.as_ref().filter(|_| counts.rows > 0) else { continue };
            for (plan, split_points, wanted) in [(forward, &split_points[..], true), (sample, &[], counts.samples > 0)]
            {
                match &mut self.timer {
                    _ if !wanted => {}
                    None => recording.encode(&self.device, &mut self.markers, plan, counts, split_points),
                    Some(timer) => timer.encode(&mut recording.encoder, plan, counts),
                }
            }
        }
        if let Some(timer) = &mut self.timer {
            timer.resolve(&mut recording.encoder);
        }
    }

    /// Copies the results of a packed step to where they are read.
    fn give(&self, recording: &mut Recording, step: &Step<'_>, reads: &[(Phase, u64)]) {
        for state in self.phases.each() {
            recording.give(&state.samples.result, 0, state.counts.samples.into());
        }
        for state in self.phases.each() {
            recording.give(&state.samples.logprobs, 0, (state.counts.samples_if_reported * LOGPROB_WORDS).into());
        }
        for &(phase, row) in reads {
            let state = &self.phases[phase];
            if let Some(logits) = state.program.logits() {
                let value = &state.values.buffers[logits.index()];
                recording.give(&value.buffer, row * u64::from(value.stride()), state.program.vocab.into());
            }
        }
        let mut next = PerPhase::<u64>::default();
        for seq in step.seqs {
            let state = &self.phases[seq.phase];
            if let Some(pooled) = state.program.pooled() {
                let value = &state.values.buffers[pooled.index()];
                recording.give(&value.buffer, next[seq.phase] * u64::from(value.stride()), self.pooled_width());
            }
            next[seq.phase] += 1;
        }
    }

    /// Submits what is recorded.
    fn submit(&mut self) {
        if let Some(recording) = self.recording.take() {
            self.in_flight.push_back(recording.submit(&self.device, &mut self.markers));
        }
    }

    /// The device that it works on, for others to work on, too.
    pub(crate) fn opened_on(&self) -> &Device {
        &self.device
    }

    /// Sets how long a submission may take; the default is 8 ms on a device that somebody else uses, too, else 50 ms. Short
    /// steps share a submission, long ones are split after [`calibrate`](Self::calibrate); 0 does neither. Results do not
    /// depend on it.
    pub fn set_budget(&mut self, time: Duration) {
        self.pacing.budget = time;
    }
}

impl Executor for GpuExecutor {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn target_in_flight(&self) -> u32 {
        let all_short = self.in_flight.iter().all(|submission| submission.short);
        if all_short { self.pacing.target_in_flight() } else { TARGET_SUBMISSIONS }.min(self.limits.in_flight)
    }

    fn device(&self) -> String {
        let caps = self.device.caps();
        format!("{} ({}, {})", caps.name, caps.backend, caps.driver)
    }

    async fn plan(&mut self, phase: Phase, progress: &mut CountFn<'_>) -> Result<()> {
        progress(0, 1);
        let device = self.device.clone();
        device.checked("kernels", || self.make_plan(phase)).await?;
        progress(1, 1);
        Ok(())
    }

    fn predict(&self, phase: Phase, rows: u32, pos: u32) -> Option<Duration> {
        self.predicted(phase, rows, pos)
    }

    fn enqueue(&mut self, step: &Step<'_>) -> Result<Ticket> {
        self.device.check_running()?;
        if self.in_flight() >= self.limits.in_flight as usize {
            return Err(Error::argument("enqueue", format!("{} steps are in flight already", self.in_flight())));
        }
        self.packed.pack(step, &self.phases.prefill.program, &self.limits)?;
        self.writes.clear();
        for phase in Phase::ALL {
            self.phases[phase].counts = StepCounts::default();
            if !self.packed.batch(phase).rows.is_empty() {
                self.make_plan(phase)?;
                self.write(phase);
            }
        }
        let (recorded, reads) = self.results(step);
        let ticket = recorded.ticket;
        let split_points = self.split_points();
        let short = self.is_short(step) && split_points.each().into_iter().all(Vec::is_empty);
        if self.recording.as_ref().is_some_and(|r| !short || !r.fits(&self.writes, recorded.bytes())) {
            self.submit();
        }
        let mut recording = match self.recording.take() {
            Some(recording) => recording,
            None => {
                // The steps that follow are about as large as the first.
                let steps = if short { u64::from(self.pacing.steps()) } else { 1 };
                let parts = 1 + split_points.each().into_iter().map(Vec::len).sum::<usize>() as u64;
                let staging = self.staging(recorded.bytes() * steps + MARK * parts)?;
                Recording::new(&self.device, staging, short, std::mem::take(&mut self.moves))
            }
        };
        recording.write(&self.device, &self.writes, &self.buffers.upload);
        self.encode(&mut recording, &split_points);
        self.give(&mut recording, step, &reads);
        recording.push(recorded);
        let full = !short || recording.len() >= self.pacing.steps() as usize;
        self.recording = Some(recording);
        if full {
            self.submit();
        }
        self.next_ticket += 1;
        Ok(ticket)
    }

    fn cache(&mut self, ops: &[CacheOp]) -> Result<()> {
        self.device.check_running()?;
        self.submit();
        let device = self.device.clone();
        let plan = device.checked_now("copies", || {
            let mut plan = PlanBuilder::new(&mut self.pipelines);
            memory::cache_ops(&mut plan, &self.buffers.caches, &self.limits, ops)?;
            plan.finish()
        })?;
        // Submitted with the next step, so that both are lost or noticed together.
        self.moves.push(plan);
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(Ticket, Result<&StepOut>)) -> usize {
        self.submit();
        self.device.tick();
        let mut finished = 0;
        while let Some(ok) = self.in_flight.front().and_then(|f| f.mapped.get()) {
            let Some(submission) = self.in_flight.pop_front() else { break };
            finished += submission.len();
            self.pacing.finished(&submission);
            let staging = submission.read(ok, &mut self.out, done);
            self.idle_staging.push(staging);
        }
        finished
    }

    async fn wait(&mut self) -> Result<()> {
        self.submit();
        let Some(first) = self.in_flight.front() else { return Ok(()) };
        self.device.tick();
        if first.mapped.get().is_none() {
            // If another submission is queued, the device works on while the host reads.
            self.blocked += u64::from(self.in_flight.len() == 1);
            self.device.finish_submission(first.index.clone())?;
            first.mapped.wait().await;
        }
        Ok(())
    }

    fn release(&mut self) {
        self.device.release();
    }

    fn blocked(&self) -> u64 {
        self.blocked
    }
}

/// The number of samples if one of them is such, else 0.
fn samples_if_any(samples: &[SampleEntry], is: fn(&SampleEntry) -> bool) -> u32 {
    if samples.iter().any(is) { samples.len() as u32 } else { 0 }
}
