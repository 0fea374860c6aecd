//! What a model is: its program, how it is fused, where its weights lie, and one file an architecture.

mod arch;
mod builder;
mod config;
mod embedding;
mod files;
mod fuse;
mod layers;
mod program;
mod to_gguf;

pub use builder::{Builder, KeyHeads, StoredDecays};
pub use config::Asked;
pub use embedding::{Embedding, Task};
pub use files::{
    Located, MatrixAt, Model, ModelSource, RowsFn, Specials, Tensor, VectorAt, WeightSource, architectures,
};
pub use fuse::{FuseFor, as_vectors, fuse};
pub use program::{CacheSpec, Node, Out, Program, RopeTable, Rows, Runs, Value, VectorSpec, WeightSpec};
pub use to_gguf::{Conversion, Converted, ElementsFn};
