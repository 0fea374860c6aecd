//! From messages to a request: prompts, and conversations whose turns follow one another in one sequence.
//!
//! ```text
//! messages ─ template ─► segments ─ tokenizer ─► ids ─► engine::Request ─ events ─► text ─► the next message
//! ```
//!
//! Nothing here runs a model: the owner of the [`Engine`](crate::engine::Engine) submits the ids that a [`Conversation`]
//! gives, on a sequence that is kept, and records the answer.

mod answers;
mod conversation;
mod prompt;
mod transcript;

pub use answers::Answers;
pub use conversation::{ContextPolicy, Conversation, Message, Prompt};
pub use prompt::{continuation, messages, render, stops};
pub use transcript::Transcript;
