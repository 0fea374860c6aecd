//! wgslm: a portable inference engine for large language models.

pub mod error;

pub use error::{Error, Result};
