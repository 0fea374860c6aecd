//! wgslm: a portable inference engine for large language models.

pub mod error;
pub mod file;
pub mod quant;

pub use error::{Error, Result};
