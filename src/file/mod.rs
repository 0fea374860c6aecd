//! Model files: bytes → names, shapes, blocks.
//!
//! [`ModelFile::open`] takes a GGUF file, the parts of a split one, or a safetensors folder; [`ModelFile::open_gguf`]
//! takes any [`ByteSource`]s, so a browser or an application can bring bytes of its own. Nothing in a file is trusted:
//! no allocation is larger than the bytes that are there, all arithmetic on sizes is checked, and every error says
//! what is wrong and at which byte. Only a header is read here; weights stay where they are until they are asked for.
//!
//! ```no_run
//! let model = wgslm::file::ModelFile::open("model.gguf".as_ref())?;
//! for tensor in model.tensors() {
//!     println!("{} {} {:?}", tensor.name, tensor.ty.name(), tensor.shape);
//! }
//! # Ok::<(), wgslm::Error>(())
//! ```

#[cfg(not(target_arch = "wasm32"))]
mod folder;
mod gguf;
#[cfg(not(feature = "unstable_internals"))]
pub(crate) mod json;
#[cfg(feature = "unstable_internals")]
pub mod json;
#[cfg(not(target_arch = "wasm32"))]
mod mapped;
mod metadata;
mod model_file;
#[cfg(not(target_arch = "wasm32"))]
mod modules;
mod random;
mod safetensors;
mod shape;
mod source;
mod tensor;
mod write;

#[cfg(not(target_arch = "wasm32"))]
pub use folder::Access;
#[cfg(all(feature = "hub", not(target_arch = "wasm32")))]
pub(crate) use folder::FOLDER_TEXTS;
#[cfg(feature = "cli")]
pub(crate) use folder::parts;
#[cfg(not(target_arch = "wasm32"))]
pub use mapped::MappedFile;
pub use metadata::{Array, FromValue, Metadata, Strings, Value};
pub use model_file::{Description, ModelFile, Texts};
pub(crate) use random::random_model;
pub use shape::Shape;
#[cfg(not(target_arch = "wasm32"))]
pub use source::PlainFile;
pub use source::{ByteSource, Bytes, CountFn, ReadFuture};
pub use tensor::{TensorInfo, TensorType};
internal!(use write::{NewTensor, gguf_header, padding});

/// A name from a file as a message shows it: in quotes, control characters escaped, not longer than a line.
fn quoted(name: &str) -> String {
    const SHOWN: usize = 80;
    match name.char_indices().nth(SHOWN) {
        None => format!("{name:?}"),
        Some((end, _)) => format!("{:?}...", &name[..end]),
    }
}
