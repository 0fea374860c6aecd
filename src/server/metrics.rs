//! `/metrics`: what the driver counts, as Prometheus reads it, by vLLM's names.

use std::fmt::Write;

use super::app::App;
use crate::driver::{Histogram, Metrics};
use crate::engine::BlockCounts;

/// All metrics, of all models that are open.
pub(super) fn text(app: &App) -> String {
    let loaded = app.loaded();
    let of = |(model, _): &(std::sync::Arc<super::app::Loaded>, _)| {
        Some((escaped(model.name()), model.language().ok()?.model.handle().metrics()))
    };
    let mut out = Out { text: String::new(), models: loaded.iter().filter_map(of).collect() };
    if out.models.is_empty() {
        return out.text;
    }
    out.gauge("num_requests_running", "Requests that run.", |m| m.num_requests_running as f64);
    out.gauge("num_requests_waiting", "Requests that wait.", |m| m.num_requests_waiting as f64);
    out.gauge("kv_cache_usage_perc", "The part of the KV cache that requests hold; 1 is all.", |m| m.kv_cache_usage);
    out.head("kv_cache_blocks", "Blocks of the KV cache: free, in use, or kept to be found again.", "gauge");
    for (state, count) in BLOCKS {
        for group in 0..out.models.iter().map(|(_, metrics)| metrics.kv_cache_blocks.len()).max().unwrap_or(0) {
            let labels = format!(",group=\"{group}\",state=\"{state}\"");
            out.lines("kv_cache_blocks", &labels, |m| {
                m.kv_cache_blocks.get(group).map_or(0.0, |b| f64::from(count(b)))
            });
        }
    }
    out.gauge("kv_cache_checkpoints", "Checkpoints of recurrent states that are kept.", |m| {
        f64::from(m.kv_cache_checkpoints)
    });
    out.counter("prefix_cache_queries", "Tokens of prompts that were looked for.", |m| m.prefix_cache_queries);
    out.counter("prefix_cache_hits", "Tokens of prompts that were found.", |m| m.prefix_cache_hits);
    out.counter("cache_evictions", "Blocks of the cache that were forgotten for others.", |m| m.cache_evictions);
    out.counter("num_preemptions", "How often a request gave its place to another.", |m| m.num_preemptions);
    out.counter("prompt_tokens", "Tokens of prompts of requests that have ended.", |m| m.prompt_tokens);
    out.counter("generation_tokens", "Tokens that were generated.", |m| m.generation_tokens);
    out.head("request_success", "Requests that have ended, by why.", "counter");
    let ends: [(&str, CountFn); 4] = [
        ("stop", |m| m.finished_stop),
        ("length", |m| m.finished_length),
        ("abort", |m| m.finished_abort),
        ("error", |m| m.finished_error),
    ];
    for (reason, count) in ends {
        out.lines("request_success_total", &format!(",finished_reason=\"{reason}\""), |m| count(m) as f64);
    }
    out.counter("requests_refused", "Requests that were refused since too many waited.", |m| m.requests_refused);
    out.counter("devices_lost", "How often the device was lost.", |m| m.devices_lost);
    out.counter("engine_steps", "Steps of the engine.", |m| m.steps);
    out.histogram("time_to_first_token_seconds", "Time to the first token.", |m| &m.time_to_first_token);
    out.histogram("inter_token_latency_seconds", "Time between tokens.", |m| &m.inter_token_latency);
    out.histogram("e2e_request_latency_seconds", "Time of a request.", |m| &m.e2e_request_latency);
    out.histogram("request_queue_time_seconds", "Time until a request first ran.", |m| &m.request_queue_time);
    out.histogram("request_prefill_time_seconds", "Time from there to the first token.", |m| &m.request_prefill_time);
    out.histogram("request_decode_time_seconds", "Time from there to the end.", |m| &m.request_decode_time);
    out.text
}

/// What a block may be.
const BLOCKS: [(&str, BlockCountFn); 3] =
    [("free", |blocks| blocks.free), ("in_use", |blocks| blocks.in_use), ("kept", |blocks| blocks.kept)];

/// One of the counts.
type CountFn = fn(&Metrics) -> u64;
/// One of the counts of blocks.
type BlockCountFn = fn(&BlockCounts) -> u32;

struct Out {
    text: String,
    /// By their names, as labels have them.
    models: Vec<(String, Metrics)>,
}

impl Out {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        // A String takes all that is written.
        let _ = writeln!(self.text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    /// A line of each model.
    fn lines(&mut self, name: &str, labels: &str, value: impl Fn(&Metrics) -> f64) {
        for (model, metrics) in &self.models {
            let _ = writeln!(self.text, "vllm:{name}{{model_name=\"{model}\"{labels}}} {}", value(metrics));
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&Metrics) -> f64) {
        self.head(name, help, "gauge");
        self.lines(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Fn(&Metrics) -> u64) {
        self.head(name, help, "counter");
        self.lines(&format!("{name}_total"), "", |m| value(m) as f64);
    }

    fn histogram(&mut self, name: &str, help: &str, of: fn(&Metrics) -> &Histogram) {
        self.head(name, help, "histogram");
        for (model, metrics) in &self.models {
            let histogram = of(metrics);
            let mut line = |name: &str, labels: &str, value: f64| {
                let _ = writeln!(self.text, "vllm:{name}{{model_name=\"{model}\"{labels}}} {value}");
            };
            let mut sum = 0;
            let bucket = format!("{name}_bucket");
            for (count, bound) in histogram.counts.iter().zip(histogram.bounds) {
                sum += count;
                line(&bucket, &format!(",le=\"{bound:?}\""), sum as f64);
            }
            line(&bucket, ",le=\"+Inf\"", histogram.count() as f64);
            line(&format!("{name}_sum"), "", histogram.sum);
            line(&format!("{name}_count"), "", histogram.count() as f64);
        }
    }
}

/// A label's value.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
