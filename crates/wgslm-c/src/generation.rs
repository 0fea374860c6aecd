//! An answer that is being generated.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use wgslm::driver::{self, Canceller, GenerationEvent};
use wgslm::engine::Finish;

use crate::chat::Turn;
use crate::error::{Error, guard, infallible};
use crate::model::Served;
use crate::text::{fill, given, size_of_given};

/// What an event is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A token was generated.
    Token = 0,
    /// The last event.
    Finished = 1,
}

/// Something that happened to a request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    /// sizeof(wgslm_event)
    pub size: usize,
    /// What it is.
    pub kind: EventKind,
    /// The token; 0 of the last event.
    pub token: u32,
    /// Text that is certain now, whole characters, often none; it has a NUL after its end. It lives until the next call for the
    /// generation.
    pub text: *const c_char,
    /// Its bytes.
    pub text_len: usize,
    /// Of the last event, why it ended: "stop", "length", "context", "cancelled" or "deadline"; else NULL.
    pub reason: *const c_char,
    /// Of the last event: tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, tokens that were in the cache already.
    pub reused_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Seconds that it waited.
    pub seconds_queued: f64,
    /// Seconds from there to its first token.
    pub seconds_to_first_token: f64,
    /// Seconds from there to its end.
    pub seconds_decoding: f64,
}

/// What came of waiting for an event.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It failed; no event follows.
    Failed = -1,
    /// There is an event.
    Event = 0,
    /// There was none in time.
    Nothing = 1,
    /// The last event was before.
    Ended = 2,
}

/// Is called with every event; returns whether to go on.
pub type EventFn = Option<extern "C" fn(user: *mut c_void, event: *const Event) -> bool>;

/// An answer that is being generated.
pub struct Generation {
    reader: Mutex<Reader>,
    canceller: Canceller,
}

struct Reader {
    /// Before what it belongs to: the last one ends the thread that serves it.
    generation: driver::Generation,
    turn: Option<Turn>,
    /// The text of the last event, and a NUL.
    text: Vec<u8>,
    over: bool,
    _served: Arc<Served>,
}

impl Generation {
    pub(crate) fn new(generation: driver::Generation, served: Arc<Served>, turn: Option<Turn>) -> Self {
        let canceller = generation.canceller();
        let reader = Reader { generation, turn, text: Vec::new(), over: false, _served: served };
        Self { reader: Mutex::new(reader), canceller }
    }
}

impl Reader {
    /// The next event; none if there was none in time.
    fn next(&mut self, time: Duration) -> wgslm::Result<Option<Event>> {
        let Some(event) = self.generation.wait_for(time) else { return Ok(None) };
        let mut out = Event {
            size: size_of::<Event>(),
            kind: EventKind::Token,
            token: 0,
            text: std::ptr::null(),
            text_len: 0,
            reason: std::ptr::null(),
            prompt_tokens: 0,
            reused_tokens: 0,
            generated_tokens: 0,
            seconds_queued: 0.0,
            seconds_to_first_token: 0.0,
            seconds_decoding: 0.0,
        };
        let text = match event {
            GenerationEvent::Token { id, text, .. } => {
                out.token = id;
                if let Some(turn) = &mut self.turn {
                    turn.token(id, &text);
                }
                text
            }
            GenerationEvent::Finished { text, reason, usage, timings, .. } => {
                self.over = true;
                let turn = self.turn.take();
                if let Finish::Error(error) = reason {
                    return Err(wgslm::Error::from_shared(error));
                }
                turn.into_iter().for_each(|turn| turn.end(&text, &reason));
                out.kind = EventKind::Finished;
                out.reason = match reason {
                    Finish::Stop(_) | Finish::StopString(_) => c"stop",
                    Finish::Length => c"length",
                    Finish::Context => c"context",
                    Finish::Cancelled => c"cancelled",
                    Finish::Deadline => c"deadline",
                    Finish::Error(_) => c"error",
                }
                .as_ptr();
                (out.prompt_tokens, out.reused_tokens) = (usage.prompt, usage.reused);
                out.generated_tokens = usage.generated;
                out.seconds_queued = timings.queued.as_secs_f64();
                out.seconds_to_first_token = timings.prefill.as_secs_f64();
                out.seconds_decoding = timings.decode.as_secs_f64();
                text
            }
        };
        // A NUL that a model writes is in the text, as its length says.
        self.text = text.into_bytes();
        out.text_len = self.text.len();
        self.text.push(0);
        out.text = self.text.as_ptr().cast();
        Ok(Some(out))
    }
}

/// Waits for the next event for so many milliseconds, less than 0: as long as it takes, and writes it to `event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_generation_next(
    generation: *const Generation,
    timeout_ms: i64,
    event: *mut Event,
    error: *mut *mut Error,
) -> Status {
    let next = || {
        // SAFETY: as the caller promised.
        let generation = unsafe { given("generation", generation)? };
        // Before an event is taken, which would be lost.
        // SAFETY: likewise.
        unsafe { size_of_given("event", event)? };
        let mut reader = generation.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if reader.over {
            return Ok(Status::Ended);
        }
        let time = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
        match reader.next(time)? {
            Some(next) => {
                // SAFETY: likewise.
                unsafe { fill("event", event, &next)? };
                Ok(Status::Event)
            }
            None => Ok(Status::Nothing),
        }
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, Status::Failed, next) }
}

/// Calls a function with every event, in this thread, up to the last one. If it returns false, the request is cancelled, and the
/// function is called once more, with the last event. Returns whether it did not fail.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_generation_run(
    generation: *const Generation,
    call: EventFn,
    user: *mut c_void,
    error: *mut *mut Error,
) -> bool {
    let run = || {
        // SAFETY: as the caller promised.
        let generation = unsafe { given("generation", generation)? };
        let call = call.ok_or_else(|| wgslm::Error::argument("call", "it is NULL"))?;
        let mut reader = generation.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let mut goes_on = true;
        while !reader.over {
            let Some(event) = reader.next(Duration::MAX)? else { continue };
            if goes_on || event.kind == EventKind::Finished {
                goes_on = call(user, &event);
                if !goes_on {
                    generation.canceller.cancel();
                }
            }
        }
        Ok(true)
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, false, run) }
}

/// Ends a request. Events that are there already, and the last one, still come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_generation_cancel(generation: *const Generation) {
    // SAFETY: as the caller promised.
    if let Some(generation) = unsafe { generation.as_ref() } {
        infallible((), || generation.canceller.cancel());
    }
}

/// Frees a generation, which ends its request if that has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_generation_free(generation: *mut Generation) {
    if !generation.is_null() {
        // SAFETY: it was made here, and the caller gives it up.
        infallible((), || drop(unsafe { Box::from_raw(generation) }));
    }
}
