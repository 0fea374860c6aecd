//! How many threads suit a model on this machine, found by timing its own matmuls when an executor is made.
//!
//! What the system offers is an upper bound. Decode rows wait for memory, whose bandwidth a few cores may use up. Two
//! threads of one core help less than two cores. And a thread that another process keeps from running holds up all others
//! at the next barrier.

mod probe;

use std::time::Duration;

use crate::cpu::ThreadPool;
use crate::ops::{CpuWeights, Phase};
use crate::quant::Simd;
use probe::Probe;

/// Models with fewer bytes of weights run on two threads at most: their steps take no longer than finding out would.
const TINY: usize = 1 << 20;
/// Rows of a prompt that are timed.
const ROWS: usize = 16;
/// How long one thread works on what is timed.
const RUN: Duration = Duration::from_micros(700);
/// How long reading the weights beforehand may take; a file that must come from a disk takes longer.
const TOUCH: Duration = Duration::from_millis(20);
/// Threads at most where nothing could be timed.
const UNKNOWN: usize = 8;
/// What all timings of a phase may take; each count is timed once in any case.
const BUDGET: Duration = Duration::from_millis(6);
/// How often each count is timed, each time on other weights.
const ROUNDS: usize = 3;

/// A thread pool for the rows of each phase.
pub(super) struct ThreadPools {
    prefill: ThreadPool,
    /// None: the prefill pool.
    decode: Option<ThreadPool>,
}

impl ThreadPools {
    /// Pools of so many threads each; none: as many as suit the model.
    pub(super) fn new(threads: Option<usize>, weights: &CpuWeights, int8: Option<Simd>) -> Self {
        let [prefill, decode] = threads.map_or_else(|| measured(weights, int8), |n| [n; 2]);
        let prefill = ThreadPool::new(prefill);
        Self { decode: (decode != prefill.count()).then(|| ThreadPool::new(decode)), prefill }
    }

    pub(super) fn of(&mut self, phase: Phase) -> &mut ThreadPool {
        match (phase, &mut self.decode) {
            (Phase::Decode, Some(thread_pool)) => thread_pool,
            _ => &mut self.prefill,
        }
    }

    /// Threads of a phase's pool.
    pub(super) fn count(&self, phase: Phase) -> usize {
        match (phase, &self.decode) {
            (Phase::Decode, Some(thread_pool)) => thread_pool.count(),
            _ => self.prefill.count(),
        }
    }

    /// Threads of the larger pool.
    pub(super) fn most(&self) -> usize {
        Phase::ALL.map(|phase| self.count(phase)).into_iter().fold(1, usize::max)
    }
}

/// How many threads to use for prefill and for decode rows of a model. Takes some 15 ms.
fn measured(weights: &CpuWeights, int8: Option<Simd>) -> [usize; 2] {
    if cfg!(target_arch = "wasm32") {
        return [1; 2];
    }
    let offered = std::thread::available_parallelism().map_or(1, usize::from);
    let bytes: usize = weights.matrices.iter().map(|matrix| matrix.view().bytes()).sum();
    if offered == 1 || bytes < TINY {
        return [offered.min(2); 2];
    }
    let mut thread_pools: Vec<ThreadPool> = counts(offered).map(ThreadPool::new).collect();
    // Without the memory to measure with, there may still be enough for the model.
    let Some(probe) = Probe::new(weights, int8, ROWS, offered).ok().filter(|probe| probe.touch(TOUCH)) else {
        return [offered.min(UNKNOWN); 2];
    };
    [ROWS, 1].map(|rows| {
        let bytes = calibrated(|bytes| probe.time(&mut thread_pools[0], rows, 0..probe.offset(0, bytes)));
        let mut first = 0;
        let windows = [(); ROUNDS].map(|()| {
            let window = first..probe.offset(first, bytes);
            first = window.end;
            window
        });
        let chosen = fastest(thread_pools.len(), |i, round| {
            // Threads of the last pool spin for a while before they sleep; those of this one must be awake.
            std::thread::sleep(Duration::from_micros(100));
            thread_pools[i].run(&|_| {});
            // The windows rotate, so that no pool finds its weights where the last one left them in a cache.
            probe.time(&mut thread_pools[i], rows, windows[(i + round) % ROUNDS].clone())
        });
        thread_pools[chosen].count()
    })
}

/// Bytes of weights at which one thread works for about [`RUN`].
fn calibrated(mut time: impl FnMut(usize) -> Duration) -> usize {
    const MOST: usize = 16 << 20;
    let mut bytes = 128 << 10;
    time(bytes); // the first time everything is cold
    while bytes < MOST && 2 * time(bytes) < RUN {
        bytes *= 2;
    }
    bytes
}

/// The counts to be timed: powers of two, half of the largest (cores may have two threads each), the largest.
fn counts(most: usize) -> impl Iterator<Item = usize> {
    (1..=most).filter(move |n| n.is_power_of_two() || *n == most || 2 * *n == most)
}

/// The index of the smallest time, each the best of a few interleaved rounds; of those that are about equal, the first.
fn fastest(count: usize, mut time: impl FnMut(usize, usize) -> Duration) -> usize {
    let mut best = vec![Duration::MAX; count];
    let mut spent = Duration::ZERO;
    for round in 0..ROUNDS {
        for (i, best) in best.iter_mut().enumerate() {
            let took = time(i, round);
            *best = took.min(*best);
            spent += took;
        }
        if spent > BUDGET {
            break;
        }
    }
    let least = best.iter().min().map_or(Duration::ZERO, |least| *least + *least / 20);
    best.iter().position(|time| *time <= least).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of some counts is chosen, given their microseconds in each round, and how many times were asked for.
    fn chosen(rounds: &[&[u64]]) -> (usize, usize) {
        let mut asked = 0;
        let chosen = fastest(rounds[0].len(), |i, round| {
            asked += 1;
            Duration::from_micros(rounds[round.min(rounds.len() - 1)][i])
        });
        (chosen, asked)
    }

    #[test]
    fn counts_are_powers_of_two_half_and_all() {
        let of = |most| counts(most).collect::<Vec<_>>();
        assert_eq!(of(1), [1]);
        assert_eq!(of(2), [1, 2]);
        assert_eq!(of(8), [1, 2, 4, 8]);
        assert_eq!(of(12), [1, 2, 4, 6, 8, 12]);
        assert_eq!(of(9), [1, 2, 4, 8, 9]);
    }

    #[test]
    fn the_fastest_count_is_chosen_and_of_equals_the_smallest() {
        assert_eq!(chosen(&[&[700, 380, 210, 300]]), (2, 12));
        assert_eq!(chosen(&[&[700, 900]]).0, 0);
        assert_eq!(chosen(&[&[700, 380, 370]]).0, 1, "380 is within a twentieth of 370");
        assert_eq!(
            chosen(&[&[700, 9000, 210], &[700, 380, 9000], &[700, 9000, 9000]]).0,
            2,
            "each count's best round counts"
        );
    }

    #[test]
    fn slow_timings_are_not_repeated() {
        assert_eq!(chosen(&[&[5000, 2600, 2500], &[1, 1, 1]]), (1, 3));
    }
}
