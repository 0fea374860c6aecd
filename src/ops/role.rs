//! Roles of rows.

/// Whether rows are read or written by the model: prompt, or generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Rows of a prompt: the matrix-times-matrix family.
    Prompt,
    /// Rows that were generated (or are drafted): the matrix-times-vector family.
    Generated,
}

impl Role {
    /// Both, in the order in which a step runs them.
    pub const ALL: [Self; 2] = [Self::Generated, Self::Prompt];
}
