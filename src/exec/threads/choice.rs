//! How many threads a phase's steps use from now on: what proves to be fastest while they run.
//!
//! Nobody says how busy a machine will be. So now and then a few steps are run with another number of threads, as a trial: soon
//! after a start and when steps get slow, ever more rarely while nothing changes. Speeds are compared by predicted work, since
//! steps differ in length. A step of a long prompt takes seconds, and a trial is a whole step at least: trials have a small
//! share of the time, however long steps are. Results depend on none of it.

use std::time::Duration;

/// How long a trial lasts, and how far back it is compared: several times what a system lets another process run.
const TRIAL: Duration = Duration::from_millis(12);
/// Steps of a trial at most, and at least one.
const TRIAL_STEPS: u32 = 16;
/// Time in steps before the first trial, and after one that changed the number.
const SOON: Duration = Duration::from_millis(250);
/// Time in steps between trials at most.
const RARELY: Duration = Duration::from_secs(8);
/// Time in steps before a trial, at least, by the time that it will take.
const SPARINGLY: u32 = 16;
/// A trial must take this share of the time to be believed.
const BETTER: f64 = 0.93;
/// Steps are slow when they take so many times as long as usual.
const SLOW: f64 = 1.3;
/// Over how long the usual speed is averaged.
const USUAL: Duration = Duration::from_millis(1500);

/// The number of threads of a phase.
pub(super) struct ThreadChoice {
    /// What can be chosen, rising.
    counts: Vec<usize>,
    /// The chosen one.
    at: usize,
    /// Seconds for a second of predicted work, of late and as a rule; 0: not known.
    recent: f64,
    usual: f64,
    /// Time in steps since the last trial, and when the next is due.
    since: Duration,
    due: Duration,
    /// The last trial tried fewer.
    tried_fewer: bool,
    trial: Option<Trial>,
}

/// Steps with another number of threads.
struct Trial {
    at: usize,
    steps: u32,
    took: Duration,
    work: f64,
}

impl ThreadChoice {
    /// Of the counts, the one at `at` is the choice so far.
    pub(super) fn new(counts: Vec<usize>, at: usize) -> Self {
        Self { counts, at, recent: 0.0, usual: 0.0, since: Duration::ZERO, due: SOON, tried_fewer: false, trial: None }
    }

    /// The chosen number of threads.
    pub(super) fn chosen(&self) -> usize {
        self.counts[self.at]
    }

    /// Threads of the next step.
    pub(super) fn next(&self) -> usize {
        self.counts[self.trial.as_ref().map_or(self.at, |trial| trial.at)]
    }

    /// Whether there is a choice.
    pub(super) fn learns(&self) -> bool {
        self.counts.len() > 1
    }

    /// A step with [`next`](Self::next) threads took so long for some predicted seconds of work.
    pub(super) fn note(&mut self, took: Duration, work: f64) {
        if !self.learns() || work <= 0.0 {
            return;
        }
        let Some(trial) = &mut self.trial else {
            return self.usual_step(took, work);
        };
        trial.steps += 1;
        trial.took += took;
        trial.work += work;
        if trial.took < TRIAL && trial.steps < TRIAL_STEPS {
            return;
        }
        let (at, speed) = (trial.at, trial.took.as_secs_f64() / trial.work);
        if speed < BETTER * self.recent {
            (self.at, self.recent, self.usual, self.due) = (at, speed, speed, SOON);
        } else {
            self.due = (self.due * 2).min(RARELY);
        }
        (self.trial, self.since) = (None, Duration::ZERO);
    }

    fn usual_step(&mut self, took: Duration, work: f64) {
        let speed = took.as_secs_f64() / work;
        let averaged = |average: f64, over: Duration| {
            let by = if average == 0.0 { 1.0 } else { (took.as_secs_f64() / over.as_secs_f64()).min(1.0) };
            average + by * (speed - average)
        };
        (self.recent, self.usual) = (averaged(self.recent, TRIAL), averaged(self.usual, USUAL));
        self.since += took;
        let slow = self.recent > SLOW * self.usual && self.since >= 2 * TRIAL;
        if slow {
            // What is slow from now on is slower than this.
            (self.usual, self.due, self.tried_fewer) = (self.recent, SOON, false);
        }
        let fewer = self.at.checked_sub(1);
        let more = Some(self.at + 1).filter(|&at| at < self.counts.len());
        let Some(at) = (if self.tried_fewer { more.or(fewer) } else { fewer.or(more) }) else { return };
        // As long as a step like this one, on as many threads, at worst.
        let slower = (self.counts[self.at] as f64 / self.counts[at] as f64).max(1.0);
        let cost = took.mul_f64(slower).max(TRIAL);
        if slow || self.since >= self.due.max(cost * SPARINGLY) {
            self.tried_fewer = Some(at) == fewer;
            self.trial = Some(Trial { at, steps: 0, took: Duration::ZERO, work: 0.0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs steps of `ms` milliseconds of predicted work, as long as `time` says for so many threads, for some seconds.
    fn run(choice: &mut ThreadChoice, ms: f64, seconds: f64, mut time: impl FnMut(usize) -> f64) -> f64 {
        let mut passed = 0.0;
        let mut steps = 0.0;
        while passed < seconds {
            let took = ms / 1e3 * time(choice.next());
            choice.note(Duration::from_secs_f64(took), ms / 1e3);
            passed += took;
            steps += 1.0;
        }
        steps * ms / 1e3 / passed
    }

    #[test]
    fn threads_that_get_slow_are_given_up_and_tried_again_when_they_are_not() {
        for ms in [0.2, 3.0, 40.0] {
            let mut choice = ThreadChoice::new(vec![1, 2], 1);
            let quiet = |n| if n == 1 { 1.0 } else { 0.55 };
            let busy = |n| if n == 1 { 1.0 } else { 2.5 };
            assert!(run(&mut choice, ms, 2.0, quiet) > 0.93 / 0.55, "{ms} ms");
            assert_eq!(choice.chosen(), 2);
            let speed = run(&mut choice, ms, 2.0, busy);
            assert!(speed > 0.85, "{ms} ms beside a neighbour: {speed}");
            assert_eq!(choice.chosen(), 1);
            run(&mut choice, ms, 10.0, quiet);
            assert_eq!(choice.chosen(), 2);
            assert!(run(&mut choice, ms, 5.0, quiet) > 0.95 / 0.55);
        }
    }

    #[test]
    fn a_wrong_choice_at_the_start_is_corrected() {
        let mut choice = ThreadChoice::new(vec![1, 2, 4, 8], 0);
        let best_is_four = |n| [0.0, 1.0, 0.6, 0.0, 0.4, 0.0, 0.0, 0.0, 0.5][n];
        run(&mut choice, 2.0, 4.0, best_is_four);
        assert_eq!(choice.chosen(), 4);
        let mut choice = ThreadChoice::new(vec![1, 2, 4, 8], 3);
        run(&mut choice, 2.0, 4.0, best_is_four);
        assert_eq!(choice.chosen(), 4);
    }

    /// A step of a long prompt, which a trial takes at least one of, may take seconds.
    #[test]
    fn trials_of_long_steps_are_rare() {
        for ms in [100.0, 1000.0, 8000.0] {
            let mut choice = ThreadChoice::new(vec![1, 2, 4], 2);
            let mut alone = 0;
            let mut steps = 0;
            run(&mut choice, ms, ms / 10.0, |n| {
                (steps, alone) = (steps + 1, alone + u32::from(n < 4));
                1.0 / n as f64
            });
            assert_eq!(choice.chosen(), 4);
            assert!(steps > 300 && alone * 20 < steps, "{alone} of {steps} steps of {ms} ms");
        }
    }

    /// Noise of a third, the same for either number, moves nothing for long and costs little.
    #[test]
    fn noise_costs_little() {
        let mut choice = ThreadChoice::new(vec![1, 2], 1);
        let mut seed = 1u32;
        let speed = run(&mut choice, 1.5, 30.0, |n| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = 1.0 + f64::from(seed >> 8) / f64::from(1 << 24) / 3.0;
            noise * if n == 1 { 1.0 } else { 0.6 }
        });
        assert!(speed > 0.93 / 0.6 / (1.0 + 1.0 / 6.0), "{speed}");
    }

    #[test]
    fn one_count_is_never_tried() {
        let mut choice = ThreadChoice::new(vec![3], 0);
        run(&mut choice, 1.0, 2.0, |_| 1.0);
        assert_eq!((choice.next(), choice.chosen()), (3, 3));
    }
}
