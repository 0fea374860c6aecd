//! What callers hold: bounds, refusals, and the way to the driver.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use web_time::Instant;

use super::generation::{Channel, Generation};
use super::metrics::Metrics;
use crate::engine::{Request, StepTime};
use crate::{Error, Result};

/// How a driver serves.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Requests that may wait; more are refused.
    pub queue_requests: usize,
    /// Tokens of prompts that may wait; more are refused. One request alone is never too long for the queue.
    pub queue_tokens: u64,
    /// Events of a request that may be unread: a reader that is so far back loses its request, and costs nobody else anything.
    pub unread_events: usize,
    /// How long steps may take; none: as many rows as the executor takes, whoever waits.
    pub step_time: Option<StepTime>,
    /// After a device was lost a second time within so long, this passes until it is opened again.
    pub reopen_wait: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            queue_requests: 256,
            queue_tokens: 1 << 20,
            unread_events: 4096,
            step_time: Some(StepTime::default()),
            reopen_wait: Duration::from_secs(120),
        }
    }
}

/// A request in tokens, and texts that end its answer.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// The prompt, and how tokens are chosen.
    pub request: Request,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
}

impl From<Request> for GenerateRequest {
    fn from(request: Request) -> Self {
        Self { request, stop: Vec::new() }
    }
}

/// What a driver is asked.
#[derive(Debug)]
pub(super) enum Command {
    Generate(Box<Asked>),
    Cancel(u64),
    /// What no request uses is forgotten.
    Trim,
}

/// A request on its way to the driver.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: GenerateRequest,
    /// What its generation knows it by.
    pub(super) number: u64,
    pub(super) channel: Arc<Channel>,
    pub(super) at: Instant,
}

/// Between handles and their driver.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    ready: Condvar,
    handles: AtomicUsize,
    pub(super) options: ServeOptions,
    /// Tokens of the vocabulary, positions of the context.
    pub(super) vocab: u32,
    pub(super) context: u32,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) commands: VecDeque<Command>,
    /// Requests among the commands, and their tokens.
    pub(super) unseen: (usize, u64),
    /// Requests that wait in the engine, and their tokens.
    pub(super) waiting: (usize, u64),
    pub(super) metrics: Metrics,
    /// Time after which the queue should be shorter.
    pub(super) retry_after: Duration,
    last_number: u64,
    /// No request is taken any more.
    closing: bool,
    /// The driver is gone.
    pub(super) closed: bool,
    /// The device is gone, and the driver has nothing that opens it again.
    pub(super) lost: bool,
    /// Of a driver that waits for commands where threads cannot.
    pub(super) waker: Option<Waker>,
}

impl Shared {
    pub(super) fn new(options: ServeOptions, vocab: u32, context: u32) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            ready: Condvar::new(),
            handles: AtomicUsize::new(0),
            options,
            vocab,
            context,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, command: Command) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.commands.push_back(command);
        self.wake(state);
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Refuses a request of so many tokens if too many wait already, or nothing is taken any more.
    fn admit(&self, state: &mut State, tokens: u64) -> Result<()> {
        let ServeOptions { queue_requests, queue_tokens, .. } = self.options;
        if state.closed || state.closing {
            let what = "the engine has ended, or is about to".to_owned();
            return Err(Error::Refused { what, retry_after: None });
        }
        let (requests, queued) = (state.unseen.0 + state.waiting.0, state.unseen.1 + state.waiting.1);
        if requests >= queue_requests || (requests > 0 && queued + tokens > queue_tokens) {
            let what = format!("{requests} requests with {queued} tokens wait already");
            state.metrics.requests_refused += 1;
            return Err(Error::Refused { what, retry_after: Some(state.retry_after.max(Duration::from_secs(1))) });
        }
        Ok(())
    }

    /// Whether nobody can ask for anything any more.
    pub(super) fn abandoned(&self, state: &State) -> bool {
        self.handles.load(Ordering::Acquire) == 0 || state.closing
    }

    /// Waits on this thread until there is a command, or nobody to give one.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn wait(&self) {
        let idle = |state: &mut State| state.commands.is_empty() && !self.abandoned(state);
        drop(self.ready.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits on this thread for so long, or until there is a command: what was asked is still to be done, whoever has gone.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn wait_for(&self, time: Duration) {
        let idle = |state: &mut State| state.commands.is_empty();
        drop(self.ready.wait_timeout_while(self.lock(), time, idle).unwrap_or_else(PoisonError::into_inner));
    }
}

/// The way to a driver: as many as one likes, in any thread or task.
///
/// When all are dropped, the driver finishes what it was asked, and then ends.
#[derive(Debug)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
}

impl Handle {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        shared.handles.fetch_add(1, Ordering::AcqRel);
        Self { shared: Arc::clone(shared) }
    }

    /// Asks for a continuation. Never waits: it fails at once if the request could never run, and with
    /// [`Error::Refused`] if too many wait already.
    pub fn generate(&self, request: impl Into<GenerateRequest>) -> Result<Generation> {
        let request = request.into();
        request.request.check(self.shared.vocab, self.shared.context)?;
        let tokens = request.request.prompt.len() as u64;
        let mut state = self.shared.lock();
        self.shared.admit(&mut state, tokens)?;
        state.last_number += 1;
        let (number, channel) = (state.last_number, Arc::new(Channel::default()));
        (state.unseen.0, state.unseen.1) = (state.unseen.0 + 1, state.unseen.1 + tokens);
        let asked = Asked { request, number, channel: Arc::clone(&channel), at: Instant::now() };
        state.commands.push_back(Command::Generate(Box::new(asked)));
        self.shared.wake(state);
        Ok(Generation { channel, shared: Arc::clone(&self.shared), number, over: false })
    }

    /// Fails as [`generate`](Self::generate) would now for the shortest prompt, and counts as that does: before a long one is
    /// made into tokens for nothing.
    #[cfg(feature = "server")]
    pub(crate) fn check_queue(&self) -> Result<()> {
        self.shared.admit(&mut self.shared.lock(), 1)
    }

    /// Forgets what is kept in the cache for requests to come.
    pub fn trim(&self) {
        self.shared.send(Command::Trim);
    }

    /// Takes no more requests: the driver ends when those that it has have ended.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.closing = true;
        self.shared.wake(state);
    }

    /// Whether the driver has ended.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Whether the device is gone for good: the driver was given nothing that opens it again, and whatever is asked ends with
    /// [`Error::DeviceLost`].
    pub fn is_lost(&self) -> bool {
        self.shared.lock().lost
    }

    /// What has happened so far.
    pub fn metrics(&self) -> Metrics {
        let state = self.shared.lock();
        Metrics { num_requests_waiting: state.unseen.0 + state.waiting.0, ..state.metrics.clone() }
    }

    /// How it serves.
    pub fn options(&self) -> &ServeOptions {
        &self.shared.options
    }

    /// Tokens of context, for prompt and answer together.
    pub fn context(&self) -> u32 {
        self.shared.context
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(&self.shared)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.wake(self.shared.lock());
        }
    }
}
