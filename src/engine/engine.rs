//! The engine's loop.

use std::time::Duration;

use super::scheduler::Scheduler;
use super::{Event, Request, RequestId, SeqId, StepTime};
use crate::exec::{Executor, Limits, Phase};
use crate::kv::{BlockCounts, KvCounts};
use crate::model::Program;
use crate::{Error, Result};

/// Runs requests on an executor, as many at a time as fit.
///
/// Nothing happens by itself: somebody calls [`step`](Engine::step) as long as [`busy`](Engine::busy).
/// A request gives the same tokens alone and batched with any others.
pub struct Engine<E> {
    pub(super) executor: E,
    pub(super) scheduler: Scheduler,
    clock: Clock,
    stalls: u64,
    /// Whether requests wait for another device when theirs is lost.
    wait_for_device: bool,
    lost: Option<String>,
}

/// The time since some moment.
type Clock = Box<dyn Fn() -> Duration + Send>;

impl<E: Executor> Engine<E> {
    /// An engine for the program that the executor was made for.
    pub fn new(executor: E, program: &Program) -> Self {
        let scheduler = Scheduler::new(executor.limits(), program);
        let began = web_time::Instant::now();
        let clock = Box::new(move || began.elapsed());
        Self { executor, scheduler, clock, stalls: 0, wait_for_device: false, lost: None }
    }

    /// Another clock, for simulations: the time since some moment, which never goes back.
    pub fn set_clock(&mut self, clock: impl Fn() -> Duration + Send + 'static) {
        self.clock = Box::new(clock);
    }

    /// Limits how long steps take; without it a step has as many rows as the executor takes.
    pub fn set_step_time(&mut self, step_time: Option<StepTime>) {
        self.scheduler.set_step_time(step_time);
        self.guess();
    }

    /// What the executor predicts holds until its steps have been measured.
    fn guess(&mut self) {
        let rows = self.executor.limits().rows;
        let predict = |rows| self.executor.predict(Phase::Prefill, rows, 0);
        if let (Some(one), Some(many)) = (predict(1), predict(rows)) {
            self.scheduler.guess(one, rows, many);
        }
    }

    /// Adds a request. Fails if it could never run, or if the device is gone.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        self.scheduler.set_time((self.clock)());
        match &self.lost {
            Some(lost) if !self.wait_for_device => Err(Error::DeviceLost(lost.clone())),
            _ => self.scheduler.submit(request),
        }
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

    /// Limits the prefill rows of a step to come. Results do not depend on it.
    pub fn set_rows(&mut self, rows: u32) {
        self.scheduler.set_rows(rows);
    }

    /// Whether something has happened that the next [`step`](Engine::step) gives.
    pub fn has_events(&self) -> bool {
        self.scheduler.has_events()
    }

    /// Whether there is anything to do.
    pub fn busy(&self) -> bool {
        self.scheduler.busy()
    }

    /// Requests that wait to be run, and the tokens that they begin with.
    pub fn waiting(&self) -> (usize, u64) {
        self.scheduler.waiting()
    }

    /// Requests that run.
    pub fn running(&self) -> usize {
        self.scheduler.running()
    }

    /// Time until the next deadline of a request, if one has any.
    pub fn until_deadline(&self) -> Option<Duration> {
        self.scheduler.next_deadline().map(|deadline| deadline.saturating_sub((self.clock)()))
    }

    /// How often it waited with one step in flight and nothing that could be enqueued after it: the device then idles until
    /// the host has looked at the result. Tokens sampled on the device cause this only at the end of an answer.
    pub fn stalls(&self) -> u64 {
        self.stalls
    }

    /// How often a running request had to give its blocks or its slot to another one, to be computed again.
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

    /// Forgets what is kept in the cache for requests to come.
    pub fn trim(&mut self) {
        self.scheduler.trim();
    }

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> u32 {
        self.scheduler.vocab()
    }

    /// Checkpoints of recurrent layers' states that are kept now: at most `Limits::checkpoints`.
    pub fn checkpoints(&self) -> u32 {
        self.scheduler.checkpoints()
    }

    /// Schedules and runs as many steps as the executor takes, and gives what has happened since the last call: at least one
    /// event, unless there is nothing to do or a step finished that sampled no token.
    ///
    /// It never fails: what goes wrong ends the requests that it concerns, each with its error.
    pub async fn step(&mut self) -> Vec<Event> {
        self.scheduler.set_time((self.clock)());
        if self.lost.is_none()
            && let Err(error) = self.run_steps().await
        {
            self.device_lost(error);
        }
        self.scheduler.emit()
    }

    /// Fails if the device is gone.
    async fn run_steps(&mut self) -> Result<()> {
        while let Some(plan) = self.scheduler.schedule(self.executor.target_in_flight()) {
            self.copy()?;
            self.scheduler.run(plan, |step| self.executor.enqueue(step));
        }
        // The end of a cancelled request is reported at once, whatever of it is still in flight.
        if self.poll() == 0 && self.scheduler.in_flight() > 0 && !self.scheduler.has_events() {
            self.stalls += u64::from(self.scheduler.in_flight() == 1);
            self.executor.wait().await?;
            self.poll();
        }
        self.copy()?;
        self.scheduler.take_lost().map_or(Ok(()), Err)
    }

    /// Copies the blocks and states that the scheduler wants kept or restored. Where that fails, what was to have them ends; it
    /// fails itself if the device is gone.
    fn copy(&mut self) -> Result<()> {
        let ops = self.scheduler.take_copies();
        match if ops.is_empty() { Ok(()) } else { self.executor.cache(&ops) } {
            Err(error @ Error::DeviceLost(_)) => return Err(error),
            Err(error) => self.scheduler.copies_failed(error),
            Ok(()) => {}
        }
        Ok(())
    }

    fn poll(&mut self) -> usize {
        let Self { executor, scheduler, .. } = self;
        let finished = executor.poll(&mut |ticket, out| scheduler.collect(ticket, out));
        scheduler.measure((self.clock)());
        finished
    }

    /// When the device is lost, requests wait for [`reopen`](Self::reopen) and are then computed again, to the same tokens;
    /// without it they end with the error.
    pub fn wait_for_device(&mut self, wait: bool) {
        self.wait_for_device = wait;
    }

    /// Why the device is gone, if it is: nothing runs until [`reopen`](Self::reopen).
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    fn device_lost(&mut self, error: Error) {
        self.lost = Some(match &error {
            Error::DeviceLost(why) => why.clone(),
            other => other.to_string(),
        });
        self.scheduler.device_lost((!self.wait_for_device).then_some(error));
    }

    /// Goes on with another executor of the same program. Its steps may have other rows, and its cache other blocks and checkpoints
    /// as long as one sequence fits: a device that is opened again may have less memory.
    pub fn reopen(&mut self, executor: E) -> Result<()> {
        let (had, has) = (self.executor.limits(), executor.limits());
        let Limits { rows, in_flight, blocks, checkpoints, .. } = has;
        let same = Limits { rows, in_flight, blocks, checkpoints, ..had };
        let one = had.blocks.min(had.context.div_ceil(had.block));
        if has != same || has.blocks < one {
            return Err(Error::argument("executor", format!("{has:?}; the requests were made for {had:?}")));
        }
        self.executor = executor;
        self.scheduler.set_limits(has);
        self.guess();
        self.lost = None;
        Ok(())
    }

    /// Gives up on another device: all requests end with this error.
    pub fn give_up(&mut self, error: Error) {
        self.scheduler.device_lost(Some(error));
    }

    /// Checks what must hold between requests, sequences and the cache.
    #[cfg(test)]
    pub(crate) fn scheduler_check(&self) {
        self.scheduler.check();
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

impl<E: std::fmt::Debug> std::fmt::Debug for Engine<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { executor, scheduler, lost, .. } = self;
        f.debug_struct("Engine").field("executor", executor).field("scheduler", scheduler).field("lost", lost).finish()
    }
}
