//! What a step is made of: rows of running requests, as far as time and blocks go.

use super::{PlanSeq, SampleOn, Scheduler, StepPlan};
use crate::engine::{Finish, Priority, RequestId};
use crate::exec::{Phase, Token};

/// Blocks after which a recurrent sequence that decodes keeps its states: the end of a turn is rarely where a slot's states
/// are, since steps are in flight beyond it.
const ROLL: u32 = 4;

/// What a step has capacity for.
struct StepCapacity {
    /// Rows in all, and those that are left.
    all: u32,
    rows: u32,
    /// Rows for prompts that need more than half of a step, where there are others; else 0.
    for_long: u32,
    outs: u32,
    /// Running requests that are not planned yet.
    others: u32,
}

impl StepCapacity {
    /// Whether a prompt with so many rows left is a long one.
    fn is_long(&self, left: u32) -> bool {
        left > self.all / 2
    }
}

impl Scheduler {
    /// A step of one phase; empty if there is nothing to compute in it.
    pub(super) fn plan(&mut self, phase: Phase) -> StepPlan {
        if phase == Phase::Prefill {
            while self.admit() {}
        }
        let mut plan = StepPlan { seqs: Vec::new(), tokens: Vec::new() };
        let mut capacity = self.capacity(phase);
        // Those that a request preempts stand after it, so they are not in the plan yet.
        let mut i = 0;
        while i < self.running.len() {
            let id = self.running[i];
            capacity.others = (self.running.len() - i - 1) as u32;
            self.plan_request(id, phase, &mut plan, &mut capacity);
            // A request that preempted itself or ended is no longer at its place.
            i += usize::from(self.running.get(i) == Some(&id));
        }
        plan
    }

    /// Whether all that there is to do is in the background.
    pub(super) fn only_background(&self) -> bool {
        let background = |id: &RequestId| self.requests[id].request.priority == Priority::Background;
        !self.running.is_empty() && self.running.iter().all(background) && self.waiting.first(1).iter().all(background)
    }

    /// The rows that a step of a phase has capacity for.
    fn capacity(&self, phase: Phase) -> StepCapacity {
        /// Rows of a chunk beside others at least: with fewer, the start of a step is most of it.
        const FEW: u32 = 8;
        let company = self.running.len() > 1 || !self.waiting.is_empty();
        let rows = match &self.step_time {
            None => self.rows,
            Some(time) if self.only_background() => self.times.rows(time.background),
            Some(time) if company => {
                let decode = self.times.decode();
                self.times.rows((time.shared.saturating_mul(3) / 2).saturating_sub(decode).max(2 * decode)).max(FEW)
            }
            Some(time) => self.times.rows(time.alone),
        };
        // Decode steps have a row of each request, and more only where answers are computed again.
        let least = if phase == Phase::Decode { self.limits.seqs } else { 1 };
        let rows = rows.max(least).min(self.rows);
        let mut capacity = StepCapacity { all: rows, rows, for_long: 0, outs: self.limits.outs, others: 0 };
        if phase == Phase::Prefill && company {
            let left = |id: &RequestId| {
                let sequence = &self.sequences[&self.requests[id].seq].sequence;
                matches!(sequence.next_rows(), Some((Phase::Prefill, _))).then(|| sequence.len() - sequence.cached())
            };
            let (mut short, mut long) = (0, false);
            for left in self.running.iter().filter_map(left) {
                if capacity.is_long(left) { long = true } else { short += left }
            }
            // A row cannot be divided.
            if long && rows > 1 {
                // A quarter is theirs, and what the others leave.
                capacity.for_long = rows.div_ceil(4).max(rows.saturating_sub(short));
                capacity.rows = rows - capacity.for_long;
            }
        }
        capacity
    }

    /// Adds a running request's next rows to the plan, if it has any and there is capacity.
    fn plan_request(&mut self, id: RequestId, phase: Phase, plan: &mut StepPlan, capacity: &mut StepCapacity) {
        let active = &self.requests[&id];
        let (seq, slot) = (active.seq, active.slot.expect("running requests have slots"));
        let sequence = &self.sequences[&seq].sequence;
        let on_device = active.request.sampling.on_device();
        let sampled = active.usage.generated + active.pending;
        let (next, mut rows) = match sequence.next_rows() {
            Some(known) => known,
            None if active.pending > 0 && on_device.is_some() && sampled < active.limit.0 => {
                (Phase::Decode, sequence.cached()..sequence.cached() + 1)
            }
            None => return,
        };
        if next != phase {
            return;
        }
        let long = capacity.for_long > 0 && capacity.is_long(sequence.len() - sequence.cached());
        // An answer that is computed again leaves a row to each of the others.
        let most = match phase {
            Phase::Prefill if long => capacity.for_long,
            Phase::Prefill => capacity.rows,
            Phase::Decode => capacity.rows.saturating_sub(capacity.others).max(1).min(capacity.rows),
        };
        rows.end = rows.end.min(rows.start + most);
        if phase == Phase::Prefill && self.kv.recurrent() {
            rows = sequence.split(rows, self.limits.block);
        }
        let samples = rows.end >= sequence.len();
        if rows.is_empty() || (samples && capacity.outs == 0) || !self.free_space(id, rows.end) {
            return;
        }
        *(if long { &mut capacity.for_long } else { &mut capacity.rows }) -= rows.len() as u32;
        capacity.outs -= u32::from(samples);
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
            let Err(out_of) = sequence.grow(&mut self.kv, positions) else { return true };
            // What is kept for others to find goes before anybody's own.
            let kept = |other: &RequestId| {
                let sequence = self.sequences.get_mut(&self.requests[other].seq).expect("requests have sequences");
                sequence.sequence.forget_ends(&mut self.kv)
            };
            if out_of.windowed && self.running.iter().any(kept) {
                continue;
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
        sequence.cached() - self.kv.goes_on_at(sequence.table())
    }

    /// Stops a running request for another one.
    pub(super) fn preempt(&mut self, id: RequestId) {
        self.preemptions += 1;
        self.stop(id);
    }

    /// Stops a running request, to be computed again from its tokens.
    pub(super) fn stop(&mut self, id: RequestId) {
        self.running.retain(|r| *r != id);
        let active = self.requests.get_mut(&id).expect("it runs");
        self.free_slots.extend(active.slot.take());
        let kept = self.sequences.get_mut(&active.seq).expect("requests have sequences");
        kept.sequence.evict_to_wait(&mut self.kv);
        active.preempted = true;
        self.waiting.insert(active.rank, kept.sequence.len());
    }
}
