//! What a model is: its program, how it is fused, where its weights lie, and one file an architecture.

mod fuse;
mod program;
mod source;

pub use fuse::{as_vectors, fuse};
pub use program::{Builder, CacheSpec, Node, Out, Program, RopeTable, Rows, Value, VectorSpec, WeightSpec};
pub use source::WeightSource;
