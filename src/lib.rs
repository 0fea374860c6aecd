//! wgslm runs large language models on any GPU through WGSL and [`wgpu`], and on the CPU where there is none.
//!
//! # Open
//!
//! [`open`] takes a path to a GGUF file or to a folder of safetensors files, or the bytes of a GGUF file. It finds tokenizer
//! and chat template, loads the weights, and makes an engine ready. Functions that wait are `async` and need no runtime:
//! [`block_on`] or any executor of futures drives them. [`TINY`] is a small model that is compiled in (feature `tiny`).
//!
//! ```
//! use wgslm::{Options, block_on};
//!
//! # fn main() -> wgslm::Result<()> {
//! let options = Options { context: 512, ..Options::default() };
//! let model = block_on(wgslm::open(wgslm::TINY, &options))?; // or "model.gguf"
//! println!("{} on {}, {} tokens of context", model.model().name, model.device(), model.context());
//! # Ok(())
//! # }
//! ```
//!
//! [`Options`] say where it runs ([`DeviceChoice`]), how exact, and with how much context. [`LanguageModel::open`] reports
//! progress, too.
//!
//! # Generate
//!
//! [`LanguageModel::generate`] continues a text and gives the whole [`Answer`].
//!
//! ```
//! use wgslm::{GenerateOptions, Options, block_on};
//!
//! # fn main() -> wgslm::Result<()> {
//! let mut model = block_on(wgslm::open(wgslm::TINY, &Options::default()))?;
//! let options = GenerateOptions { max_tokens: Some(32), ..GenerateOptions::default() };
//! let answer = block_on(model.generate("Once upon a time", &options))?;
//! println!("{} ({} tokens, ended by {})", answer.text, answer.usage.generated, answer.finish.name());
//! # Ok(())
//! # }
//! ```
//!
//! # Stream
//!
//! [`LanguageModel::stream`] gives the text in pieces. A character of several tokens comes whole, and spaces between tokens are
//! kept: decoding token by token would lose both. On a thread of its own the stream is an iterator; in async code,
//! [`next`](AnswerStream::next) is awaited. Dropping it ends the answer.
//!
//! ```
//! use wgslm::{GenerateOptions, Options, block_on};
//!
//! # fn main() -> wgslm::Result<()> {
//! let mut model = block_on(wgslm::open(wgslm::TINY, &Options::default()))?;
//! for piece in model.stream("Once upon a time", &GenerateOptions::default())?.take(16) {
//!     print!("{}", piece?);
//! }
//! block_on(async {
//!     let mut answer = model.stream("The dog", &GenerateOptions::default())?;
//!     while let Some(piece) = answer.next().await {
//!         print!("{}", piece?);
//!     }
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # Chat
//!
//! A [`Conversation`] holds messages, and the chat template makes prompts of them. A user's text never becomes a control token.
//! Earlier turns are not computed again.
//!
//! ```
//! use wgslm::{GenerateOptions, Options, block_on};
//!
//! # fn main() -> wgslm::Result<()> {
//! let mut model = block_on(wgslm::open(wgslm::TINY, &Options::default()))?;
//! let mut chat = model.conversation()?;
//! chat.set_system(Some("Answer in one sentence.".to_owned()))?;
//! for question in ["Hello!", "What is 2 + 3?"] {
//!     chat.say(question);
//!     let answer = block_on(model.chat(&mut chat, &GenerateOptions { max_tokens: Some(32), ..Default::default() }))?;
//!     println!("{question} {}", answer.text);
//! }
//! assert_eq!(chat.messages().len(), 5); // the system's, and two turns
//! # Ok(())
//! # }
//! ```
//!
//! # Sample
//!
//! [`Sampling`] says how each token is chosen. The same seed gives the same text, on the CPU and on a GPU's own sampler alike.
//!
//! ```
//! use wgslm::{GenerateOptions, Options, Sampling, block_on};
//!
//! # fn main() -> wgslm::Result<()> {
//! let mut model = block_on(wgslm::open(wgslm::TINY, &Options::default()))?;
//! let sampling = Sampling { temperature: 0.7, top_p: 0.9, seed: 7, ..Sampling::default() };
//! let options = GenerateOptions { sampling: Some(sampling), max_tokens: Some(32), stop: vec![".".to_owned()], ..Default::default() };
//! let [first, second] = [(); 2].map(|()| block_on(model.generate("Tom had a", &options)));
//! assert_eq!(first?.text, second?.text);
//! # Ok(())
//! # }
//! ```
//!
//! [`Sampling::GREEDY`] always takes the most likely token.
//!
//! # Embed
//!
//! An [`Embedder`] turns texts into vectors, by an encoder or any other model, and scores pairs of texts by a reranker.
//!
//! ```
//! use wgslm::engine::EmbedOptions;
//! use wgslm::{Embedder, Options, block_on};
//!
//! # fn main() -> wgslm::Result<()> {
//! let (options, run) = (EmbedOptions::default(), Options::default());
//! let mut embedder = block_on(Embedder::open(wgslm::TINY, &options, &run, &mut |_| {}))?;
//! let vectors = block_on(embedder.embed(&["A man is eating food.", "Someone has lunch."]))?;
//! let cosine: f32 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum(); // both are of length 1
//! assert!((-1.0..=1.001).contains(&cosine));
//! # Ok(())
//! # }
//! ```
//!
//! # Your own device
//!
//! An application that has a wgpu device lends it: [`LanguageModel::open_on`]. No callback of the application is replaced,
//! submissions stay short, and default limits suffice. Both sides must use the same [`wgpu`].
//!
//! ```
//! use wgslm::gpu::{Device, wgpu};
//! use wgslm::{GenerateOptions, LanguageModel, Options, block_on};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
//! let Ok(adapter) = block_on(instance.request_adapter(&Default::default())) else { return Ok(()) };
//! let (device, queue) = block_on(adapter.request_device(&Default::default()))?;
//!
//! let shared = Device::from_host(&adapter.get_info(), device.clone(), queue.clone());
//! let options = Options { self_test_results: None, context: 64, ..Options::default() }; // no self-test of the device
//! let mut model = block_on(LanguageModel::open_on(&shared, wgslm::TINY, &options, &mut |_| {}))?;
//! let options = GenerateOptions { max_tokens: Some(4), ..GenerateOptions::default() };
//! println!("{}", block_on(model.generate("Once upon a time", &options))?.text);
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! There is one [`Error`]. Each variant says what is wrong, where, and what would work; [`Error::code`] is for machines.
//!
//! ```
//! use wgslm::{Error, Options, block_on};
//!
//! match block_on(wgslm::open("missing.gguf", &Options::default())) {
//!     Err(Error::Io { path, .. }) => assert_eq!(path, "missing.gguf"),
//!     Err(error) => println!("{}: {error}", error.code()),
//!     Ok(_) => println!("it is there"),
//! }
//! ```
//!
//! # Further down
//!
//! [`LanguageModel`] is thin. [`engine::Engine`] runs many requests at a time in tokens, with probabilities and biases;
//! [`text`] has tokenizer, templates and streams; [`mod@file`] and [`model`] read models; [`exec`] runs their steps; [`ops`] and
//! [`gpu`] run single kernels in a compute pass of yours.

#![cfg_attr(
    not(feature = "unstable_internals"),
    allow(
        dead_code,
        unreachable_pub,
        reason = "what only tests use; their builds, which have the feature, are checked"
    )
)]
#![cfg_attr(
    target_arch = "wasm32",
    allow(
        clippy::arc_with_non_send_sync,
        reason = "one thread, one code: natively the same values are shared by threads"
    )
)]

/// `pub use` for this repository's tests and benches, `pub(crate) use` for everybody else.
macro_rules! internal {
    (use $($path:tt)+) => {
        #[cfg(feature = "unstable_internals")]
        pub use $($path)+;
        #[cfg(not(feature = "unstable_internals"))]
        #[allow(unused_imports, reason = "some of it only tests use")]
        pub(crate) use $($path)+;
    };
}

pub mod chat;
#[cfg(feature = "cli")]
#[doc(hidden)] // the program's, not the library's
pub mod cli;
pub mod convert;
mod cpu;
pub mod driver;
pub mod engine;
pub mod error;
pub mod exec;
pub mod file;
pub mod gpu;
#[cfg(all(feature = "hub", not(target_arch = "wasm32")))]
pub mod hub;
#[cfg(not(feature = "unstable_internals"))]
pub(crate) mod kv;
#[cfg(feature = "unstable_internals")]
pub mod kv;
pub mod language_model;
pub mod model;
pub mod ops;
pub mod quant;
pub mod sample;
#[cfg(all(feature = "server", not(target_arch = "wasm32")))]
pub mod server;
#[cfg(test)]
mod testing;
pub mod text;
#[cfg(all(target_arch = "wasm32", feature = "web"))]
pub mod web;
mod wgsl;

pub use chat::Conversation;
#[cfg(not(target_arch = "wasm32"))]
pub use driver::block_on;
pub use driver::{Answer, Handle};
pub use engine::Embedder;
pub use error::{Error, Result};
pub use exec::{DeviceChoice, Options};
pub use language_model::{AnswerStream, GenerateOptions, LanguageModel, ServedModel, open};
pub use sample::Sampling;

/// The embedded model: a GGUF file of 1.8 million parameters, made by `tools/tiny_model` in this repository.
#[cfg(feature = "tiny")]
pub static TINY: &[u8] = include_bytes!("../assets/tiny.gguf");

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
