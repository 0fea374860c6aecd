//! Answers: requests in text, text back, whole or piece by piece.

use std::sync::Arc;

use super::LanguageModel;
use crate::chat::{self, ContextPolicy, Conversation};
use crate::driver::Answer;
use crate::engine::{Engine, Event, Finish, RequestId, Usage};
use crate::exec::{AnyExecutor, Executor};
use crate::sample::Sampling;
use crate::text::{StopMatcher, TextStream, Tokenizer};
use crate::{Error, Result};

/// How an answer is generated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateOptions {
    /// How each token is chosen; none: as the model's files recommend ([`LanguageModel::sampling`]).
    pub sampling: Option<Sampling>,
    /// Tokens at most; none: until the model ends, or the context is full.
    pub max_tokens: Option<u32>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Drops the oldest turns of a conversation, as long as it would not leave a quarter of the context for the answer.
    pub shift: bool,
}

impl<E: Executor> LanguageModel<E> {
    /// Continues a text; gives the whole continuation.
    pub async fn generate(&mut self, prompt: &str, options: &GenerateOptions) -> Result<Answer> {
        self.stream(prompt, options)?.finish().await
    }

    /// Continues a text; gives the continuation in pieces.
    pub fn stream(&mut self, prompt: &str, options: &GenerateOptions) -> Result<AnswerStream<'_, E>> {
        let ids = chat::continuation(self.tokenizer(), prompt)?;
        self.answer(ids, options, None)
    }

    /// Answers the last message of a conversation, and adds the answer to it.
    pub async fn chat(&mut self, conversation: &mut Conversation, options: &GenerateOptions) -> Result<Answer> {
        self.chat_stream(conversation, options)?.finish().await
    }

    /// Answers the last message of a conversation in pieces. The answer is added to it at its end, or as far as it was read
    /// when the stream is dropped; after an error nothing is added, and [`Conversation::unsay`] takes the message back.
    pub fn chat_stream<'a>(
        &'a mut self,
        conversation: &'a mut Conversation,
        options: &GenerateOptions,
    ) -> Result<AnswerStream<'a, E>> {
        let policy = ContextPolicy { context: self.context(), shift: options.shift };
        let prompt = conversation.prompt(&[], policy, now())?;
        self.answer(prompt.ids, options, Some(conversation))
    }

    fn answer<'a>(
        &'a mut self,
        prompt: Vec<u32>,
        options: &GenerateOptions,
        conversation: Option<&'a mut Conversation>,
    ) -> Result<AnswerStream<'a, E>> {
        let text = TextStream::after(Arc::clone(self.tokenizer()), &prompt);
        let mut request = self.request(prompt);
        let sampling = options.sampling.unwrap_or_else(|| self.sampling());
        (request.sampling, request.max_tokens) = (sampling, options.max_tokens);
        Ok(AnswerStream {
            request: self.engine.submit(request)?,
            engine: &mut self.engine,
            text,
            stops: StopMatcher::new(&options.stop),
            conversation,
            next: String::new(),
            said: String::new(),
            ids: Vec::new(),
            end: None,
            error: None,
            over: false,
        })
    }
}

/// An answer in the making: pieces of its text, each of whole characters.
///
/// Asynchronously by [`next`](AnswerStream::next); natively it is an iterator, too, that waits on its thread. Dropped before its end,
/// it ends the answer.
pub struct AnswerStream<'a, E: Executor = AnyExecutor> {
    engine: &'a mut Engine<E>,
    request: RequestId,
    text: TextStream<Arc<Tokenizer>>,
    stops: StopMatcher,
    conversation: Option<&'a mut Conversation>,
    /// Text that is certain, and was not given yet.
    next: String,
    /// All text that is certain.
    said: String,
    ids: Vec<u32>,
    end: Option<(Finish, Usage)>,
    /// What ended it, until it is returned.
    error: Option<Error>,
    over: bool,
}

impl<E: Executor> AnswerStream<'_, E> {
    /// The next piece of text; none at the end.
    pub async fn next(&mut self) -> Option<Result<String>> {
        loop {
            if !self.next.is_empty() {
                return Some(Ok(std::mem::take(&mut self.next)));
            }
            if let Some(error) = self.error.take() {
                return Some(Err(error));
            }
            if self.over {
                return None;
            }
            self.engine.step().await.into_iter().for_each(|event| self.take(event));
        }
    }

    /// Runs to the end; gives the whole answer, with what was given in pieces.
    pub async fn finish(mut self) -> Result<Answer> {
        while let Some(piece) = self.next().await {
            piece?;
        }
        let (finish, usage) = self.end.clone().unwrap_or((Finish::Cancelled, Usage::default()));
        Ok(Answer { text: std::mem::take(&mut self.said), ids: std::mem::take(&mut self.ids), finish, usage })
    }

    /// Why it ended, and what it took; none before its end, or after an error.
    pub fn end(&self) -> Option<&(Finish, Usage)> {
        self.end.as_ref()
    }

    /// What an event adds.
    fn take(&mut self, event: Event) {
        match event {
            Event::Token { request, id, .. } if request == self.request && self.stops.stopped().is_none() => {
                self.ids.push(id);
                let text = self.text.push(id);
                self.say(&text);
                if self.stops.stopped().is_some() {
                    self.engine.cancel(request);
                }
            }
            Event::Finished { request, reason: Finish::Error(error), .. } if request == self.request => {
                self.fail(Error::from_shared(error));
            }
            Event::Finished { request, reason, usage, .. } if request == self.request => {
                self.close();
                self.over = true;
                self.end = Some((self.stops.stopped().map_or(reason, Finish::StopString), usage));
            }
            // Of a request that was ended before.
            Event::Token { .. } | Event::Finished { .. } => {}
        }
    }

    /// An error ends it; the conversation stays as it is.
    fn fail(&mut self, error: Error) {
        (self.error, self.over, self.conversation) = (Some(error), true, None);
    }

    /// Adds text, up to a stop string.
    fn say(&mut self, text: &str) {
        let text = self.stops.push(text);
        self.said.push_str(&text);
        self.next.push_str(&text);
    }

    /// The end of the text: what was held back, and the conversation.
    fn close(&mut self) {
        let rest = self.text.finish();
        self.say(&rest);
        let held = self.stops.finish();
        self.said.push_str(&held);
        self.next.push_str(&held);
        if let Some(conversation) = self.conversation.take() {
            match self.stops.stopped() {
                None => conversation.hear(&self.ids, &self.said),
                Some(_) => conversation.hear_text(&self.said),
            }
        }
    }
}

/// The pieces, each waited for on this thread.
#[cfg(not(target_arch = "wasm32"))]
impl<E: Executor> Iterator for AnswerStream<'_, E> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        crate::driver::block_on(AnswerStream::next(self))
    }
}

impl<E: Executor> Drop for AnswerStream<'_, E> {
    fn drop(&mut self) {
        if !self.over {
            self.engine.cancel(self.request);
            self.close();
        }
    }
}

/// Seconds since 1970, for templates that state the date.
pub(crate) fn now() -> Option<i64> {
    let since = web_time::SystemTime::now().duration_since(web_time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}
