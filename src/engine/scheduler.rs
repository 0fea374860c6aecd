//! The scheduler: which rows of which requests make up a step, and what becomes of its result.
//!
//! Running requests come first, in the order in which they were admitted; then waiting ones are admitted as long as there is a
//! slot and there are blocks for all that they hold. A request that needs a block when none is free takes it from a sequence
//! that is not running, least recently used first; then from the running request that was admitted last, which waits to be
//! computed again. So the oldest request always goes on.
//!
//! A request whose tokens are sampled on the device keeps steps in flight: its next row is enqueued before the host
//! has seen the token.
//!
//! A recurrent model's states cannot be truncated. Those of a sequence that stays open are copied to a checkpoint when a
//! turn ends, when its prompt ends, and now and then within a long prompt. A request that continues from there, or from an
//! earlier position, starts at the nearest checkpoint, or from the beginning. When all checkpoints are in use, the sequence
//! with the most of them gives one up.
//!
//! Blocks may be given away while steps that use them are in flight, since steps run in order: whoever gets a block
//! overwrites a position before it reads it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::sequence::Sequence;
use super::{Event, Finish, Request, RequestId, SeqId, Usage};
use crate::exec::{CacheOp, Limits, Outs, PerPhase, Phase, SeqStep, Step, StepOut, Ticket, Token};
use crate::kv::{Kv, OutOfBlocks};
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
    /// Copies of states, to be made before the next step.
    cache_ops: Vec<CacheOp>,
}

/// A sequence as the scheduler keeps it.
#[derive(Debug)]
struct Kept {
    sequence: Sequence,
    user: Option<RequestId>,
    /// Whether it outlives its request.
    open: bool,
    last_use: u64,
}

/// A request that has not ended.
#[derive(Debug)]
struct Active {
    request: Request,
    seq: SeqId,
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
    requests: Vec<(RequestId, SeqId, SampleOn)>,
}

impl Scheduler {
    pub(super) fn new(limits: Limits, program: &Program) -> Self {
        let mut kv = Kv::new(program.groups, limits.blocks, limits.block).with_windows(program.windows());
        if program.state_bytes() > 0 {
            kv = kv.with_states(limits.checkpoints);
        }
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
            cache_ops: Vec::new(),
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
        self.sequences.insert(id, Kept { sequence, user: None, open, last_use: id.0 });
        id
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
        if self.kv.blocks_for(positions) > self.kv.capacity() {
            return Err(Error::Limit {
                what: "prompt".into(),
                needed: format!("{positions} positions"),
                available: format!("{} in the cache", u64::from(self.limits.blocks) * u64::from(self.limits.block)),
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
        kept.last_use = id.0;
        kept.sequence.resume(&request.prompt, &mut self.kv);
        let capacity = self.limits.context - positions;
        let limit = match request.max_tokens {
            Some(most) if most <= capacity => (most, Finish::Length),
            _ => (capacity, Finish::Context),
        };
        let usage = Usage { prompt: positions, reused: 0, generated: 0 };
        let nothing_to_do = limit.0 == 0;
        self.requests.insert(
            id,
            Active { request, seq, slot: None, pending: 0, usage, sampler: SamplerState::default(), limit },
        );
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

    /// The operations on the caches before the next step.
    pub(super) fn take_cache_ops(&mut self) -> Vec<CacheOp> {
        std::mem::take(&mut self.cache_ops)
    }

    /// Checkpoints that are kept.
    pub(super) fn checkpoints(&self) -> u32 {
        self.kv.states_kept()
    }

    /// Whether there is something to report.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    #[cfg(test)]
    pub(super) fn free_blocks(&self) -> u32 {
        self.kv.free()
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
        let samples = rows.end >= sequence.len();
        if rows.is_empty() || (samples && capacity.outs[phase] == 0) || !self.free_space(id, rows.end) {
            return;
        }
        capacity.rows[phase] -= rows.len() as u32;
        capacity.outs[phase] -= u32::from(samples);
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
            let table = &mut self.sequences.get_mut(&seq).expect("requests have sequences").sequence.table;
            let Err(OutOfBlocks { .. }) = self.kv.grow(table, positions) else { return true };
            if self.evict_one(seq) {
                continue;
            }
            match self.running.last().copied() {
                Some(last) if last != id => self.preempt(last),
                _ if self.running.len() > 1 => {
                    self.preempt(id);
                    return false;
                }
                // Alone, and the cache is full. Tokens that are still being sampled come before the end.
                _ => {
                    if self.requests[&id].pending == 0 {
                        self.finish(id, Finish::Context);
                    }
                    return false;
                }
            }
        }
    }

    /// Takes the blocks of the least recently used sequence that is not running, and is not `except`.
    fn evict_one(&mut self, except: SeqId) -> bool {
        let requests = &self.requests;
        let idle = self.sequences.iter_mut().filter(|(id, kept)| {
            let running = kept.user.is_some_and(|user| requests[&user].slot.is_some());
            **id != except && !running && kept.sequence.table.blocks() > 0
        });
        match idle.min_by_key(|(_, kept)| kept.last_use) {
            Some((_, kept)) => {
                kept.sequence.evict(&mut self.kv);
                true
            }
            None => false,
        }
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

    /// Starts the first waiting request, if there is a slot and there are blocks for all its tokens.
    fn admit(&mut self) -> Option<RequestId> {
        let id = *self.waiting.front()?;
        let active = &self.requests[&id];
        // What is being sampled must be known before it can be computed again.
        if active.pending > 0 || self.free_slots.is_empty() {
            return None;
        }
        let own = &self.sequences[&active.seq];
        let needed = self.kv.blocks_for(own.sequence.len()).saturating_sub(own.sequence.table.blocks());
        let running = |kept: &Kept| kept.user.is_some_and(|user| self.requests[&user].slot.is_some());
        let idle = self.sequences.iter().filter(|(seq, kept)| **seq != active.seq && !running(kept));
        if needed > self.kv.free_without(idle.map(|(_, kept)| &kept.sequence.table)) {
            return None;
        }
        let seq = active.seq;
        while needed > self.kv.free() && self.evict_one(seq) {}
        let kept = self.sequences.get_mut(&seq).expect("requests have sequences");
        let (len, cached) = (kept.sequence.len(), kept.sequence.cached());
        self.kv.grow(&mut kept.sequence.table, len).ok()?;
        self.waiting.pop_front();
        self.running.push(id);
        let active = self.requests.get_mut(&id).expect("it waits");
        active.slot = self.free_slots.pop();
        if active.usage.generated == 0 {
            active.usage.reused = cached;
        }
        if let (Some(to), Some(last)) = (active.slot, kept.sequence.checkpoints().last())
            && cached > 0
        {
            self.cache_ops.push(CacheOp::CopyState { from: self.limits.seqs + last.state, to });
        }
        Some(id)
    }

    /// Hands a plan to the executor. If the executor refuses, the requests in it end with its error.
    pub(super) fn run(&mut self, plan: &StepPlan, enqueue: impl FnOnce(&Step<'_>) -> Result<Ticket>) {
        let table = |seq: &SeqId| self.sequences[seq].sequence.table.groups();
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
        match enqueue(&Step { seqs: &seqs }) {
            Ok(ticket) => {
                for s in &plan.seqs {
                    let kept = self.sequences.get_mut(&s.seq).expect("it was planned");
                    kept.sequence.computed(s.pos + s.tokens.len() as u32, &mut self.kv);
                    self.requests.get_mut(&s.request).expect("it was planned").pending +=
                        u32::from(s.sample != SampleOn::None);
                }
                let requests = plan.seqs.iter().map(|s| (s.request, s.seq, s.sample)).collect();
                self.flights.push_back(Flight { ticket, requests });
                let prompts = plan.seqs.iter().filter(|s| s.phase == Phase::Prefill);
                prompts.for_each(|s| self.prompt_checkpoint(s));
            }
            Err(error) => self.fail(plan.seqs.iter().map(|s| (s.request, s.seq)), error),
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

    /// Keeps the states of an open sequence at the end of its prompt, and now and then before.
    fn prompt_checkpoint(&mut self, s: &PlanSeq) {
        /// Checkpoints of a prompt as long as the context.
        const MOST: u32 = 8;
        let kept = &self.sequences[&s.seq];
        let last = kept.sequence.checkpoints().last().map_or(0, |last| last.positions);
        let far = kept.sequence.cached() - last >= (self.limits.context / MOST).max(self.limits.block);
        if kept.open && (far || s.sample != SampleOn::None) {
            self.checkpoint(s.seq, s.slot);
        }
    }

    /// Keeps the states of a sequence, which lie in a slot, if a checkpoint is free or one can be evicted.
    fn checkpoint(&mut self, seq: SeqId, slot: u32) {
        let sequence = &self.sequences[&seq].sequence;
        let positions = sequence.cached();
        if !self.kv.recurrent()
            || positions == 0
            || sequence.checkpoints().last().is_some_and(|c| c.positions == positions)
        {
            return;
        }
        let Some(state) = self.kv.take_state().or_else(|| self.free_state(seq)) else { return };
        self.sequences.get_mut(&seq).expect("it was found above").sequence.record_checkpoint(state);
        self.cache_ops.push(CacheOp::CopyState { from: slot, to: self.limits.seqs + state });
    }

    /// Takes a checkpoint from the sequence that has the most; of several, from the least recently used one. `live` has its
    /// states in a slot.
    fn free_state(&mut self, live: SeqId) -> Option<u32> {
        let most =
            |(_, kept): &(&SeqId, &mut Kept)| (kept.sequence.checkpoints().len(), std::cmp::Reverse(kept.last_use));
        let (seq, kept) = self.sequences.iter_mut().max_by_key(most)?;
        kept.sequence.evict_checkpoint(&mut self.kv);
        let running = kept.user.is_some_and(|user| self.requests.get(&user).is_some_and(|r| r.slot.is_some()));
        if !running && *seq != live {
            // What it has in the cache is what its last checkpoint has.
            kept.sequence.truncate_to(kept.sequence.cached(), &mut self.kv);
        }
        self.kv.take_state()
    }

    /// Ends requests of a step with an error. What their sequences have in the cache is unknown.
    fn fail(&mut self, requests: impl Iterator<Item = (RequestId, SeqId)>, error: Error) {
        let error = Arc::new(error);
        for (id, seq) in requests {
            let Some(kept) = self.sequences.get_mut(&seq) else { continue };
            kept.sequence.evict(&mut self.kv);
            // A request may have ended since, and another one may continue its sequence.
            let user =
                kept.user.filter(|user| *user == id || self.requests.get(user).is_some_and(|r| r.slot.is_some()));
            if let Some(user) = user {
                self.finish(user, Finish::Error(error.clone()));
            }
        }
    }

    /// Takes the result of the oldest step in flight.
    pub(super) fn collect(&mut self, ticket: Ticket, out: Result<&StepOut>) {
        let flight = self.flights.pop_front().expect("a result of no step");
        assert_eq!(flight.ticket, ticket, "steps finish in order");
        let out = match out {
            Ok(out) => out,
            Err(error) => return self.fail(flight.requests.iter().map(|(id, seq, _)| (*id, *seq)), error),
        };
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
            return self.fail(std::iter::once((id, seq)), error);
        };
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
        let last_use = self.next_id();
        let kept = self.sequences.get_mut(&active.seq).expect("requests have sequences");
        kept.user = None;
        kept.last_use = last_use;
        // The positions whose next token is known are kept, whatever is in flight. So timing does not decide what part of a
        // conversation counts as decoded and what as the next prompt.
        let known = kept.sequence.len();
        let known_end = if matches!(reason, Finish::Stop(_)) { known } else { known.saturating_sub(1) };
        let (open, computed_more) = (kept.open, kept.sequence.cached() > known_end);
        if let Some(slot) = active.slot.filter(|_| open && !computed_more) {
            self.checkpoint(active.seq, slot);
        }
        let kept = self.sequences.get_mut(&active.seq).expect("requests have sequences");
        kept.sequence.truncate_to(known_end, &mut self.kv);
        if !open {
            self.forget(active.seq);
        }
        self.events.push(Event::Finished { request: id, reason, usage: active.usage });
    }
}

/// What a step has capacity for, by phase.
struct StepCapacity {
    rows: PerPhase<u32>,
    outs: PerPhase<u32>,
}
