//! A sequence: its tokens, which of them are in the cache, and where.

use std::ops::Range;

use crate::exec::Phase;
use crate::kv::{Attached, Hit, Kv, OutOfBlocks, Phases, State, Table};

/// The tokens of a sequence and their place in the cache.
///
/// A position's phase never changes while its token stays: when a sequence must be computed again, each row runs in the same
/// kernels as before, so that the same bits come out. A sequence that is not running holds nothing: what it had is found
/// again, if it is still there.
#[derive(Debug)]
pub(super) struct Sequence {
    tokens: Vec<u32>,
    phases: Phases,
    /// Positions whose keys and values are in the cache once all steps so far have run. More than `tokens` while rows of
    /// tokens that only the device knows are in flight.
    cached: u32,
    /// Of these, the positions that a sample has proven, here or where they were found.
    proven: u32,
    table: Table,
    /// States of recurrent layers that were kept, by position, until what is before them is published.
    states: Vec<(u32, State)>,
    /// The states that were kept last while it decoded; new ones take their place.
    rolling: Option<(u32, State)>,
    /// Positions after which others may go on: what a window shows there is kept.
    ends: Vec<u32>,
    /// Where its states are kept for others: where it left the blocks that they have, and where they wait for it.
    cuts: Vec<u32>,
    /// Copies that brought what it has, by number, until they are known to have been made.
    copies: Vec<u64>,
}

impl Sequence {
    pub(super) fn new(table: Table) -> Self {
        Self {
            tokens: Vec::new(),
            phases: Phases::default(),
            cached: 0,
            proven: 0,
            table,
            states: Vec::new(),
            rolling: None,
            ends: Vec::new(),
            cuts: Vec::new(),
            copies: Vec::new(),
        }
    }

    /// One with the same tokens, in the same phases, that holds nothing.
    pub(super) fn fork(&self, table: Table) -> Self {
        Self { tokens: self.tokens.clone(), phases: self.phases.clone(), ..Self::new(table) }
    }

    pub(super) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub(super) fn cached(&self) -> u32 {
        self.cached
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    pub(super) fn phases(&self) -> &Phases {
        &self.phases
    }

    /// All tokens that are known.
    pub(super) fn all(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens of some positions, if they are known.
    pub(super) fn tokens(&self, range: Range<u32>) -> Option<&[u32]> {
        self.tokens.get(range.start as usize..range.end as usize)
    }

    /// Switches to a new prompt: keeps the common prefix and adds the rest. `phases` are those of the prompt, if they are
    /// given; else the common prefix has what it had.
    pub(super) fn resume(&mut self, prompt: &[u32], phases: Option<Phases>) {
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        self.tokens.truncate(common);
        self.phases.truncate(common as u32);
        self.push(&prompt[common..], Phase::Prefill);
        if let Some(phases) = phases {
            self.phases = phases;
        }
    }

    pub(super) fn push(&mut self, tokens: &[u32], phase: Phase) {
        self.phases.push(tokens.len() as u32, phase);
        self.tokens.extend_from_slice(tokens);
    }

    /// Takes from the cache what was found of it there. The last position is computed in any case, for its logits.
    pub(super) fn attach(&mut self, kv: &mut Kv, root: &[u32], hit: &Hit, owner: Option<u64>) -> Attached {
        let attached = kv.attach(&mut self.table, root, hit, owner);
        let mut phases = hit.phases.clone();
        phases.truncate(attached.positions);
        let rest = self.phases.decoded().into_iter().filter(|range| range.end > attached.positions);
        for range in rest {
            phases.push(range.start.saturating_sub(phases.len()), Phase::Prefill);
            phases.push(range.end - phases.len(), Phase::Decode);
        }
        phases.push(self.len() - phases.len(), Phase::Prefill);
        self.phases = phases;
        (self.cached, self.proven) = (attached.positions, attached.positions);
        self.copies.extend(attached.copy);
        self.copies.extend(attached.state.map(|state| state.copy));
        self.cuts = hit.branch.into_iter().collect();
        self.ends = hit.branch.into_iter().chain([self.len()]).collect();
        attached
    }

    /// It has what this copy brings.
    pub(super) fn depends_on(&mut self, copy: u64) {
        self.copies.push(copy);
    }

    /// Whether it has what one of some copies was to bring.
    pub(super) fn depends_on_any(&self, copies: &Range<u64>) -> bool {
        self.copies.iter().any(|copy| copies.contains(copy))
    }

    /// All copies before this one have been made.
    pub(super) fn copies_made(&mut self, before: u64) {
        self.copies.retain(|copy| *copy >= before);
    }

    /// Gives a running sequence the blocks for its first `positions` positions.
    pub(super) fn grow(&mut self, kv: &mut Kv, positions: u32) -> Result<(), OutOfBlocks> {
        kv.grow(&mut self.table, positions)
    }

    /// The same in groups that see everything.
    pub(super) fn reserve(&mut self, kv: &mut Kv) -> bool {
        let positions = self.len();
        kv.reserve(&mut self.table, positions).is_ok()
    }

    /// The next rows to compute, all of one phase, if there are known tokens that the cache lacks.
    pub(super) fn next_rows(&self) -> Option<(Phase, Range<u32>)> {
        self.phases.run(self.cached)
    }

    /// Others wait for what it computes up to `positions`, a border of blocks: what they need there is kept.
    pub(super) fn keep_at(&mut self, positions: u32) {
        if positions > self.cached && !self.cuts.contains(&positions) {
            self.cuts.push(positions);
            self.ends.push(positions);
        }
    }

    /// No longer keeps what others see who go on within its prompt; whether there was any.
    pub(super) fn forget_ends(&mut self, kv: &mut Kv) -> bool {
        let any = kv.release_kept(&mut self.table);
        if any {
            let last = self.ends.iter().copied().max();
            self.ends.retain(|end| Some(*end) == last);
        }
        any
    }

    /// The last position up to `positions` of those whose windows it keeps.
    pub(super) fn end_up_to(&self, positions: u32) -> u32 {
        self.ends.iter().copied().filter(|end| *end <= positions).max().unwrap_or(0)
    }

    /// The last position up to `positions` whose states it keeps.
    pub(super) fn state_up_to(&self, positions: u32) -> u32 {
        self.states.iter().map(|(pos, _)| *pos).filter(|pos| *pos <= positions).max().unwrap_or(0)
    }

    /// Where rows of a recurrent sequence end, so that its states are at the border of a block: at its cuts, and where a
    /// prompt is split anyway.
    pub(super) fn split(&self, rows: Range<u32>, block: u32) -> Range<u32> {
        let border = rows.end / block * block;
        let cut = self.cuts.iter().copied().filter(|cut| *cut > rows.start && *cut < rows.end).min();
        let end = match cut {
            Some(cut) => cut,
            _ if rows.end < self.len() && border > rows.start => border,
            _ => rows.end,
        };
        rows.start..end
    }

    /// Whether states are to be kept where it has got to in its prompt: at its cuts, and now and then on the way.
    pub(super) fn keeps_state(&self, far: u32, block: u32) -> bool {
        let last = self.states.last().map_or(0, |(pos, _)| *pos);
        let border = self.cached.is_multiple_of(block);
        self.cuts.contains(&self.cached) || (border && self.cached - last >= far)
    }

    /// Rows up to `positions` have been enqueued: later ones see no more than windows before them.
    pub(super) fn computed(&mut self, positions: u32, kv: &mut Kv) {
        self.cached = positions;
        kv.release_outside_window(&mut self.table, positions, &self.ends);
    }

    /// Keeps the states of a slot at the present position; those that were not kept before.
    pub(super) fn keep_state(&mut self, kv: &mut Kv, slot: u32, slots: u32) -> Option<State> {
        if self.cached == 0 || self.states.iter().any(|(pos, _)| *pos == self.cached) {
            return None;
        }
        let state = kv.copy_state(slot, slots)?;
        self.states.push((self.cached, state));
        Some(state)
    }

    /// Some copies were not made: the states that they were to bring are none.
    pub(super) fn retract(&mut self, copies: &Range<u64>, kv: &mut Kv) {
        let lost = |(_, state): &mut (u32, State)| copies.contains(&state.copy);
        self.states.extract_if(.., lost).for_each(|(_, state)| kv.release_state(state));
    }

    /// Keeps the states of a slot at the present position, in place of those that were kept so before.
    pub(super) fn roll_state(&mut self, kv: &mut Kv, slot: u32, slots: u32) {
        if let Some((pos, state)) = self.rolling.take() {
            match self.states.iter().position(|kept| *kept == (pos, state)) {
                Some(at) => kv.release_state(self.states.swap_remove(at).1),
                None => kv.drop_state(&self.table, pos, state),
            }
        }
        self.rolling = self.keep_state(kv, slot, slots).map(|state| (self.cached, state));
    }

    /// A sample has proven the first `positions` positions: others may find them. `prompt_ends` says whether that is the end
    /// of the prompt.
    pub(super) fn proven(&mut self, positions: u32, prompt_ends: bool, kv: &mut Kv) {
        self.proven = positions;
        kv.publish(&mut self.table, &self.tokens, &self.phases, positions, &mut self.states);
        if prompt_ends {
            let state = self.take_state(positions);
            kv.keep_end(&self.table, &self.tokens, &self.phases, positions, state, None);
        }
    }

    /// States that it keeps itself.
    #[cfg(test)]
    pub(super) fn states_kept(&self) -> u32 {
        self.states.len() as u32
    }

    fn take_state(&mut self, positions: u32) -> Option<State> {
        let at = self.states.iter().position(|(pos, _)| *pos == positions)?;
        Some(self.states.swap_remove(at).1)
    }

    /// Lets the end of an answer be found, after `positions` positions, if they are proven: not where it was ended while it was
    /// computed again. `slot` has the states there, if any.
    pub(super) fn keep_end(&mut self, positions: u32, kv: &mut Kv, slot: Option<(u32, u32)>, owner: Option<u64>) {
        if self.proven < positions {
            return;
        }
        let state = self.take_state(positions).or_else(|| slot.and_then(|(slot, slots)| kv.copy_state(slot, slots)));
        kv.publish(&mut self.table, &self.tokens, &self.phases, positions, &mut self.states);
        kv.keep_end(&self.table, &self.tokens, &self.phases, positions, state, owner);
    }

    /// Gives back all that it holds: what is not published must be computed again.
    pub(super) fn evict(&mut self, kv: &mut Kv) {
        kv.release(&mut self.table);
        self.forget(kv);
    }

    /// The same when it waits to go on.
    pub(super) fn evict_to_wait(&mut self, kv: &mut Kv) {
        kv.release_to_wait(&mut self.table);
        self.forget(kv);
    }

    fn forget(&mut self, kv: &mut Kv) {
        self.states.drain(..).for_each(|(_, state)| kv.release_state(state));
        self.rolling = None;
        self.copies.clear();
        self.ends.clear();
        self.cuts.clear();
        (self.cached, self.proven) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(s: &Sequence) -> Vec<(Phase, Range<u32>)> {
        let mut rows: Vec<(Phase, Range<u32>)> = Vec::new();
        while let Some((phase, range)) = s.phases.run(rows.last().map_or(s.cached, |(_, last)| last.end)) {
            rows.push((phase, range));
        }
        rows
    }

    #[test]
    fn roles_are_replayed_as_they_were() {
        let mut kv = Kv::new(&[(9, None)], 4);
        let mut s = Sequence::new(kv.table());
        s.resume(&[1, 2, 3, 4, 5], None);
        s.push(&[6], Phase::Decode);
        s.push(&[7], Phase::Decode);
        assert_eq!(rows(&s), [(Phase::Prefill, 0..5), (Phase::Decode, 5..7)]);
        let find = |s: &Sequence, kv: &mut Kv| kv.find(&[], &s.tokens, Some(&s.phases), true);
        let hit = find(&s, &mut kv);
        s.attach(&mut kv, &[], &hit, Some(1));
        s.grow(&mut kv, 7).unwrap();
        s.computed(7, &mut kv);
        s.proven(7, false, &mut kv);
        s.keep_end(7, &mut kv, None, Some(1));
        s.evict(&mut kv);
        // A second turn: everything but the last token is known from before.
        s.resume(&[1, 2, 3, 4, 5, 6, 9, 9], None);
        let hit = find(&s, &mut kv);
        s.attach(&mut kv, &[], &hit, Some(1));
        assert_eq!(s.cached(), 6);
        assert_eq!(rows(&s), [(Phase::Prefill, 6..8)]);
        s.evict(&mut kv);
        assert_eq!(kv.blocks()[0].in_use, 0);
        assert_eq!(rows(&s), [(Phase::Prefill, 0..5), (Phase::Decode, 5..6), (Phase::Prefill, 6..8)]);
    }

    #[test]
    fn states_are_kept_where_blocks_end() {
        let mut s = Sequence::new(Kv::new(&[], 4).table());
        s.resume(&[0; 30], None);
        assert_eq!((s.split(0..30, 4), s.split(0..15, 4), s.split(4..7, 4)), (0..30, 0..12, 4..7));
        s.cuts = vec![24, 8];
        assert_eq!((s.split(0..30, 4), s.split(8..30, 4), s.split(24..30, 4)), (0..8, 8..24, 24..30));
    }
}
