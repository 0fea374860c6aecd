//! A model and its files: which tensor is which matrix, where it lies, in which form it is read.

pub(in crate::model) mod names;
pub(in crate::model) mod open;
mod quantize;
mod source;
pub(in crate::model) mod weights;

pub use open::{Model, ModelSource, SamplingDefaults, Specials, architectures};
pub use source::{RowsFn, Tensor, WeightSource};
pub use weights::{Located, MatrixAt, VectorAt};
