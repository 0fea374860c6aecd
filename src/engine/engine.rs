//! The engine's loop.

use super::scheduler::Scheduler;
use super::{Event, Request, RequestId, SeqId};
use crate::Result;
use crate::exec::Executor;
use crate::kv::{BlockCounts, KvCounts};
use crate::model::Program;

/// Runs requests on an executor, as many at a time as fit.
///
/// Nothing happens by itself: somebody calls [`step`](Engine::step) as long as [`busy`](Engine::busy).
/// A request gives the same tokens alone and batched with any others.
#[derive(Debug)]
pub struct Engine<E> {
    pub(super) executor: E,
    pub(super) scheduler: Scheduler,
    stalls: u64,
}

impl<E: Executor> Engine<E> {
    /// An engine for the program that the executor was made for.
    pub fn new(executor: E, program: &Program) -> Self {
        let scheduler = Scheduler::new(executor.limits(), program);
        Self { executor, scheduler, stalls: 0 }
    }

    /// Adds a request. Fails if it could never run.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        self.scheduler.submit(request)
    }

    /// Ends a request; what it generated so far has been reported, or is reported with its last event at the next step.
    /// An unknown or finished one is left alone.
    pub fn cancel(&mut self, request: RequestId) {
        self.scheduler.cancel(request);
    }

    /// Opens a sequence whose cache is kept from one request to the next.
    pub fn open(&mut self) -> SeqId {
        self.scheduler.open()
    }

    /// Forgets a sequence; a request that is running on it ends as cancelled.
    pub fn close(&mut self, sequence: SeqId) {
        self.scheduler.close(sequence);
    }

    /// Opens a sequence with the tokens that another one has so far: the conversation goes on twice. They share what they have
    /// in common.
    pub fn fork(&mut self, sequence: SeqId) -> Result<SeqId> {
        self.scheduler.fork(sequence)
    }

    /// Limits the prefill rows of a step to come: a step in flight cannot be stopped, so this bounds the time until
    /// [`cancel`](Engine::cancel) takes effect. Results do not depend on it.
    pub fn set_rows(&mut self, rows: u32) {
        self.scheduler.set_rows(rows);
    }

    /// Whether there is anything to do.
    pub fn busy(&self) -> bool {
        self.scheduler.busy()
    }

    /// How often it waited with one step in flight and nothing that could be enqueued after it: the device then idles until
    /// the host has looked at the result. Tokens sampled on the device cause this only at the end of an answer.
    pub fn stalls(&self) -> u64 {
        self.stalls
    }

    /// How often a running request had to give its blocks to an older one, to be computed again.
    pub fn preemptions(&self) -> u64 {
        self.scheduler.preemptions()
    }

    /// What became of the cache's blocks so far: how much was found, published and evicted.
    pub fn cache_counts(&self) -> KvCounts {
        self.scheduler.cache_counts()
    }

    /// The blocks of each cache group, by who holds them.
    pub fn cache_blocks(&self) -> Vec<BlockCounts> {
        self.scheduler.cache_blocks()
    }

    /// Checkpoints of recurrent layers' states that are kept now: at most `Limits::checkpoints`.
    pub fn checkpoints(&self) -> u32 {
        self.scheduler.checkpoints()
    }

    /// Schedules and runs as many steps as the executor takes, and gives what has happened since the last call: at least one
    /// event, unless there is nothing to do or a step finished that sampled no token.
    pub async fn step(&mut self) -> Result<Vec<Event>> {
        while let Some(plan) = self.scheduler.schedule(self.executor.target_in_flight()) {
            self.copy()?;
            self.scheduler.run(&plan, |step| self.executor.enqueue(step));
        }
        // The end of a cancelled request is reported at once, whatever of it is still in flight.
        if self.poll() == 0 && self.scheduler.in_flight() > 0 && !self.scheduler.has_events() {
            self.stalls += u64::from(self.scheduler.in_flight() == 1);
            self.executor.wait().await?;
            self.poll();
        }
        self.copy()?;
        Ok(self.scheduler.emit())
    }

    /// Copies the blocks and states that the scheduler wants kept or restored.
    fn copy(&mut self) -> Result<()> {
        let ops = self.scheduler.take_copies();
        if ops.is_empty() { Ok(()) } else { self.executor.cache(&ops) }
    }

    fn poll(&mut self) -> usize {
        let Self { executor, scheduler, .. } = self;
        executor.poll(&mut |ticket, out| scheduler.collect(ticket, out))
    }

    /// The executor.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// The executor, for another engine: what its caches hold is forgotten.
    pub fn into_executor(self) -> E {
        self.executor
    }

    /// The executor, to use it otherwise while the engine is not [`busy`](Engine::busy).
    pub fn executor_mut(&mut self) -> &mut E {
        &mut self.executor
    }
}
