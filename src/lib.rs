//! wgslm: a portable inference engine for large language models.

mod cpu;
pub mod error;
pub mod exec;
pub mod file;
pub mod model;
pub mod ops;
pub mod quant;

pub use error::{Error, Result};
