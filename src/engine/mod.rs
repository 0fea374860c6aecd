//! The engine: requests in, tokens out. It decides what each step holds; an [`Executor`](crate::exec::Executor) runs it.

mod embed;
#[allow(clippy::module_inception, reason = "one word for the type, its file and its folder")]
mod engine;
#[cfg(test)]
pub(crate) mod fake;
mod queue;
mod request;
mod scheduler;
mod score;
mod sequence;
mod step_time;
#[cfg(test)]
mod tests;

pub use embed::{EmbedOptions, Embedder, Input};
internal!(use embed::embed);
pub use crate::kv::{BlockCounts, KvCounts};
pub use engine::Engine;
pub use queue::Priority;
pub use request::{Event, Finish, Request, RequestId, SeqId, Timings, Usage};
pub use score::{LogProbs, score, score_from};
pub use step_time::StepTime;
