//! Runs the tests of a bench on an executor, without an engine, a tokenizer or a sampler around it.

use std::time::{Duration, Instant};

use crate::Result;
use crate::exec::{AnyExecutor, Executor, Outs, Phase, SeqStep, Step, StepOut, Token};
use crate::kv::Kv;
use crate::model::{Model, Rows, WeightSource};
use crate::ops::{Cost, KvStorage, Load, Op, SampleSpec};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Reading a prompt.
    Prompt,
    /// Generating tokens, one a step.
    Generate,
    /// Reading a prompt of so many tokens, and then generating some.
    Both { prompt: u32 },
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) kind: Kind,
    /// Tokens.
    pub(super) n: u32,
    /// Tokens before them.
    pub(super) depth: u32,
    /// Sequences, each with so many tokens.
    pub(super) parallel: u32,
}

impl Test {
    /// `pp512`, `tg128 @ d4096`, `tg128 x16`, `pp512+tg128`.
    pub(super) fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Prompt => "pp".to_owned(),
            Kind::Generate => "tg".to_owned(),
            Kind::Both { prompt } => format!("pp{prompt}+tg"),
        };
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        let parallel = if self.parallel > 1 { format!(" x{}", self.parallel) } else { String::new() };
        format!("{kind}{}{depth}{parallel}", self.n)
    }

    /// Positions that each sequence needs. Through the engine, one token of the answer comes of the prompt.
    pub(super) fn end(&self) -> u32 {
        let more = if self.parallel > 1 { 2 } else { 0 };
        let [prompt, generated] = self.lengths();
        self.depth.saturating_add(prompt).saturating_add(generated).saturating_add(more)
    }

    /// Tokens of a prompt, and generated ones.
    pub(super) fn lengths(&self) -> [u32; 2] {
        match self.kind {
            Kind::Prompt => [self.n, 0],
            Kind::Generate => [0, self.n],
            Kind::Both { prompt } => [prompt, self.n],
        }
    }

    /// Tokens of all sequences.
    pub(super) fn tokens(&self) -> f64 {
        self.lengths().map(f64::from).iter().sum::<f64>() * f64::from(self.parallel)
    }

    pub(super) fn phase(&self) -> Phase {
        if self.kind == Kind::Prompt { Phase::Prefill } else { Phase::Decode }
    }
}

/// Runs tests as one sequence that owns all of the cache.
pub(super) struct Runner<'a> {
    pub(super) executor: &'a mut AnyExecutor,
    pub(super) model: &'a Model,
    /// For each cache group, the blocks of all positions.
    tables: Vec<Vec<u32>>,
    kv: KvStorage,
    /// Positions that hold a prompt.
    filled: u32,
    in_flight: usize,
}

impl<'a> Runner<'a> {
    pub(super) fn new(executor: &'a mut AnyExecutor, model: &'a Model, storage: KvStorage) -> Self {
        let tables = Kv::of_one(&model.program, &executor.limits());
        Self { executor, model, tables, kv: storage, filled: 0, in_flight: 0 }
    }

    /// Fills the cache up to a test's depth, and runs what the test runs once.
    pub(super) async fn prepare(&mut self, test: &Test) -> Result<()> {
        if test.depth > self.filled {
            self.prompt(self.filled, test.depth - self.filled).await?;
            self.filled = test.depth;
        }
        let warm = if test.kind == Kind::Generate { Test { n: 1, ..*test } } else { *test };
        self.run(&warm).await.map(drop)
    }

    /// Runs a test once.
    pub(super) async fn run(&mut self, test: &Test) -> Result<Duration> {
        let started = Instant::now();
        match test.kind {
            Kind::Prompt => self.prompt(test.depth, test.n).await?,
            Kind::Generate => self.generate(test.depth, test.n).await?,
            Kind::Both { prompt } => {
                self.prompt(test.depth, prompt).await?;
                self.generate(test.depth + prompt, test.n).await?;
            }
        }
        Ok(started.elapsed())
    }

    /// Reads `n` tokens, as many at a time as the executor takes.
    async fn prompt(&mut self, pos: u32, n: u32) -> Result<()> {
        for first in (0..n).step_by(self.executor.limits().rows as usize) {
            let rows = self.executor.limits().rows.min(n - first);
            self.chunk(pos + first, rows, first + rows == n).await?;
        }
        Ok(())
    }

    /// Reads a chunk of a prompt and waits for it.
    pub(super) async fn chunk(&mut self, pos: u32, rows: u32, last: bool) -> Result<()> {
        let vocab = self.model.program.vocab;
        let token = |i: u32| Token::Host((pos + i).wrapping_mul(0x9e37_79b9) % vocab);
        let tokens: Vec<Token> = (0..rows).map(token).collect();
        self.enqueue(Phase::Prefill, &tokens, pos, if last { Outs::Last } else { Outs::None })?;
        self.finish(0).await
    }

    /// Generates as an engine does: greedily, sampled tokens fed back on the device, as many steps in flight as it takes.
    async fn generate(&mut self, pos: u32, n: u32) -> Result<()> {
        for i in 0..n {
            self.finish(self.executor.target_in_flight() as usize - 1).await?;
            let token = if i == 0 { Token::Host(0) } else { Token::Sampled };
            self.enqueue(Phase::Decode, &[token], pos + i, Outs::Last)?;
        }
        self.finish(0).await
    }

    /// Generates one token.
    pub(super) async fn token(&mut self, pos: u32) -> Result<()> {
        self.enqueue(Phase::Decode, &[Token::Host(0)], pos, Outs::Last)?;
        self.finish(0).await
    }

    fn enqueue(&mut self, phase: Phase, tokens: &[Token], pos: u32, outs: Outs) -> Result<()> {
        let tables: Vec<&[u32]> = self.tables.iter().map(Vec::as_slice).collect();
        let outs = if self.model.program.logits().is_some() { outs } else { Outs::None };
        let sample = (outs == Outs::Last).then_some(SampleSpec::GREEDY);
        let seq = SeqStep { outs, sample, ..SeqStep::new(0, phase, tokens, pos, &tables) };
        self.executor.enqueue(&Step { seqs: &[seq] })?;
        self.in_flight += 1;
        Ok(())
    }

    /// Waits until no more than `left` steps are in flight.
    async fn finish(&mut self, left: usize) -> Result<()> {
        while self.in_flight > left {
            let mut result = Ok(());
            let mut done = |_, out: Result<&StepOut>| result = out.map(drop);
            let finished = self.executor.poll(&mut done);
            result?;
            self.in_flight -= finished;
            if finished == 0 {
                self.executor.wait().await?;
            }
        }
        Ok(())
    }

    /// The cost of a node's op for a step of `rows` rows from `pos` on.
    pub(super) fn op_cost(&self, op: &Op, rows: u32, pos: u32) -> Cost {
        let program = &self.model.program;
        let load = Load { rows, pos, kv: self.kv };
        let own = match op.writes().and_then(|value| program.values.get(value.index())).map(|value| value.rows) {
            Some(Rows::Outs | Rows::Seqs) => 1,
            Some(Rows::Step) | None => rows,
        };
        op.cost(&load, own, &|weight| self.model.format(weight))
    }

    /// The cost of a test's whole run; none of one that does two things.
    pub(super) fn cost(&self, test: &Test) -> Option<Cost> {
        let nodes = &self.executor.program(test.phase()).nodes;
        let step = |rows, pos| nodes.iter().map(|node| self.op_cost(&node.op, rows, pos)).sum::<Cost>();
        match test.kind {
            Kind::Prompt => {
                let rows = self.executor.limits().rows;
                let chunks = (0..test.n).step_by(rows as usize);
                Some(chunks.map(|first| step(rows.min(test.n - first), test.depth + first)).sum())
            }
            // Every token costs a little more than the one before.
            Kind::Generate => {
                let Cost { bytes, flops } = step(1, test.depth + test.n / 2);
                Some(Cost { bytes: bytes * f64::from(test.n), flops: flops * f64::from(test.n) })
            }
            Kind::Both { .. } => None,
        }
    }
}
