//! A sequence: its tokens, which of them are in the cache, and where.

use std::ops::Range;

use crate::exec::Phase;
use crate::kv::{Kv, Table};

/// The tokens of a sequence and their place in the cache.
///
/// A position's phase never changes: when a sequence must be computed again, each row runs in the same kernels as before,
/// so that the same bits come out.
#[derive(Debug)]
pub(super) struct Sequence {
    tokens: Vec<u32>,
    /// The tokens' phases: each span ends where the next begins, the last one with the tokens.
    spans: Vec<Span>,
    /// Positions whose keys and values are in the cache once all steps so far have run. More than `tokens` while rows of
    /// tokens that only the device knows are in flight.
    cached: u32,
    pub(super) table: Table,
    /// Where states of recurrent layers were kept, in the order of positions. A sequence that is not running and has something
    /// in the cache has its state in the last of them.
    checkpoints: Vec<Checkpoint>,
}

/// The states of a sequence that had seen so many positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checkpoint {
    pub(super) positions: u32,
    pub(super) state: u32,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    phase: Phase,
}

impl Sequence {
    pub(super) fn new(table: Table) -> Self {
        Self { tokens: Vec::new(), spans: Vec::new(), cached: 0, table, checkpoints: Vec::new() }
    }

    pub(super) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub(super) fn cached(&self) -> u32 {
        self.cached
    }

    /// The tokens of some positions, if they are known.
    pub(super) fn tokens(&self, range: Range<u32>) -> Option<&[u32]> {
        self.tokens.get(range.start as usize..range.end as usize)
    }

    /// Switches to a new prompt: keeps the common prefix and adds the rest. The last position is computed in any case, for
    /// its logits.
    pub(super) fn resume(&mut self, prompt: &[u32], kv: &mut Kv) {
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        self.truncate(common as u32);
        self.push(&prompt[common..], Phase::Prefill);
        self.truncate_to((common as u32).min(self.len() - 1), kv);
    }

    pub(super) fn push(&mut self, tokens: &[u32], phase: Phase) {
        if !tokens.is_empty() && self.spans.last().is_none_or(|s| s.phase != phase) {
            self.spans.push(Span { start: self.len(), phase });
        }
        self.tokens.extend_from_slice(tokens);
    }

    fn truncate(&mut self, len: u32) {
        self.tokens.truncate(len as usize);
        self.spans.retain(|s| s.start < len);
    }

    /// Truncates the cache to the first `positions` positions. For a recurrent model that is not running, what lies after
    /// the last checkpoint before them goes, too. For one with windows all goes, if the next row would not find what it
    /// sees.
    pub(super) fn truncate_to(&mut self, positions: u32, kv: &mut Kv) {
        self.truncate_cache(positions, kv);
        if !kv.window_is_resident(&self.table, self.cached) {
            self.truncate_cache(0, kv);
        }
    }

    fn truncate_cache(&mut self, positions: u32, kv: &mut Kv) {
        self.cached = self.cached.min(positions);
        if kv.recurrent() {
            while let Some(last) = self.checkpoints.pop_if(|last| last.positions > self.cached) {
                kv.release_state(last.state);
            }
            self.cached = self.checkpoints.last().map_or(0, |last| last.positions);
        }
        kv.truncate(&mut self.table, self.cached);
    }

    /// The checkpoints.
    pub(super) fn checkpoints(&self) -> &[Checkpoint] {
        &self.checkpoints
    }

    /// Records that the states at the present position are kept as checkpoint `state`.
    pub(super) fn record_checkpoint(&mut self, state: u32) {
        self.checkpoints.push(Checkpoint { positions: self.cached, state });
    }

    /// Evicts a checkpoint: of several, the one whose neighbours are nearest to each other, but not the last.
    pub(super) fn evict_checkpoint(&mut self, kv: &mut Kv) {
        let gap = |&i: &usize| {
            let before = i.checked_sub(1).map_or(0, |i| self.checkpoints[i].positions);
            self.checkpoints[i + 1].positions - before
        };
        let last = self.checkpoints.len().saturating_sub(1);
        let at = (0..last).min_by_key(gap).unwrap_or(0);
        if at < self.checkpoints.len() {
            kv.release_state(self.checkpoints.remove(at).state);
        }
    }

    /// Gives all blocks back: everything must be computed again.
    pub(super) fn evict(&mut self, kv: &mut Kv) {
        self.truncate_to(0, kv);
    }

    /// The next rows to compute, all of one phase, if there are known tokens that the cache lacks.
    pub(super) fn next_rows(&self) -> Option<(Phase, Range<u32>)> {
        let start = self.cached;
        let span = self.spans.partition_point(|s| s.start <= start).checked_sub(1)?;
        let end = self.spans.get(span + 1).map_or(self.len(), |next| next.start);
        (start < end).then_some((self.spans[span].phase, start..end))
    }

    /// Rows up to `positions` have been enqueued: later ones see no more than windows before them.
    pub(super) fn computed(&mut self, positions: u32, kv: &mut Kv) {
        self.cached = positions;
        kv.release_outside_window(&mut self.table, positions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(s: &Sequence) -> Vec<(Phase, Range<u32>)> {
        let mut kv = Kv::new(1, 9, 4);
        let mut copy = Sequence {
            tokens: s.tokens.clone(),
            spans: s.spans.clone(),
            cached: s.cached,
            table: kv.table(),
            checkpoints: Vec::new(),
        };
        let mut rows = Vec::new();
        while let Some((phase, range)) = copy.next_rows() {
            copy.computed(range.end, &mut kv);
            rows.push((phase, range));
        }
        rows
    }

    #[test]
    fn roles_are_replayed_as_they_were() {
        let mut kv = Kv::new(1, 9, 4);
        let mut s = Sequence::new(kv.table());
        s.resume(&[1, 2, 3, 4, 5], &mut kv);
        s.push(&[6], Phase::Decode);
        s.push(&[7], Phase::Decode);
        assert_eq!(rows(&s), [(Phase::Prefill, 0..5), (Phase::Decode, 5..7)]);
        kv.grow(&mut s.table, 7).unwrap();
        s.computed(7, &mut kv);
        // A second turn: everything but the last token is known from before.
        s.resume(&[1, 2, 3, 4, 5, 6, 9, 9], &mut kv);
        assert_eq!(s.cached(), 6);
        assert_eq!(rows(&s), [(Phase::Prefill, 6..8)]);
        s.evict(&mut kv);
        assert_eq!(kv.free(), 9);
        assert_eq!(rows(&s), [(Phase::Prefill, 0..5), (Phase::Decode, 5..6), (Phase::Prefill, 6..8)]);
    }

    #[test]
    fn the_same_prompt_again_computes_its_last_token() {
        let mut kv = Kv::new(1, 9, 4);
        let mut s = Sequence::new(kv.table());
        s.resume(&[1, 2, 3, 4, 5], &mut kv);
        kv.grow(&mut s.table, 5).unwrap();
        s.computed(5, &mut kv);
        s.resume(&[1, 2, 3, 4, 5], &mut kv);
        assert_eq!((s.cached(), s.table.blocks()), (4, 1));
        s.resume(&[2], &mut kv);
        assert_eq!((s.table.blocks(), rows(&s)), (0, vec![(Phase::Prefill, 0..1)]));
    }

    #[test]
    fn states_go_back_to_the_last_checkpoint() {
        let mut kv = Kv::new(1, 9, 4).with_states(3);
        let mut s = Sequence::new(kv.table());
        let keep = |s: &mut Sequence, kv: &mut Kv, positions| {
            kv.grow(&mut s.table, positions).unwrap();
            s.computed(positions, kv);
            s.record_checkpoint(kv.take_state().unwrap());
        };
        s.resume(&[1, 2, 3, 4, 5, 6, 7, 8, 9], &mut kv);
        keep(&mut s, &mut kv, 2);
        keep(&mut s, &mut kv, 6);
        keep(&mut s, &mut kv, 9);
        // The last position is computed again, and no state has seen the eight before it.
        s.resume(&[1, 2, 3, 4, 5, 6, 7, 8, 9], &mut kv);
        assert_eq!((s.cached(), s.table.blocks(), kv.states_kept()), (6, 2, 2));
        s.resume(&[1, 2, 3, 9], &mut kv);
        assert_eq!((s.cached(), kv.states_kept()), (2, 1));
        s.resume(&[1, 9], &mut kv);
        assert_eq!((s.cached(), kv.states_kept(), kv.free()), (0, 0, 9));
    }

    #[test]
    fn thinning_keeps_the_last_and_spreads_the_others() {
        let mut kv = Kv::new(0, 9, 4).with_states(9);
        let mut s = Sequence::new(kv.table());
        for positions in [10, 20, 22, 30, 40] {
            s.computed(positions, &mut kv);
            s.record_checkpoint(kv.take_state().unwrap());
        }
        let mut left = Vec::new();
        while !s.checkpoints().is_empty() {
            s.evict_checkpoint(&mut kv);
            left.push(s.checkpoints().iter().map(|c| c.positions).collect::<Vec<_>>());
        }
        assert_eq!(left, [vec![10, 20, 30, 40], vec![20, 30, 40], vec![20, 40], vec![40], vec![]]);
        assert_eq!(kv.states_kept(), 0);
    }
}
