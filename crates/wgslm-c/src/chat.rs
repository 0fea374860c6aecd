//! Conversations.

use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use wgslm::chat::{ContextPolicy, Conversation};
use wgslm::engine::Finish;

use crate::error::{Error, guard, infallible};
use crate::generation::Generation;
use crate::model::{Model, Served};
use crate::options::Request;
use crate::text::{given, text};

/// A conversation with a model: a system message and turns.
pub struct Chat {
    state: Arc<Mutex<State>>,
    served: Arc<Served>,
}

struct State {
    conversation: Conversation,
    /// An answer is being read.
    answering: bool,
}

/// A turn whose answer is being generated.
pub(crate) struct Turn {
    state: Arc<Mutex<State>>,
    ids: Vec<u32>,
    text: String,
    heard: bool,
}

impl Turn {
    pub(crate) fn token(&mut self, id: u32, text: &str) {
        self.ids.push(id);
        self.text += text;
    }

    /// The answer has ended, and is part of the conversation. One without a token is taken back with its question.
    pub(crate) fn end(mut self, rest: &str, reason: &Finish) {
        self.text += rest;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.ids.is_empty() {
            // Where a string ended it, the ids hold more than the text.
            match reason {
                Finish::StopString(_) => state.conversation.hear_text(&self.text),
                _ => state.conversation.hear(&self.ids, &self.text),
            }
            self.heard = true;
        }
        drop(state);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.answering = false;
        if !self.heard {
            state.conversation.unsay();
        }
    }
}

/// Begins a conversation. Returns NULL if it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_chat_new(model: *const Model, error: *mut *mut Error) -> *mut Chat {
    let new = || {
        // SAFETY: as the caller promised.
        let served = Arc::clone(unsafe { &given("model", model)?.0 });
        let conversation = Conversation::new(Arc::clone(served.model.tokenizer()), served.template.clone());
        let state = Arc::new(Mutex::new(State { conversation, answering: false }));
        Ok(Box::into_raw(Box::new(Chat { state, served })))
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, std::ptr::null_mut(), new) }
}

/// Sets the system message; one of no bytes removes it. Returns whether it did not fail.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_chat_system(
    chat: *const Chat,
    message: *const c_char,
    message_len: usize,
    error: *mut *mut Error,
) -> bool {
    let set = || {
        // SAFETY: as the caller promised.
        let (chat, message) = unsafe { (given("chat", chat)?, text("message", message, message_len)?) };
        let mut state = chat.state.lock().unwrap_or_else(PoisonError::into_inner);
        let message = (!message.is_empty()).then(|| message.to_owned());
        state.conversation.set_system(message).map(|()| true)
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, false, set) }
}

/// Asks something. The answer is part of the conversation once its last event was read; one that fails or is freed before is
/// forgotten with its question. One answer at a time. Returns NULL if it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_chat_ask(
    chat: *const Chat,
    message: *const c_char,
    message_len: usize,
    request: *const Request,
    error: *mut *mut Error,
) -> *mut Generation {
    let ask = || {
        // SAFETY: as the caller promised.
        let (chat, message) = unsafe { (given("chat", chat)?, text("message", message, message_len)?) };
        let mut state = chat.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.answering {
            return Err(wgslm::Error::argument("chat", "an answer is being read; one at a time works"));
        }
        state.answering = true;
        state.conversation.say(message);
        let turn = Turn { state: Arc::clone(&chat.state), ids: Vec::new(), text: String::new(), heard: false };
        let policy = ContextPolicy { context: chat.served.model.context(), shift: true };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64);
        let prompt = state.conversation.prompt(&[], policy, Some(now));
        drop(state);
        let served = Arc::clone(&chat.served);
        // SAFETY: likewise.
        let request = unsafe { Request::read(request, &served.model, prompt?.ids)? };
        let generation = served.model.handle().generate(request)?;
        Ok(Box::into_raw(Box::new(Generation::new(generation, served, Some(turn)))))
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, std::ptr::null_mut(), ask) }
}

/// Forgets the last answer and its question; returns whether there was one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_chat_forget(chat: *const Chat) -> bool {
    // SAFETY: as the caller promised.
    let Some(chat) = (unsafe { chat.as_ref() }) else { return false };
    infallible(false, || {
        let mut state = chat.state.lock().unwrap_or_else(PoisonError::into_inner);
        let forgot = !state.answering && state.conversation.unhear();
        if forgot {
            state.conversation.unsay();
        }
        forgot
    })
}

/// Frees a conversation. An answer that is being read goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_chat_free(chat: *mut Chat) {
    if !chat.is_null() {
        // SAFETY: it was made by `wgslm_chat_new`, and the caller gives it up.
        infallible((), || drop(unsafe { Box::from_raw(chat) }));
    }
}
