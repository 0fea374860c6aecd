//! Text on both sides of a model: strings to token ids, token bytes to valid UTF-8, messages to a prompt.
//!
//! ```text
//! messages ─ template ─► segments ─ tokenizer ─► ids ─ model ─► ids ─ tokenizer ─► bytes ─ stream ─► text
//! ```
//!
//! One rule holds throughout: text that a user wrote never becomes a control token. [`Segment`]s remember where each
//! piece of a prompt comes from, and [`Tokenizer::encode_segments`] takes control tokens from the template alone.

mod bpe;
mod detokenize;
mod hf;
mod jinja;
mod open;
mod pattern;
mod pretokenize;
mod special;
mod spm;
mod stream;
mod template;
mod to_gguf;
mod tokenizer;
mod vocab;
mod wordpiece;

pub use detokenize::TextStream;
pub use stream::{StopMatcher, Utf8Stream};
pub use template::ChatTemplate;
internal!(use to_gguf::gguf_tokenizer);
pub use tokenizer::{GgufVocab, Origin, Segment, Special, Tokenizer};
