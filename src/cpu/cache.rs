//! What layers keep between steps: keys and values of each position in pages, or one state of a sequence.

use super::{Pages, Shared};
use crate::Result;

/// A cache of one layer.
pub(crate) enum Cache {
    Pages(Pages),
    State(States),
}

/// The states of a recurrent layer: one a slot, then those that are kept beside.
pub(crate) struct States {
    len: usize,
    store: Shared<f32>,
}

impl States {
    /// `count` states of `len` zeros.
    pub(crate) fn new(len: usize, count: usize) -> Result<Self> {
        Ok(Self { len, store: Shared::zeroed("the states of a layer", len * count)? })
    }

    /// A part of a state that one share uses in a region.
    #[allow(clippy::mut_from_ref, reason = "the rule of a shared buffer: members take disjoint parts")]
    pub(crate) fn part(&self, state: usize, start: usize, len: usize) -> &mut [f32] {
        let start = state * self.len + start;
        self.store.slice_mut(start..start + len)
    }

    /// Copies a state onto another.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        let n = self.len;
        self.store.all_mut().copy_within(from * n..(from + 1) * n, to * n);
    }

    /// Fills all states.
    pub(crate) fn fill(&mut self, value: f32) {
        self.store.all_mut().fill(value);
    }
}
