//! The scheduler: which rows of which requests make up a step, and what becomes of its result.
//!
//! A step is of one phase, in turns where there is work in both: so a token need not wait for the chunk of a prompt that is
//! computed beside it, and a chunk is as long as its step may take ([`StepTime`]). Prompts that are longer than a step leave
//! most of it to shorter ones.
//!
//! Waiting requests are admitted in the order of their ranks ([`Priority`](super::Priority)) as long as there is a slot and there
//! are blocks for all that they hold. One that does not fit is passed by a bounded number of others, and requests in the
//! background give way to it. What of a request's tokens
//! is in the cache is not computed again, whoever computed it ([`kv`](crate::kv)). A request that needs a block when nothing can
//! be evicted takes it from a running request that was admitted later or is in the background, of these from the one with the
//! least to compute again. So the oldest request always goes on.
//!
//! A request whose tokens are sampled on the device keeps steps in flight: its next row is enqueued before the host
//! has seen the token.
//!
//! Others find what a request computed once a sample has proven it: the step was read and its logits were finite. A request
//! that begins like one whose prompt is still being computed waits for it, where that saves more than half of the wait.
//!
//! A recurrent model's states cannot be truncated. They are copied to a checkpoint when a turn ends, when a prompt ends, now
//! and then on the way, and where a prompt leaves what other sequences have. A request that goes on from an earlier position
//! starts at the nearest checkpoint, or from the beginning.
//!
//! Blocks may be given away while steps that use them are in flight, since steps and copies run in order: whoever gets a block
//! overwrites a position before it reads it. A copy is lost or made together with the step after it; the sequences that have
//! what it brings end with that step's error.

mod admission;
mod plan;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::queue::{Queue, Rank};
use super::sequence::Sequence;
use super::step_time::StepTimes;
use super::{Event, Finish, Request, RequestId, SeqId, StepTime, Timings, Usage};
use crate::exec::{CacheOp, Limits, Outs, Phase, SeqStep, Step, StepOut, Ticket, Token};
use crate::kv::{BlockCounts, Kv, KvCounts, Lack, Phases};
use crate::model::Program;
use crate::ops::sample::logprobs;
use crate::ops::{Logprob, Penalties, STOPS, SampleLists, SampleSpec};
use crate::sample::{Chain, Known, SamplerState};
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Scheduler {
    limits: Limits,
    /// Rows of one phase in a step, at most as the executor takes them.
    rows: u32,
    vocab: u32,
    kv: Kv,
    sequences: BTreeMap<SeqId, Kept>,
    requests: BTreeMap<RequestId, Active>,
    waiting: Queue,
    /// When requests end that have a deadline.
    deadlines: BTreeSet<(Duration, RequestId)>,
    /// In the order in which they were admitted, those in the background after all others.
    running: Vec<RequestId>,
    free_slots: Vec<u32>,
    flights: VecDeque<Flight>,
    chain: Chain,
    events: Vec<Event>,
    /// The last id that was given out, and the clock of last uses.
    last_id: u64,
    /// How often a running request had to give its blocks or its slot up.
    preemptions: u64,
    /// Copies that were ordered together with the steps so far.
    copies_enqueued: u64,
    /// How long steps may take, if that is limited, and how long they took.
    step_time: Option<StepTime>,
    times: StepTimes,
    /// The present time, and when the last step finished.
    now: Duration,
    last_finished: Duration,
    /// Whose turn it is, and how many there were.
    turn: Phase,
    turns: u64,
    /// Steps that have finished and were not measured: their phase, rows, and when they were enqueued.
    finished: Vec<(Phase, u32, Duration)>,
    /// Whether one of them computed an answer again: what that takes says nothing of others.
    recomputed: bool,
    /// That the device is gone.
    lost: Option<Error>,
}

/// A sequence as the scheduler keeps it.
#[derive(Debug)]
struct Kept {
    sequence: Sequence,
    user: Option<RequestId>,
    /// Whether it outlives its request.
    open: bool,
}

/// A request that has not ended.
#[derive(Debug)]
struct Active {
    request: Request,
    seq: SeqId,
    /// What it has in common with requests whose blocks it may take.
    root: Box<[u32]>,
    /// Whether it may take blocks whatever phases they were computed in: until it is admitted.
    any_phase: bool,
    /// The request whose prompt it waits for, and how often that had been started.
    waits_for: Option<(RequestId, u32)>,
    /// How often it was started.
    starts: u32,
    /// Its place on the executor, while it runs.
    slot: Option<u32>,
    /// Its place among those that wait, which it keeps.
    rank: Rank,
    /// What it lacked when it was looked for last, and in which turn that was.
    lack: Option<(Lack, u64)>,
    /// Whether it was preempted, and what it computed is kept for it.
    preempted: bool,
    /// Requests that began before it although they came after it, since it did not fit.
    passed: u32,
    submitted: Duration,
    /// When it first ran, and when its first token came.
    started: Option<Duration>,
    first_token: Option<Duration>,
    /// Tokens that are being sampled and that the host has not seen.
    pending: u32,
    usage: Usage,
    sampler: SamplerState,
    /// Tokens that it may generate, and why it ends there.
    limit: (u32, Finish),
}

/// Requests that may begin before one that came first, since it does not fit.
const PASSED: u32 = 16;

impl Active {
    /// How long it took until now.
    fn timings(&self, now: Duration) -> Timings {
        let started = self.started.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        Timings { queued: started - self.submitted, prefill: first - started, decode: now - first }
    }
}

/// A step to be run.
#[derive(Debug)]
pub(super) struct StepPlan {
    seqs: Vec<PlanSeq>,
    tokens: Vec<Token>,
}

/// What a request brings to a step.
#[derive(Debug)]
struct PlanSeq {
    request: RequestId,
    seq: SeqId,
    slot: u32,
    phase: Phase,
    pos: u32,
    /// Its rows: where their tokens lie in the plan.
    tokens: Range<usize>,
    sample: SampleOn,
}

/// Where the next token is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SampleOn {
    /// Nowhere: more known tokens follow.
    None,
    Device(SampleSpec),
    Host,
}

/// A step in flight: who waits for a token from it, in the step's order.
#[derive(Debug)]
struct Flight {
    ticket: Ticket,
    /// The copies that are lost or made with it.
    copies: Range<u64>,
    requests: Vec<(RequestId, SeqId, SampleOn)>,
    enqueued: Duration,
    phase: Phase,
    rows: u32,
}

impl Scheduler {
    pub(super) fn new(limits: Limits, program: &Program) -> Self {
        let kv = Kv::of(program, &limits);
        let vocab = program.vocab;
        let free_slots = (0..limits.seqs).rev().collect();
        Self {
            limits,
            rows: limits.rows,
            vocab,
            kv,
            sequences: BTreeMap::new(),
            requests: BTreeMap::new(),
            waiting: Queue::default(),
            deadlines: BTreeSet::new(),
            running: Vec::new(),
            free_slots,
            flights: VecDeque::new(),
            chain: Chain::default(),
            events: Vec::new(),
            last_id: 0,
            preemptions: 0,
            copies_enqueued: 0,
            step_time: None,
            times: StepTimes::default(),
            now: Duration::ZERO,
            last_finished: Duration::ZERO,
            turn: Phase::Decode,
            turns: 0,
            finished: Vec::new(),
            recomputed: false,
            lost: None,
        }
    }

    /// The time now: requests whose deadline has passed end.
    pub(super) fn set_time(&mut self, now: Duration) {
        self.now = now;
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.finish(id, Finish::Deadline);
        }
    }

    /// When the next deadline passes.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Limits how long steps take.
    pub(super) fn set_step_time(&mut self, step_time: Option<StepTime>) {
        self.step_time = step_time;
    }

    /// An executor's predictions for chunks of a prompt, of one row and of so many, until chunks have been measured.
    pub(super) fn guess(&mut self, one: Duration, rows: u32, many: Duration) {
        self.times.guess(one, rows, many);
    }

    /// Requests that wait, and the tokens that they begin with.
    pub(super) fn waiting(&self) -> (usize, u64) {
        (self.waiting.len(), self.waiting.tokens())
    }

    /// Requests that run.
    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn open(&mut self) -> SeqId {
        self.add_sequence(true)
    }

    fn add_sequence(&mut self, open: bool) -> SeqId {
        let id = SeqId(self.next_id());
        let sequence = Sequence::new(self.kv.table());
        self.sequences.insert(id, Kept { sequence, user: None, open });
        id
    }

    /// Opens a sequence with the tokens that another one has so far.
    pub(super) fn fork(&mut self, seq: SeqId) -> Result<SeqId> {
        let Some(kept) = self.sequences.get(&seq) else { return Err(Error::argument("sequence", "it is not open")) };
        let sequence = kept.sequence.fork(self.kv.table());
        let id = SeqId(self.next_id());
        self.sequences.insert(id, Kept { sequence, user: None, open: true });
        Ok(id)
    }

    pub(super) fn close(&mut self, seq: SeqId) {
        let Some(kept) = self.sequences.get_mut(&seq) else { return };
        kept.open = false;
        match kept.user {
            Some(request) => self.cancel(request),
            None => self.forget(seq),
        }
    }

    fn forget(&mut self, seq: SeqId) {
        if let Some(mut kept) = self.sequences.remove(&seq) {
            kept.sequence.evict(&mut self.kv);
        }
    }

    pub(super) fn submit(&mut self, request: Request) -> Result<RequestId> {
        request.check(self.vocab, self.limits.context)?;
        let positions = request.prompt.len() as u32;
        if positions > self.kv.capacity() {
            return Err(Error::Limit {
                what: "prompt".into(),
                needed: format!("{positions} positions"),
                available: format!("{} in the cache", self.kv.capacity()),
                instead: "a shorter prompt or a larger cache works".into(),
            });
        }
        let seq = match request.sequence {
            None => self.add_sequence(false),
            Some(seq) => match self.sequences.get(&seq) {
                None => return Err(Error::argument("sequence", "it is not open")),
                Some(Kept { user: Some(_), .. }) => {
                    return Err(Error::argument("sequence", "a request is running on it; one at a time works"));
                }
                Some(_) => seq,
            },
        };
        let id = RequestId(self.next_id());
        let kept = self.sequences.get_mut(&seq).expect("found or added above");
        kept.user = Some(id);
        let stated = (request.exact || !request.decoded.is_empty()).then(|| Phases::new(positions, &request.decoded));
        // A conversation goes on from what it was, not from what others made of the same tokens.
        let any_phase = !kept.open && stated.is_none();
        kept.sequence.resume(&request.prompt, stated);
        let capacity = self.limits.context - positions;
        let limit = match request.max_tokens {
            Some(most) if most <= capacity => (most, Finish::Length),
            _ => (capacity, Finish::Context),
        };
        let usage = Usage { prompt: positions, reused: 0, generated: 0 };
        let nothing_to_do = limit.0 == 0;
        let (root, sampler) = (request.root(), SamplerState::default());
        let rank = Rank::new(self.now, request.priority, id);
        self.deadlines.extend(request.deadline.map(|deadline| (self.now.saturating_add(deadline), id)));
        let active = Active {
            request,
            seq,
            root,
            any_phase,
            waits_for: None,
            starts: 0,
            slot: None,
            rank,
            lack: None,
            preempted: false,
            passed: 0,
            submitted: self.now,
            started: None,
            first_token: None,
            pending: 0,
            usage,
            sampler,
            limit,
        };
        self.requests.insert(id, active);
        self.waiting.insert(rank, positions);
        if nothing_to_do {
            self.finish(id, Finish::Length);
        }
        Ok(id)
    }

    pub(super) fn cancel(&mut self, request: RequestId) {
        self.finish(request, Finish::Cancelled);
    }

    pub(super) fn busy(&self) -> bool {
        !self.requests.is_empty() || !self.flights.is_empty() || !self.events.is_empty()
    }

    pub(super) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Another device takes steps of another size, and has another cache. Nothing is in it, and nothing runs.
    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.kv.resize(&limits);
        (self.limits, self.rows) = (limits, limits.rows);
        (self.times, self.turn) = (StepTimes::default(), Phase::Decode);
    }

    /// Limits the rows of a step; every sequence has capacity for one at least.
    pub(super) fn set_rows(&mut self, rows: u32) {
        self.rows = rows.max(self.limits.seqs).min(self.limits.rows);
    }

    /// The copies to be made before the next step.
    pub(super) fn take_copies(&mut self) -> Vec<CacheOp> {
        self.kv.take_copies()
    }

    /// Forgets what no running request uses.
    pub(super) fn trim(&mut self) {
        self.kv.clear();
    }

    pub(super) fn vocab(&self) -> u32 {
        self.vocab
    }

    /// Checkpoints that are kept.
    pub(super) fn checkpoints(&self) -> u32 {
        self.kv.states_kept()
    }

    /// What has become of blocks so far.
    pub(super) fn cache_counts(&self) -> KvCounts {
        self.kv.counts()
    }

    /// The blocks of each cache group, by who holds them.
    pub(super) fn cache_blocks(&self) -> Vec<BlockCounts> {
        self.kv.blocks()
    }

    /// Whether there is something to report.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Whether a request runs.
    #[cfg(test)]
    pub(super) fn runs(&self, id: RequestId) -> bool {
        self.running.contains(&id)
    }

    /// Checks what must hold between sequences, tables and the cache.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let tables: Vec<_> = self.sequences.values().map(|kept| kept.sequence.table()).collect();
        let states: u32 = self.sequences.values().map(|kept| kept.sequence.states_kept()).sum();
        self.kv.check(&tables, states);
        assert_eq!(self.free_slots.len() + self.running.len(), self.limits.seqs as usize);
        assert!(self.requests.values().all(|active| active.passed <= PASSED));
        assert_eq!(self.waiting.len() + self.running.len(), self.requests.len());
        for (id, kept) in &self.sequences {
            let runs = kept.user.is_some_and(|user| self.requests[&user].slot.is_some());
            assert!(runs || kept.sequence.table().blocks() == 0, "{id:?} holds blocks and does not run");
        }
    }

    pub(super) fn emit(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// The next step, if there is anything to compute and fewer than `target_in_flight` are in flight.
    pub(super) fn schedule(&mut self, target_in_flight: u32) -> Option<StepPlan> {
        if self.flights.len() >= target_in_flight as usize || self.lost.is_some() {
            return None;
        }
        // Others on the device come between the steps of requests in the background.
        if self.only_background() && !self.flights.is_empty() {
            return None;
        }
        self.turns += 1;
        let other = match self.turn {
            Phase::Prefill => Phase::Decode,
            Phase::Decode => Phase::Prefill,
        };
        for (phase, next) in [(self.turn, other), (other, self.turn)] {
            let plan = self.plan(phase);
            if !plan.seqs.is_empty() {
                self.turn = next;
                return Some(plan);
            }
        }
        None
    }

    /// Hands a plan to the executor. If the executor refuses, the requests in it end with its error.
    pub(super) fn run(&mut self, mut plan: StepPlan, enqueue: impl FnOnce(&Step<'_>) -> Result<Ticket>) {
        // Copies may have failed since it was made, and ended requests.
        plan.seqs.retain(|s| self.requests.contains_key(&s.request));
        if plan.seqs.is_empty() {
            return;
        }
        let table = |seq: &SeqId| self.sequences[seq].sequence.table().groups();
        let tables: Vec<Vec<&[u32]>> = plan.seqs.iter().map(|s| table(&s.seq).collect()).collect();
        let counts: Vec<_> = plan.seqs.iter().map(|s| self.counts(s)).collect();
        let seq_step = |((s, tables), counts)| {
            let (s, tables, counts): (&PlanSeq, &Vec<_>, &Vec<_>) = (s, tables, counts);
            SeqStep {
                outs: if s.sample == SampleOn::None { Outs::None } else { Outs::Last },
                sample: if let SampleOn::Device(spec) = s.sample { Some(spec) } else { None },
                lists: self.lists(s, counts),
                read_logits: s.sample == SampleOn::Host,
                ..SeqStep::new(s.slot, s.phase, &plan.tokens[s.tokens.clone()], s.pos, tables)
            }
        };
        let seqs: Vec<SeqStep<'_>> = plan.seqs.iter().zip(&tables).zip(&counts).map(seq_step).collect();
        let copies = self.kv.copied();
        match enqueue(&Step { seqs: &seqs }) {
            Ok(ticket) => {
                for s in &plan.seqs {
                    let kept = self.sequences.get_mut(&s.seq).expect("it was planned");
                    kept.sequence.computed(s.pos + s.tokens.len() as u32, &mut self.kv);
                    self.requests.get_mut(&s.request).expect("it was planned").pending +=
                        u32::from(s.sample != SampleOn::None);
                }
                let requests = plan.seqs.iter().map(|s| (s.request, s.seq, s.sample)).collect();
                let copies = self.copies_enqueued..copies;
                self.copies_enqueued = copies.end;
                let (enqueued, phase, rows) = (self.now, plan.seqs[0].phase, plan.tokens.len() as u32);
                self.flights.push_back(Flight { ticket, copies, requests, enqueued, phase, rows });
                let prompts = plan.seqs.iter().filter(|s| s.phase == Phase::Prefill);
                prompts.for_each(|s| self.prompt_checkpoint(s));
            }
            Err(error @ Error::DeviceLost(_)) => self.lost = Some(error),
            // The newest asks for too much, if one does; the others are planned again.
            Err(error) => {
                let newest = plan.seqs.last().map(|s| s.request);
                self.fail(newest.into_iter(), error);
            }
        }
    }

    /// What penalties on the device see of a sequence: the tokens that the host knows.
    fn counts(&self, s: &PlanSeq) -> Vec<[u32; 2]> {
        let sampling = &self.requests[&s.request].request.sampling;
        if !matches!(s.sample, SampleOn::Device(_)) || sampling.penalties == Penalties::NONE {
            return Vec::new();
        }
        let pos = s.pos + s.tokens.len() as u32;
        let sequence = &self.sequences[&s.seq].sequence;
        crate::sample::counts(
            sequence.tokens(sampling.seen(pos).start.min(sequence.len())..sequence.len()).unwrap_or_default(),
        )
    }

    fn lists<'a>(&'a self, s: &PlanSeq, counts: &'a [[u32; 2]]) -> SampleLists<'a> {
        let SampleOn::Device(_) = s.sample else { return SampleLists::default() };
        let request = &self.requests[&s.request].request;
        let pos = s.pos + s.tokens.len() as u32;
        let unseen = pos - self.sequences[&s.seq].sequence.len();
        let pending = unseen.min(request.sampling.seen(pos).len() as u32);
        let allowed = request.allowed.as_deref();
        // A token that the host has not seen may be a stop token: the device checks for these.
        let stops = if unseen > 0 { &request.stop[..request.stop.len().min(STOPS as usize)] } else { &[] };
        SampleLists { counts, pending, bias: &request.bias, allowed, stops, logprobs: request.logprobs }
    }

    /// Keeps the states of a sequence at the end of its prompt, where it leaves what others have, and now and then before.
    fn prompt_checkpoint(&mut self, s: &PlanSeq) {
        /// Checkpoints of a prompt as long as the context.
        const MOST: u32 = 8;
        if self.kv.recurrent() {
            let far = (self.limits.context / MOST).max(self.limits.block);
            let sequence = &mut self.sequences.get_mut(&s.seq).expect("it was planned").sequence;
            if s.sample != SampleOn::None || sequence.keeps_state(far, self.limits.block) {
                sequence.keep_state(&mut self.kv, s.slot, self.limits.seqs);
            }
        }
    }

    /// Ends requests of a step with an error. What they computed since their last sample is not kept.
    fn fail(&mut self, requests: impl Iterator<Item = RequestId>, error: Error) {
        let error = Arc::new(error);
        requests.for_each(|id| self.finish(id, Finish::Error(error.clone())));
    }

    /// Some copies were not made: nobody finds what they were to bring, now or later.
    fn retract(&mut self, copies: &Range<u64>) {
        self.kv.retract(copies);
        self.sequences.values_mut().for_each(|kept| kept.sequence.retract(copies, &mut self.kv));
    }

    /// A step was lost, and the copies before it: ends the requests that were in it and those that have what was to be copied.
    fn step_lost(&mut self, flight: &Flight, error: Error) {
        self.retract(&flight.copies);
        let depends = |id: &RequestId| self.sequences[&self.requests[id].seq].sequence.depends_on_any(&flight.copies);
        let depending: Vec<RequestId> = self.running.iter().copied().filter(depends).collect();
        self.fail(flight.requests.iter().map(|(id, ..)| *id).chain(depending), error);
    }

    /// The copies that were taken could not be made: what was to have them ends.
    pub(super) fn copies_failed(&mut self, error: Error) {
        let copies = self.copies_enqueued..self.kv.copied();
        self.copies_enqueued = copies.end;
        self.retract(&copies);
        let depends = |id: &RequestId| self.sequences[&self.requests[id].seq].sequence.depends_on_any(&copies);
        let depending: Vec<RequestId> = self.running.iter().copied().filter(depends).collect();
        self.fail(depending.into_iter(), error);
    }

    /// The device is gone, and with it all that was in flight or in the cache. With `error`, all requests end; else they wait, to
    /// be computed again on another device.
    pub(super) fn device_lost(&mut self, error: Option<Error>) {
        self.flights.clear();
        if let Some(error) = error {
            let all: Vec<RequestId> = self.requests.keys().copied().collect();
            self.fail(all.into_iter(), error);
        }
        while let Some(id) = self.running.last().copied() {
            self.stop(id);
        }
        // A step that was refused and the wait for another one may both say so: that is one loss, not a second one later.
        self.lost = None;
        self.finished.clear();
        self.recomputed = false;
        self.requests.values_mut().for_each(|active| (active.pending, active.lack) = (0, None));
        self.kv.clear();
        self.kv.take_copies();
        self.copies_enqueued = self.kv.copied();
    }

    /// Measures the steps that have finished since the last call, together.
    pub(super) fn measure(&mut self, now: Duration) {
        self.now = now;
        let Some((_, _, enqueued)) = self.finished.first() else { return };
        let time = now.saturating_sub(self.last_finished.max(*enqueued));
        self.last_finished = now;
        if std::mem::take(&mut self.recomputed) {
            return self.finished.clear();
        }
        let of = |phase| self.finished.iter().filter(move |step| step.0 == phase);
        let rows = of(Phase::Prefill).map(|(_, rows, _)| rows).sum();
        self.times.finished(of(Phase::Decode).count() as u32, of(Phase::Prefill).count() as u32, rows, time);
        self.finished.clear();
    }

    /// That the device is gone, if a step was lost with it.
    pub(super) fn take_lost(&mut self) -> Option<Error> {
        self.lost.take()
    }

    /// Takes the result of the oldest step in flight.
    pub(super) fn collect(&mut self, ticket: Ticket, out: Result<&StepOut>) {
        let flight = self.flights.pop_front().expect("a result of no step");
        assert_eq!(flight.ticket, ticket, "steps finish in order");
        self.finished.push((flight.phase, flight.rows, flight.enqueued));
        self.recomputed |= flight.phase == Phase::Decode && flight.rows as usize > flight.requests.len();
        let out = match out {
            Ok(out) => out,
            // What is lost with the device ends, or waits, all at once.
            Err(error @ Error::DeviceLost(_)) => return self.lost = Some(error),
            Err(error) => return self.step_lost(&flight, error),
        };
        for id in &self.running {
            let seq = self.requests[id].seq;
            self.sequences.get_mut(&seq).expect("requests have sequences").sequence.copies_made(flight.copies.end);
        }
        let mut sampled = out.sampled.iter().zip(&out.logprobs);
        let mut logits = out.logits.chunks_exact(self.vocab as usize);
        for (id, _, sample) in flight.requests {
            // Results of requests that have ended are skipped, not left out.
            let (sampled, logits) = match sample {
                SampleOn::None => continue,
                SampleOn::Device(_) => (Some(sampled.next().expect("a token for each sample")), None),
                SampleOn::Host => (None, Some(logits.next().expect("logits for each sample"))),
            };
            let Some(active) = self.requests.get_mut(&id) else { continue };
            active.pending -= 1;
            let (token, reported) = match (sampled, logits) {
                (Some((sampled, reported)), _) => (sampled.token, reported.clone()),
                (None, logits) => self.sample(id, logits.unwrap_or_default()),
            };
            self.accept(id, token, reported);
        }
    }

    /// Samples a request's next token on the host.
    fn sample(&mut self, id: RequestId, logits: &[f32]) -> (Option<u32>, Vec<Logprob>) {
        let active = self.requests.get_mut(&id).expect("it samples");
        let Request { sampling, bias, allowed, logprobs: n, .. } = &active.request;
        let sequence = &self.sequences[&active.seq].sequence;
        let tokens = sequence.tokens(0..sequence.len()).unwrap_or_default();
        let known = Known { tokens, bias, allowed: allowed.as_deref() };
        let token = self.chain.sample(sampling, &known, &mut active.sampler, logits);
        let mut reported = Vec::new();
        n.iter().for_each(|n| logprobs(logits, token, *n, &mut reported));
        (token, reported)
    }

    /// A request's next token has been sampled.
    fn accept(&mut self, id: RequestId, token: Option<u32>, logprobs: Vec<Logprob>) {
        let active = self.requests.get_mut(&id).expect("it samples");
        let Some(token) = token else {
            let seq = active.seq;
            let pos = self.sequences[&seq].sequence.len();
            let error = Error::Numerical { seq: seq.0 as u32, pos };
            return self.fail(std::iter::once(id), error);
        };
        // The token comes of all before it: they are computed, and finite.
        let (first, slot) = (active.usage.generated == 0, active.slot.is_some());
        let sequence = &mut self.sequences.get_mut(&active.seq).expect("requests have sequences").sequence;
        if slot {
            sequence.proven(sequence.len(), first, &mut self.kv);
        }
        if active.request.stop.contains(&token) {
            return self.finish(id, Finish::Stop(token));
        }
        active.usage.generated += 1;
        active.first_token.get_or_insert(self.now);
        let full = active.usage.generated == active.limit.0;
        let reason = active.limit.1.clone();
        let kept = self.sequences.get_mut(&active.seq).expect("requests have sequences");
        kept.sequence.push(&[token], Phase::Decode);
        self.events.push(Event::Token { request: id, id: token, logprobs });
        if full {
            self.finish(id, reason);
        }
    }

    /// Ends a request; steps of it that are in flight are ignored from now on.
    fn finish(&mut self, id: RequestId, reason: Finish) {
        let Some(active) = self.requests.remove(&id) else { return };
        self.waiting.remove(active.rank);
        if let Some(deadline) = active.request.deadline {
            self.deadlines.remove(&(active.submitted.saturating_add(deadline), id));
        }
        self.running.retain(|r| *r != id);
        self.free_slots.extend(active.slot);
        let kept = self.sequences.get_mut(&active.seq).expect("requests have sequences");
        let sequence = &mut kept.sequence;
        kept.user = None;
        // The positions whose next token is known are kept, whatever is in flight. So timing does not decide what part of a
        // conversation counts as decoded and what as the next prompt.
        let known = sequence.len();
        let known_end = if matches!(reason, Finish::Stop(_)) { known } else { known.saturating_sub(1) };
        if let Some(slot) = active.slot.filter(|_| active.usage.generated > 0 && !matches!(reason, Finish::Error(_))) {
            let state = (sequence.cached() == known_end).then_some((slot, self.limits.seqs));
            sequence.keep_end(known_end, &mut self.kv, state, Some(active.seq.0));
        }
        sequence.evict(&mut self.kv);
        if active.preempted {
            self.kv.no_longer_waits(&active.root, sequence.all(), sequence.phases());
        }
        let decoded = sequence.phases().decoded();
        if !kept.open {
            self.sequences.remove(&active.seq);
        }
        let timings = active.timings(self.now);
        self.events.push(Event::Finished { request: id, reason, usage: active.usage, decoded, timings });
    }
}
