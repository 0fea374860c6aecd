//! Which kernels the tokens of a sequence ran in.

use std::ops::Range;

use crate::ops::Phase;

/// The phase of every token of a sequence, in runs.
///
/// A position's phase is part of what its keys and values are: prefill and decode kernels sum in different orders, so their
/// last bits differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Where each run begins; it ends where the next begins, the last one at `len`. No two neighbours are of one phase.
    runs: Vec<(u32, Phase)>,
    len: u32,
}

impl Phases {
    /// `len` tokens in prefill, but those of `decoded`, which are in order and apart, in decode.
    pub fn new(len: u32, decoded: &[Range<u32>]) -> Self {
        let mut phases = Self::default();
        for range in decoded {
            phases.push(range.start.min(len).saturating_sub(phases.len), Phase::Prefill);
            phases.push(range.end.min(len).saturating_sub(phases.len), Phase::Decode);
        }
        phases.push(len - phases.len, Phase::Prefill);
        phases
    }

    /// How many tokens there are.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds `count` tokens.
    pub fn push(&mut self, count: u32, phase: Phase) {
        if count > 0 && self.runs.last().is_none_or(|(_, last)| *last != phase) {
            self.runs.push((self.len, phase));
        }
        self.len += count;
    }

    /// Leaves the first `len` tokens.
    pub fn truncate(&mut self, len: u32) {
        self.len = self.len.min(len);
        self.runs.retain(|(start, _)| *start < len);
    }

    /// The run that `pos` lies in, from there on; none past the end.
    pub fn run(&self, pos: u32) -> Option<(Phase, Range<u32>)> {
        let at = self.runs.partition_point(|(start, _)| *start <= pos).checked_sub(1)?;
        let end = self.runs.get(at + 1).map_or(self.len, |(next, _)| *next);
        (pos < end).then_some((self.runs[at].1, pos..end))
    }

    /// The tokens that ran in decode kernels.
    pub fn decoded(&self) -> Vec<Range<u32>> {
        let ends = self.runs.iter().skip(1).map(|(start, _)| *start).chain([self.len]);
        let runs = self.runs.iter().zip(ends).filter(|((_, phase), _)| *phase == Phase::Decode);
        runs.map(|((start, _), end)| *start..end).collect()
    }

    /// At most 64 positions as bits, the first the lowest: 1 for decode, 0 for prefill and past the end.
    pub fn bits(&self, range: Range<u32>) -> u64 {
        debug_assert!(range.len() <= 64, "{range:?} has more positions than a word has bits");
        let (mut bits, mut pos) = (0, range.start);
        while let Some((phase, run)) = self.run(pos).filter(|_| pos < range.end) {
            let end = run.end.min(range.end);
            if phase == Phase::Decode {
                bits |= low_bits(end - pos) << (pos - range.start);
            }
            pos = end;
        }
        bits
    }

    /// Adds `count` tokens, at most 64, whose phases are bits as [`bits`](Self::bits) gives them.
    pub fn push_bits(&mut self, count: u32, bits: u64) {
        for i in 0..count {
            self.push(1, if bits >> i & 1 == 1 { Phase::Decode } else { Phase::Prefill });
        }
    }
}

/// The lowest `count` bits, at most 64.
pub(super) fn low_bits(count: u32) -> u64 {
    u64::MAX.checked_shr(64 - count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn runs_agree_with_a_list() {
        let mut random = Random::new(9);
        for _ in 0..2_000 {
            let (mut phases, mut list) = (Phases::default(), Vec::new());
            for _ in 0..random.below(12) {
                let (count, phase) = (random.below(40), [Phase::Prefill, Phase::Decode][random.below(2) as usize]);
                phases.push(count, phase);
                list.extend((0..count).map(|_| phase));
                if random.below(4) == 0 {
                    let len = random.below(200);
                    phases.truncate(len);
                    list.truncate(len as usize);
                }
            }
            assert_eq!(phases.len() as usize, list.len());
            let start = random.below(list.len() as u32 + 3);
            let range = start..start + random.below(65);
            let bit = |i: u32| list.get(i as usize).is_some_and(|phase| *phase == Phase::Decode);
            let bits = range.clone().fold(0, |bits, i| bits | u64::from(bit(i)) << (i - range.start));
            assert_eq!(phases.bits(range.clone()), bits);
            let run = phases.run(start);
            assert_eq!(run.as_ref().map(|(phase, _)| *phase), list.get(start as usize).copied());
            if let Some((phase, run)) = run {
                assert!(run.clone().all(|i| list[i as usize] == phase));
                assert!(list.get(run.end as usize).is_none_or(|next| *next != phase));
            }
            assert_eq!(Phases::new(phases.len(), &phases.decoded()), phases);
            let mut copy = Phases::default();
            (0..phases.len().div_ceil(7)).for_each(|i| {
                let part = i * 7..(i * 7 + 7).min(phases.len());
                copy.push_bits(part.len() as u32, phases.bits(part));
            });
            assert_eq!(copy, phases);
        }
    }
}
