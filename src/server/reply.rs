//! An answer on its way from the driver to a client: events to pieces, whichever API they are written in.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use serde_json::{Value, json};

use super::app::Language;
use super::ask::random_name;
use super::failure::{Failure, Outcome};
use crate::chat::{Parts, Splitter, ToolCall};
use crate::driver::{Generation, GenerationEvent};
use crate::engine::{Finish, Timings, Usage};
use crate::ops::Logprob;

/// A token with its probability, and the most likely ones.
#[derive(Clone, Debug)]
pub(super) struct TokenLogprobs {
    pub(super) id: u32,
    pub(super) logprob: f32,
    pub(super) top: Vec<Logprob>,
}

/// A call with the name by which its result is sent back.
#[derive(Clone, Debug)]
pub(super) struct NamedCall {
    pub(super) id: String,
    pub(super) call: ToolCall,
}

/// A part of an answer.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Delta { thought: String, text: String, calls: Vec<NamedCall>, logprobs: Vec<TokenLogprobs> },
    End(End),
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) finish: Finish,
    pub(super) usage: Usage,
    pub(super) timings: Timings,
    /// Tokens that were thought.
    pub(super) thought: u32,
    /// Tools were called.
    pub(super) called: bool,
}

impl End {
    /// OpenAI's word for it.
    pub(super) fn reason(&self) -> &'static str {
        match self.finish {
            Finish::Length | Finish::Context | Finish::Deadline => "length",
            _ if self.called => "tool_calls",
            _ => "stop",
        }
    }
}

/// An answer in the making. Dropped, it ends.
pub(super) struct Reply {
    language: Arc<Language>,
    generation: Generation,
    /// Tokens of the prompt.
    pub(super) prompt: u32,
    splitter: Splitter,
    pieces: VecDeque<Piece>,
    /// The prompt, if the answer is to be remembered.
    asked: Option<(String, Vec<u32>)>,
    salt: Option<Arc<[u8]>>,
    ids: Vec<u32>,
    raw: String,
    thought: u32,
    logprobs: Vec<TokenLogprobs>,
    over: bool,
}

impl Reply {
    pub(super) fn new(
        language: &Arc<Language>,
        generation: Generation,
        prompt: u32,
        splitter: Splitter,
        asked: Option<(String, Vec<u32>)>,
        salt: Option<Arc<[u8]>>,
    ) -> Self {
        Self {
            language: Arc::clone(language),
            generation,
            prompt,
            splitter,
            pieces: VecDeque::new(),
            asked,
            salt,
            ids: Vec::new(),
            raw: String::new(),
            thought: 0,
            logprobs: Vec::new(),
            over: false,
        }
    }

    /// The next piece; none after the end.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Poll::Ready(Some(piece));
            }
            if self.over {
                return Poll::Ready(None);
            }
            match Pin::new(&mut self.generation).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(event)) => self.take(event),
                Poll::Ready(None) => self.over = true,
            }
        }
    }

    fn take(&mut self, event: GenerationEvent) {
        match event {
            GenerationEvent::Token { id, mut text, logprobs } => {
                self.ids.push(id);
                if let Some((first, top)) = logprobs.split_first() {
                    self.logprobs.push(TokenLogprobs { id: first.token, logprob: first.logprob, top: top.to_vec() });
                }
                let tokenizer = self.language.model.tokenizer();
                if !self.splitter.spell(tokenizer, id, &mut text) {
                    // What the template writes of it is not known.
                    self.asked = None;
                }
                self.raw.push_str(&text);
                let parts = self.splitter.push(&text);
                self.thought += u32::from(self.splitter.is_thinking());
                self.add(parts);
            }
            GenerationEvent::Finished { text, reason, usage, timings, .. } => {
                self.raw.push_str(&text);
                let mut parts = self.splitter.push(&text);
                parts.extend(self.splitter.finish());
                self.add(parts);
                if !self.logprobs.is_empty() {
                    let logprobs = std::mem::take(&mut self.logprobs);
                    let (thought, text) = (String::new(), String::new());
                    self.pieces.push_back(Piece::Delta { thought, text, calls: Vec::new(), logprobs });
                }
                let remembered = matches!(reason, Finish::Stop(_) | Finish::Length | Finish::Context);
                if let Some(asked) = self.asked.take().filter(|_| remembered) {
                    self.language.remember(asked, &self.ids, &self.raw, self.salt.clone());
                }
                let (thought, called) = (self.thought, self.splitter.called());
                self.pieces.push_back(Piece::End(End { finish: reason, usage, timings, thought, called }));
                self.over = true;
            }
        }
    }

    fn add(&mut self, parts: Parts) {
        if parts.is_empty() {
            return;
        }
        let Parts { thought, text, calls } = parts;
        // Nine letters and digits: some templates take no other names.
        let calls = calls.into_iter().map(|call| NamedCall { id: random_name(9), call }).collect();
        let logprobs = std::mem::take(&mut self.logprobs);
        self.pieces.push_back(Piece::Delta { thought, text, calls, logprobs });
    }
}

/// An answer that is complete.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) thought: String,
    pub(super) text: String,
    pub(super) calls: Vec<NamedCall>,
    pub(super) logprobs: Vec<TokenLogprobs>,
    pub(super) end: End,
}

/// An answer that may not be complete yet.
#[derive(Debug, Default)]
struct Gathered {
    parts: Parts,
    calls: Vec<NamedCall>,
    logprobs: Vec<TokenLogprobs>,
    end: Option<End>,
}

/// Waits for all of several answers. An error of one ends all.
pub(super) async fn gather(mut replies: Vec<Reply>) -> Outcome<Vec<Whole>> {
    let mut all: Vec<Gathered> = replies.iter().map(|_| Gathered::default()).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (reply, to) in replies.iter_mut().zip(&mut all) {
            loop {
                match reply.poll(context) {
                    Poll::Pending => {
                        pending = true;
                        break;
                    }
                    Poll::Ready(None) => break,
                    Poll::Ready(Some(Piece::End(End { finish: Finish::Error(error), .. }))) => {
                        return Poll::Ready(Err(Failure::from(&*error)));
                    }
                    Poll::Ready(Some(Piece::End(end))) => to.end = Some(end),
                    Poll::Ready(Some(Piece::Delta { thought, text, calls, logprobs })) => {
                        to.parts.thought += &thought;
                        to.parts.text += &text;
                        to.calls.extend(calls);
                        to.logprobs.extend(logprobs);
                    }
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(Ok(())) }
    })
    .await?;
    let whole = |Gathered { parts, calls, logprobs, end }| {
        let end = end.ok_or_else(|| Failure::unavailable("the engine has ended"))?;
        Ok(Whole { thought: parts.thought, text: parts.text, calls, logprobs, end })
    };
    all.into_iter().map(whole).collect()
}

/// OpenAI's counts of several answers, by their numbers: `n` to each prompt.
pub(super) fn usage(ends: &[(usize, End)], n: usize) -> Value {
    let prompt: u32 = ends.iter().filter(|(index, _)| index % n == 0).map(|(_, end)| end.usage.prompt).sum();
    let reused: u32 = ends.iter().filter(|(index, _)| index % n == 0).map(|(_, end)| end.usage.reused).sum();
    let completion: u32 = ends.iter().map(|(_, end)| end.usage.generated).sum();
    let thought: u32 = ends.iter().map(|(_, end)| end.thought).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": reused },
        "completion_tokens_details": { "reasoning_tokens": thought },
    })
}
