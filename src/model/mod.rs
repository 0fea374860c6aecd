//! What a model is: its program, how it is fused, where its weights lie, and one file an architecture.

mod arch;
mod builder;
mod config;
mod embedding;
mod files;
mod fuse;
mod layers;
mod program;
mod shapes;
mod to_gguf;

internal!(use builder::{Builder, KeyHeads, StoredDecays});
pub use config::Asked;
pub use embedding::{Embedding, Task};
pub use files::{Model, ModelSource, RowsFn, SamplingDefaults, Specials, Tensor, WeightSource, architectures};
internal!(use files::{Located, MatrixAt, VectorAt});
internal!(use fuse::{FuseFor, as_vectors, fuse});
pub use program::Program;
internal!(use program::{CacheSpec, Node, Out, RopeTable, Rows, Runs, Value, VectorSpec, WeightSpec});
pub use shapes::KnownShape;
internal!(use to_gguf::{Conversion, Converted, ElementsFn});
