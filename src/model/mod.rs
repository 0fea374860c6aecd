//! What a model is: its program, how it is fused, where its weights lie, and one file an architecture.

mod altup;
mod arch;
mod config;
mod delta_net;
mod embedding;
mod fuse;
mod keys;
mod latent;
mod layers;
mod moe;
mod names;
mod open;
mod program;
mod quantize;
mod recurrent;
mod rotary;
mod shared;
mod source;
mod to_gguf;
mod value;
mod weights;

pub use config::Asked;
pub use embedding::{Embedding, Task};
pub use fuse::{as_vectors, fuse};
pub use open::{Model, Specials, architectures};
pub use program::{Builder, CacheSpec, Node, Out, Program, RopeTable, Rows, Runs, Value, VectorSpec, WeightSpec};
pub use source::{Tensor, WeightSource};
pub use to_gguf::{Conversion, Converted};
pub use weights::{Located, MatrixAt, VectorAt};
