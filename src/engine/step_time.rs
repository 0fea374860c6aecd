//! How long steps take, learned from those that were run, and how many rows a prompt's part of a step may have.

use std::time::Duration;

/// How long a step should take at most, by whom it makes wait. A step cannot be stopped: a prompt is computed in chunks, of as
/// many rows as fit into the time by what was measured. Results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// Where one request is all there is: only its cancelling waits.
    pub alone: Duration,
    /// Where the tokens or the prompts of others wait, too: a token waits for a chunk and a step that decodes, which take half
    /// as much again together, or three times as long as the latter alone if that is more.
    pub shared: Duration,
    /// Where only requests of [`Priority::Background`](super::Priority::Background) run.
    pub background: Duration,
}

/// 100 ms, which nobody notices who ends an answer; 16 ms, a frame of a screen; and half of it.
impl Default for StepTime {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self { alone: ms(100), shared: ms(16), background: ms(8) }
    }
}

/// What steps took lately: a step with a chunk of a prompt takes a while for its start, and a while for each row.
#[derive(Debug)]
pub(super) struct StepTimes {
    /// Seconds of a step that decodes.
    decode: f64,
    /// Seconds for the start of a chunk, and how many pairs of chunks have said so.
    start: f64,
    pairs: u32,
    /// Seconds for a row of a prompt, in chunks as large as they were lately.
    row: Option<f64>,
    /// The largest chunk that was measured lately, in rows.
    chunk: f64,
    /// Rows and seconds of the chunk before: two of different sizes say what the start takes.
    before: Option<[f64; 2]>,
}

/// Rows of the first chunk, whose speed is not known yet.
const FIRST: f64 = 8.0;

impl Default for StepTimes {
    fn default() -> Self {
        Self { decode: 0.0, start: 0.0, pairs: 0, row: None, chunk: FIRST / GROWTH, before: None }
    }
}

/// How much larger a chunk is than the one before, at most: one quick chunk says little about one that is many times as large.
const GROWTH: f64 = 4.0;

impl StepTimes {
    /// Starts from an executor's own predictions: for a chunk of one row, and for one of so many.
    pub(super) fn guess(&mut self, one: Duration, rows: u32, many: Duration) {
        if self.row.is_none() && rows > 1 {
            let (one, rows, many) = (one.as_secs_f64(), f64::from(rows), many.as_secs_f64());
            self.start_of([1.0, one], [rows, many]);
            self.row = Some(((many - self.start) / rows).max(LEAST));
            self.chunk = rows / GROWTH;
        }
    }

    /// Two chunks of different sizes, in rows and seconds: what is left of either without its rows is the start.
    fn start_of(&mut self, [few, short]: [f64; 2], [many, long]: [f64; 2]) {
        /// Pairs that have a say: each has twice the noise of a chunk, and the line through it is followed to no rows at all.
        const PAIRS: u32 = 10;
        if (many - few).abs() >= 1.0 + few.min(many) / 4.0 {
            let row = (long - short) / (many - few);
            let start = if row > 0.0 { (short - row * few).clamp(0.0, short.min(long)) } else { short.min(long) / 2.0 };
            self.pairs = (self.pairs + 1).min(PAIRS);
            self.start += (start - self.start) / f64::from(self.pairs);
        }
    }

    /// Some steps have finished together, after so long: steps that decode, and chunks of prompts of so many rows in all.
    pub(super) fn finished(&mut self, decodes: u32, chunks: u32, rows: u32, time: Duration) {
        /// The weight of what is new.
        const NEW: f64 = 0.3;
        let time = time.as_secs_f64();
        if chunks == 0 {
            let each = time / f64::from(decodes.max(1));
            self.decode = if self.decode == 0.0 { each } else { self.decode + NEW * (each - self.decode) };
            return;
        }
        let own = (time - f64::from(decodes) * self.decode).max(time / 4.0) / f64::from(chunks);
        let chunk = f64::from(rows.max(1)) / f64::from(chunks);
        if let Some(before) = self.before.replace([chunk, own]) {
            self.start_of(before, [chunk, own]);
        }
        let row = ((own - self.start) / chunk).max(LEAST);
        // Noise weighs on small chunks: they say only that a row takes no longer.
        if chunk >= self.chunk / 2.0 || self.row.is_none() {
            // A much larger one knows better than those before.
            let known = self.row.filter(|_| chunk < 2.0 * self.chunk).unwrap_or(row);
            (self.row, self.chunk) = (Some(known + NEW * (row - known)), chunk);
        } else if self.row.is_some_and(|known| row < known) {
            self.row = Some(row);
        } else if own > self.start + self.row.unwrap_or(row) * self.chunk {
            // As long as a large one took: the device has become slower.
            self.row = Some(own / self.chunk);
        }
    }

    /// Rows that should take no longer than this, and more where the start would be more than a third of the step: smaller chunks
    /// would be little shorter, and there would be many.
    pub(super) fn rows(&self, time: Duration) -> u32 {
        let ideal = self.row.map_or(FIRST, |row| ((time.as_secs_f64() - self.start) / row).max(2.0 * self.start / row));
        // A saturating cast.
        ideal.min(self.chunk * GROWTH).max(1.0) as u32
    }

    /// How long a step takes that decodes.
    pub(super) fn decode(&self) -> Duration {
        Duration::from_secs_f64(self.decode)
    }
}

/// Seconds of a row at least: a clock may be too coarse.
const LEAST: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of a chunk on a device with so much for the start and for a row.
    fn chunk(times: &mut StepTimes, start: f64, row: f64, target: Duration) -> (u32, Duration) {
        let rows = times.rows(target);
        let time = Duration::from_secs_f64(start + row * f64::from(rows));
        times.finished(0, 1, rows, time);
        (rows, time)
    }

    #[test]
    fn chunks_grow_to_the_time_that_they_may_take() {
        let target = Duration::from_millis(16);
        for (start, row) in [(1e-3, 1e-5), (1e-3, 1e-3), (5e-3, 1e-4), (1e-4, 2e-2)] {
            let mut times = StepTimes::default();
            let mut before = 8;
            for i in 0..20 {
                let (rows, time) = chunk(&mut times, start, row, target);
                assert!(rows <= before * 4, "{before} {rows}");
                let ideal = ((target.as_secs_f64() - start) / row).max(1.0);
                assert!(i < 12 || (f64::from(rows) - ideal).abs() <= 1.0 + 0.2 * ideal, "{rows} of {ideal}");
                assert!(i < 12 || rows == 1 || time < target + target / 10, "{time:?}");
                before = rows;
            }
            // Another one beside it for a while, and the end of a prompt, do not matter for long.
            times.finished(1, 1, 1, Duration::from_secs_f64(start + row));
            let (rows, _) = chunk(&mut times, start, row, target);
            assert!(rows * 2 > before || before < 4, "{before} {rows}");
        }
    }

    /// On a noisy machine, chunks stay near the time that they may take: what one says of the start does not decide.
    #[test]
    fn noise_makes_no_long_chunks() {
        let (mut random, mut times) = (0x2545_f491_4f6c_dd1d_u64, StepTimes::default());
        let mut took: Vec<f64> = Vec::new();
        for _ in 0..2000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // From 0.7 to 1.3 times what it takes, and in 20 cases another process runs for 20 ms.
            let noise = 0.7 + 0.6 * (random >> 40) as f64 / (1 << 24) as f64;
            let busy = if random.is_multiple_of(100) { 0.02 } else { 0.0 };
            let rows = times.rows(Duration::from_millis(16)).max(8);
            took.push((0.0035 + 0.001 * f64::from(rows)) * noise);
            times.finished(0, 1, rows, Duration::from_secs_f64(took.last().unwrap() + busy));
        }
        took.sort_by(f64::total_cmp);
        let (median, most) = (took[1000], took[1980]);
        assert!((0.012..0.018).contains(&median) && most < 0.024, "median {median}, 99 % {most}");
    }

    /// A device whose steps take long whatever is in them, as a driver's that emulates a GPU.
    #[test]
    fn chunks_do_not_shrink_where_the_start_is_most() {
        let mut times = StepTimes::default();
        let mut left = 200;
        let mut chunks = 0;
        while left > 0 {
            let rows = times.rows(Duration::from_millis(100)).min(left);
            times.finished(0, 1, rows, Duration::from_secs_f64(5.0 + 0.5 * f64::from(rows)));
            left -= rows;
            chunks += 1;
        }
        assert!(chunks < 16, "{chunks}");
        assert!((19..=21).contains(&times.rows(Duration::from_millis(100))), "{times:?}");
    }

    #[test]
    fn a_prediction_is_where_it_starts() {
        let mut times = StepTimes::default();
        assert_eq!(times.rows(Duration::from_secs(1)), 8);
        times.guess(Duration::from_millis(1), 512, Duration::from_millis(512));
        assert_eq!(times.rows(Duration::from_millis(16)), 16);
        assert_eq!(times.rows(Duration::from_secs(9)), 512);
        times.finished(3, 0, 0, Duration::from_millis(30));
        assert_eq!(times.decode(), Duration::from_millis(10));
        let mut times = StepTimes::default();
        times.guess(Duration::from_millis(900), 16, Duration::from_millis(1050));
        assert_eq!(times.rows(Duration::from_millis(16)), 16, "what the executor takes");
    }
}
