//! The GPU executor: a program's plans, the buffers of its steps, and the ring of steps under way.
//!
//! Short steps of decoding are recorded until they are as many as a submission should take, or until somebody wants results.
//!
//! Three kinds of step data are three kinds of buffers, since wgpu tracks usage by whole buffers: what the host writes (the
//! step and its angles, one of each a role), what the device keeps (the drawn tokens), and what it gives back (results).

mod budget;
mod memory;
mod stamp;
mod submission;
#[cfg(test)]
mod tests;
mod weights;
mod work;

use std::collections::VecDeque;
use std::time::Duration;

use super::{
    CacheOp, Executor, Limits, Numerics, Outs, Packed, Role, RowEntry, SeqStep, Step, StepOut, Ticket, Timing, seeded,
};
use crate::file::CountFn;
use crate::gpu::{Buffer, Device, Pipelines, Plan, PlanBuilder, StepCounts, Timer, wgpu};
use crate::model::{FuseFor, Program, WeightSource};
use crate::ops::lower::{AngleSource, Angles, CacheBuffer, Layout, Lower};
use crate::ops::matmul::Tile;
use crate::ops::sample::{self, DrawBuffers, LOGPROB_WORDS};
use crate::ops::{DrawEntry, KvStorage, Part, RING, ValueId};
use crate::{Error, Result};
use budget::{OWN, Rates, SHARED};
use memory::Values;
use stamp::Stamps;
use submission::{AHEAD, MARK, Pace, Recorded, RecordedDraw, Recording, Submission, UPLOAD, Writes};
use weights::Weights;
use work::{Room, Work};

/// What a GPU executor is made with.
#[derive(Clone, Copy, Debug)]
pub struct GpuOptions {
    /// How exact.
    pub numerics: Numerics,
    /// How keys and values are stored; none: as the numerics have it.
    pub kv: Option<KvStorage>,
    /// Room for rows, sequences and cache.
    pub limits: Limits,
    /// Runs the canonical program as it is: the oracle of fusion.
    pub unfused: bool,
    /// Gives every value a buffer of its own, so that it can be read after a step.
    pub keep_values: bool,
}

/// Words of the step buffer in front of the rows.
const HEADER: usize = 16;

/// Runs a program's steps on a GPU.
#[derive(Debug)]
pub struct GpuExecutor {
    device: Device,
    pipelines: Pipelines,
    limits: Limits,
    layout: Layout,
    weights: Weights,
    caches: Vec<CacheBuffer>,
    drawn: Buffer,
    parts: Buffer,
    quants: Buffer,
    room: Room,
    work: Work,
    roles: [RoleState; 2],
    packed: Packed,
    rows: Vec<[u32; 4]>,
    writes: Writes,
    upload: Buffer,
    pace: Pace,
    stamps: Stamps,
    kv: KvStorage,
    /// The largest that products of prompts have.
    tile: Tile,
    /// How long steps of each role take.
    rates: [Option<Rates>; 2],
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

/// What belongs to the steps of one role.
#[derive(Debug)]
struct RoleState {
    program: Program,
    values: Values,
    step: Buffer,
    angles: Buffer,
    angles_at: Vec<u64>,
    draws: DrawBuffers,
    scratch: Buffer,
    plan: Option<(Plan, Plan)>,
    /// Of the step that was uploaded last.
    counts: StepCounts,
}

impl GpuExecutor {
    /// Loads a program's weights and makes room for its steps. `progress` is told bytes done and bytes in all.
    pub async fn load(
        device: &Device,
        program: &Program,
        source: &impl WeightSource,
        options: GpuOptions,
        progress: &mut CountFn<'_>,
    ) -> Result<Self> {
        device.check()?;
        if options.limits.in_flight > RING {
            let problem = format!("{} steps under way: a draw sees the last {RING} tokens", options.limits.in_flight);
            return Err(Error::argument("limits", problem));
        }
        let storage = options.kv.unwrap_or(options.numerics.kv());
        let fuse = |role| match options.unfused {
            true => program.clone(),
            false => crate::model::fuse(program, role, FuseFor::gpu(storage)),
        };
        let programs = [fuse(Role::Prompt), fuse(Role::Generated)];
        programs.iter().try_for_each(|program| program.on_gpu(storage))?;
        let weights = Weights::load(device, &programs, source, progress).await?;

        let limits = options.limits;
        let table_words = limits.seqs * limits.context.div_ceil(limits.block);
        let seqs = HEADER as u32 + 4 * limits.rows;
        let outs = seqs + 4 * limits.seqs;
        let tables = outs + limits.outs;
        let room = Room::new(program, &limits);
        let items = tables + program.groups.max(1) * table_words;
        let merges = items + 4 * room.items;
        let tiles = merges + 4 * room.merges;
        let mut layout = Layout {
            rows: limits.rows,
            tables,
            table_words,
            items,
            merges,
            tiles,
            ..Layout::new(device.caps(), seqs, outs)
        };
        if options.numerics == Numerics::Fast {
            layout.tuning = device.caps().fast();
            layout.attend_matrices = device.caps().attend_matrices();
        }
        let quants = memory::quants(device, &programs[Role::Prompt as usize], &layout, &limits)?;
        let caches = memory::caches(device, program, &limits, storage)?;
        let drawn = Buffer::new(device, "drawn", u64::from(limits.seqs * RING) * 4)?;
        // Nothing is drawn where there are no logits.
        let vocab = if program.logits().is_some() { program.vocab } else { 0 };
        let shared = sample::Scratch::new(device, limits.seqs, vocab)?;
        let parts = Buffer::new(device, "parts", u64::from(room.parts.max(1)) * room.part_bytes)?;
        let step_words = u64::from(tiles) + u64::from(room.tiles);
        let mut pool = memory::Pool::default();
        let mut role = |program: Program| -> Result<RoleState> {
            let mut angles_at = Vec::new();
            let mut bytes = 0u64;
            for table in &program.ropes {
                angles_at.push(bytes);
                bytes += (u64::from(limits.rows) * table.divisors.len() as u64 * 8).next_multiple_of(256);
            }
            let scratch = program.nodes.iter().map(|node| node.op.gpu_needs().scratch(limits.rows)).max();
            Ok(RoleState {
                values: Values::new(device, &program, &limits, &mut pool, options.keep_values)?,
                step: Buffer::new(device, "step", step_words * 4)?,
                angles: Buffer::new(device, "angles", bytes.max(256))?,
                angles_at,
                draws: DrawBuffers::new(device, limits.seqs, vocab, &shared)?,
                scratch: Buffer::new(device, "scratch", scratch.unwrap_or(0).max(16))?,
                plan: None,
                counts: StepCounts::default(),
                program,
            })
        };
        let tile = budget::largest_tile(&layout, &weights);
        let [prompt, generated] = programs;
        let roles = [role(prompt)?, role(generated)?];
        let mut pipelines = Pipelines::new(device);
        let stamps = device.checked("kernels", || Stamps::new(&mut pipelines)).await?;
        Ok(Self {
            device: device.clone(),
            pipelines,
            limits,
            layout,
            weights,
            caches,
            drawn,
            parts,
            quants,
            room,
            work: Work::default(),
            roles,
            packed: Packed::default(),
            rows: Vec::new(),
            writes: Writes::default(),
            upload: Buffer::new(device, "upload", UPLOAD)?,
            pace: Pace::new(limits.in_flight, if device.is_shared() { SHARED } else { OWN }),
            stamps,
            kv: storage,
            tile,
            rates: [None; 2],
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

    /// The plan of a role, made if it is new. Pipelines of a browser are compiled behind our back.
    fn make_plan(&mut self, role: Role) -> Result<()> {
        let state = &mut self.roles[role as usize];
        if state.plan.is_some() {
            return Ok(());
        }
        let angles = |&at: &u64| Angles { buffer: state.angles.clone(), at, source: AngleSource::Host };
        let angles: Vec<_> = state.angles_at.iter().map(angles).collect();
        let bias_at = |parts: &[Part]| self.weights.bias_at(parts);
        let mut l = Lower {
            plan: PlanBuilder::new(&mut self.pipelines),
            layout: self.layout,
            values: &state.values.buffers,
            matrices: &self.weights.matrices,
            weights: &self.weights.buffers,
            vectors: &self.weights.vectors,
            vector_at: &self.weights.vector_at,
            bias_at: &bias_at,
            caches: &self.caches,
            step: &state.step,
            angles: &angles,
            generated: role == Role::Generated,
            scratch: &state.scratch,
            sorted: None,
            quants: &self.quants,
            quantized: None,
            drawn: &self.drawn,
            parts: &self.parts,
        };
        for (i, node) in state.program.nodes.iter().enumerate() {
            (l.plan.layer, l.plan.node) = (node.layer, Some(i));
            node.op.lower(&mut l)?;
        }
        let forward = l.plan.finish()?;
        (l.plan.layer, l.plan.node) = (None, None);
        if let Some(logits) = state.program.logits() {
            sample::lower(&mut l, logits, &state.draws, self.limits.seqs)?;
        }
        let draw = l.plan.finish()?;
        state.plan = Some((forward, draw));
        Ok(())
    }

    /// Collects what a packed batch writes into the buffers of its role.
    fn write(&mut self, role: Role) {
        let batch = self.packed.batch(role);
        let state = &mut self.roles[role as usize];
        let (writes, layout) = (&mut self.writes, &self.layout);
        let counts = [batch.rows.len(), batch.seqs.len(), batch.outs.len(), batch.table_stride as usize];
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&counts.map(|n| n as u32));
        writes.push(&state.step, 0, &header);
        let row = |(row, kind): (&RowEntry, &u32)| [row.token, row.drawn | kind << 1, row.pos, row.seq];
        self.rows.clear();
        self.rows.extend(batch.rows.iter().zip(&batch.types).map(row));
        writes.push(&state.step, HEADER as u64, &self.rows);
        writes.push(&state.step, u64::from(layout.seqs), &batch.seqs);
        writes.push(&state.step, u64::from(layout.outs), &batch.outs);
        writes.push(&state.draws.draws, 0, &batch.draws);
        writes.push(&state.draws.draws, u64::from(state.draws.lists), &batch.lists);
        for (group, table) in batch.tables.iter().enumerate() {
            writes.push(&state.step, u64::from(layout.tables + group as u32 * layout.table_words), table);
        }
        self.work.fill(batch, self.room);
        writes.push(&state.step, u64::from(layout.items), &self.work.items);
        writes.push(&state.step, u64::from(layout.merges), &self.work.merges);
        writes.push(&state.step, u64::from(layout.tiles), &self.work.tiles);
        for (angles, at) in batch.angles.iter().zip(&state.angles_at) {
            writes.push(&state.angles, at / 4, angles);
        }
        let [rows, outs, seqs] = [batch.rows.len(), batch.outs.len(), batch.seqs.len()].map(|n| n as u32);
        let [items, merges] = [self.work.items.len(), self.work.merges.len()].map(|n| n as u32);
        let kinds: [fn(&DrawEntry) -> bool; 3] = [DrawEntry::is_filtered, DrawEntry::is_adjusted, DrawEntry::tells];
        let [filtered, adjusted, telling] = kinds.map(|is| count(&batch.draws, is));
        let draws = batch.draws.len() as u32;
        state.counts = StepCounts { rows, outs, seqs, items, merges, draws, filtered, adjusted, telling };
    }

    /// Columns of what the program pools; 0 if it does not.
    fn pooled_width(&self) -> u64 {
        let program = &self.roles[0].program;
        program.pooled().map_or(0, |pooled| u64::from(program.value(pooled).width))
    }

    /// A buffer for so many bytes of results, marks among them.
    fn staging(&mut self, bytes: u64) -> Result<Buffer> {
        if let Some(at) = self.idle_staging.iter().position(|b| b.size() >= bytes) {
            return Ok(self.idle_staging.swap_remove(at));
        }
        Buffer::readback(&self.device, "results", bytes)
    }

    /// Steps that are recorded or submitted, and not read.
    fn under_way(&self) -> usize {
        self.recording.as_ref().map_or(0, Recording::len) + self.in_flight.iter().map(Submission::len).sum::<usize>()
    }

    /// Whether a step may share a submission: it decodes a row of each sequence (not a text again that the cache lost), and gives no
    /// more than draws.
    fn is_short(&self, step: &Step<'_>) -> bool {
        let short = |seq: &SeqStep<'_>| seq.role == Role::Generated && seq.tokens.len() == 1 && !seq.read_logits;
        let decodes = step.seqs.iter().all(short);
        decodes && self.pooled_width() == 0 && self.timer.is_none()
    }

    /// Where the results of a packed step will lie, and the rows of logits that it reads. Results of a role lie in its buffers in the
    /// order of its batch; they are given back in the order of the step: tokens of both roles, probabilities of both, logits, pooled rows.
    fn results(&self, step: &Step<'_>) -> (Recorded, Vec<(Role, u64)>) {
        let counts = self.roles.each_ref().map(|state| state.counts);
        let tokens = counts.map(|counts| counts.draws as usize);
        let told = counts.map(|counts| (counts.telling * LOGPROB_WORDS) as usize);
        let (mut next, mut next_draw) = ([0, 0], [0, 0]);
        let (mut draws, mut reads) = (Vec::new(), Vec::new());
        for seq in step.seqs {
            let role = seq.role as usize;
            let outs = match seq.outs {
                Outs::None => 0,
                Outs::Last => 1,
                Outs::All => seq.tokens.len() as u64,
            };
            if seq.read_logits {
                reads.extend((next[role]..next[role] + outs).map(|row| (seq.role, row)));
            }
            next[role] += outs;
            if seq.sample.is_some() {
                let draw = next_draw[role];
                let [token, told_at] = [tokens, told].map(|words| words[..role].iter().sum::<usize>());
                let told_at = tokens[0] + tokens[1] + told_at + draw * LOGPROB_WORDS as usize;
                let told = (told_at, self.packed.batch(seq.role).draws[draw].told as usize);
                draws.push(RecordedDraw { slot: seq.slot, token: token + draw, told });
                next_draw[role] += 1;
            }
        }
        let recorded = Recorded {
            ticket: Ticket(self.next_ticket),
            draws,
            words: tokens.iter().chain(&told).sum(),
            logits: reads.len() * self.roles[0].program.vocab as usize,
            pooled: step.seqs.len() * self.pooled_width() as usize,
        };
        (recorded, reads)
    }

    /// Encodes the plans of a packed step, cut where a submission would take too long. A profile is of whole steps.
    fn encode(&mut self, recording: &mut Recording, cuts: &[Vec<usize>; 2]) {
        if let Some(timer) = &mut self.timer {
            timer.restart();
        }
        for (role, cuts) in Role::ALL.into_iter().zip(cuts) {
            let state = &self.roles[role as usize];
            let counts = state.counts;
            let Some((forward, draw)) = state.plan.as_ref().filter(|_| counts.rows > 0) else { continue };
            for (plan, cuts, wanted) in [(forward, &cuts[..], true), (draw, &[], counts.draws > 0)] {
                match &mut self.timer {
                    _ if !wanted => {}
                    None => recording.encode(&self.device, &mut self.stamps, plan, counts, cuts),
                    Some(timer) => timer.encode(&mut recording.encoder, plan, counts),
                }
            }
        }
        if let Some(timer) = &mut self.timer {
            timer.resolve(&mut recording.encoder);
        }
    }

    /// Copies the results of a packed step to where they are read.
    fn give(&self, recording: &mut Recording, step: &Step<'_>, reads: &[(Role, u64)]) {
        for state in &self.roles {
            recording.give(&state.draws.result, 0, state.counts.draws.into());
        }
        for state in &self.roles {
            recording.give(&state.draws.logprobs, 0, (state.counts.telling * LOGPROB_WORDS).into());
        }
        for &(role, row) in reads {
            let state = &self.roles[role as usize];
            if let Some(logits) = state.program.logits() {
                let value = &state.values.buffers[logits.index()];
                recording.give(&value.buffer, row * u64::from(value.stride()), state.program.vocab.into());
            }
        }
        let mut next = [0, 0];
        for seq in step.seqs {
            let state = &self.roles[seq.role as usize];
            if let Some(pooled) = state.program.pooled() {
                let value = &state.values.buffers[pooled.index()];
                recording.give(&value.buffer, next[seq.role as usize] * u64::from(value.stride()), self.pooled_width());
            }
            next[seq.role as usize] += 1;
        }
    }

    /// Submits what is recorded.
    fn submit(&mut self) {
        if let Some(recording) = self.recording.take() {
            self.in_flight.push_back(recording.submit(&self.device, &mut self.stamps));
        }
    }

    /// How long a submission may take: 8 ms on a device that somebody else uses, too, else 50 ms, unless told otherwise. Short steps share
    /// one, long ones are cut after [`calibrate`](Self::calibrate); 0 keeps steps apart and whole. Results do not depend on it.
    pub fn set_budget(&mut self, time: Duration) {
        self.pace.budget = time;
    }

    /// Reads a value after the last step has finished: `rows` rows of its width. Only with `keep_values`.
    pub async fn value(&self, role: Role, id: ValueId, rows: u32) -> Result<Vec<f32>> {
        let value = &self.roles[role as usize].values.buffers[id.index()];
        let stride = u64::from(value.stride());
        let padded: Vec<f32> = value.buffer.read(&self.device, 0..stride * u64::from(rows)).await?;
        let rows = padded.chunks_exact(stride as usize);
        Ok(rows.flat_map(|row| &row[..value.width as usize]).copied().collect())
    }

    /// Sets a value that no op makes: the input of a program that is not a model's. Rows are as wide as the value.
    pub fn set_value(&self, role: Role, id: ValueId, rows: &[f32]) {
        let value = &self.roles[role as usize].values.buffers[id.index()];
        let stride = value.stride() as usize;
        let mut padded = vec![f32::NAN; rows.len() / value.width as usize * stride];
        for (row, to) in rows.chunks_exact(value.width as usize).zip(padded.chunks_exact_mut(stride)) {
            to[..row.len()].copy_from_slice(row);
        }
        value.buffer.write(&self.device, 0, &padded);
    }

    /// Lets rows, and tiles of a prompt's rows, search for their sequence on the device, instead of looking it up in what the host
    /// made. The same bits. Only before the first step.
    pub fn search_for_tiles(&mut self) {
        self.layout.search = true;
    }

    /// The program that steps of a role run.
    pub fn program(&self, role: Role) -> &Program {
        &self.roles[role as usize].program
    }

    /// Fills all caches with a bit pattern: tests put NaN into pages and states that nobody owns.
    pub fn fill_cache(&self, word: u32) {
        for cache in &self.caches {
            let words = vec![word; (cache.buffer.size() / 4) as usize];
            cache.buffer.write(&self.device, 0, &words);
        }
    }

    /// Fills all pages with seeded random numbers, the same as a CPU executor of the same limits: numbered without what pads
    /// keys and values here.
    pub fn seed_caches(&self, seed: u64) {
        for (cache, number) in self.caches.iter().zip(0..).filter(|(cache, _)| cache.shape.kv_heads > 0) {
            let storage = cache.shape.storage;
            let mut words = vec![0u32; (cache.buffer.size() / 4) as usize];
            if storage == KvStorage::Q8 {
                words.fill((1.0f32 / 127.0).to_bits()); // the scales, behind a block's elements
                let elements = cache.shape.scale_word(0, 0, 0, false) as usize;
                words.chunks_exact_mut(cache.shape.block_words() as usize).for_each(|block| block[..elements].fill(0));
            }
            for (i, place) in cache.shape.elements().enumerate() {
                let x = seeded(seed, number, i);
                let bits = match storage {
                    KvStorage::F32 => x.to_bits(),
                    KvStorage::F16 => half::f16::from_f32(x).to_bits().into(),
                    KvStorage::Q8 => ((x * 127.0).round_ties_even() as i8 as u8).into(),
                };
                let lanes = u64::from(storage.lanes());
                words[(place / lanes) as usize] |= bits << (place % lanes * u64::from(storage.bits()));
            }
            cache.buffer.write(&self.device, 0, &words);
        }
    }

    /// Dispatches of a role's plan, drawing not counted; the most storage bindings of one; pipelines made so far.
    pub fn counts(&self, role: Role) -> (usize, usize, usize) {
        let plan = self.roles[role as usize].plan.as_ref();
        let (dispatches, bindings) = plan.map_or((0, 0), |(p, _)| (p.dispatches.len(), p.bindings));
        (dispatches, bindings, self.pipelines.count())
    }

    /// The labels of a role's dispatches with their layers, in order.
    pub fn labels(&self, role: Role) -> Vec<(&'static str, Option<u32>)> {
        let plan = self.roles[role as usize].plan.iter();
        plan.flat_map(|(p, _)| &p.dispatches).map(|d| (d.label, d.layer)).collect()
    }

    /// The kernels that work for a node of a role's program, in order.
    pub(crate) fn kernels(&self, role: Role, node: usize) -> Vec<&'static str> {
        let plan = self.roles[role as usize].plan.iter();
        plan.flat_map(|(p, _)| &p.dispatches).filter(|d| d.node == Some(node)).map(|d| d.label).collect()
    }

    /// The shader modules made so far: each a kernel and its fragments, `matvec Q8_0 lib/reduce`.
    pub fn modules(&self) -> Vec<String> {
        self.pipelines.modules().collect()
    }

    /// Whether [`GpuExecutor::timings`] tells where the time of a step goes, which slows it. Fails where the device has no
    /// timestamps.
    pub fn profile(&mut self, on: bool) -> Result<()> {
        self.timer = if on { Some(Timer::new(&self.device)?) } else { None };
        Ok(())
    }

    /// How long each dispatch of the last step took, which must have been of one role; empty without
    /// [`profile`](Self::profile).
    pub async fn timings(&self, role: Role) -> Result<Vec<Timing>> {
        let (Some(timer), Some((forward, draw))) = (&self.timer, &self.roles[role as usize].plan) else {
            return Ok(Vec::new());
        };
        let times = timer.read(&self.device).await?;
        let dispatches = forward.dispatches.iter().chain(&draw.dispatches);
        Ok(dispatches.zip(times).map(|(d, time)| Timing { node: d.node, kernel: d.label, time }).collect())
    }

    /// Bytes a second that the device reads and writes.
    pub async fn bandwidth(&self) -> Result<f64> {
        self.device.bandwidth().await
    }

    /// What the device can do.
    pub fn caps(&self) -> &crate::gpu::Caps {
        self.device.caps()
    }

    /// Submissions so far.
    pub fn submissions(&self) -> u64 {
        self.stamps.count()
    }
}

impl Executor for GpuExecutor {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn ahead(&self) -> u32 {
        let all_short = self.in_flight.iter().all(|submission| submission.short);
        if all_short { self.pace.ahead() } else { AHEAD }.min(self.limits.in_flight)
    }

    fn device(&self) -> String {
        let caps = self.device.caps();
        format!("{} ({}, {})", caps.name, caps.backend, caps.driver)
    }

    async fn plan(&mut self, role: Role, progress: &mut CountFn<'_>) -> Result<()> {
        progress(0, 1);
        let device = self.device.clone();
        device.checked("kernels", || self.make_plan(role)).await?;
        progress(1, 1);
        Ok(())
    }

    fn enqueue(&mut self, step: &Step<'_>) -> Result<Ticket> {
        self.device.check()?;
        if self.under_way() >= self.limits.in_flight as usize {
            return Err(Error::argument("enqueue", format!("{} steps are under way already", self.under_way())));
        }
        self.packed.pack(step, &self.roles[0].program, &self.limits)?;
        self.writes.clear();
        for role in Role::ALL {
            self.roles[role as usize].counts = StepCounts::default();
            if !self.packed.batch(role).rows.is_empty() {
                self.make_plan(role)?;
                self.write(role);
            }
        }
        let (recorded, reads) = self.results(step);
        let ticket = recorded.ticket;
        let cuts = self.cuts();
        let short = self.is_short(step) && cuts.iter().all(Vec::is_empty);
        if self.recording.as_ref().is_some_and(|r| !short || !r.fits(&self.writes, recorded.bytes())) {
            self.submit();
        }
        let mut recording = match self.recording.take() {
            Some(recording) => recording,
            None => {
                // Steps that follow are like the first, but for a request more or less.
                let steps = if short { u64::from(self.pace.steps()) } else { 1 };
                let parts = 1 + cuts.iter().map(Vec::len).sum::<usize>() as u64;
                let staging = self.staging(recorded.bytes() * steps + MARK * parts)?;
                Recording::new(&self.device, staging, short, std::mem::take(&mut self.moves))
            }
        };
        recording.write(&self.device, &self.writes, &self.upload);
        self.encode(&mut recording, &cuts);
        self.give(&mut recording, step, &reads);
        recording.push(recorded);
        let full = !short || recording.len() >= self.pace.steps() as usize;
        self.recording = Some(recording);
        if full {
            self.submit();
        }
        self.next_ticket += 1;
        Ok(ticket)
    }

    fn cache(&mut self, ops: &[CacheOp]) -> Result<()> {
        self.device.check()?;
        self.submit();
        let mut plan = PlanBuilder::new(&mut self.pipelines);
        memory::cache_ops(&mut plan, &self.caches, &self.limits, ops)?;
        // With the step that follows, they are lost or noticed together.
        self.moves.push(plan.finish()?);
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(Ticket, Result<&StepOut>)) -> usize {
        self.submit();
        self.device.tick();
        let mut finished = 0;
        while let Some(ok) = self.in_flight.front().and_then(|f| f.mapped.get()) {
            let Some(submission) = self.in_flight.pop_front() else { break };
            finished += submission.len();
            self.pace.finished(&submission);
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
            // With another submission behind it, the device works on while the host reads.
            self.blocked += u64::from(self.in_flight.len() == 1);
            self.device.finish_submission(first.index.clone())?;
            first.mapped.wait().await;
        }
        Ok(())
    }

    fn blocked(&self) -> u64 {
        self.blocked
    }
}

/// All draws if one of them is such, else none.
fn count(draws: &[DrawEntry], is: fn(&DrawEntry) -> bool) -> u32 {
    if draws.iter().any(is) { draws.len() as u32 } else { 0 }
}
