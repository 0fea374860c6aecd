//! A step: what an engine asks of an executor, one varlen batch of packed rows.

use crate::ops::{Logprob, Phase, SampleLists, SampleSpec};

/// One forward pass over some tokens of some sequences. A lone chat is a step of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// What each sequence brings.
    pub seqs: &'a [SeqStep<'a>],
}

/// What one sequence brings to a step: tokens at consecutive positions.
#[derive(Clone, Copy, Debug)]
pub struct SeqStep<'a> {
    /// The sequence's slot on the executor, less than `Limits::seqs`: where its last sampled tokens are kept.
    pub slot: u32,
    /// Chooses the kernel family, so that a request gives the same bits whatever it is batched with.
    pub phase: Phase,
    /// The rows.
    pub tokens: &'a [Token],
    /// The types of the tokens, for models that know types (BERT: which of two texts); empty if all are 0.
    pub types: &'a [u32],
    /// Position of the first row; positions before it are in the cache.
    pub pos: u32,
    /// For each cache group, the blocks of the sequence that hold positions 0 to the last of this step;
    /// [`FREED`](crate::ops::FREED) for those outside the window of the group's layers.
    pub tables: &'a [&'a [u32]],
    /// Which rows give logits.
    pub outs: Outs,
    /// How the next token is sampled from the last row's logits; none samples nothing.
    pub sample: Option<SampleSpec>,
    /// What else the sampler must know.
    pub lists: SampleLists<'a>,
    /// Whether the logits of the output rows are read back.
    pub read_logits: bool,
}

impl<'a> SeqStep<'a> {
    /// Tokens from position `pos` on, without logits or a sample.
    pub fn new(slot: u32, phase: Phase, tokens: &'a [Token], pos: u32, tables: &'a [&'a [u32]]) -> Self {
        let lists = SampleLists::default();
        Self { slot, phase, tokens, types: &[], pos, tables, outs: Outs::None, sample: None, lists, read_logits: false }
    }
}

/// Where a row's token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// From the caller.
    Host(u32),
    /// The token that was sampled for this position of the sequence's slot, which the host may not know yet.
    Sampled,
}

/// Which rows of a sequence give logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outs {
    /// None: an early chunk of a prompt.
    None,
    /// The last.
    Last,
    /// All.
    All,
}

/// The name of a step that was enqueued; steps finish in the order of their tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What a step gave.
#[derive(Clone, Debug, Default)]
pub struct StepOut {
    /// One for each sequence with a `SampleSpec`, in the step's order.
    pub sampled: Vec<Sampled>,
    /// For each of `sampled`, the probability of its token and those of the most likely ones; empty if it reports none.
    pub logprobs: Vec<Vec<Logprob>>,
    /// The output rows that were asked for, (rows, vocab), in the step's order of sequences.
    pub logits: Vec<f32>,
    /// A vector for each sequence, (seqs, width), in the step's order, if the program pools.
    pub pooled: Vec<f32>,
}

/// A token that was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The sequence's slot.
    pub slot: u32,
    /// The token; none if the logits were not finite, or no token was allowed.
    pub token: Option<u32>,
}
