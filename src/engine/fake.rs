//! An executor for tests that reads and writes pages like a real one and samples a hash of what it finds there.

use std::collections::VecDeque;

use crate::exec::{CacheOp, Executor, Limits, Outs, Packed, Phase, Sampled, Step, StepOut, Ticket, Token};
use crate::file::CountFn;
use crate::model::{CacheSpec, Out, Program};
use crate::ops::sample::Picker;
use crate::ops::{GroupId, RING, SampleEntry, ValueId};
use crate::testing::{Random, mix};
use crate::{Error, Result};

pub(crate) const VOCAB: u32 = 40;
pub(crate) const STOP: u32 = 7;
pub(crate) const GROUPS: usize = 2;

pub(crate) fn program() -> Program {
    let outs = vec![Out::Logits(ValueId(0))];
    Program { groups: GROUPS as u32, vocab: VOCAB, context: 1 << 20, outs, ..Program::default() }
}

/// The same with a recurrent layer.
pub(crate) fn recurrent() -> Program {
    Program { caches: vec![CacheSpec::State { len: 1 }], ..program() }
}

/// The same with windows: of the second group, or of both.
pub(crate) fn windowed(first: Option<u32>, second: u32) -> Program {
    let pages = |group, window| CacheSpec::Pages {
        group: GroupId(group),
        kv_heads: 1,
        k_dim: 1,
        v_dim: 1,
        v_in_k: false,
        window,
    };
    Program { caches: vec![pages(0, first), pages(1, Some(second))], ..program() }
}

/// What a row leaves in the cache: its token, position and phase.
pub(crate) type Cell = (u32, u32, Phase);

/// Runs a step when it is enqueued, on its own memory, and delivers it at some later poll.
pub(crate) struct Fake {
    pub(crate) program: Program,
    pub(crate) limits: Limits,
    pub(crate) packed: Packed,
    pub(crate) pages: Vec<Vec<Option<Cell>>>,
    /// The tokens sampled last for each slot, by position.
    pub(crate) sampled: Vec<[Option<u32>; RING as usize]>,
    pub(crate) finished: VecDeque<(Ticket, Result<StepOut>)>,
    pub(crate) next: u64,
    pub(crate) random: Random,
    pub(crate) blocked: u64,
    /// Rows computed.
    pub(crate) rows: usize,
    /// A token that makes the logits after it NaN.
    pub(crate) poison: Option<u32>,
    /// The steps that are lost, with the copies before them.
    pub(crate) lost: std::collections::BTreeSet<u64>,
    /// What a recurrent layer has seen: positions, and a hash of their cells.
    pub(crate) states: Vec<(u32, u64)>,
    /// Copies that come with the next step.
    pub(crate) queued: Vec<CacheOp>,
    /// Copies of states and of blocks.
    pub(crate) copies: [usize; 2],
    /// The step from which on the device is gone.
    pub(crate) gone_at: Option<u64>,
    /// The step at which it panics.
    pub(crate) panics_at: Option<u64>,
    /// How many times copies are refused, and were.
    pub(crate) no_copies: [u32; 2],
    /// How many times steps are refused, and were.
    pub(crate) no_steps: [u32; 2],
}

impl Fake {
    pub(crate) fn new(limits: Limits, seed: u64, program: &Program) -> Self {
        Self {
            program: program.clone(),
            limits,
            packed: Packed::default(),
            pages: program
                .windows()
                .into_iter()
                .map(|window| vec![None; (limits.blocks_of(window) * limits.block) as usize])
                .collect(),
            sampled: vec![[None; RING as usize]; limits.seqs as usize],
            finished: VecDeque::new(),
            next: 0,
            random: Random::new(seed),
            blocked: 0,
            rows: 0,
            poison: None,
            lost: Default::default(),
            states: vec![(u32::MAX, 0); (limits.seqs + limits.checkpoints) as usize],
            queued: Vec::new(),
            copies: [0; 2],
            gone_at: None,
            panics_at: None,
            no_copies: [0; 2],
            no_steps: [0; 2],
        }
    }

    /// Makes the copies that came before a step, or loses them: then what they were to write is something else.
    fn copy(&mut self, lost: bool) {
        for op in std::mem::take(&mut self.queued) {
            let garbage = self.random.next();
            match op {
                CacheOp::CopyState { from, to } => {
                    let from = self.states[from as usize];
                    self.states[to as usize] = if lost { (from.0, garbage) } else { from };
                    self.copies[0] += 1;
                }
                CacheOp::Copy { group, from, to } => {
                    let pages = &mut self.pages[group.index()];
                    for i in 0..self.limits.block {
                        let cell = pages[(from * self.limits.block + i) as usize];
                        let other = cell.map(|(token, pos, phase)| ((token + 1) % VOCAB, pos, phase));
                        pages[(to * self.limits.block + i) as usize] = if lost { other } else { cell };
                    }
                    self.copies[1] += 1;
                }
                CacheOp::Zero { .. } => panic!("{op:?}"),
            }
        }
    }

    /// A row goes through the state of its slot.
    fn recur(&mut self, slot: usize, pos: u32, token: u32, phase: Phase) {
        let state = &mut self.states[slot];
        if pos == 0 {
            *state = (0, 1);
        }
        *state = (pos + 1, mix(state.1 ^ mix(u64::from(token) * 2 + phase as u64)));
    }

    fn gone(&self) -> bool {
        self.gone_at.is_some_and(|at| self.next >= at)
    }

    /// Logits that depend on every token before, and on the kernels it ran in.
    fn logits(&self, tables: &[&[u32]], context: u32) -> Vec<f32> {
        Self::logits_of(self.history(tables, context))
    }

    fn logits_of(seen: Option<u64>) -> Vec<f32> {
        match seen {
            Some(hash) => (0..VOCAB).map(|t| (mix(hash ^ u64::from(t)) >> 40) as f32 / 4e6).collect(),
            None => vec![f32::NAN; VOCAB as usize],
        }
    }

    /// A hash of the cells of the first positions, unless they are poisoned: of those that the last row's layers see.
    fn history(&self, tables: &[&[u32]], context: u32) -> Option<u64> {
        let mut hash = 1;
        let first = |group| context - self.program.window(GroupId(group)).unwrap_or(context).min(context);
        let firsts = [first(0), first(1)];
        for pos in firsts[0].min(firsts[1])..context {
            let cell = |group: usize| {
                let block = tables[group][(pos / self.limits.block) as usize];
                let cell = self.pages[group][(block * self.limits.block + pos % self.limits.block) as usize];
                cell.expect("an unwritten position is read")
            };
            let seen = [0, 1].map(|group| (pos >= firsts[group]).then(|| cell(group)));
            let (token, at, phase) = seen[0].or(seen[1]).expect("one of them sees it");
            let own = |cell: Option<Cell>| cell.is_none_or(|cell| cell == (token, pos, phase));
            assert!(at == pos && seen.into_iter().all(own), "a position holds another sequence's row");
            if self.poison == Some(token) {
                return None;
            }
            hash = mix(hash ^ mix(u64::from(token) * 2 + phase as u64));
        }
        Some(hash)
    }
}

impl Executor for Fake {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn device(&self) -> String {
        "fake".into()
    }

    async fn plan(&mut self, _: Phase, _: &mut CountFn<'_>) -> Result<()> {
        Ok(())
    }

    fn enqueue(&mut self, step: &Step<'_>) -> Result<Ticket> {
        assert!(self.finished.len() < self.limits.in_flight as usize, "too many steps in flight");
        if self.gone() {
            return Err(Error::DeviceLost("unplugged".to_owned()));
        }
        assert_ne!(self.panics_at, Some(self.next), "as it was asked to");
        let [refusals, refused] = &mut self.no_steps;
        if *refusals > 0 {
            (*refusals, *refused) = (*refusals - 1, *refused + 1);
            return Err(Error::Device("no memory for a step".to_owned()));
        }
        self.packed.pack(step, &self.program, &self.limits)?;
        self.next += 1;
        let lost = self.lost.contains(&self.next);
        self.copy(lost);
        let mut out = StepOut::default();
        let mut written = std::collections::HashSet::new();
        let mut slots = std::collections::HashSet::new();
        for seq in step.seqs {
            assert!(slots.insert(seq.slot), "two sequences in one slot");
            for (pos, token) in (seq.pos..).zip(seq.tokens) {
                let token = match *token {
                    Token::Host(id) => id,
                    Token::Sampled => {
                        self.sampled[seq.slot as usize][(pos % RING) as usize].expect("a token was sampled")
                    }
                };
                // What a lost step was to write is something else.
                let token = if lost { (token + 1) % VOCAB } else { token };
                self.recur(seq.slot as usize, pos, token, seq.phase);
                for group in 0..GROUPS {
                    let block = seq.tables[group][(pos / self.limits.block) as usize];
                    let at = block * self.limits.block + pos % self.limits.block;
                    assert!(written.insert((group, at)), "two rows write one place");
                    self.pages[group][at as usize] = Some((token, pos, seq.phase));
                }
                self.rows += 1;
            }
            if seq.outs == Outs::None {
                continue;
            }
            let end = seq.pos + seq.tokens.len() as u32;
            let mut seen = self.history(seq.tables, end);
            if self.program.state_bytes() > 0 {
                let state = self.states[seq.slot as usize];
                let same = seen.is_none_or(|hash| state == (end, hash));
                assert!(same || !self.lost.is_empty(), "the state has seen something else");
                seen = seen.map(|_| state.1);
            }
            let logits = Self::logits_of(seen);
            if let Some(spec) = seq.sample {
                let mut lists = Vec::new();
                let sample = SampleEntry::new(&spec, &seq.lists, [0, seq.slot, end], VOCAB, &mut lists).unwrap();
                let ring = &mut self.sampled[seq.slot as usize];
                let tokens = ring.map(Option::unwrap_or_default);
                let ended = sample.ended(&lists, &tokens);
                let token = Picker::default().pick(&sample, &lists, &tokens, &logits).filter(|_| ended.is_none());
                ring[(end % RING) as usize] = token.or(ended).or(Some(0));
                out.sampled.push(Sampled { slot: seq.slot, token });
                out.logprobs.push(Vec::new());
            }
            if seq.read_logits {
                let first = if seq.outs == Outs::All { seq.pos + 1 } else { end };
                out.logits.extend((first..=end).flat_map(|end| self.logits(seq.tables, end)));
            }
        }
        let result = if lost { Err(Error::LostStep { step: self.next }) } else { Ok(out) };
        self.finished.push_back((Ticket(self.next), result));
        Ok(Ticket(self.next))
    }

    fn cache(&mut self, ops: &[CacheOp]) -> Result<()> {
        if self.gone() {
            return Err(Error::DeviceLost("unplugged".to_owned()));
        }
        let [refusals, refused] = &mut self.no_copies;
        if *refusals > 0 {
            (*refusals, *refused) = (*refusals - 1, *refused + 1);
            return Err(Error::Device("no memory for a copy".to_owned()));
        }
        self.queued.extend(ops);
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(Ticket, Result<&StepOut>)) -> usize {
        let n = self.random.below(self.finished.len() as u32 + 1) as usize;
        let gone = self.gone();
        for (ticket, out) in self.finished.drain(..n) {
            match out {
                Ok(_) if gone => done(ticket, Err(Error::DeviceLost("unplugged".to_owned()))),
                Ok(out) => done(ticket, Ok(&out)),
                Err(error) => done(ticket, Err(error)),
            }
        }
        n
    }

    async fn wait(&mut self) -> Result<()> {
        self.blocked += 1;
        // Like a real one, it finds out while it waits.
        if self.gone() { Err(Error::DeviceLost("unplugged".to_owned())) } else { Ok(()) }
    }

    fn blocked(&self) -> u64 {
        self.blocked
    }
}

pub(crate) const TIGHT: Limits =
    Limits { rows: 7, seqs: 3, outs: 3, block: 4, blocks: 13, context: 48, in_flight: 3, checkpoints: 0 };
pub(crate) const ROOMY: Limits =
    Limits { rows: 64, seqs: 8, outs: 8, block: 16, blocks: 64, context: 48, in_flight: 1, checkpoints: 0 };
