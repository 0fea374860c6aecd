//! Draws on the GPU.

use super::super::lower::{Lower, Lowered};
use super::super::{ValueId, kernels};
use super::{DrawEntry, LOGPROBS, RING, SampleLists, SampleSpec, gumbel, list_words};
use crate::Result;
use crate::gpu::params::params;
use crate::gpu::{Arg, Buffer, Device, Dim, KernelSource, Pipelines, Plan, PlanBuilder, StepCounts};

/// Logits that one workgroup looks through.
const PART: u32 = 4096;
/// Tokens whose probabilities a draw tells, the drawn one included.
const TOPS: u32 = LOGPROBS + 1;
/// Words of a draw's probabilities.
pub(crate) const LOGPROB_WORDS: u32 = 2 * TOPS;
/// Words of a draw's bins, as `wgsl/lib/draw.wgsl` has them.
const BIN_WORDS: u32 = 2052;

/// What the draws of a role work on.
#[derive(Debug)]
pub(crate) struct DrawBuffers {
    /// Settings of so many draws, then lists.
    pub(crate) draws: Buffer,
    /// The word where the lists begin.
    pub(crate) lists: u32,
    /// (draws): the tokens.
    pub(crate) result: Buffer,
    /// (draws, parts) of 4 words.
    best: Buffer,
    /// (draws, BIN_WORDS): zero before a draw and after it.
    bins: Buffer,
    /// (draws, parts, TOPS) of two words: the most likely tokens of each part.
    top: Buffer,
    /// (draws, TOPS): tokens and the logarithms of their probabilities.
    pub(crate) logprobs: Buffer,
    scratch: Scratch,
}

/// What no draw needs from another: shared by the roles.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    /// (draws): a map of tokens whose logits are changed, and these logits.
    adjusted: Buffer,
    /// (draws, vocab): tokens that filters may keep.
    kept: Buffer,
}

impl Scratch {
    pub(crate) fn new(device: &Device, draws: u32, vocab: u32) -> Result<Self> {
        let words = |words: u32| u64::from(draws) * u64::from(words) * 4;
        Ok(Self {
            adjusted: Buffer::new(device, "adjusted", words(vocab + vocab.div_ceil(32)))?,
            kept: Buffer::new(device, "kept", words(vocab))?,
        })
    }
}

impl DrawBuffers {
    /// For so many draws at once.
    pub(crate) fn new(device: &Device, draws: u32, vocab: u32, scratch: &Scratch) -> Result<Self> {
        let words = |words: u32| u64::from(draws) * u64::from(words) * 4;
        let lists = draws * (size_of::<DrawEntry>() / 4) as u32;
        Ok(Self {
            draws: Buffer::new(device, "draws", u64::from(lists) * 4 + words(list_words(vocab)))?,
            lists,
            result: Buffer::new(device, "result", words(1))?,
            best: Buffer::new(device, "best", words(4 * vocab.div_ceil(PART)))?,
            bins: Buffer::new(device, "bins", words(BIN_WORDS))?,
            top: Buffer::new(device, "top", words(LOGPROB_WORDS * vocab.div_ceil(PART)))?,
            logprobs: Buffer::new(device, "logprobs", words(LOGPROB_WORDS))?,
            scratch: scratch.clone(),
        })
    }
}

params! {
    pub(crate) struct Params {
        vocab: u32,
        stride: u32,
        parts: u32,
        lists: u32,
        slots: u32,
    }
}

/// Draws from output rows.
pub(crate) fn lower(l: &mut Lower<'_>, logits: ValueId, buffers: &DrawBuffers, slots: u32) -> Lowered {
    let logits = l.value(logits);
    buffers.dispatch(&mut l.plan, &logits.buffer, [logits.width, logits.stride()], l.drawn, slots)
}

impl DrawBuffers {
    /// Adds the dispatches of draws from rows of logits, `stride` elements apart. What no draw of a step needs is not dispatched.
    fn dispatch(
        &self,
        plan: &mut PlanBuilder<'_>,
        logits: &Buffer,
        [vocab, stride]: [u32; 2],
        drawn: &Buffer,
        slots: u32,
    ) -> Lowered {
        let parts = vocab.div_ceil(PART);
        let params = Params { vocab, stride, parts, lists: self.lists, slots };
        let Self { draws, result, best, bins, top, logprobs, scratch: Scratch { adjusted, kept }, .. } = self;
        let mut dispatch = |source: KernelSource, more: Vec<Arg<'_>>, grid| {
            let args: Vec<_> = [Arg::read(draws), Arg::read(logits)].into_iter().chain(more).collect();
            plan.dispatch(&source.kernel(), &params, &args, grid)
        };
        let overlay = || Arg::read(adjusted);
        let (parts, one) = (Dim::Fixed(parts), Dim::Fixed(1));
        dispatch(kernels::SAMPLE_ADJUST, vec![Arg::read(drawn), Arg::Write(adjusted)], [Dim::Adjusted, one, one])?;
        dispatch(kernels::SAMPLE, vec![overlay(), Arg::Write(best), Arg::Write(bins)], [parts, Dim::Draws, one])?;
        dispatch(kernels::SAMPLE_BINS, vec![overlay(), Arg::Write(bins)], [parts, Dim::Filtered, one])?;
        dispatch(
            kernels::SAMPLE_KEEP,
            vec![overlay(), Arg::Write(bins), Arg::Write(kept)],
            [parts, Dim::Filtered, one],
        )?;
        let more =
            vec![overlay(), Arg::read(best), Arg::Write(bins), Arg::read(kept), Arg::Write(drawn), Arg::Write(result)];
        dispatch(kernels::SAMPLE_MERGE, more, [Dim::Draws, one, one])?;
        dispatch(kernels::SAMPLE_TOP, vec![Arg::Write(top)], [parts, Dim::Telling, one])?;
        let more = vec![Arg::read(top), Arg::read(result), Arg::Write(logprobs)];
        dispatch(kernels::SAMPLE_LOGPROBS, more, [Dim::Telling, one, one])
    }

    /// A draw from one row of noise, to be measured.
    #[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "only `wgslm bench kernels` measures it"))]
    pub(crate) fn single(pipelines: &mut Pipelines, spec: &SampleSpec, vocab: u32) -> Result<(Plan, StepCounts)> {
        let device = pipelines.device().clone();
        let logits = Buffer::new(&device, "logits", u64::from(vocab) * 4)?;
        logits.write(&device, 0, &(0..vocab).map(|token| 2.0 * gumbel([5, 7], token)).collect::<Vec<f32>>());
        let drawn = Buffer::new(&device, "drawn", u64::from(RING) * 4)?;
        let buffers = Self::new(&device, 1, vocab, &Scratch::new(&device, 1, vocab)?)?;
        let entry = DrawEntry::new(spec, &SampleLists::default(), [0, 0, 1], vocab, &mut Vec::new())?;
        buffers.draws.write(&device, 0, &[entry]);
        let mut plan = PlanBuilder::new(pipelines);
        buffers.dispatch(&mut plan, &logits, [vocab; 2], &drawn, 1)?;
        let filtered = u32::from(entry.is_filtered());
        Ok((plan.finish()?, StepCounts { draws: 1, filtered, ..StepCounts::default() }))
    }
}
