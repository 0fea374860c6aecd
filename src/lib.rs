//! wgslm: a portable inference engine for large language models.

#![cfg_attr(
    target_arch = "wasm32",
    allow(
        clippy::arc_with_non_send_sync,
        reason = "one thread, one code: natively the same values are shared by threads"
    )
)]

pub mod chat;
#[cfg(feature = "cli")]
pub mod cli;
pub mod convert;
mod cpu;
pub mod engine;
pub mod error;
pub mod exec;
pub mod file;
pub mod gpu;
pub mod kv;
pub mod model;
pub mod ops;
pub mod quant;
pub mod sample;
#[cfg(test)]
mod testing;
pub mod text;
#[cfg(all(target_arch = "wasm32", feature = "web"))]
pub mod web;

pub use error::{Error, Result};

/// The embedded model: a GGUF file of 1.8 million parameters, made by `tools/tiny_model` in this repository.
#[cfg(feature = "tiny")]
pub static TINY: &[u8] = include_bytes!("../assets/tiny.gguf");

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
