//! From messages to a request, and from an answer to its parts: prompts, conversations whose turns follow one another in one
//! sequence, thoughts, calls of tools.
//!
//! ```text
//! messages ─ template ─► segments ─ tokenizer ─► ids ─► engine::Request ─ events ─► text ─► the next message
//! ```
//!
//! Nothing here runs a model: the owner of the [`Engine`](crate::engine::Engine) submits the ids that a [`Conversation`]
//! gives, on a sequence that is kept, and records the answer.

mod answers;
mod calls;
mod conversation;
mod prompt;
mod split;
mod transcript;

pub use answers::Answers;
pub use calls::ToolCall;
pub use conversation::{ContextPolicy, Conversation, Message, Prompt};
pub use prompt::{adapt, continuation, messages, render, stops};
pub use split::{AnswerFormat, Parts, Splitter};
pub use transcript::{Transcript, text};
