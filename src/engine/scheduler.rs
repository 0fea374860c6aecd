//! The scheduler: which rows of which requests make up a step, and what becomes of its result.
//!
//! Running requests come first, in the order in which they were admitted; then waiting ones are admitted as long as there is a
//! slot and there are blocks for all that they hold. What of a request's tokens is in the cache is not computed again, whoever
//! computed it ([`kv`](crate::kv)). A request that needs a block when nothing can be evicted takes it from a running request
//! that was admitted later, of these from the one with the least to compute again. So the oldest request always goes on.
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

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::sequence::Sequence;
use super::{Event, Finish, Request, RequestId, SeqId, Usage};
use crate::exec::{CacheOp, Limits, Outs, PerPhase, Phase, SeqStep, Step, StepOut, Ticket, Token};
use crate::kv::{BlockCounts, Hit, Kv, KvCounts, Phases};
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
    /// In the order in which they are admitted.
    waiting: VecDeque<RequestId>,
    /// In the order in which they were admitted.
    running: Vec<RequestId>,
    free_slots: Vec<u32>,
    flights: VecDeque<Flight>,
    chain: Chain,
    events: Vec<Event>,
    /// The last id that was given out, and the clock of last uses.
    last_id: u64,
    /// How often a running request had to give its blocks up.
    preemptions: u64,
    /// Copies that were ordered together with the steps so far.
    copies_enqueued: u64,
    /// The request that was found not to fit, and the version of the cache then.
    refused: Option<(RequestId, u64)>,
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
    /// The request whose prompt it waits for.
    waits_for: Option<RequestId>,
    /// Its place on the executor, while it runs.
    slot: Option<u32>,
    /// Tokens that are being sampled and that the host has not seen.
    pending: u32,
    usage: Usage,
    sampler: SamplerState,
    /// Tokens that it may generate, and why it ends there.
    limit: (u32, Finish),
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
            waiting: VecDeque::new(),
            running: Vec::new(),
            free_slots,
            flights: VecDeque::new(),
            chain: Chain::default(),
            events: Vec::new(),
            last_id: 0,
            preemptions: 0,
            copies_enqueued: 0,
            refused: None,
        }
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
        let active =
            Active { request, seq, root, any_phase, waits_for: None, slot: None, pending: 0, usage, sampler, limit };
        self.requests.insert(id, active);
        self.waiting.push_back(id);
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

    /// Limits the rows of a step; every sequence has capacity for one at least.
    pub(super) fn set_rows(&mut self, rows: u32) {
        self.rows = rows.max(self.limits.seqs).min(self.limits.rows);
    }

    /// The copies to be made before the next step.
    pub(super) fn take_copies(&mut self) -> Vec<CacheOp> {
        self.kv.take_copies()
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

    /// Checks what must hold between sequences, tables and the cache.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let tables: Vec<_> = self.sequences.values().map(|kept| kept.sequence.table()).collect();
        let states: u32 = self.sequences.values().map(|kept| kept.sequence.states_kept()).sum();
        self.kv.check(&tables, states);
        assert_eq!(self.free_slots.len() + self.running.len(), self.limits.seqs as usize);
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
        if self.flights.len() >= target_in_flight as usize {
            return None;
        }
        let mut plan = StepPlan { seqs: Vec::new(), tokens: Vec::new() };
        let mut capacity = StepCapacity { rows: PerPhase::by(|_| self.rows), outs: PerPhase::by(|_| self.limits.outs) };
        // Those that a request preempts stand after it, so they are not in the plan yet.
        let mut i = 0;
        while i < self.running.len() {
            let id = self.running[i];
            self.plan_request(id, &mut plan, &mut capacity);
            // A request that preempted itself or ended is no longer at its place.
            i += usize::from(self.running.get(i) == Some(&id));
        }
        while let Some(id) = self.admit() {
            self.plan_request(id, &mut plan, &mut capacity);
        }
        // Decode rows first, as an executor takes them.
        plan.seqs.sort_by_key(|s| Phase::ALL.iter().position(|phase| *phase == s.phase));
        (!plan.seqs.is_empty()).then_some(plan)
    }

    /// Adds a running request's next rows to the plan, if it has any and there is capacity.
    fn plan_request(&mut self, id: RequestId, plan: &mut StepPlan, capacity: &mut StepCapacity) {
        let active = &self.requests[&id];
        let (seq, slot) = (active.seq, active.slot.expect("running requests have slots"));
        let sequence = &self.sequences[&seq].sequence;
        let on_device = active.request.sampling.on_device();
        let sampled = active.usage.generated + active.pending;
        let (phase, mut rows) = match sequence.next_rows() {
            Some(known) => known,
            None if active.pending > 0 && on_device.is_some() && sampled < active.limit.0 => {
                (Phase::Decode, sequence.cached()..sequence.cached() + 1)
            }
            None => return,
        };
        rows.end = rows.end.min(rows.start + capacity.rows[phase]);
        if phase == Phase::Prefill && self.kv.recurrent() {
            rows = sequence.split(rows, self.limits.block);
        }
        let samples = rows.end >= sequence.len();
        if rows.is_empty() || (samples && capacity.outs[phase] == 0) || !self.free_space(id, rows.end) {
            return;
        }
        capacity.rows[phase] -= rows.len() as u32;
        capacity.outs[phase] -= u32::from(samples);
        if phase == Phase::Decode && self.kv.recurrent() && rows.start.is_multiple_of(ROLL * self.limits.block) {
            let sequence = &mut self.sequences.get_mut(&seq).expect("requests have sequences").sequence;
            sequence.roll_state(&mut self.kv, slot, self.limits.seqs);
        }
        let sample = match (samples, on_device) {
            (false, _) => SampleOn::None,
            (true, Some(spec)) => SampleOn::Device(spec),
            (true, None) => SampleOn::Host,
        };
        let sequence = &self.sequences[&seq].sequence;
        let first = plan.tokens.len();
        match sequence.tokens(rows.clone()) {
            Some(known) => plan.tokens.extend(known.iter().map(|&id| Token::Host(id))),
            None => plan.tokens.push(Token::Sampled),
        }
        let tokens = first..plan.tokens.len();
        plan.seqs.push(PlanSeq { request: id, seq, slot, phase, pos: rows.start, tokens, sample });
    }

    /// Gives a running request the blocks for its first `positions` positions. If it gets none, it waits or has ended.
    fn free_space(&mut self, id: RequestId, positions: u32) -> bool {
        let seq = self.requests[&id].seq;
        loop {
            let sequence = &mut self.sequences.get_mut(&seq).expect("requests have sequences").sequence;
            if sequence.grow(&mut self.kv, positions) {
                return true;
            }
            let own = self.running.iter().position(|r| *r == id).expect("it runs");
            let victim = self.running[own + 1..].iter().rev().copied().min_by_key(|later| self.loss(*later));
            match victim {
                Some(victim) => self.preempt(victim),
                None if self.running.len() > 1 => {
                    self.preempt(id);
                    return false;
                }
                // Alone, and the cache is full. Tokens that are still being sampled come before the end.
                None => {
                    if self.requests[&id].pending == 0 {
                        self.finish(id, Finish::Context);
                    }
                    return false;
                }
            }
        }
    }

    /// Positions that a running request would have to compute again: what it published is found again, if it is still there.
    fn loss(&self, id: RequestId) -> u32 {
        let sequence = &self.sequences[&self.requests[&id].seq].sequence;
        sequence.cached() - sequence.table().published() * self.limits.block
    }

    /// Stops a running request, to be computed again from its tokens.
    fn preempt(&mut self, id: RequestId) {
        self.running.retain(|r| *r != id);
        let active = self.requests.get_mut(&id).expect("it runs");
        self.free_slots.extend(active.slot.take());
        let kept = self.sequences.get_mut(&active.seq).expect("requests have sequences");
        kept.sequence.evict(&mut self.kv);
        self.waiting.push_front(id);
        self.preemptions += 1;
    }

    /// Starts the first waiting request, if there is a slot and there are blocks for all its tokens. Requests that wait for
    /// what another one computes are passed.
    fn admit(&mut self) -> Option<RequestId> {
        /// Requests that are looked at.
        const LOOKED_AT: usize = 16;
        if self.free_slots.is_empty() {
            return None;
        }
        let candidates: Vec<RequestId> = self.waiting.iter().copied().take(LOOKED_AT).collect();
        for id in candidates {
            let active = &self.requests[&id];
            // What is being sampled must be known before it can be computed again.
            if active.pending > 0 || self.refused == Some((id, self.kv.version())) {
                return None;
            }
            if active.waits_for.is_some_and(|other| self.computes_prompt(other)) {
                continue;
            }
            let Kept { sequence, open, .. } = &self.sequences[&active.seq];
            let phases = (!active.any_phase).then_some(sequence.phases());
            let hit = self.kv.find(&active.root, sequence.all(), phases, *open);
            if let Some(other) = self.to_wait_for(id, &hit) {
                self.requests.get_mut(&id).expect("it waits").waits_for = Some(other);
                continue;
            }
            if !self.kv.fits(&hit, sequence.len(), self.limits.rows, !self.running.is_empty()) {
                self.refused = Some((id, self.kv.version()));
                return None;
            }
            if self.start(id, &hit) {
                return Some(id);
            }
            return None;
        }
        None
    }

    /// Whether a request runs and has not sampled yet.
    fn computes_prompt(&self, id: RequestId) -> bool {
        self.requests.get(&id).is_some_and(|active| active.slot.is_some() && active.usage.generated == 0)
    }

    /// The running request that computes what a waiting one begins with, beyond what was found of it, if waiting for it saves
    /// more than half of what it takes.
    fn to_wait_for(&self, id: RequestId, hit: &Hit) -> Option<RequestId> {
        let active = &self.requests[&id];
        let (own, block) = (&self.sequences[&active.seq].sequence, self.limits.block);
        let found = hit.positions / block * block;
        self.running.iter().copied().filter(|other| self.computes_prompt(*other)).find(|other| {
            let other = &self.requests[other];
            let sequence = &self.sequences[&other.seq].sequence;
            let tokens = own.all().iter().zip(sequence.all()).skip(found as usize);
            let common = found + tokens.take_while(|(a, b)| a == b).count() as u32;
            // Whole blocks are found, and the last position is computed in any case.
            let common = common.min(own.len() - 1) / block * block;
            let in_prefill = |of: &Sequence| {
                of.phases().run(found).is_some_and(|(phase, run)| phase == Phase::Prefill && common <= run.end)
            };
            other.root == active.root
                && common > found
                && in_prefill(own)
                && in_prefill(sequence)
                && 2 * (common - found) > sequence.len() - found.min(sequence.len())
        })
    }

    /// Starts a waiting request with what was found of it, unless there are no blocks for it after all.
    fn start(&mut self, id: RequestId, hit: &Hit) -> bool {
        let active = self.requests.get_mut(&id).expect("it waits");
        let sequence = &mut self.sequences.get_mut(&active.seq).expect("requests have sequences").sequence;
        let attached = sequence.attach(&mut self.kv, &active.root, hit, Some(active.seq.0));
        if !sequence.reserve(&mut self.kv) {
            sequence.evict(&mut self.kv);
            return false;
        }
        let slot = self.free_slots.pop().expect("there is one");
        if let Some(state) = attached.state {
            let restored = self.kv.copy(CacheOp::CopyState { from: self.limits.seqs + state.place, to: slot });
            sequence.depends_on(restored);
        }
        self.kv.count(sequence.len(), attached.positions);
        if active.usage.generated == 0 {
            active.usage.reused = attached.positions;
        }
        (active.slot, active.any_phase) = (Some(slot), false);
        self.waiting.retain(|waiting| *waiting != id);
        self.running.push(id);
        true
    }

    /// Hands a plan to the executor. If the executor refuses, the requests in it end with its error.
    pub(super) fn run(&mut self, plan: &StepPlan, enqueue: impl FnOnce(&Step<'_>) -> Result<Ticket>) {
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
                self.flights.push_back(Flight { ticket, copies, requests });
                let prompts = plan.seqs.iter().filter(|s| s.phase == Phase::Prefill);
                prompts.for_each(|s| self.prompt_checkpoint(s));
            }
            Err(error) => self.fail(plan.seqs.iter().map(|s| s.request), error),
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

    /// A step was lost, and the copies before it: ends the requests that were in it and those that have what was to be copied.
    fn lost(&mut self, flight: &Flight, error: Error) {
        let all = matches!(error, Error::DeviceLost(_));
        self.kv.retract(&flight.copies);
        let depends =
            |id: &RequestId| all || self.sequences[&self.requests[id].seq].sequence.depends_on_any(&flight.copies);
        let depending: Vec<RequestId> = self.running.iter().copied().filter(depends).collect();
        self.fail(flight.requests.iter().map(|(id, ..)| *id).chain(depending), error);
        if all {
            self.kv.clear();
        }
    }

    /// Takes the result of the oldest step in flight.
    pub(super) fn collect(&mut self, ticket: Ticket, out: Result<&StepOut>) {
        let flight = self.flights.pop_front().expect("a result of no step");
        assert_eq!(flight.ticket, ticket, "steps finish in order");
        let out = match out {
            Ok(out) => out,
            Err(error) => return self.lost(&flight, error),
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
        self.waiting.retain(|r| *r != id);
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
        let decoded = sequence.phases().decoded();
        if !kept.open {
            self.sequences.remove(&active.seq);
        }
        self.events.push(Event::Finished { request: id, reason, usage: active.usage, decoded });
    }
}

/// Blocks after which a recurrent sequence that decodes keeps its states: the end of a turn is rarely where a slot's states
/// are, since steps are in flight beyond it.
const ROLL: u32 = 4;

/// What a step has capacity for, by phase.
struct StepCapacity {
    rows: PerPhase<u32>,
    outs: PerPhase<u32>,
}
