//! What the CPU variants of the ops build on: a thread pool, buffers that it shares, vector loops, pages of keys and
//! values. Nothing here knows an op.

mod bandwidth;
mod cache;
mod memory;
mod pages;
mod shared;
pub(crate) mod simd;
mod thread_pool;

pub(crate) use bandwidth::bandwidth;
pub(crate) use cache::{Cache, States};
#[cfg(feature = "cli")]
pub(crate) use memory::is_answered;
#[cfg(target_arch = "wasm32")]
pub(crate) use memory::reserve;
pub(crate) use memory::zeros;
pub(crate) use pages::{FloatRows, Kind, PageShape, Pages};
pub(crate) use shared::Shared;
#[cfg(all(target_arch = "wasm32", target_feature = "atomics", feature = "web-cpu"))]
pub(crate) use thread_pool::lent;
pub(crate) use thread_pool::{Job, MOST_SHARES, Share, ThreadPool, offered};
