//! How long frames take, for the graph and for measurements.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The window redraws so often while something moves, or is measured.
pub(crate) const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / 30);
/// Frames in the graph: ten seconds.
const SHOWN: usize = 300;
/// A longer pause is one in which nothing moved.
const PAUSE: Duration = Duration::from_secs(5);

/// Times between the beginnings of frames.
#[derive(Default)]
pub(crate) struct Frames {
    recent: VecDeque<Duration>,
    last: Option<Instant>,
    /// When the next frame is due.
    due: Option<Instant>,
    /// Every frame since a measurement began.
    measured: Option<Vec<Duration>>,
}

impl Frames {
    /// A frame begins, one of many: `moving`. Returns the time to the next one.
    pub(crate) fn begin(&mut self, now: Instant, moving: bool) -> Option<Duration> {
        if let Some(last) = self.last.filter(|_| moving) {
            let time = now.saturating_duration_since(last);
            if time < PAUSE {
                self.recent.push_back(time);
                if self.recent.len() > SHOWN {
                    self.recent.pop_front();
                }
                if let Some(measured) = &mut self.measured {
                    measured.push(time);
                }
            }
        }
        self.last = moving.then_some(now);
        // At fixed times, whatever a frame took. One that is late does not hurry those after it.
        let due = self.due.filter(|due| now < *due + PERIOD).unwrap_or(now);
        let next = if now < due { due } else { due + PERIOD };
        self.due = moving.then_some(next);
        moving.then(|| next.saturating_duration_since(now))
    }

    /// The last frames' times, oldest first.
    pub(crate) fn recent(&self) -> impl ExactSizeIterator<Item = Duration> + '_ {
        self.recent.iter().copied()
    }

    pub(crate) fn measure(&mut self) {
        self.measured = Some(Vec::new());
    }

    /// What was measured since [`measure`](Self::measure).
    pub(crate) fn measured(&mut self) -> Vec<Duration> {
        self.measured.take().unwrap_or_default()
    }
}

/// The time that this part of the frames stays within; none of no frames.
pub(crate) fn percentile(times: impl IntoIterator<Item = Duration>, part: f64) -> Option<Duration> {
    let mut times: Vec<Duration> = times.into_iter().collect();
    times.sort_unstable();
    let rank = (times.len() as f64 * part).ceil() as usize;
    times.get(rank.clamp(1, times.len().max(1)) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn percentiles_are_frames_that_were() {
        let times = || (1..=100).rev().map(|n| n * MS);
        assert_eq!(percentile(times(), 0.5), Some(50 * MS));
        assert_eq!(percentile(times(), 0.99), Some(99 * MS));
        assert_eq!(percentile(times(), 1.0), Some(100 * MS));
        assert_eq!(percentile([7 * MS], 0.0), Some(7 * MS));
        assert_eq!(percentile([], 0.5), None);
    }

    #[test]
    fn frames_are_due_at_fixed_times() {
        let (start, mut frames) = (Instant::now(), Frames::default());
        assert_eq!(frames.begin(start, true), Some(PERIOD));
        // A frame that is late by 5 ms: the next is due when it would have been.
        assert_eq!(frames.begin(start + PERIOD + 5 * MS, true), Some(PERIOD - 5 * MS));
        // Three were missed: one comes now, the next a period later.
        let late = start + 4 * PERIOD;
        assert_eq!(frames.begin(late, true), Some(PERIOD));
        // One for the mouse, between two: the next keeps its time.
        assert_eq!(frames.begin(late + 10 * MS, true), Some(PERIOD - 10 * MS));
        assert_eq!(frames.begin(late + 11 * MS, false), None);
    }

    #[test]
    fn pauses_are_no_frames() {
        let (start, mut frames) = (Instant::now(), Frames::default());
        frames.measure();
        for (ms, moving) in [(0, true), (40, true), (80, false), (9000, true), (9033, true), (20_000, true)] {
            frames.begin(start + ms * MS, moving);
        }
        assert_eq!(frames.measured(), [40 * MS, 33 * MS]);
        assert_eq!(frames.recent().len(), 2);
        assert_eq!(frames.measured(), []);
        for n in 0..1000 {
            frames.begin(start + (20_033 + 33 * n) * MS, true);
        }
        assert_eq!(frames.recent().len(), SHOWN);
    }
}
