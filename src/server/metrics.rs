//! `/metrics`: what the driver counts, as Prometheus reads it, by vLLM's names.

use std::fmt::Write;

use super::app::App;
use crate::driver::Histogram;

/// All metrics.
pub(super) fn text(app: &App) -> String {
    let mut out = Out { text: String::new(), model: escaped(&app.name) };
    if let Ok(language) = app.language() {
        let m = language.model.handle().metrics();
        out.gauge("num_requests_running", "Requests that run.", m.num_requests_running as f64);
        out.gauge("num_requests_waiting", "Requests that wait.", m.num_requests_waiting as f64);
        out.gauge("kv_cache_usage_perc", "The part of the KV cache that requests hold; 1 is all.", m.kv_cache_usage);
        out.counter("prefix_cache_queries", "Tokens of prompts that were looked for.", m.prefix_cache_queries);
        out.counter("prefix_cache_hits", "Tokens of prompts that were found.", m.prefix_cache_hits);
        out.counter("cache_evictions", "Blocks of the cache that were forgotten for others.", m.cache_evictions);
        out.counter("num_preemptions", "How often a request gave its place to another.", m.num_preemptions);
        out.counter("prompt_tokens", "Tokens of prompts of requests that have ended.", m.prompt_tokens);
        out.counter("generation_tokens", "Tokens that were generated.", m.generation_tokens);
        out.head("request_success", "Requests that have ended, by why.", "counter");
        let ends = [
            ("stop", m.finished_stop),
            ("length", m.finished_length),
            ("abort", m.finished_abort),
            ("error", m.finished_error),
        ];
        for (reason, count) in ends {
            out.line("request_success_total", &format!(",finished_reason=\"{reason}\""), count as f64);
        }
        out.counter("requests_refused", "Requests that were refused since too many waited.", m.requests_refused);
        out.counter("devices_lost", "How often the device was lost.", m.devices_lost);
        out.histogram("time_to_first_token_seconds", "Time to the first token.", &m.time_to_first_token);
        out.histogram("inter_token_latency_seconds", "Time between tokens.", &m.inter_token_latency);
        out.histogram("e2e_request_latency_seconds", "Time of a request.", &m.e2e_request_latency);
        out.histogram("request_queue_time_seconds", "Time until a request first ran.", &m.request_queue_time);
        out.histogram("request_prefill_time_seconds", "Time from there to the first token.", &m.request_prefill_time);
        out.histogram("request_decode_time_seconds", "Time from there to the end.", &m.request_decode_time);
    }
    out.text
}

struct Out {
    text: String,
    model: String,
}

impl Out {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        // A String takes all that is written.
        let _ = writeln!(self.text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.text, "vllm:{name}{{model_name=\"{}\"{labels}}} {value}", self.model);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.line(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.line(&format!("{name}_total"), "", value as f64);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, help, "histogram");
        let mut sum = 0;
        let bucket = format!("{name}_bucket");
        for (count, bound) in histogram.counts.iter().zip(histogram.bounds) {
            sum += count;
            self.line(&bucket, &format!(",le=\"{bound:?}\""), sum as f64);
        }
        self.line(&bucket, ",le=\"+Inf\"", histogram.count() as f64);
        self.line(&format!("{name}_sum"), "", histogram.sum);
        self.line(&format!("{name}_count"), "", histogram.count() as f64);
    }
}

/// A label's value.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
