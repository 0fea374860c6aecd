//! wgslm for C and C++: see `include/wgslm.h`, which is made of this crate, and docs/c.md.
//!
//! What C sees is opaque handles, and structs that begin with their size. No panic leaves a function: it becomes an error with
//! the code `internal`.

mod chat;
mod embedder;
mod error;
mod generation;
mod model;
mod options;
mod text;

pub use chat::{Chat, wgslm_chat_ask, wgslm_chat_forget, wgslm_chat_free, wgslm_chat_new, wgslm_chat_system};
pub use embedder::{Embedder, wgslm_embed, wgslm_embedder_free, wgslm_embedder_open, wgslm_embedder_width};
pub use error::{Error, wgslm_error_code, wgslm_error_free, wgslm_error_message};
pub use generation::{
    Event, EventFn, EventKind, Generation, Status, wgslm_generation_cancel, wgslm_generation_free,
    wgslm_generation_next, wgslm_generation_run,
};
pub use model::{
    Model, wgslm_detokenize, wgslm_generate, wgslm_model_context, wgslm_model_device, wgslm_model_free,
    wgslm_model_has_chat, wgslm_model_name, wgslm_open, wgslm_sampling_of, wgslm_tokenize,
};
pub use options::{Options, ProgressFn, Request, Sampling};
pub use text::{WGSLM_TO_NUL, wgslm_version};
