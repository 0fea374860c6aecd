//! The front door: a model with its tokenizer and chat template on an engine that is ready, and text in and out of it.
//!
//! A thin layer: [`LanguageModel`] owns an [`Engine`](crate::engine::Engine) and gives it one request at a time. For several
//! at once, from any thread, there is [`LanguageModel::serve`]; for tokens and probabilities, [`LanguageModel::engine_mut`].

mod answer;
#[cfg(not(target_arch = "wasm32"))]
mod models;
mod open;
mod served;
#[cfg(not(target_arch = "wasm32"))]
mod slots;
#[cfg(all(test, feature = "tiny"))]
mod tests;

#[cfg(any(feature = "cli", all(target_arch = "wasm32", feature = "web")))]
pub(crate) use answer::now;
pub use answer::{AnswerStream, GenerateOptions};
#[cfg(not(target_arch = "wasm32"))]
pub use models::{LoadedModel, Models, ModelsOptions};
pub use open::{LanguageModel, ModelText, open};
#[cfg(not(target_arch = "wasm32"))]
pub use served::OwnedModel;
pub use served::ServedModel;
#[cfg(all(feature = "server", not(target_arch = "wasm32")))]
pub(crate) use slots::{Held, Slots, Standing};
