//! What a bench found, in the columns of llama-bench.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::json;

use super::measure::{Kind, Test};
use super::profile::Profile;
use crate::exec::{AnyExecutor, Numerics};
use crate::model::{Model, WeightSource};
use crate::ops::{Cost, WeightId};
use crate::quant::mix::FILE_TYPES;

/// All that was measured of a model.
pub(super) struct Report {
    model: String,
    file_type: String,
    bytes: u64,
    parameters: u64,
    lines: Vec<Line>,
}

/// A test's results.
pub(super) struct Line {
    test: Test,
    seconds: Vec<f64>,
    /// What it costs, and how many bytes a second the device reads; not known of several sequences at once, nor of prompts and answers together.
    speed: Option<(Cost, f64)>,
    numerics: Numerics,
    /// None on a GPU.
    threads: Option<usize>,
    backend: String,
    device: String,
    driver: String,
}

impl Line {
    pub(super) fn new(
        executor: &AnyExecutor,
        test: Test,
        samples: &[Duration],
        speed: Option<(Cost, f64)>,
        numerics: Numerics,
    ) -> Self {
        let seconds = samples.iter().map(Duration::as_secs_f64).collect();
        let (threads, backend, device, driver) = match executor {
            AnyExecutor::Cpu(cpu) => (Some(cpu.threads(test.phase())), "CPU".to_owned(), processor(), String::new()),
            AnyExecutor::Gpu(gpu) => {
                let caps = gpu.caps();
                (None, caps.backend.clone(), caps.name.clone(), caps.driver.clone())
            }
        };
        Self { test, seconds, speed, numerics, threads, backend, device, driver }
    }

    /// Mean and standard deviation of tokens a second.
    fn rate(&self) -> (f64, f64) {
        mean_and_deviation(self.seconds.iter().map(|s| self.test.tokens() / s))
    }

    /// What was read, as a share of what can be. Generating waits for memory; prompts do not.
    fn share(&self) -> String {
        let Some((cost, bandwidth)) = self.speed else { return "-".to_owned() };
        let steps = self.rate().0 / self.test.tokens();
        match self.test.kind {
            Kind::Prompt => format!("{:.0} GFLOP/s", cost.flops * steps / 1e9),
            Kind::Generate | Kind::Both { .. } => {
                let read = cost.bytes * steps;
                format!("{:.1} GB/s, {:.0} % of {:.1}", read / 1e9, 100.0 * read / bandwidth, bandwidth / 1e9)
            }
        }
    }
}

/// Mean, and standard deviation of a sample (n - 1).
fn mean_and_deviation(values: impl ExactSizeIterator<Item = f64> + Clone) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.clone().sum::<f64>() / n;
    let squares: f64 = values.map(|x| (x - mean).powi(2)).sum();
    (mean, if n > 1.0 { (squares / (n - 1.0)).sqrt() } else { 0.0 })
}

/// What the processor calls itself, where the system reports.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}

/// Bytes of the weights as they are loaded.
fn size(model: &Model) -> u64 {
    if model.quantized().is_none() {
        return model.file.tensors().iter().map(|t| t.bytes).sum();
    }
    let matrix = |(i, spec): (u32, &crate::model::WeightSpec)| {
        model.format(WeightId(i)).row_bytes(u64::from(spec.k)).unwrap_or(0) * u64::from(spec.n)
    };
    let matrices: u64 = (0..).zip(&model.program.weights).map(matrix).sum();
    matrices + model.program.vectors.iter().map(|spec| u64::from(spec.n) * 4).sum::<u64>()
}

impl Report {
    pub(super) fn new(model: &Model) -> Self {
        let number = model.file.gguf().and_then(|meta| meta.get::<u32>("general.file_type").ok()?);
        let quantized = model.quantized().map(|to| to.name);
        let named = number.and_then(|n| FILE_TYPES.iter().find(|t| t.number == n)).map(|t| t.name);
        // A folder does not say: the first matrix does.
        let first = || model.located.weights.first().map_or("", |at| at.format.name());
        Self {
            model: model.name.clone(),
            file_type: quantized.or(named).unwrap_or_else(first).to_owned(),
            bytes: size(model),
            parameters: model.parameters,
            lines: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, line: Line) {
        self.lines.push(line);
    }

    pub(super) fn markdown(&self, out: &mut dyn Write) -> io::Result<()> {
        let size = match self.bytes {
            bytes if bytes >= 1 << 30 => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
            bytes => format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20)),
        };
        let parameters = match self.parameters as f64 {
            n if n >= 1e9 => format!("{:.2} B", n / 1e9),
            n => format!("{:.2} M", n / 1e6),
        };
        let names = ["model", "size", "params", "backend", "device", "threads", "test", "t/s", "rate"];
        let mut rows = vec![names.map(str::to_owned)];
        for line in &self.lines {
            let (mean, deviation) = line.rate();
            rows.push([
                format!("{} {}", self.model, self.file_type),
                size.clone(),
                parameters.clone(),
                line.backend.clone(),
                line.device.clone(),
                line.threads.map_or("-".to_owned(), |n| n.to_string()),
                line.test.name(),
                format!("{mean:.2} ± {deviation:.2}"),
                line.share(),
            ]);
        }
        let mut widths = [0; 9];
        for row in &rows {
            row.iter().zip(&mut widths).for_each(|(cell, width)| *width = cell.chars().count().max(*width));
        }
        for (i, row) in rows.iter().enumerate() {
            // Names stand on the left, numbers on the right.
            let cell = |(at, (cell, &width)): (usize, (&String, &usize))| match at {
                0 | 3 | 4 => format!(" {cell:<width$} |"),
                _ => format!(" {cell:>width$} |"),
            };
            writeln!(out, "|{}", row.iter().zip(&widths).enumerate().map(cell).collect::<String>())?;
            if i == 0 {
                let rule = |(at, width): (usize, &usize)| match at {
                    0 | 3 | 4 => format!(" {} |", "-".repeat(*width)),
                    _ => format!(" {}: |", "-".repeat(width - 1)),
                };
                writeln!(out, "|{}", widths.iter().enumerate().map(rule).collect::<String>())?;
            }
        }
        let driver = self.lines.first().map_or("", |line| line.driver.as_str());
        let driver = if driver.is_empty() { String::new() } else { format!(", {driver}") };
        writeln!(out, "\nwgslm {}{driver}", env!("CARGO_PKG_VERSION"))
    }

    pub(super) fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        for (i, line) in self.lines.iter().enumerate() {
            let record = self.record(line);
            let fields = record.as_object().into_iter().flatten().filter(|(_, value)| !value.is_array());
            let (names, values): (Vec<_>, Vec<_>) = fields.map(|(name, value)| (name.as_str(), quoted(value))).unzip();
            if i == 0 {
                writeln!(out, "{}", names.join(","))?;
            }
            writeln!(out, "{}", values.join(","))?;
        }
        Ok(())
    }

    pub(super) fn json(&self, out: &mut dyn Write, profiles: &[Profile]) -> io::Result<()> {
        let mut records: Vec<_> = self.lines.iter().map(|line| self.record(line)).collect();
        for (record, profile) in records.iter_mut().zip(profiles) {
            record["profile"] = profile.json();
        }
        writeln!(out, "{:#}", serde_json::Value::from(records))
    }

    /// The names are llama-bench's, where it has the same.
    fn record(&self, line: &Line) -> serde_json::Value {
        let (rate, rate_deviation) = line.rate();
        let (time, time_deviation) = mean_and_deviation(line.seconds.iter().map(|s| s * 1e9));
        let [prompt, generated] = line.test.lengths();
        let n = line.test.tokens();
        let of_each = |number: fn(&Cost) -> f64| line.speed.map(|(cost, _)| (number(&cost) / n).round() as u64);
        let read = line.speed.map(|(cost, _)| (cost.bytes / n * rate).round() as u64);
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "model": self.model,
            "model_type": self.file_type,
            "model_size": self.bytes,
            "model_n_params": self.parameters,
            "backend": line.backend,
            "device": line.device,
            "driver": line.driver,
            "n_threads": line.threads,
            "numerics": if line.numerics == Numerics::Fast { "fast" } else { "exact" },
            "n_prompt": prompt,
            "n_gen": generated,
            "n_depth": line.test.depth,
            "n_parallel": line.test.parallel,
            "test": line.test.name(),
            "avg_ns": time.round() as u64,
            "stddev_ns": time_deviation.round() as u64,
            "avg_ts": rate,
            "stddev_ts": rate_deviation,
            "bytes_per_token": of_each(|cost| cost.bytes),
            "flops_per_token": of_each(|cost| cost.flops),
            "read_bytes_per_second": read,
            "bandwidth": line.speed.map(|(_, bandwidth)| bandwidth.round() as u64),
            "samples_ns": line.seconds.iter().map(|s| (s * 1e9).round() as u64).collect::<Vec<_>>(),
            "samples_ts": line.seconds.iter().map(|s| n / s).collect::<Vec<_>>(),
        })
    }
}

/// A value as CSV has it.
fn quoted(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    }
}
