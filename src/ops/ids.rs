//! Names for what a program holds, phases of rows, and what rows stand for.

use std::ops::{Index, IndexMut};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
        impl $name {
            /// The id as an index into the list that it numbers.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A value of a program: a matrix of f32, one row for each row of the step (or of its outputs).
    ValueId,
    /// A matrix of weights `(n, k)`, in any block format.
    WeightId,
    /// A vector of weights `(n)`, always f32 in memory.
    VectorId,
    /// A cache that a layer owns: the pages of its keys and values, or its state.
    CacheId,
    /// A set of caches that share one block table.
    GroupId,
    /// A table of rotary divisors; the step carries its cosines and sines for each row.
    RopeId,
}

/// Whether a token belongs to a prompt, which the model reads, or was generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Tokens of a prompt: the mat-mat family.
    Prefill,
    /// Tokens that were generated (or are drafted): the mat-vec family.
    Decode,
}

/// What the rows of a value stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// The rows of the step, one a token.
    Step,
    /// The step's output rows, whose logits were requested.
    Outs,
    /// The step's sequences.
    Seqs,
}

impl Phase {
    /// Both, in the order in which a step runs them.
    pub const ALL: [Self; 2] = [Self::Decode, Self::Prefill];
}

/// One value per phase, indexed by the phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerPhase<T> {
    /// For prefill rows.
    pub prefill: T,
    /// For decode rows.
    pub decode: T,
}

impl<T> PerPhase<T> {
    /// What `f` makes of each phase.
    pub fn by(mut f: impl FnMut(Phase) -> T) -> Self {
        Self { prefill: f(Phase::Prefill), decode: f(Phase::Decode) }
    }

    /// Both, in the order in which a step runs them.
    pub fn each(&self) -> [&T; 2] {
        Phase::ALL.map(|phase| &self[phase])
    }

    /// Both, in the order in which a step runs them.
    pub fn each_mut(&mut self) -> [&mut T; 2] {
        [&mut self.decode, &mut self.prefill]
    }

    /// What `f` makes of each.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> PerPhase<U> {
        PerPhase { prefill: f(self.prefill), decode: f(self.decode) }
    }
}

impl<T> Index<Phase> for PerPhase<T> {
    type Output = T;

    fn index(&self, phase: Phase) -> &T {
        match phase {
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode,
        }
    }
}

impl<T> IndexMut<Phase> for PerPhase<T> {
    fn index_mut(&mut self, phase: Phase) -> &mut T {
        match phase {
            Phase::Prefill => &mut self.prefill,
            Phase::Decode => &mut self.decode,
        }
    }
}
