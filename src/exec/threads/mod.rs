//! How many threads suit a model on this machine, found by timing its own matmuls when an executor is made.
//!
//! What the system offers is an upper bound. Decode rows wait for memory, whose bandwidth a few cores may use up. Two
//! threads of one core help less than two cores. And a thread that another process keeps from running holds up all others
//! at the end of its share. What is found at the start may be wrong soon, so [`ThreadChoice`] goes on comparing.

mod choice;
mod probe;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use web_time::Instant;

use crate::cpu::{Job, Share, ThreadPool, offered};
use crate::ops::{CpuWeights, PerPhase, Phase};
use crate::quant::Simd;
use choice::ThreadChoice;
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
const BUDGET: Duration = Duration::from_millis(12);
/// How often each count is timed, each time on other weights.
const ROUNDS: usize = 5;
/// How long threads may take until they run side by side: a system moves new ones to idle cores only after some time.
const ABREAST: Duration = Duration::from_millis(8);

/// The threads of an executor: how many work at the rows of each phase.
pub(super) struct Threads {
    pool: Arc<ThreadPool>,
    /// What was asked for, or what the system offers.
    wanted: usize,
    /// Of these, as many as there are cores.
    most: usize,
    choices: PerPhase<ThreadChoice>,
}

impl Threads {
    /// At most so many threads, and no more than there are cores; none: as many as suit the model.
    pub(super) fn new(threads: Option<usize>, weights: &CpuWeights, int8: Option<Simd>) -> Self {
        let cores = offered();
        let wanted = threads.unwrap_or(cores).max(1);
        let most = wanted.min(cores);
        let pool = ThreadPool::shared(most);
        let most = most.min(pool.count());
        let counts: Vec<usize> = counts(most).collect();
        let chosen = if threads.is_some() { [counts.len() - 1; 2] } else { measured(&pool, &counts, weights, int8) };
        let mut chosen = chosen.into_iter();
        let choices = PerPhase::by(|_| ThreadChoice::new(counts.clone(), chosen.next().unwrap_or(0)));
        Self { pool, wanted, most, choices }
    }

    /// The pool, and the threads that the next step of a phase has.
    pub(super) fn of(&self, phase: Phase) -> (&ThreadPool, usize) {
        (&self.pool, self.choices[phase].next())
    }

    /// A step of a phase took so long for some predicted seconds of work.
    pub(super) fn note(&mut self, phase: Phase, took: Duration, work: f64) {
        self.choices[phase].note(took, work);
    }

    /// The threads that are chosen for a phase.
    pub(super) fn count(&self, phase: Phase) -> usize {
        self.choices[phase].chosen()
    }

    /// Threads that work is divided for, whether or not there are as many.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Threads of any step at most.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Whether it matters how long steps of a phase take.
    pub(super) fn learns(&self, phase: Phase) -> bool {
        self.choices[phase].learns()
    }
}

/// Which of the counts suit prefill and decode rows of a model. Takes some 30 ms.
fn measured(pool: &ThreadPool, counts: &[usize], weights: &CpuWeights, int8: Option<Simd>) -> [usize; 2] {
    let most = counts.len() - 1;
    let bytes: usize = weights.matrices.iter().map(|matrix| matrix.view().bytes()).sum();
    if most == 0 || bytes < TINY {
        return [most.min(1); 2];
    }
    // Without the memory to measure with, there may still be enough for the model.
    let probe = Probe::new(weights, int8, ROWS, counts[most]).ok();
    let Some(probe) = probe.filter(|probe| probe.touch(TOUCH)) else {
        return [counts.iter().rposition(|count| *count <= UNKNOWN).unwrap_or(0); 2];
    };
    [ROWS, 1].map(|rows| {
        let bytes = calibrated(|bytes| probe.time(pool, 1, rows, 0..probe.offset(0, bytes)));
        let mut first = 0;
        let windows = [(); ROUNDS].map(|()| {
            let window = first..probe.offset(first, bytes);
            first = window.end;
            window
        });
        fastest(counts.len(), |i, round| {
            abreast(pool, counts[i]);
            // The windows rotate, so that no count finds its weights where the last one left them in a cache.
            probe.time(pool, counts[i], rows, windows[(i + round) % ROUNDS].clone())
        })
    })
}

/// Waits until so many threads run at the same time, or [`ABREAST`] has passed.
fn abreast(pool: &ThreadPool, threads: usize) {
    let (started, met) = (Instant::now(), AtomicUsize::new(0));
    let mut in_a_row = 0;
    while in_a_row < 3 && started.elapsed() < ABREAST {
        met.store(0, Ordering::Relaxed);
        let work = |_: usize, _: &Share| {
            met.fetch_add(1, Ordering::Relaxed);
            let arrived = Instant::now();
            while met.load(Ordering::Relaxed) < threads && arrived.elapsed() < Duration::from_micros(200) {
                std::hint::spin_loop();
            }
        };
        let begun = Instant::now();
        pool.run(threads, &Job { regions: 1, shares: &|_, _| threads, work: &work });
        in_a_row = if begun.elapsed() < Duration::from_micros(50) { in_a_row + 1 } else { 0 };
    }
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
        assert_eq!(chosen(&[&[700, 380, 210, 300]]), (2, 20));
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
        assert_eq!(chosen(&[&[9000, 2600, 2500], &[1, 1, 1]]), (1, 3));
    }
}
