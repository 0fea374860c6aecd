//! The loop: takes what was asked, runs a step, delivers what came of it.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use web_time::Instant;

use super::generation::{Channel, GenerationEvent};
use super::handle::{Asked, Command, GenerateRequest, Handle, ServeOptions, Shared};
use super::metrics::Metrics;
use crate::engine::{Engine, Event, Finish, RequestId};
use crate::exec::Executor;
use crate::text::{StopMatcher, TextStream, Tokenizer};
use crate::{Error, Result};

/// What opens another executor after a device was lost: the same program and limits, the weights loaded anew.
pub type ReopenFn<E> = Box<dyn FnMut() -> ReopenFuture<E> + Send>;
/// How often opening is tried, and how many devices are lost in a row, before requests end.
const TRIES: u32 = 3;
/// Time until the second try; the third comes after twice as long.
const SOON: Duration = Duration::from_secs(1);

/// An executor that is being opened.
pub type ReopenFuture<E> = Pin<Box<dyn Future<Output = Result<E>>>>;

/// Runs an engine for its handles.
///
/// [`run`](Self::run) is the whole loop, for a thread of its own. Where there are no threads, somebody calls [`turn`](Self::turn)
/// again and again.
pub struct Driver<E> {
    engine: Engine<E>,
    tokenizer: Arc<Tokenizer>,
    shared: Arc<Shared>,
    running: BTreeMap<RequestId, Running>,
    /// The requests by the numbers that their generations know them by.
    numbers: BTreeMap<u64, RequestId>,
    /// What was taken and is still to be done, and the request that is being started: if a panic comes between, they end with an error.
    taken: VecDeque<Command>,
    starting: Option<Arc<Channel>>,
    /// The last events of requests that end with this turn.
    ended: Vec<(Arc<Channel>, GenerationEvent)>,
    metrics: Metrics,
    reopen: Option<ReopenFn<E>>,
    /// When the device was lost last, and from when on it may be opened again.
    lost_at: Option<Instant>,
    reopen_at: Option<Instant>,
    /// How often opening has failed since the loss.
    failed: u32,
    /// How often devices were lost since a token came, and how many tokens there were then.
    in_vain: (u32, u64),
    /// When a request ended last, and how many seconds lie between such ends.
    last_end: Option<Instant>,
    between_ends: f64,
}

/// A request as the driver keeps it.
struct Running {
    number: u64,
    channel: Arc<Channel>,
    text: TextStream<Arc<Tokenizer>>,
    stops: StopMatcher,
    /// When it was asked, which is before the driver looked.
    submitted: Instant,
    /// How long before.
    unseen: Duration,
    last_token: Option<Instant>,
    /// Why it ends, where the engine does not know.
    reason: Option<Finish>,
}

/// What to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next turn: there is more to do.
    Go,
    /// The next turn when somebody asks for something.
    Idle,
    /// The next turn when somebody asks for something, or after so long.
    Wait(Duration),
    /// Nothing: nobody can ask for anything any more.
    Over,
}

impl<E: Executor> Driver<E> {
    /// A driver of an engine whose tokens this tokenizer makes text of, and a handle to it.
    pub fn new(mut engine: Engine<E>, tokenizer: Arc<Tokenizer>, options: ServeOptions) -> (Self, Handle) {
        engine.set_step_time(options.step_time);
        let shared = Shared::new(options, engine.vocab(), engine.executor().limits().context);
        let handle = Handle::new(&shared);
        let driver = Self {
            engine,
            tokenizer,
            shared,
            running: BTreeMap::new(),
            numbers: BTreeMap::new(),
            taken: VecDeque::new(),
            starting: None,
            ended: Vec::new(),
            metrics: Metrics::default(),
            reopen: None,
            lost_at: None,
            reopen_at: None,
            failed: 0,
            in_vain: (0, 0),
            last_end: None,
            between_ends: 0.0,
        };
        (driver, handle)
    }

    /// When the device is lost, goes on with what this opens: waiting requests wait, running ones are computed again, to equal
    /// tokens. Opening that fails is tried again twice; then the requests end with its error, as they do when three devices are lost
    /// and no token comes between. Those that come later wait for the next try.
    pub fn reopen_with(mut self, reopen: ReopenFn<E>) -> Self {
        self.engine.wait_for_device(true);
        self.reopen = Some(reopen);
        self
    }

    /// The engine.
    pub fn engine(&self) -> &Engine<E> {
        &self.engine
    }

    #[cfg(test)]
    pub(super) fn engine_mut(&mut self) -> &mut Engine<E> {
        &mut self.engine
    }

    /// Checks what must hold in the engine.
    #[cfg(test)]
    pub(super) fn check(&self) {
        self.engine.scheduler_check();
    }

    /// Runs until all handles are dropped or one was closed, and all requests have ended.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn run(mut self) {
        loop {
            match super::block_on(self.turn()) {
                Next::Go => {}
                Next::Idle => self.shared.wait(),
                Next::Wait(time) => self.shared.wait_for(time),
                Next::Over => return,
            }
        }
    }

    /// Takes what was asked, runs a step and delivers what came of it.
    pub async fn turn(&mut self) -> Next {
        self.take_commands();
        if self.engine.lost().is_some() && self.reopen.is_some() {
            self.open_again().await;
        }
        let lost = self.engine.lost().is_some();
        let events = self.engine.step().await;
        match (lost, self.engine.lost().is_some()) {
            (false, true) => self.device_lost(),
            (_, false) => self.metrics.steps += 1,
            (true, true) => {}
        }
        let now = Instant::now();
        events.into_iter().for_each(|event| self.deliver(event, now));
        self.report();
        // Who sees the end of a request finds it in the metrics, too.
        self.ends_at(now);
        self.ended.drain(..).for_each(|(channel, end)| _ = channel.push(end, usize::MAX));
        if !self.engine.busy() {
            // How long nobody asked says nothing of how long an answer takes.
            self.last_end = None;
            let state = self.shared.lock();
            return if state.commands.is_empty() && self.shared.abandoned(&state) { Next::Over } else { Next::Idle };
        }
        // What was cancelled above ends now, whatever the device does.
        if self.engine.lost().is_none() || self.engine.has_events() {
            return Next::Go;
        }
        // Requests wait for the device.
        let reopen = self.reopen_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        Next::Wait(self.engine.until_deadline().map_or(reopen, |deadline| deadline.min(reopen)))
    }

    /// Waits, where threads cannot, until somebody asks for something.
    pub async fn asked(&self) {
        std::future::poll_fn(|context| {
            let mut state = self.shared.lock();
            if !state.commands.is_empty() || self.shared.abandoned(&state) {
                return std::task::Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            std::task::Poll::Pending
        })
        .await;
    }

    fn take_commands(&mut self) {
        let mut state = self.shared.lock();
        let commands = std::mem::take(&mut state.commands);
        if commands.is_empty() {
            return;
        }
        drop(state);
        self.taken.extend(commands);
        while let Some(command) = self.taken.pop_front() {
            match command {
                Command::Generate(asked) => self.start(*asked),
                Command::Cancel(number) => {
                    if let Some(request) = self.numbers.get(&number) {
                        self.engine.cancel(*request);
                    }
                }
                Command::Trim => self.engine.trim(),
            }
        }
        let waiting = self.engine.waiting();
        let mut state = self.shared.lock();
        // Those that came meanwhile are still to be seen.
        let unseen = state.commands.iter().filter_map(|command| match command {
            Command::Generate(asked) => Some(asked.request.request.prompt.len() as u64),
            Command::Cancel(_) | Command::Trim => None,
        });
        let (count, tokens) = unseen.fold((0, 0), |(count, sum), tokens| (count + 1, sum + tokens));
        (state.unseen, state.waiting) = ((count, tokens), waiting);
    }

    fn start(&mut self, asked: Asked) {
        let Asked { request: GenerateRequest { request, stop }, number, channel, at: submitted } = asked;
        self.starting = Some(Arc::clone(&channel));
        let text = TextStream::after(Arc::clone(&self.tokenizer), &request.prompt);
        match self.engine.submit(request) {
            Ok(id) => {
                let (stops, unseen) = (StopMatcher::new(&stop), submitted.elapsed());
                let running =
                    Running { number, channel, text, stops, submitted, unseen, last_token: None, reason: None };
                self.running.insert(id, running);
                self.numbers.insert(number, id);
            }
            Err(error) => {
                self.metrics.finished_error += 1;
                channel.fail(Arc::new(error));
            }
        }
        self.starting = None;
    }

    /// What an event adds to its request.
    fn deliver(&mut self, event: Event, now: Instant) {
        let Some(running) = self.running.get_mut(&event.request()) else { return };
        let most = self.shared.options.unread_events;
        match event {
            Event::Token { request, id, logprobs } => {
                if running.reason.is_some() {
                    return;
                }
                self.metrics.generation_tokens += 1;
                match running.last_token.replace(now) {
                    None => self.metrics.time_to_first_token.add(now - running.submitted),
                    Some(last) => self.metrics.inter_token_latency.add(now - last),
                }
                let text = running.stops.push(&running.text.push(id));
                running.reason = running.stops.stopped().map(Finish::StopString);
                if !running.channel.push(GenerationEvent::Token { id, text, logprobs }, most) {
                    // Who has let go is about to say so.
                    let gone = running.channel.dropped();
                    running.reason = Some(if gone { Finish::Cancelled } else { Finish::Error(Arc::new(unread(most))) });
                }
                if running.reason.is_some() {
                    self.engine.cancel(request);
                }
            }
            Event::Finished { request, reason, usage, decoded, mut timings } => {
                let Some(mut running) = self.running.remove(&request) else { return };
                // Until its end is listed: nobody waits for ever.
                self.starting = Some(Arc::clone(&running.channel));
                timings.queued += running.unseen;
                self.numbers.remove(&running.number);
                let reason = running.reason.take().unwrap_or(reason);
                self.metrics.finished(&reason, usage, timings);
                let mut text = running.stops.push(&running.text.finish());
                text += &running.stops.finish();
                self.ended.push((running.channel, GenerationEvent::Finished { text, reason, usage, decoded, timings }));
                self.starting = None;
            }
        }
    }

    /// Some requests have ended together: how long that took for each of them.
    fn ends_at(&mut self, now: Instant) {
        if self.ended.is_empty() {
            return;
        }
        if let Some(last) = self.last_end.replace(now) {
            let between = (now - last).as_secs_f64() / self.ended.len() as f64;
            self.between_ends += 0.2 * (between - self.between_ends);
        }
    }

    /// Publishes how it stands, for the handles.
    fn report(&mut self) {
        let (counts, blocks) = (self.engine.cache_counts(), self.engine.cache_blocks());
        let usage = blocks
            .iter()
            .map(|group| f64::from(group.in_use) / f64::from((group.free + group.in_use + group.kept).max(1)));
        let metrics = &mut self.metrics;
        metrics.num_requests_running = self.engine.running();
        metrics.kv_cache_usage = usage.fold(0.0, f64::max);
        metrics.kv_cache_blocks.clone_from(&blocks);
        metrics.kv_cache_checkpoints = self.engine.checkpoints();
        (metrics.prefix_cache_queries, metrics.prefix_cache_hits) = (counts.queried, counts.found);
        (metrics.cache_evictions, metrics.num_preemptions) = (counts.evicted, self.engine.preemptions());
        let waiting = self.engine.waiting();
        let seconds = self.between_ends * waiting.0 as f64 / 2.0;
        let mut state = self.shared.lock();
        let refused = state.metrics.requests_refused;
        state.metrics.clone_from(metrics);
        state.metrics.requests_refused = refused;
        state.waiting = waiting;
        state.retry_after = Duration::from_secs_f64(seconds.clamp(0.0, 60.0));
    }

    fn device_lost(&mut self) {
        self.metrics.devices_lost += 1;
        self.shared.lock().lost = self.reopen.is_none();
        let now = Instant::now();
        let again = self.lost_at.is_some_and(|before| now - before < self.shared.options.reopen_wait);
        self.lost_at = Some(now);
        self.reopen_at = again.then(|| now + self.reopen_wait());
        let tokens = self.metrics.generation_tokens;
        self.in_vain = if self.in_vain.1 == tokens { (self.in_vain.0 + 1, tokens) } else { (1, tokens) };
        // What is computed again each time may be what takes the devices down.
        if self.reopen.is_some() && self.in_vain.0 >= TRIES {
            let lost = self.engine.lost().unwrap_or_default().to_owned();
            self.engine.give_up(Error::DeviceLost(lost));
            self.in_vain.0 = 0;
        }
    }

    /// Opens the device again, if it is time and somebody wants it. If it cannot be opened, the requests end.
    async fn open_again(&mut self) {
        let Some(reopen) = &mut self.reopen else { return };
        // Ends that are still to be delivered need no device.
        let wanted = self.engine.waiting().0 + self.engine.running() > 0;
        if self.reopen_at.is_some_and(|at| Instant::now() < at) || !wanted {
            return;
        }
        self.engine.executor_mut().release();
        let opened = reopen().await;
        let Err(error) = opened.and_then(|executor| self.engine.reopen(executor)) else {
            self.failed = 0;
            return;
        };
        self.failed += 1;
        // A driver that was reset, or a device that comes back from sleep, may be a moment away.
        let mut wait = self.reopen_wait().min(SOON * self.failed);
        if self.failed >= TRIES || matches!(error, Error::Argument { .. }) {
            (self.failed, wait) = (0, self.reopen_wait());
            self.engine.give_up(error);
        }
        self.reopen_at = Some(Instant::now() + wait);
    }

    /// No longer than clocks can say.
    fn reopen_wait(&self) -> Duration {
        const YEAR: Duration = Duration::from_secs(365 * 86_400);
        self.shared.options.reopen_wait.min(YEAR)
    }
}

/// Why a request ends that nobody reads.
fn unread(most: usize) -> Error {
    Error::Limit {
        what: "unread events".into(),
        needed: format!("more than {most}"),
        available: most.to_string(),
        instead: "reading them as they come works".into(),
    }
}

impl<E> Drop for Driver<E> {
    /// Also where its thread panics: nobody waits for ever.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.taken.extend(state.commands.drain(..));
        (state.unseen, state.waiting, state.metrics.num_requests_running) = ((0, 0), (0, 0), 0);
        drop(state);
        self.ended.drain(..).for_each(|(channel, end)| _ = channel.push(end, usize::MAX));
        let error = Arc::new(Error::Refused { what: "the engine has ended".to_owned(), retry_after: None });
        for command in self.taken.drain(..) {
            if let Command::Generate(asked) = command {
                asked.channel.fail(Arc::clone(&error));
            }
        }
        self.starting.iter().for_each(|channel| channel.fail(Arc::clone(&error)));
        self.running.values().for_each(|running| running.channel.fail(Arc::clone(&error)));
    }
}
