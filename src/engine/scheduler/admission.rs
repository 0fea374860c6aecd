//! Which waiting requests begin to run.

use super::{Kept, PASSED, Scheduler};
use crate::engine::sequence::Sequence;
use crate::engine::{Priority, RequestId};
use crate::exec::{CacheOp, Phase};
use crate::kv::Hit;

impl Scheduler {
    /// Starts the first waiting request that there is a slot for and blocks for all its tokens; false if there is none. Requests
    /// that wait for what another one computes are passed, and so are those that do not fit, by a bounded number of others.
    pub(super) fn admit(&mut self) -> bool {
        /// Requests that are looked at.
        const LOOKED_AT: usize = 16;
        let candidates = self.waiting.first(LOOKED_AT);
        let Some(first) = candidates.first() else { return false };
        if self.free_slots.is_empty() && !self.give_way(*first) {
            return false;
        }
        let mut passed = Vec::new();
        for id in candidates {
            if self.try_start(id) {
                passed.iter().for_each(|id| self.requests.get_mut(id).expect("it waits").passed += 1);
                return true;
            }
            if self.requests[&id].passed >= PASSED {
                return false;
            }
            passed.push(id);
        }
        false
    }

    /// Preempts a request in the background for one that comes before it.
    fn give_way(&mut self, id: RequestId) -> bool {
        let rank = self.requests[&id].rank;
        let later = |other: &&RequestId| {
            let other = &self.requests[*other];
            other.request.priority == Priority::Background && other.rank > rank
        };
        let Some(last) = self.running.iter().rev().find(later).copied() else { return false };
        self.preempt(last);
        true
    }

    /// Starts a waiting request if it fits, and does not wait for what another one computes.
    fn try_start(&mut self, id: RequestId) -> bool {
        let active = &self.requests[&id];
        let spare = !self.running.is_empty();
        // What is being sampled must be known before it can be computed again. As long as it lacks what it lacked, there is
        // nothing to look for.
        let unknown = active.pending > 0 || active.lack.is_some_and(|lack| self.kv.lacks(lack, spare));
        if unknown || active.waits_for.is_some_and(|other| self.computes_prompt(other)) {
            return false;
        }
        let Kept { sequence, open, .. } = &self.sequences[&active.seq];
        let phases = (!active.any_phase).then_some(sequence.phases());
        let hit = self.kv.find(&active.root, sequence.all(), phases, *open);
        if let Some((other, common)) = self.to_wait_for(id, &hit) {
            self.requests.get_mut(&id).expect("it waits").waits_for = Some(other);
            let computes = self.requests[&other].seq;
            self.sequences.get_mut(&computes).expect("requests have sequences").sequence.keep_at(common);
            return false;
        }
        let lack = self.kv.fits(&hit, sequence.len(), self.limits.rows, spare).err();
        self.requests.get_mut(&id).expect("it waits").lack = lack;
        lack.is_none() && self.start(id, &hit)
    }

    /// Whether a request runs and has not sampled yet.
    fn computes_prompt(&self, id: RequestId) -> bool {
        self.requests.get(&id).is_some_and(|active| active.slot.is_some() && active.usage.generated == 0)
    }

    /// The running request that computes what a waiting one begins with, beyond what was found of it, if waiting for it saves
    /// more than half of what it takes; and up to which position.
    fn to_wait_for(&self, id: RequestId, hit: &Hit) -> Option<(RequestId, u32)> {
        let active = &self.requests[&id];
        let (own, block) = (&self.sequences[&active.seq].sequence, self.limits.block);
        let found = hit.positions / block * block;
        self.running.iter().copied().filter(|other| self.computes_prompt(*other)).find_map(|candidate| {
            let other = &self.requests[&candidate];
            let sequence = &self.sequences[&other.seq].sequence;
            let tokens = own.all().iter().zip(sequence.all()).skip(found as usize);
            let common = found + tokens.take_while(|(a, b)| a == b).count() as u32;
            // Whole blocks are found, and the last position is computed in any case.
            let common = common.min(own.len() - 1) / block * block;
            // Of states, those ahead can still be kept; of those before, there are what there are.
            let passed = self.kv.recurrent() && common <= sequence.cached();
            let common = if passed { sequence.state_up_to(common) / block * block } else { common };
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
        self.waiting.remove(active.rank);
        self.running.push(id);
        true
    }
}
