//! `sample`: samples the next token from a row of logits, on the device.
//!
//! Penalties and bias → allowed tokens → top-k → top-p → min-p → choice of the token. The filters compute in integers, so
//! neither the grid nor the reduction order matters; the choice is a maximum. Both executors follow this description number for
//! number.
//!
//! - Tokens are ordered by their logit, from the largest; equal ones by id. Each filter keeps the first ones of this order.
//! - A token's *depth* is `(largest - logit) * log2(e) / temperature`, rounded down to units of 2⁻¹⁶ and below 32. Its weight is
//!   `2²⁶ * 2^-depth`, as an integer, to a relative 2⁻¹⁴: its probability but for a factor.
//! - top-k keeps `k` tokens. top-p keeps of these the first ones, up to where the sum of weights reaches the share `p` of the
//!   total. min-p keeps those that are not deeper than `-log2(p)`.
//! - The sampled token is `argmax logit / temperature + g(seed, position, token)` over what is kept, g Gumbel noise (Gumbel
//!   1954): a sample from the softmax, whatever order the maximum is taken in. Ties go to the lowest id.
//! - After a stop token that an earlier step sampled, nothing is sampled.
//!
//! A sample may report probabilities, which are the model's: of logits before penalties, at temperature 1 ([`Logprob`]).

mod likeliest;
mod logprobs;
pub(crate) mod lower;
mod noise;
mod pick;

pub(crate) use likeliest::{all_finite, gather, likeliest};
pub use logprobs::Logprob;
pub(crate) use logprobs::{logprobs, normalizer};
pub(crate) use lower::{LOGPROB_WORDS, SampleBuffers, Scratch, lower};
pub(crate) use noise::{Best, gumbel, noise_key, with_noise};
pub(crate) use pick::{Picker, adjust};

use crate::{Error, Result};

/// How a token is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleSpec {
    /// 0 samples greedily, whatever the filters.
    pub temperature: f32,
    /// Keys the noise, with the position of the sampled token and the token's id.
    pub seed: u64,
    /// Keeps the so many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps tokens up to this sum of probabilities, in steps of 2⁻¹⁶; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this likely, relative to the most likely; 0 keeps all.
    pub min_p: f32,
    /// What the logits of tokens lose that were seen before.
    pub penalties: Penalties,
}

impl SampleSpec {
    /// The most likely token.
    pub const GREEDY: Self =
        Self { temperature: 0.0, seed: 0, top_k: 0, top_p: 1.0, min_p: 0.0, penalties: Penalties::NONE };
}

/// What becomes of a token's logit x if the token was seen: `(x > 0 ? x / repeat : x * repeat) - count * frequency - presence`
/// (Keskar et al. 2019; OpenAI).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// 1 changes nothing.
    pub repeat: f32,
    /// Once for a token that was seen.
    pub presence: f32,
    /// For each time that it was seen.
    pub frequency: f32,
}

impl Penalties {
    /// Nothing.
    pub const NONE: Self = Self { repeat: 1.0, presence: 0.0, frequency: 0.0 };
}

impl Default for Penalties {
    fn default() -> Self {
        Self::NONE
    }
}

/// What a sample must know beside its [`SampleSpec`]. A token appears once in each list.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SampleLists<'a> {
    /// The tokens that penalties see, and how often they were seen; at most [`SEEN`].
    pub counts: &'a [[u32; 2]],
    /// The last so many tokens of the sequence were sampled on the device and are not in `counts`; penalties see them, too. At
    /// most [`RING`].
    pub pending: u32,
    /// Added to the logits of these tokens; at most [`BIASED`].
    pub bias: &'a [(u32, f32)],
    /// The tokens that may follow: bit `t % 32` of word `t / 32`; none allows all.
    pub allowed: Option<&'a [u32]>,
    /// If the row's token was sampled on the device and is one of these, nothing is sampled after it; at most [`STOPS`].
    pub stops: &'a [u32],
    /// Reports the probabilities of the sampled token and of so many of the most likely ones, at most [`LOGPROBS`].
    pub logprobs: Option<u32>,
}

/// The most different tokens that penalties see.
pub const SEEN: u32 = 4096;
/// The most tokens with a bias.
pub const BIASED: u32 = 1024;
/// The most tokens that devices know as stops.
pub const STOPS: u32 = 64;
/// The most of the likeliest tokens whose probabilities a sample reports.
pub const LOGPROBS: u32 = 20;
/// Sampled tokens that executors remember for a slot: as many as may be in flight before the host reads them.
pub const RING: u32 = 16;

/// A sample's settings: the words that `wgsl/lib/sample.wgsl` names.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct SampleEntry {
    /// The row of logits.
    pub out: u32,
    /// The sequence's slot.
    pub slot: u32,
    /// Position of the token that is sampled.
    pub pos: u32,
    flags: u32,
    seed: [u32; 2],
    inv_temperature: f32,
    depth_scale: f32,
    top_k: u32,
    top_p: u32,
    deepest: u32,
    repeat: f32,
    inv_repeat: f32,
    presence: f32,
    frequency: f32,
    pending: u32,
    /// Of each list, where it begins and how many it has.
    counts: [u32; 2],
    bias: [u32; 2],
    allowed: u32,
    stops: [u32; 2],
    /// Probabilities that are reported: of the sampled token and of the most likely ones.
    pub(crate) reported: u32,
}

const FILTERED: u32 = 1;
const BINNED: u32 = 2;
const ADJUSTED: u32 = 4;
const MASKED: u32 = 8;

/// One whole, of top-p.
const WHOLE: u32 = 1 << 16;

impl SampleEntry {
    /// The settings of a sample; its lists are added to `lists`. Fails, by name, on a value that is out of its range.
    pub(crate) fn new(
        spec: &SampleSpec,
        from: &SampleLists<'_>,
        [out, slot, pos]: [u32; 3],
        vocab: u32,
        lists: &mut Vec<u32>,
    ) -> Result<Self> {
        check(spec, vocab)?;
        from.check(vocab)?;
        let Penalties { repeat, presence, frequency } = spec.penalties;
        let sampled = spec.temperature > 0.0;
        let inv_temperature = if sampled { (1.0 / spec.temperature).min(f32::MAX) } else { 0.0 };
        let top_k = if sampled && spec.top_k < vocab { spec.top_k } else { 0 };
        let part = (f64::from(spec.top_p) * f64::from(WHOLE)).round() as u32;
        let top_p = if sampled && spec.top_p < 1.0 { part.clamp(1, WHOLE - 1) } else { WHOLE };
        // The depth of min-p is in f64, since only the host computes it.
        let depth = -f64::from(spec.min_p).log2() * f64::from(WHOLE);
        let deepest = if sampled && spec.min_p > 0.0 { depth as u32 } else { u32::MAX };
        let penalised = spec.penalties != Penalties::NONE;
        let (counts, pending) = if penalised { (from.counts, from.pending) } else { (&[][..], 0) };
        let flag = |on: bool, flag: u32| if on { flag } else { 0 };
        let binned = top_k != 0 || top_p != WHOLE;
        let flags = flag(binned || deepest != u32::MAX, FILTERED)
            | flag(binned, BINNED)
            | flag(!counts.is_empty() || pending > 0 || !from.bias.is_empty(), ADJUSTED)
            | flag(from.allowed.is_some(), MASKED);
        let at = lists.len() as u32;
        lists.extend_from_slice(counts.as_flattened());
        let bias_at = lists.len() as u32;
        lists.extend(from.bias.iter().flat_map(|(token, bias)| [*token, bias.to_bits()]));
        let allowed = lists.len() as u32;
        lists.extend_from_slice(from.allowed.unwrap_or_default());
        let stops = [lists.len() as u32, from.stops.len() as u32];
        lists.extend_from_slice(from.stops);
        Ok(Self {
            out,
            slot,
            pos,
            flags,
            seed: [spec.seed as u32, (spec.seed >> 32) as u32],
            inv_temperature,
            depth_scale: (f64::from(inv_temperature) * std::f64::consts::LOG2_E * f64::from(WHOLE)).min(1e30) as f32,
            top_k,
            top_p,
            deepest,
            repeat,
            inv_repeat: 1.0 / repeat,
            presence,
            frequency,
            pending,
            counts: [at, counts.len() as u32],
            bias: [bias_at, from.bias.len() as u32],
            allowed,
            stops,
            reported: from.logprobs.map_or(0, |n| n + 1),
        })
    }

    /// Whether only the best of all logits is needed, by logit or with noise, and nothing is reported.
    pub(crate) fn is_best_of_all(&self) -> bool {
        self.flags == 0 && self.reported == 0
    }

    /// Top-k, top-p or min-p.
    pub(crate) fn is_filtered(&self) -> bool {
        self.flags & FILTERED != 0
    }

    /// Penalties or a bias.
    pub(crate) fn is_adjusted(&self) -> bool {
        self.flags & ADJUSTED != 0
    }

    /// Whether the probabilities of tokens are reported.
    pub(crate) fn reports(&self) -> bool {
        self.reported > 0
    }

    /// The stop token that an earlier step sampled, after which nothing is sampled.
    pub(crate) fn ended(&self, lists: &[u32], ring: &[u32]) -> Option<u32> {
        let [at, count] = self.stops.map(|n| n as usize);
        let before = ring[(self.pos.wrapping_sub(1) % RING) as usize];
        lists[at..at + count].contains(&before).then_some(before)
    }

    /// The key of the noise.
    pub(crate) fn key(&self) -> [u32; 2] {
        noise_key(self.seed[0], self.seed[1], self.pos)
    }

    /// 0 samples greedily.
    pub(crate) fn inv_temperature(&self) -> f32 {
        self.inv_temperature
    }
}

/// Words of lists that a sample may have.
pub(crate) fn list_words(vocab: u32) -> u32 {
    2 * SEEN + 2 * BIASED + vocab.div_ceil(32) + STOPS
}

/// Fails, by name, on a value that is out of its range.
fn check(spec: &SampleSpec, vocab: u32) -> Result<()> {
    let Penalties { repeat, presence, frequency } = spec.penalties;
    let problem = if !(spec.temperature.is_finite() && spec.temperature >= 0.0) {
        ("temperature", format!("{}; finite and at least 0 works", spec.temperature))
    } else if !(spec.top_p > 0.0 && spec.top_p <= 1.0) {
        ("top-p", format!("{}; more than 0, at most 1 works", spec.top_p))
    } else if !(0.0..=1.0).contains(&spec.min_p) {
        ("min-p", format!("{}; 0 to 1 works", spec.min_p))
    } else if !(repeat.is_normal() && repeat > 0.0 && presence.is_finite() && frequency.is_finite()) {
        ("penalties", format!("{:?}; finite numbers, and a repeat above 0, work", spec.penalties))
    } else if vocab >= 1 << 19 {
        ("sampling", format!("a vocabulary of {vocab}; less than {} works", 1 << 19))
    } else {
        return Ok(());
    };
    Err(Error::argument(problem.0, problem.1))
}

impl SampleLists<'_> {
    /// Fails, by name, on a value that is out of its range.
    pub(crate) fn check(&self, vocab: u32) -> Result<()> {
        let mut tokens: Vec<u32> = self.bias.iter().map(|(token, _)| *token).collect();
        tokens.sort_unstable();
        let twice = tokens.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let seen = self.counts.iter().map(|[token, _]| *token);
        let problem = if self.counts.len() > SEEN as usize || self.pending > RING {
            ("penalties", format!("{} and {} tokens; {SEEN} and {RING} work", self.counts.len(), self.pending))
        } else if self.bias.len() > BIASED as usize || self.bias.iter().any(|(_, bias)| !bias.is_finite()) {
            ("bias", format!("{} tokens; {BIASED}, each with a finite number, work", self.bias.len()))
        } else if let Some(token) = twice {
            ("bias", format!("token {token} twice; once works"))
        } else if let Some(token) = seen.chain(tokens).find(|token| *token >= vocab) {
            ("bias", format!("token {token}; the vocabulary has {vocab}"))
        } else if self.allowed.is_some_and(|map| map.len() != vocab.div_ceil(32) as usize) {
            ("allowed tokens", format!("a map of other than {vocab} bits"))
        } else if self.stops.len() > STOPS as usize {
            ("stops", format!("{} tokens; {STOPS} work", self.stops.len()))
        } else if let Some(n) = self.logprobs.filter(|n| *n > LOGPROBS) {
            ("logprobs", format!("{n}; 0 to {LOGPROBS} work"))
        } else {
            return Ok(());
        };
        Err(Error::argument(problem.0, problem.1))
    }
}
