//! What callers ask for and what they receive.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::Priority;
use crate::ops::{Logprob, SampleLists};
use crate::sample::Sampling;
use crate::{Error, Result};

/// Asks for a continuation of a prompt.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens to generate at most; none goes on to a stop or to the end of the context.
    pub max_tokens: Option<u32>,
    /// Added to the logits of these tokens, each named once; at most 1024.
    pub bias: Vec<(u32, f32)>,
    /// The tokens that may be generated: bit `t % 32` of word `t / 32`; none allows all.
    pub allowed: Option<Arc<[u32]>>,
    /// Tokens that end the answer; they are not part of it.
    pub stop: Vec<u32>,
    /// Reports the probability of each token, and those of so many most likely ones, at most 20: as the model gives them,
    /// before any sampling filters.
    pub logprobs: Option<u32>,
    /// The sequence to continue, from [`Engine::open`](super::Engine::open): what of `prompt` it has computed before, from the
    /// first token on, is not computed again. None uses a sequence of its own, forgotten at the end.
    pub sequence: Option<SeqId>,
    /// Takes from the cache only what was computed in the phases that [`decoded`](Self::decoded) states, so that the answer
    /// has the same bits whatever the cache holds. Else a request without a sequence also takes the blocks of earlier answers
    /// as they were sampled, whose last bits differ from those of a prompt.
    pub exact: bool,
    /// Positions of the prompt that count as decoded, in order and apart: what [`Event::Finished`] reported of an earlier
    /// request, to have its bits again. The others count as prompt. Not empty: as with `exact`.
    pub decoded: Vec<Range<u32>>,
    /// Only requests of the same salt share what is in the cache: whoever must not learn what others ask has one of their own.
    pub salt: Option<Arc<[u8]>>,
    /// The digest of an adapter (LoRA) whose weights are added. None can be loaded yet, so a request that names one is refused.
    pub adapter: Option<[u8; 32]>,
    /// How soon it begins where not all requests can.
    pub priority: Priority,
    /// Time after which it ends with what it has, as [`Finish::Deadline`]; counted from [`Engine::submit`](super::Engine::submit).
    pub deadline: Option<Duration>,
}

impl Request {
    /// A greedy continuation to the end of the context.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self {
            prompt,
            sampling: Sampling::GREEDY,
            max_tokens: None,
            bias: Vec::new(),
            allowed: None,
            stop: Vec::new(),
            logprobs: None,
            sequence: None,
            exact: false,
            decoded: Vec::new(),
            salt: None,
            adapter: None,
            priority: Priority::default(),
            deadline: None,
        }
    }

    /// What requests that may share blocks have in common, each field with its tag and, where it varies, its length. The
    /// model, the context and how keys and values are stored are the same for all requests of an engine.
    pub(super) fn root(&self) -> Box<[u32]> {
        const SALT: u32 = 1;
        const ADAPTER: u32 = 2;
        let mut words = Vec::new();
        for (tag, bytes) in [(SALT, self.salt.as_deref()), (ADAPTER, self.adapter.as_ref().map(|digest| &digest[..]))] {
            let Some(bytes) = bytes else { continue };
            words.extend([tag, bytes.len() as u32]);
            let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
            words.extend(bytes.chunks(4).map(word));
        }
        words.into()
    }

    /// Checks what does not depend on the state of the engine.
    pub(crate) fn check(&self, vocab: u32, context: u32) -> Result<()> {
        self.sampling.check()?;
        let (bias, allowed, logprobs) = (&*self.bias, self.allowed.as_deref(), self.logprobs);
        SampleLists { bias, allowed, logprobs, ..SampleLists::default() }.check(vocab)?;
        if self.prompt.is_empty() {
            return Err(Error::argument("prompt", "it holds no tokens; at least one works"));
        }
        if let Some(id) = self.prompt.iter().find(|&&id| id >= vocab) {
            return Err(Error::argument("prompt", format!("token {id}; the vocabulary has {vocab}")));
        }
        if self.adapter.is_some() {
            return Err(Error::argument("adapter", "no adapters can be loaded yet; none works"));
        }
        let ends = std::iter::once(0).chain(self.decoded.iter().map(|range| range.end));
        let wrong = |(range, end): &(&Range<u32>, u32)| range.start < *end || range.end <= range.start;
        let beyond = self.decoded.last().is_some_and(|last| last.end as usize > self.prompt.len());
        if beyond || self.decoded.iter().zip(ends).any(|pair| wrong(&pair)) {
            let problem = format!("{:?}: ranges of the prompt's positions, in order and apart, work", self.decoded);
            return Err(Error::argument("decoded", problem));
        }
        if self.prompt.len() >= context as usize {
            return Err(Error::Limit {
                what: "prompt".into(),
                needed: format!("{} positions and one for the answer", self.prompt.len()),
                available: format!("{context} of context"),
                instead: "a shorter prompt or a larger context works".into(),
            });
        }
        Ok(())
    }
}

/// Names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a sequence whose cache is kept between requests: a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// Something that happened to a request.
#[derive(Clone, Debug)]
pub enum Event {
    /// A token was generated.
    Token {
        /// Whose it is.
        request: RequestId,
        /// The token.
        id: u32,
        /// Its probability and those of the most likely tokens, if the request asks for them.
        logprobs: Vec<Logprob>,
    },
    /// The request's last event.
    Finished {
        /// Which request.
        request: RequestId,
        /// Why.
        reason: Finish,
        /// What it took.
        usage: Usage,
        /// The positions of prompt and answer that were computed as decode, or found so: see [`Request::decoded`].
        decoded: Vec<Range<u32>>,
        /// How long.
        timings: Timings,
    },
}

impl Event {
    /// Whose it is.
    pub fn request(&self) -> RequestId {
        match self {
            Self::Token { request, .. } | Self::Finished { request, .. } => *request,
        }
    }
}

/// How long a request took, from its submission to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Until it first ran.
    pub queued: Duration,
    /// From there to its first token.
    pub prefill: Duration,
    /// From there to its end.
    pub decode: Duration,
}

/// Why a request ended.
#[derive(Clone, Debug)]
pub enum Finish {
    /// This stop token was sampled.
    Stop(u32),
    /// This stop string was found, by its number in the list. Engines know tokens alone: whoever makes text of them ends the
    /// request then, as [`AnswerStream`](crate::AnswerStream) does.
    StopString(usize),
    /// `max_tokens` were generated.
    Length,
    /// The context, or the cache of the device, is full.
    Context,
    /// [`Engine::cancel`](super::Engine::cancel).
    Cancelled,
    /// [`Request::deadline`] has passed.
    Deadline,
    /// It cannot go on; other requests may.
    Error(Arc<Error>),
}

impl Finish {
    /// One word, as machine-readable outputs give it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stop(_) | Self::StopString(_) => "stop",
            Self::Length => "length",
            Self::Context => "context",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
            Self::Error(_) => "error",
        }
    }
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the prompt that were in the cache already.
    pub reused: u32,
    /// Tokens generated, without the stop token.
    pub generated: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Salts of any bytes cannot pass for one another, nor for an adapter: also not one that spells out what the other's key
    /// holds.
    #[test]
    fn no_two_salts_and_adapters_have_one_key() {
        let mut salts: Vec<Option<Vec<u8>>> = vec![None];
        for len in [0, 1, 3, 4, 5, 31, 32, 33, 40] {
            for fill in [0, 1, 2, 255] {
                salts.push(Some(vec![fill; len]));
            }
        }
        // The words of an adapter, as the bytes of a salt.
        let adapter: Vec<u8> = [2u32, 32].iter().flat_map(|word| word.to_le_bytes()).chain([1; 32]).collect();
        salts.push(Some([&[0; 4][..], &adapter].concat()));
        salts.push(Some(adapter));
        let mut keys = std::collections::HashMap::new();
        for salt in salts {
            for adapter in [None, Some([0; 32]), Some([1; 32]), Some([2; 32])] {
                let of = (salt.clone(), adapter);
                let request = Request { salt: salt.as_deref().map(Arc::from), adapter, ..Request::new(vec![1]) };
                let other = keys.insert(request.root(), of.clone());
                assert!(other.is_none_or(|other| other == of), "one key for two");
            }
        }
    }
}
