//! The serving loop: many callers, one engine.
//!
//! A [`Driver`] owns an engine and runs it; natively on a thread of its own, in a page wherever the page calls
//! [`Driver::turn`]. Any number of [`Handle`]s, in any threads and tasks, give it requests and get a [`Generation`] for each: a
//! stream of events that can be awaited, iterated or polled. Dropping it ends the request. No async runtime is needed, and any
//! works.

#[cfg(not(target_arch = "wasm32"))]
mod block_on;
#[allow(clippy::module_inception, reason = "one word for the type, its file and its folder")]
mod driver;
mod generation;
#[cfg(all(test, feature = "tiny"))]
mod gpu_tests;
mod handle;
mod metrics;
#[cfg(all(test, feature = "tiny"))]
mod tests;

#[cfg(not(target_arch = "wasm32"))]
pub use block_on::block_on;
pub use driver::{Driver, Next, ReopenFn, ReopenFuture};
pub use generation::{Answer, Canceller, Generation, GenerationEvent};
pub use handle::{GenerateRequest, Handle, ServeOptions};
pub use metrics::{Histogram, Metrics};
