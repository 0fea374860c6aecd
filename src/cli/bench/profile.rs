//! Where the time of a test goes, kernel by kernel.

use std::collections::HashMap;
use std::io::{self, Write};

use super::measure::{Kind, Runner, Test};
use crate::Result;
use crate::exec::Executor;
use crate::model::WeightSource;
use crate::ops::Op;

/// Steps of a generating test that are profiled: more would only repeat them.
const STEPS: u32 = 16;

/// Where the time of a test went.
pub(super) struct Profile {
    test: Test,
    device: String,
    steps: u32,
    /// The longest first.
    entries: Vec<Entry>,
}

/// All calls of a kernel for the same shape.
struct Entry {
    kernel: &'static str,
    shape: String,
    calls: u32,
    seconds: f64,
    bytes: f64,
    flops: f64,
}

/// Runs a test step by step; the executor profiles.
pub(super) async fn profile(runner: &mut Runner<'_>, test: &Test) -> Result<Profile> {
    let most = runner.executor.limits().rows;
    let (rows, steps) = match test.kind {
        Kind::Prompt => (most.min(test.n), test.n.div_ceil(most)),
        Kind::Generate | Kind::Both { .. } => (1, test.n.min(STEPS)),
    };
    let mut entries: HashMap<(&'static str, String), Entry> = HashMap::new();
    for step in 0..steps {
        let pos = test.depth + step * rows;
        let rows = rows.min(test.end() - pos);
        match test.kind {
            Kind::Prompt => runner.chunk(pos, rows, step + 1 == steps).await?,
            Kind::Generate | Kind::Both { .. } => runner.token(pos).await?,
        }
        let mut last = None;
        for timing in runner.executor.timings(test.phase()).await? {
            let op = timing.node.and_then(|i| Some(&runner.executor.program(test.phase()).nodes.get(i)?.op));
            let shape = op.map_or(String::new(), |op| shape(op, runner));
            let entry = entries.entry((timing.kernel, shape)).or_insert_with_key(|(kernel, shape)| Entry {
                kernel,
                shape: shape.clone(),
                calls: 0,
                seconds: 0.0,
                bytes: 0.0,
                flops: 0.0,
            });
            entry.calls += 1;
            entry.seconds += timing.time.as_secs_f64();
            // Several dispatches may work for one node: its first has the cost.
            if let Some(op) = op.filter(|_| timing.node != last) {
                let cost = runner.op_cost(op, rows, pos);
                entry.bytes += cost.bytes;
                entry.flops += cost.flops;
            }
            last = timing.node;
        }
    }
    let mut entries: Vec<_> = entries.into_values().filter(|entry| entry.seconds > 0.0).collect();
    entries.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.shape.cmp(&b.shape)));
    Ok(Profile { test: *test, device: runner.executor.device(), steps, entries })
}

/// What distinguishes calls of a kernel: the shape and the formats of a matrix.
fn shape(op: &Op, runner: &Runner<'_>) -> String {
    op.shape(&|weights| {
        let mut names: Vec<_> = weights.iter().map(|weight| runner.model.format(*weight).name()).collect();
        names.dedup();
        names.join("+")
    })
}

impl Profile {
    fn seconds(&self) -> f64 {
        self.entries.iter().map(|entry| entry.seconds).sum()
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let all = self.seconds();
        let steps = f64::from(self.steps);
        let (test, ms) = (self.test.name(), all / steps * 1e3);
        writeln!(out, "\n{test} on {}: {ms:.3} ms a step, {} steps", self.device, self.steps)?;
        let width = self.entries.iter().map(|e| e.kernel.len() + e.shape.len() + 1).max().unwrap_or(0).max(6);
        writeln!(
            out,
            "{:<width$} {:>6} {:>10} {:>9} {:>8} {:>9} {:>6}",
            "kernel", "calls", "us/call", "ms/step", "GB/s", "GFLOP/s", "share"
        )?;
        for entry in &self.entries {
            let name = format!("{} {}", entry.kernel, entry.shape);
            let rate = |amount: f64| match amount / entry.seconds / 1e9 {
                0.0 => "-".to_owned(),
                rate => format!("{rate:.1}"),
            };
            writeln!(
                out,
                "{name:<width$} {:>6} {:>10.1} {:>9.3} {:>8} {:>9} {:>4.1} %",
                entry.calls / self.steps.max(1),
                entry.seconds / f64::from(entry.calls) * 1e6,
                entry.seconds / steps * 1e3,
                rate(entry.bytes),
                rate(entry.flops),
                100.0 * entry.seconds / all,
            )?;
        }
        Ok(())
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let entry = |e: &Entry| {
            serde_json::json!({
                "kernel": e.kernel,
                "shape": e.shape,
                "calls": e.calls,
                "ns": (e.seconds * 1e9).round() as u64,
                "bytes": e.bytes.round() as u64,
                "flops": e.flops.round() as u64,
            })
        };
        serde_json::json!({ "steps": self.steps, "kernels": self.entries.iter().map(entry).collect::<Vec<_>>() })
    }
}
