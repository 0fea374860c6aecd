//! Executors: what runs a program's steps. One trait, two kinds: the GPU and the CPU.

mod cache_size;
mod cpu;
mod gpu;
mod open;
mod oracle;
mod packed;
mod profile;
mod self_test;
pub mod single;
mod step;
mod threads;

pub use crate::ops::{PerPhase, Phase};
pub use cache_size::{CacheSize, SmallerCache};
pub use cpu::{CpuExecutor, CpuOptions};
pub use gpu::{GpuExecutor, GpuOptions};
pub use open::{AnyExecutor, DeviceChoice, Options, Progress, ProgressFn};
internal!(use oracle::Oracle);
internal!(use packed::{Batch, Packed});
pub use profile::Timing;
pub use self_test::SelfTestResults;
internal!(use self_test::self_test);
pub use step::{Outs, Sampled, SeqStep, Step, StepOut, Ticket, Token};

use std::time::Duration;

use crate::Result;
use crate::file::CountFn;
use crate::ops::{GroupId, KvStorage, Rows};

/// How exact the arithmetic is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// f32 everywhere outside the weights.
    Exact,
    /// The KV cache in f16; on the CPU, activations in 8 bits where a block format has an integer dot product.
    #[default]
    Fast,
}

impl Numerics {
    /// How keys and values are stored by default.
    pub fn kv(self) -> KvStorage {
        match self {
            Self::Exact => KvStorage::F32,
            Self::Fast => KvStorage::F16,
        }
    }
}

/// What an executor has capacity for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows of one phase in a step.
    pub rows: u32,
    /// Sequences in a step, and slots.
    pub seqs: u32,
    /// Output rows of one phase in a step.
    pub outs: u32,
    /// Positions in a block of the KV cache.
    pub block: u32,
    /// Blocks in each cache group that sees everything; [`blocks_of`](Self::blocks_of) has those of the others.
    pub blocks: u32,
    /// Positions in a sequence.
    pub context: u32,
    /// Steps that may be in flight at once; `enqueue` refuses more.
    pub in_flight: u32,
    /// States that are kept beside those of the slots, for programs with recurrent layers.
    pub checkpoints: u32,
}

/// Element `i` of a cache of seeded random numbers, from -1 to 1 in steps that f16 has, too.
fn seeded(seed: u64, cache: u64, i: usize) -> f32 {
    // SplitMix64 (Steele et al. 2014).
    let mix = |x: u64| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let bits = mix(mix(seed ^ cache.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(i as u64));
    (bits >> 53) as f32 / 1024.0 - 1.0
}

impl Limits {
    /// Blocks of a windowed group that a sequence keeps before its window, to go back a little.
    pub(crate) const MORE_BLOCKS: u32 = 4;

    /// Blocks in a cache group whose layers see so many positions, or all: what as many sequences as there are slots need
    /// within a window, the rows of a step, and as many windows again that are kept to be found, or one for each context that
    /// fits into groups that see everything. Never more than those have.
    pub fn blocks_of(&self, window: Option<u32>) -> u32 {
        let Some(window) = window else { return self.blocks };
        // A window begins and ends within blocks.
        let window = window.div_ceil(self.block).saturating_add(1);
        let running = self.seqs.saturating_mul(window.saturating_add(Self::MORE_BLOCKS + 1));
        let contexts = self.blocks / self.context.div_ceil(self.block).max(1);
        let kept = self.seqs.max(contexts).saturating_mul(window);
        running.saturating_add(kept).saturating_add(self.rows.div_ceil(self.block)).min(self.blocks)
    }

    /// How many rows a value has capacity for, by what its rows stand for.
    pub(crate) fn rows_of(&self, rows: Rows) -> u32 {
        match rows {
            Rows::Step => self.rows,
            Rows::Outs => self.outs,
            Rows::Seqs => self.seqs,
        }
    }
}

/// Changes to the KV cache between steps, in order with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheOp {
    /// Copies a block of every cache of a group.
    Copy {
        /// The group.
        group: GroupId,
        /// The block that is read.
        from: u32,
        /// The block that is overwritten.
        to: u32,
    },
    /// Fills a block of every cache of a group with zeros.
    Zero {
        /// The group.
        group: GroupId,
        /// The block.
        block: u32,
    },
    /// Copies a state of every recurrent layer: to a checkpoint, back from one, or for a fork. The first `Limits::seqs`
    /// states are those of the slots; the checkpoints follow.
    CopyState {
        /// The state that is read.
        from: u32,
        /// The state that is overwritten.
        to: u32,
    },
}

/// Runs the steps of one program.
///
/// Nothing here blocks but [`wait`](Executor::wait), which a browser awaits: a step is enqueued, and a later
/// [`poll`](Executor::poll) delivers its result. Steps finish in the order in which they were enqueued. Short ones may be
/// submitted to the device together, when there are enough of them or at the next `poll` or `wait`: so enqueue all that is
/// known before calling those.
#[allow(async_fn_in_trait, reason = "futures are driven on the thread that owns the executor: none needs Send")]
pub trait Executor {
    /// What there is capacity for.
    fn limits(&self) -> Limits;

    /// How many steps should be in flight at once, judging by those that are and by how long they took. That is enough to
    /// keep the device busy while the host reads results, and no more, since what is in flight cannot be stopped. At most
    /// `Limits::in_flight`.
    fn target_in_flight(&self) -> u32 {
        self.limits().in_flight
    }

    /// How long a step should take that has so many rows of one sequence, from a position on, as far as the executor knows
    /// before it has run any. Whoever runs steps also measures them.
    fn predict(&self, _phase: Phase, _rows: u32, _pos: u32) -> Option<Duration> {
        None
    }

    /// The device's name for people: `cpu, 2 threads`, or an adapter's name and driver.
    fn device(&self) -> String;

    /// Makes everything that steps of a phase need (pipelines, bind groups), reporting to `progress` how much of it is
    /// done.
    async fn plan(&mut self, phase: Phase, progress: &mut CountFn<'_>) -> Result<()>;

    /// Starts a step. Fails, with nothing changed, if the step does not fit or too many are in flight.
    fn enqueue(&mut self, step: &Step<'_>) -> Result<Ticket>;

    /// Changes the cache, after the steps enqueued so far and before those that follow.
    fn cache(&mut self, ops: &[CacheOp]) -> Result<()>;

    /// Passes every step that has finished since the last call to `done`, and returns their number.
    fn poll(&mut self, done: &mut dyn FnMut(Ticket, Result<&StepOut>)) -> usize;

    /// Waits until a step has finished, if one is in flight.
    async fn wait(&mut self) -> Result<()>;

    /// Frees what it can of a device that is lost: nothing runs here any more, and another executor is about to be opened.
    fn release(&mut self) {}

    /// How often [`wait`](Executor::wait) waited for the only step in flight, so that the device idled while the host read
    /// its results. Decoding that feeds sampled tokens back on the device keeps another step queued.
    fn blocked(&self) -> u64;
}
