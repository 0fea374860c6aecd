//! Sampling on the GPU.

use super::super::lower::{Lower, Lowered};
use super::super::{ValueId, kernels};
use super::{LOGPROBS, RING, SampleEntry, SampleLists, SampleSpec, gumbel, list_words};
use crate::Result;
use crate::gpu::params::params;
use crate::gpu::{Arg, Buffer, Device, Dim, KernelSource, Pipelines, Plan, PlanBuilder, StepCounts};

/// Logits that one workgroup looks through.
const PART: u32 = 4096;
/// Tokens whose probabilities a sample reports, the sampled one included.
const TOPS: u32 = LOGPROBS + 1;
/// Words of a sample's probabilities.
pub(crate) const LOGPROB_WORDS: u32 = 2 * TOPS;
/// Words of a sample's bins, as `wgsl/lib/sample.wgsl` has them.
const BIN_WORDS: u32 = 2052;

/// The buffers of a phase's samples.
#[derive(Debug)]
pub(crate) struct SampleBuffers {
    /// Settings of so many samples, then lists.
    pub(crate) samples: Buffer,
    /// The word where the lists begin.
    pub(crate) lists: u32,
    /// (samples): the tokens.
    pub(crate) result: Buffer,
    /// (samples, parts) of 4 words.
    best: Buffer,
    /// (samples, BIN_WORDS): zero before sampling and after it.
    bins: Buffer,
    /// (samples, parts, TOPS) of two words: the most likely tokens of each part.
    top: Buffer,
    /// (samples, TOPS): tokens and the logarithms of their probabilities.
    pub(crate) logprobs: Buffer,
    scratch: Scratch,
}

/// Scratch memory that need not outlive a sample, so both phases share it.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    /// (samples): a map of tokens whose logits are changed, and these logits.
    adjusted: Buffer,
    /// (samples, vocab): tokens that filters may keep.
    kept: Buffer,
}

impl Scratch {
    pub(crate) fn new(device: &Device, samples: u32, vocab: u32) -> Result<Self> {
        let words = |words: u32| u64::from(samples) * u64::from(words) * 4;
        Ok(Self {
            adjusted: Buffer::new(device, "adjusted", words(vocab + vocab.div_ceil(32)))?,
            kept: Buffer::new(device, "kept", words(vocab))?,
        })
    }
}

impl SampleBuffers {
    /// For so many samples at once.
    pub(crate) fn new(device: &Device, samples: u32, vocab: u32, scratch: &Scratch) -> Result<Self> {
        let words = |words: u32| u64::from(samples) * u64::from(words) * 4;
        let lists = samples * (size_of::<SampleEntry>() / 4) as u32;
        Ok(Self {
            samples: Buffer::new(device, "samples", u64::from(lists) * 4 + words(list_words(vocab)))?,
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

/// Adds the dispatches that sample from output rows.
pub(crate) fn lower(l: &mut Lower<'_>, logits: ValueId, buffers: &SampleBuffers, slots: u32) -> Lowered {
    let logits = l.value(logits);
    buffers.dispatch(&mut l.plan, &logits.buffer, [logits.width, logits.stride()], l.sampled, slots)
}

impl SampleBuffers {
    /// Adds the dispatches that sample from rows of logits, `stride` elements apart. A kernel that no sample of a step needs is
    /// not dispatched.
    fn dispatch(
        &self,
        plan: &mut PlanBuilder<'_>,
        logits: &Buffer,
        [vocab, stride]: [u32; 2],
        sampled: &Buffer,
        slots: u32,
    ) -> Lowered {
        let parts = vocab.div_ceil(PART);
        let params = Params { vocab, stride, parts, lists: self.lists, slots };
        let Self { samples, result, best, bins, top, logprobs, scratch: Scratch { adjusted, kept }, .. } = self;
        let mut dispatch = |source: KernelSource, more: Vec<Arg<'_>>, grid| {
            let args: Vec<_> = [Arg::read(samples), Arg::read(logits)].into_iter().chain(more).collect();
            plan.dispatch(&source.kernel(), &params, &args, grid)
        };
        let overlay = || Arg::read(adjusted);
        let (parts, one) = (Dim::Fixed(parts), Dim::Fixed(1));
        dispatch(
            kernels::SAMPLE_ADJUST,
            vec![Arg::read(sampled), Arg::Write(adjusted)],
            [Dim::SamplesIfAdjusted, one, one],
        )?;
        dispatch(kernels::SAMPLE, vec![overlay(), Arg::Write(best), Arg::Write(bins)], [parts, Dim::Samples, one])?;
        dispatch(kernels::SAMPLE_BINS, vec![overlay(), Arg::Write(bins)], [parts, Dim::SamplesIfFiltered, one])?;
        dispatch(
            kernels::SAMPLE_KEEP,
            vec![overlay(), Arg::Write(bins), Arg::Write(kept)],
            [parts, Dim::SamplesIfFiltered, one],
        )?;
        let more = vec![
            overlay(),
            Arg::read(best),
            Arg::Write(bins),
            Arg::read(kept),
            Arg::Write(sampled),
            Arg::Write(result),
        ];
        dispatch(kernels::SAMPLE_MERGE, more, [Dim::Samples, one, one])?;
        dispatch(kernels::SAMPLE_TOP, vec![Arg::Write(top)], [parts, Dim::SamplesIfReported, one])?;
        let more = vec![Arg::read(top), Arg::read(result), Arg::Write(logprobs)];
        dispatch(kernels::SAMPLE_LOGPROBS, more, [Dim::SamplesIfReported, one, one])
    }

    /// Sampling from one row of noise, to be measured.
    #[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "only `wgslm bench kernels` measures it"))]
    pub(crate) fn single(pipelines: &mut Pipelines, spec: &SampleSpec, vocab: u32) -> Result<(Plan, StepCounts)> {
        let device = pipelines.device().clone();
        let logits = Buffer::new(&device, "logits", u64::from(vocab) * 4)?;
        logits.write(&device, 0, &(0..vocab).map(|token| 2.0 * gumbel([5, 7], token)).collect::<Vec<f32>>());
        let sampled = Buffer::new(&device, "sampled", u64::from(RING) * 4)?;
        let buffers = Self::new(&device, 1, vocab, &Scratch::new(&device, 1, vocab)?)?;
        let entry = SampleEntry::new(spec, &SampleLists::default(), [0, 0, 1], vocab, &mut Vec::new())?;
        buffers.samples.write(&device, 0, &[entry]);
        let mut plan = PlanBuilder::new(pipelines);
        buffers.dispatch(&mut plan, &logits, [vocab; 2], &sampled, 1)?;
        let samples_if_filtered = u32::from(entry.is_filtered());
        Ok((plan.finish()?, StepCounts { samples: 1, samples_if_filtered, ..StepCounts::default() }))
    }
}
