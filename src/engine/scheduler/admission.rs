//! Which waiting requests begin to run.

use super::{Active, Kept, PASSED, Scheduler};
use crate::engine::sequence::Sequence;
use crate::engine::{Priority, RequestId};
use crate::exec::{CacheOp, Phase};
use crate::kv::{Hit, Lack};

/// What became of the attempt to start a waiting request.
enum Attempt {
    /// It runs.
    Started,
    /// It waits for what is being computed.
    Waits,
    /// There is no slot for it, or there are too few blocks.
    Lacks,
}

/// Turns after which a request is looked for again although it still lacks what it lacked: others may have published what it
/// begins with.
const LOOK_AGAIN: u64 = 32;

impl Scheduler {
    /// Starts the first waiting request that there is a slot for and blocks for all its tokens; false if there is none. Requests
    /// that wait for what another one computes are passed, and so are those that do not fit, by a bounded number of others. The
    /// background does not pass others that do not fit.
    pub(super) fn admit(&mut self) -> bool {
        /// Requests that are looked at.
        const LOOKED_AT: usize = 16;
        let gives_way = self.running.last().is_some_and(|last| self.in_background(*last));
        if self.free_slots.is_empty() && !gives_way {
            return false;
        }
        let (mut passed, mut foreground) = (Vec::new(), false);
        for id in self.waiting.first(LOOKED_AT) {
            let background = self.in_background(id);
            if background && foreground {
                continue;
            }
            match self.try_start(id) {
                Attempt::Started => {
                    passed.iter().for_each(|id| self.requests.get_mut(id).expect("it waits").passed += 1);
                    return true;
                }
                Attempt::Waits => {}
                Attempt::Lacks if self.requests[&id].passed >= PASSED => return false,
                Attempt::Lacks => {
                    passed.push(id);
                    foreground |= !background;
                }
            }
        }
        false
    }

    /// Whether a request gives way to others: not when all that it had to let pass have passed.
    fn in_background(&self, id: RequestId) -> bool {
        let active = &self.requests[&id];
        active.request.priority == Priority::Background && self.now < active.rank.due()
    }

    /// The requests in the background that can give way to one that comes before them and lacks a slot, or these blocks; none if
    /// that would not be enough.
    fn victims(&self, id: RequestId, lack: Option<Lack>) -> Vec<RequestId> {
        let rank = self.requests[&id].rank;
        // Those in the background stand at the end.
        let later = |other: &&RequestId| self.in_background(**other) && self.requests[*other].rank > rank;
        let victims: Vec<RequestId> = self.running.iter().rev().take_while(later).copied().collect();
        let table = |id: &RequestId| self.sequences[&self.requests[id].seq].sequence.table();
        let spare = self.running.len() > victims.len();
        let enough = |lack| !self.kv.lacks_beside(lack, spare, victims.iter().map(table));
        if !self.in_background(id) && lack.is_none_or(enough) { victims } else { Vec::new() }
    }

    /// Preempts as many of those as it takes; whether there were any.
    fn give_way(&mut self, id: RequestId, lack: Option<Lack>) -> bool {
        let victims = self.victims(id, lack);
        for victim in &victims {
            self.preempt(*victim);
            if lack.is_none_or(|lack| !self.kv.lacks(lack, !self.running.is_empty())) {
                break;
            }
        }
        !victims.is_empty()
    }

    /// Starts a waiting request if it fits, and does not wait for what another one computes.
    fn try_start(&mut self, id: RequestId) -> Attempt {
        if self.free_slots.is_empty() && self.in_background(id) {
            return Attempt::Lacks;
        }
        let active = &self.requests[&id];
        // What is being sampled must be known before it can be computed again.
        if active.pending > 0 || active.waits_for.is_some_and(|(other, start)| self.computes_prompt(other, start)) {
            return Attempt::Waits;
        }
        // As long as it lacks what it lacked, there is nothing to look for.
        let spare = !self.running.is_empty();
        let known = active.lack.filter(|(lack, turn)| self.turns - turn < LOOK_AGAIN && self.kv.lacks(*lack, spare));
        if known.is_some_and(|(lack, _)| self.victims(id, Some(lack)).is_empty()) {
            return Attempt::Lacks;
        }
        let Kept { sequence, open, .. } = &self.sequences[&active.seq];
        let phases = (!active.any_phase).then_some(sequence.phases());
        let hit = self.kv.find(&active.root, sequence.all(), phases, *open);
        if let Some((other, common)) = self.to_wait_for(id, &hit) {
            let Active { starts, seq: computes, .. } = self.requests[&other];
            self.requests.get_mut(&id).expect("it waits").waits_for = Some((other, starts));
            self.sequences.get_mut(&computes).expect("requests have sequences").sequence.keep_at(common);
            return Attempt::Waits;
        }
        let positions = sequence.len();
        let lack = self.kv.fits(&hit, positions, self.limits.rows, spare).err();
        let wanting = lack.is_some() || self.free_slots.is_empty();
        // Nothing is evicted by that: what was found is still there.
        let lack = if wanting && self.give_way(id, lack) {
            self.kv.fits(&hit, positions, self.limits.rows, !self.running.is_empty()).err()
        } else {
            lack
        };
        let turn = self.turns;
        self.requests.get_mut(&id).expect("it waits").lack = lack.map(|lack| (lack, turn));
        let starts = lack.is_none() && !self.free_slots.is_empty() && self.start(id, &hit);
        if starts { Attempt::Started } else { Attempt::Lacks }
    }

    /// Whether a request runs since it was started for the `start`th time, and has not sampled yet.
    fn computes_prompt(&self, id: RequestId, start: u32) -> bool {
        let computes = |active: &Active| active.slot.is_some() && active.usage.generated == 0 && active.starts == start;
        self.requests.get(&id).is_some_and(computes)
    }

    /// The running request that computes what a waiting one begins with, beyond what was found of it, if waiting for it saves
    /// more than half of what it takes; and up to which position.
    fn to_wait_for(&self, id: RequestId, hit: &Hit) -> Option<(RequestId, u32)> {
        let active = &self.requests[&id];
        let (own, block) = (&self.sequences[&active.seq].sequence, self.limits.block);
        let found = hit.positions / block * block;
        // What is in the background waits for all others: nobody else waits for it.
        let lower = |other: RequestId| self.in_background(other) && !self.in_background(id);
        let prompts = self.running.iter().copied().filter(|other| self.requests[other].usage.generated == 0);
        prompts.filter(|other| !lower(*other)).find_map(|candidate| {
            let other = &self.requests[&candidate];
            let sequence = &self.sequences[&other.seq].sequence;
            let tokens = own.all().iter().zip(sequence.all()).skip(found as usize);
            let common = found + tokens.take_while(|(a, b)| a == b).count() as u32;
            // Whole blocks are found, and the last position is computed in any case.
            let common = common.min(own.len() - 1) / block * block;
            // Of states and windows, those ahead can still be kept; of those before, there are what there are.
            let passed = common <= sequence.cached();
            let common =
                if passed && self.kv.recurrent() { sequence.state_up_to(common) / block * block } else { common };
            let common = if passed && self.kv.windowed() { sequence.end_up_to(common) / block * block } else { common };
            let in_prefill = |of: &Sequence| {
                of.phases().run(found).is_some_and(|(phase, run)| phase == Phase::Prefill && common <= run.end)
            };
            let worth = other.root == active.root
                && common > found
                && in_prefill(own)
                && in_prefill(sequence)
                && 2 * (common - found) > sequence.len() - found.min(sequence.len());
            worth.then_some((candidate, common))
        })
    }

    /// Starts a waiting request with what was found of it, unless there are no blocks for it after all.
    fn start(&mut self, id: RequestId, hit: &Hit) -> bool {
        let active = self.requests.get_mut(&id).expect("it waits");
        let sequence = &mut self.sequences.get_mut(&active.seq).expect("requests have sequences").sequence;
        let attached = sequence.attach(&mut self.kv, &active.root, hit, Some(active.seq.0));
        if !sequence.reserve(&mut self.kv) {
            if active.preempted {
                sequence.evict_to_wait(&mut self.kv)
            } else {
                sequence.evict(&mut self.kv)
            }
            return false;
        }
        let slot = self.free_slots.pop().expect("there is one");
        if let Some(state) = attached.state {
            let restored = self.kv.copy(CacheOp::CopyState { from: self.limits.seqs + state.place, to: slot });
            sequence.depends_on(restored);
        }
        if active.preempted {
            // What is not found now is of no more use to it than to others.
            self.kv.no_longer_waits(&active.root, sequence.all(), sequence.phases());
        }
        if active.started.is_none() {
            self.kv.count(sequence.len(), attached.positions);
        }
        if active.usage.generated == 0 {
            active.usage.reused = attached.positions;
        }
        (active.slot, active.any_phase, active.preempted) = (Some(slot), false, false);
        active.started.get_or_insert(self.now);
        active.starts += 1;
        self.waiting.remove(active.rank);
        let first = self.running.iter().position(|other| self.in_background(*other));
        let place = first.filter(|_| !self.in_background(id)).unwrap_or(self.running.len());
        self.running.insert(place, id);
        true
    }
}
