//! What a driver has done, in numbers. The names are those of vLLM's metrics, without their prefix.

use std::time::Duration;

use crate::engine::{BlockCounts, Finish, Timings, Usage};

/// How often values up to some bounds were seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds of the buckets, in seconds, each larger than the one before.
    pub bounds: &'static [f64],
    /// Values in each bucket, and beyond the last.
    pub counts: Vec<u64>,
    /// The sum of all values, in seconds.
    pub sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Adds a value.
    pub fn add(&mut self, value: Duration) {
        let value = value.as_secs_f64();
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// An upper bound, in seconds, of this part of all values, from 0 to 1: that of the bucket where it ends.
    pub fn quantile(&self, part: f64) -> f64 {
        let wanted = (part * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        for (count, bound) in self.counts.iter().zip(self.bounds.iter().chain([&f64::INFINITY])) {
            seen += count;
            if seen >= wanted.max(1) {
                return *bound;
            }
        }
        0.0
    }
}

/// Seconds to a first token.
const FIRST: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Seconds between tokens.
const BETWEEN: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.016, 0.025, 0.033, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0,
    7.5, 10.0, 20.0, 40.0, 80.0,
];
/// Seconds of a request.
const WHOLE: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];

/// What a driver has done and does.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// Requests that run.
    pub num_requests_running: usize,
    /// Requests that wait.
    pub num_requests_waiting: usize,
    /// The part of the KV cache's blocks that running requests hold, in the fullest group.
    pub kv_cache_usage: f64,
    /// The KV cache's blocks by what becomes of them, for each cache group.
    pub kv_cache_blocks: Vec<BlockCounts>,
    /// Checkpoints of the states of recurrent layers that are kept.
    pub kv_cache_checkpoints: u32,
    /// Tokens of prompts that were looked for in the cache.
    pub prefix_cache_queries: u64,
    /// Tokens of prompts that were found there.
    pub prefix_cache_hits: u64,
    /// Blocks and states in the cache that were forgotten for others.
    pub cache_evictions: u64,
    /// How often a running request had to give its place to another.
    pub num_preemptions: u64,
    /// Tokens of prompts of requests that have ended.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub generation_tokens: u64,
    /// Requests that ended by a stop token or a stop text.
    pub finished_stop: u64,
    /// Requests that ended by their own length, the context or their deadline.
    pub finished_length: u64,
    /// Requests that were cancelled.
    pub finished_abort: u64,
    /// Requests that ended with an error.
    pub finished_error: u64,
    /// Requests that were refused since too many waited.
    pub requests_refused: u64,
    /// How often the device was lost.
    pub devices_lost: u64,
    /// Steps that the engine has come to the end of: while requests run, they say that it does not hang.
    pub steps: u64,
    /// Seconds from a request to its first token.
    pub time_to_first_token: Histogram,
    /// Seconds from a token to the next one of the same request.
    pub inter_token_latency: Histogram,
    /// Seconds from a request to its end.
    pub e2e_request_latency: Histogram,
    /// Seconds until a request first ran.
    pub request_queue_time: Histogram,
    /// Seconds from there to its first token.
    pub request_prefill_time: Histogram,
    /// Seconds from there to its end.
    pub request_decode_time: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            num_requests_running: 0,
            num_requests_waiting: 0,
            kv_cache_checkpoints: 0,
            kv_cache_usage: 0.0,
            kv_cache_blocks: Vec::new(),
            prefix_cache_queries: 0,
            prefix_cache_hits: 0,
            cache_evictions: 0,
            num_preemptions: 0,
            prompt_tokens: 0,
            generation_tokens: 0,
            finished_stop: 0,
            finished_length: 0,
            finished_abort: 0,
            finished_error: 0,
            requests_refused: 0,
            devices_lost: 0,
            steps: 0,
            time_to_first_token: Histogram::new(FIRST),
            inter_token_latency: Histogram::new(BETWEEN),
            e2e_request_latency: Histogram::new(WHOLE),
            request_queue_time: Histogram::new(WHOLE),
            request_prefill_time: Histogram::new(WHOLE),
            request_decode_time: Histogram::new(WHOLE),
        }
    }
}

impl Metrics {
    /// A request has ended.
    pub(super) fn finished(&mut self, reason: &Finish, usage: Usage, timings: Timings) {
        self.prompt_tokens += u64::from(usage.prompt);
        match reason {
            Finish::Stop(_) | Finish::StopString(_) => self.finished_stop += 1,
            Finish::Length | Finish::Context | Finish::Deadline => self.finished_length += 1,
            Finish::Cancelled => self.finished_abort += 1,
            Finish::Error(_) => self.finished_error += 1,
        }
        self.e2e_request_latency.add(timings.queued + timings.prefill + timings.decode);
        self.request_queue_time.add(timings.queued);
        self.request_prefill_time.add(timings.prefill);
        self.request_decode_time.add(timings.decode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        let mut histogram = Histogram::new(&[0.1, 0.2, 0.4]);
        assert_eq!(histogram.quantile(0.5), 0.0);
        [10, 100, 101, 150, 300, 9000].into_iter().for_each(|ms| histogram.add(Duration::from_millis(ms)));
        assert_eq!(histogram.counts, [2, 2, 1, 1]);
        assert_eq!([0.0, 0.3, 0.5, 0.8, 1.0].map(|part| histogram.quantile(part)), [0.1, 0.1, 0.2, 0.4, f64::INFINITY]);
        assert!((histogram.sum - 9.661).abs() < 1e-9);
    }
}
