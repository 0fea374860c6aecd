//! What comes of one request, as its reader gets it.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::handle::{Command, Shared};
use crate::engine::{Finish, Timings, Usage};
use crate::ops::Logprob;
use crate::{Error, Result};

/// Something that happened to a request.
#[derive(Clone, Debug)]
pub enum GenerationEvent {
    /// A token was generated.
    Token {
        /// The token.
        id: u32,
        /// The text that is certain with it: whole characters, nothing of a stop string; often none.
        text: String,
        /// Its probability and those of the most likely tokens, if the request asks for them.
        logprobs: Vec<Logprob>,
    },
    /// The last event.
    Finished {
        /// Text that was held back.
        text: String,
        /// Why.
        reason: Finish,
        /// What it took.
        usage: Usage,
        /// The positions that were computed as decode: see [`Request::decoded`](crate::engine::Request::decoded).
        decoded: Vec<Range<u32>>,
        /// How long it took.
        timings: Timings,
    },
}

/// An answer that is complete.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// Its tokens, without the one that ended it.
    pub ids: Vec<u32>,
    /// Why it ended; never [`Finish::Error`], which is returned as an error.
    pub finish: Finish,
    /// What it took.
    pub usage: Usage,
}

/// Between the driver and the reader of one request.
#[derive(Debug, Default)]
pub(super) struct Channel {
    state: Mutex<ChannelState>,
    ready: Condvar,
}

#[derive(Debug, Default)]
struct ChannelState {
    events: VecDeque<GenerationEvent>,
    waker: Option<Waker>,
    /// No event follows those that are there.
    ended: bool,
    /// Nobody reads any more.
    dropped: bool,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event, unless as many are unread as may be; false then, and where nobody reads any more.
    pub(super) fn push(&self, event: GenerationEvent, most: usize) -> bool {
        let mut state = self.lock();
        let last = matches!(event, GenerationEvent::Finished { .. });
        if state.dropped || state.ended || (!last && state.events.len() >= most) {
            return false;
        }
        state.events.push_back(event);
        state.ended = last;
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Whether nobody reads any more.
    pub(super) fn dropped(&self) -> bool {
        self.lock().dropped
    }

    /// Ends it with an error, if it has not ended.
    pub(super) fn fail(&self, error: Arc<Error>) {
        let (reason, usage) = (Finish::Error(error), Usage::default());
        let end = GenerationEvent::Finished {
            text: String::new(),
            reason,
            usage,
            decoded: Vec::new(),
            timings: Timings::default(),
        };
        self.push(end, usize::MAX);
    }
}

/// Ends a request from elsewhere than where its events are read.
#[derive(Clone, Debug)]
pub struct Canceller {
    shared: Arc<Shared>,
    number: u64,
}

impl Canceller {
    /// Ends the request, if it has not ended; the events until then, the last one among them, still come.
    pub fn cancel(&self) {
        self.shared.send(Command::Cancel(self.number));
    }
}

/// The events of a request, from [`Handle::generate`](super::Handle::generate); the last is
/// [`GenerationEvent::Finished`].
///
/// It is a [`Stream`]. Without an async runtime, [`wait`](Self::wait) and [`blocking`](Self::blocking) wait on this thread. Dropped
/// before its end, it ends the request within a step.
#[derive(Debug)]
pub struct Generation {
    pub(super) channel: Arc<Channel>,
    pub(super) shared: Arc<Shared>,
    pub(super) number: u64,
    pub(super) over: bool,
}

impl Generation {
    /// The next event that is there already.
    pub fn try_next(&mut self) -> Option<GenerationEvent> {
        let event = self.channel.lock().events.pop_front();
        self.note(event)
    }

    /// The next event; none after the last.
    pub async fn next_event(&mut self) -> Option<GenerationEvent> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// The next event, waited for on this thread; none after the last.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn wait(&mut self) -> Option<GenerationEvent> {
        self.wait_for(std::time::Duration::MAX)
    }

    /// The next event, waited for on this thread for a time; none if there was none, or after the last.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn wait_for(&mut self, time: std::time::Duration) -> Option<GenerationEvent> {
        let until = std::time::Instant::now().checked_add(time);
        let channel = Arc::clone(&self.channel);
        let mut state = channel.lock();
        while state.events.is_empty() && !state.ended {
            state = match until {
                None => channel.ready.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(std::time::Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    channel.ready.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let event = state.events.pop_front();
        drop(state);
        self.note(event)
    }

    /// The events as an iterator that waits on this thread.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn blocking(mut self) -> impl Iterator<Item = GenerationEvent> {
        std::iter::from_fn(move || self.wait())
    }

    /// Ends the request; the events until then, the last one among them, still come.
    pub fn cancel(&self) {
        if !self.over {
            self.shared.send(Command::Cancel(self.number));
        }
    }

    /// What ends the request from another thread or task.
    pub fn canceller(&self) -> Canceller {
        Canceller { shared: Arc::clone(&self.shared), number: self.number }
    }

    /// Reads to the end: the whole answer, but for events that were read before.
    pub async fn finish(mut self) -> Result<Answer> {
        let (mut text, mut ids) = (String::new(), Vec::new());
        while let Some(event) = self.next_event().await {
            match event {
                GenerationEvent::Token { id, text: piece, .. } => {
                    ids.push(id);
                    text += &piece;
                }
                GenerationEvent::Finished { reason: Finish::Error(error), .. } => {
                    return Err(Error::from_shared(error));
                }
                GenerationEvent::Finished { text: rest, reason, usage, .. } => {
                    return Ok(Answer { text: text + &rest, ids, finish: reason, usage });
                }
            }
        }
        Err(Error::argument("generation", "its last event was read before"))
    }

    /// [`finish`](Self::finish) on this thread.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn finish_blocking(self) -> Result<Answer> {
        super::block_on(self.finish())
    }

    fn note(&mut self, event: Option<GenerationEvent>) -> Option<GenerationEvent> {
        self.over |= matches!(event, Some(GenerationEvent::Finished { .. }));
        event
    }
}

impl Stream for Generation {
    type Item = GenerationEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<GenerationEvent>> {
        let mut state = self.channel.lock();
        let event = state.events.pop_front();
        if event.is_none() && !state.ended {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        Poll::Ready(self.note(event))
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let mut state = self.channel.lock();
        state.dropped = true;
        state.events.clear();
        let ended = state.ended;
        drop(state);
        if !ended {
            self.shared.send(Command::Cancel(self.number));
        }
    }
}
