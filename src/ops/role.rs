//! Roles of rows, and what rows stand for.

/// Whether rows are read or written by the model: prompt, or generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Rows of a prompt: the matrix-times-matrix family.
    Prompt,
    /// Rows that were generated (or are drafted): the matrix-times-vector family.
    Generated,
}

/// What the rows of a value stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// The rows of the step, one a token.
    Step,
    /// The step's output rows, those that somebody wants logits of.
    Outs,
    /// The step's sequences.
    Seqs,
}

impl Role {
    /// Both, in the order in which a step runs them.
    pub const ALL: [Self; 2] = [Self::Generated, Self::Prompt];
}
