//! The front door: a model with its tokenizer and chat template on an engine that is ready, and text in and out of it.
//!
//! A thin layer: [`LanguageModel`] owns an [`Engine`](crate::engine::Engine) and gives it one request at a time. For several
//! at once, or for tokens and probabilities, use [`LanguageModel::engine_mut`].

mod answer;
#[cfg(not(target_arch = "wasm32"))]
mod block_on;
mod open;
#[cfg(all(test, feature = "tiny"))]
mod tests;

#[cfg(any(feature = "cli", all(target_arch = "wasm32", feature = "web")))]
pub(crate) use answer::now;
pub use answer::{Answer, AnswerStream, GenerateOptions};
#[cfg(not(target_arch = "wasm32"))]
pub use block_on::block_on;
pub use open::{LanguageModel, open};
