//! Draws on the GPU.

use super::super::ValueId;
use super::super::lower::{Lower, Lowered};
use super::{DrawEntry, list_words};
use crate::Result;
use crate::gpu::{Arg, Buffer, Device, Dim};

/// Logits that one workgroup looks through.
const PART: u32 = 4096;
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
    /// (draws, BIN_WORDS), zero before a draw.
    bins: Buffer,
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
            scratch: scratch.clone(),
        })
    }

    /// What must be zero before so many draws with filters: a buffer, and bytes of it.
    pub(crate) fn cleared(&self, draws: u32) -> (&Buffer, u64) {
        (&self.bins, u64::from(draws) * u64::from(BIN_WORDS) * 4)
    }
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    vocab: u32,
    stride: u32,
    parts: u32,
    lists: u32,
    slots: u32,
}

/// Draws from output rows. What no draw of a step needs is not dispatched.
pub(crate) fn lower(l: &mut Lower<'_>, logits: ValueId, buffers: &DrawBuffers, slots: u32) -> Lowered {
    let logits = l.value(logits);
    let parts = logits.width.div_ceil(PART);
    let params = Params { vocab: logits.width, stride: logits.stride(), parts, lists: buffers.lists, slots };
    let DrawBuffers { draws, result, best, bins, scratch: Scratch { adjusted, kept }, .. } = buffers;
    let (drawn, one) = (l.drawn, Dim::Fixed(1));
    let mut dispatch = |name, more: Vec<Arg<'_>>, grid| {
        let kernel = l.kernel(name);
        let args: Vec<_> = [Arg::read(draws), Arg::read(&logits.buffer)].into_iter().chain(more).collect();
        l.plan.dispatch(&kernel, &params, &args, grid)
    };
    let overlay = || Arg::read(adjusted);
    dispatch("sample_adjust", vec![Arg::read(drawn), Arg::Write(adjusted)], [Dim::Adjusted, one, one])?;
    let parts = Dim::Fixed(parts);
    dispatch("sample", vec![overlay(), Arg::Write(best), Arg::Write(bins)], [parts, Dim::Draws, one])?;
    dispatch("sample_bins", vec![overlay(), Arg::Write(bins)], [parts, Dim::Filtered, one])?;
    dispatch("sample_keep", vec![overlay(), Arg::Write(bins), Arg::Write(kept)], [parts, Dim::Filtered, one])?;
    let more =
        vec![overlay(), Arg::read(best), Arg::read(bins), Arg::read(kept), Arg::Write(drawn), Arg::Write(result)];
    dispatch("sample_merge", more, [Dim::Draws, one, one])
}
