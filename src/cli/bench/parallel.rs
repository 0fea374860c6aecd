//! Several sequences at once, through the engine, measured as llama-batched-bench measures: first all prompts, then all
//! answers; or both together, as clients ask.

use std::time::{Duration, Instant};

use super::measure::{Kind, Test};
use crate::engine::{Engine, Event, Finish, Request, StepTime};
use crate::exec::AnyExecutor;
use crate::model::Model;
use crate::{Error, Result};

/// Asks an engine for as many answers at once as a test has sequences.
pub(super) struct Clients {
    pub(super) engine: Engine<AnyExecutor>,
    vocab: u32,
    /// Tokens that the prompts begin with, all the same.
    shared: u32,
    /// The number of the next prompt: none is asked twice.
    next: u32,
}

impl Clients {
    pub(super) fn new(executor: AnyExecutor, model: &Model, shared: u32) -> Self {
        let vocab = model.program.vocab;
        Self { engine: Engine::new(executor, &model.program), vocab, shared, next: 0 }
    }

    /// Runs a test once: the time for all its tokens.
    pub(super) async fn run(&mut self, test: &Test) -> Result<Duration> {
        self.engine.trim();
        // Where all is asked at once, nobody's tokens wait for the others' prompts for long, as in a server.
        let together = matches!(test.kind, Kind::Both { .. });
        self.engine.set_step_time(together.then(StepTime::default));
        match test.kind {
            Kind::Prompt => {
                let prompts = self.prompts(test, test.n);
                let started = Instant::now();
                self.answers(&prompts, 1).await?;
                Ok(started.elapsed())
            }
            Kind::Generate => {
                let prompts = self.prompts(test, test.depth.max(1));
                self.answers(&prompts, 1).await?;
                // The prompts are found; a last position is computed again, for the first token.
                let began = self.answers(&prompts, test.n + 1).await?;
                Ok(began.elapsed())
            }
            Kind::Both { prompt } => {
                let prompts = self.prompts(test, test.depth + prompt);
                if test.depth > 0 {
                    let before: Vec<_> = prompts.iter().map(|prompt| prompt[..test.depth as usize].to_vec()).collect();
                    self.answers(&before, 1).await?;
                }
                let started = Instant::now();
                self.answers(&prompts, test.n).await?;
                Ok(started.elapsed())
            }
        }
    }

    /// A prompt for each sequence, which begins as all do and goes on as none does.
    fn prompts(&mut self, test: &Test, len: u32) -> Vec<Vec<u32>> {
        let Self { vocab, shared, .. } = *self;
        let token = |i: u32, of: u32| i.wrapping_add(of << 16).wrapping_mul(0x9e37_79b9) % vocab;
        let numbers = self.next + 1..self.next + 1 + test.parallel;
        self.next = numbers.end;
        numbers.map(|of| (0..len).map(|i| token(i, if i < shared { 0 } else { of })).collect()).collect()
    }

    /// Answers to all prompts, to the end; gives when the last of them had its first token.
    async fn answers(&mut self, prompts: &[Vec<u32>], tokens: u32) -> Result<Instant> {
        for prompt in prompts {
            self.engine.submit(Request { max_tokens: Some(tokens), ..Request::new(prompt.clone()) })?;
        }
        let (mut begun, mut first) = (std::collections::BTreeSet::new(), Instant::now());
        while self.engine.busy() {
            for event in self.engine.step().await {
                match event {
                    Event::Token { request, .. } => {
                        if begun.insert(request) {
                            first = Instant::now();
                        }
                    }
                    Event::Finished { reason: Finish::Error(error), .. } => return Err(Error::Shared(error)),
                    Event::Finished { .. } => {}
                }
            }
        }
        Ok(first)
    }
}
