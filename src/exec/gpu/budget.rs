//! How long steps take, predicted from what their nodes cost; and where a step is split, so that its submissions are short.
//!
//! A cost model as in a roofline, with two rates a phase: seconds a byte of weights and seconds an operation. Both are
//! measured on the model's own first layer when it is loaded.

use std::ops::Range;
use std::time::Duration;

use web_time::Instant;

use super::GpuExecutor;
use super::weights::Weights;
use crate::Result;
use crate::exec::{Limits, PerPhase, Phase, SeqStep, Step, Token};
use crate::gpu::wgpu;
use crate::model::Node;
use crate::ops::lower::KernelTuning;
use crate::ops::matmul::Tile;
use crate::ops::{Cost, Load, Rows, WeightId};

/// A submission's time on a device that works for a screen or a host, too: half of a frame.
pub(super) const SHARED: Duration = Duration::from_millis(8);
/// On a device of our own.
pub(super) const OWN: Duration = Duration::from_millis(50);
/// Seconds of a measurement that is long enough to be reliable.
const ENOUGH: f64 = 2e-3;
/// Seconds of a measurement after which there is no further one.
const SLOW: f64 = 5e-2;
/// Seconds that a measurement may take, by prediction.
const TOO_SLOW: f64 = 0.5;

/// What the nodes of a phase's steps take: each so many seconds for its start, its bytes and its operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rates {
    /// Seconds for a byte of weights or of the cache.
    byte: f64,
    /// Seconds for an operation.
    flop: f64,
    /// What the start of a node's dispatches costs, as if it were bytes.
    start: f64,
}

impl Rates {
    /// Seconds for a byte and for an operation, from one or two measurements of (bytes, operations, seconds), the second of
    /// more rows. Neither is negative, whatever noise says.
    fn solved([b, f, t]: [f64; 3], more: Option<[f64; 3]>) -> [f64; 2] {
        let [by_bytes, by_flops] = [[t / b, 0.0], [0.0, t / f]];
        let Some([b2, f2, t2]) = more.filter(|[_, f2, _]| *f2 > f) else {
            // With one alone, all of the time grows with the rows.
            return if more.is_none() && f > 0.0 { by_flops } else { by_bytes };
        };
        let det = b * f2 - b2 * f;
        let [byte, flop] = [(t * f2 - t2 * f) / det, (b * t2 - b2 * t) / det];
        if det <= 0.0 || byte < 0.0 {
            [0.0, t2 / f2]
        } else if flop < 0.0 {
            by_bytes
        } else {
            [byte, flop]
        }
    }
}

/// Rows of a sequence in a step, and the position of the first.
pub(super) type SeqRows = (u32, u32);

/// The largest mat-mat tiles for the formats of these weights.
pub(super) fn largest_tile(tuning: &KernelTuning, weights: &Weights) -> Tile {
    let tiles = weights.matrices.iter().map(|matrix| tuning.tile(matrix.format));
    let larger = |a: Tile, b: Tile| Tile {
        w: a.w.max(b.w),
        x: a.x.max(b.x),
        few: a.few.max(b.few),
        most_few: a.most_few.max(b.most_few),
        cols: a.cols.max(b.cols),
    };
    tiles.reduce(larger).unwrap_or(Tile { w: 1, x: 1, few: 1, most_few: 1, cols: 1 })
}

impl GpuExecutor {
    /// Measures the first layer with rows of each phase; [`predicted`](Self::predicted) extrapolates from it. Lowers
    /// `Limits::rows` while a prefill node should take longer than a submission may: kernels are split by rows, down to one
    /// tile. Takes some 20 ms on a GPU, tenths of a second on a processor. Only while nothing is in the cache; results do
    /// not depend on it.
    pub async fn calibrate(&mut self) -> Result<()> {
        if self.pacing.budget.is_zero() {
            return Ok(());
        }
        let tile = self.tile;
        let many = tile.made_rows(Phase::Decode, 2);
        for (phase, sizes) in [(Phase::Decode, [1, many]), (Phase::Prefill, [tile.x, 2 * tile.x])] {
            self.rates[phase] = self.measured(phase, sizes).await?;
        }
        self.fewer_rows(tile.few);
        Ok(())
    }

    /// The rates of a phase's steps, from timing the first layer with two numbers of rows; none where there is nothing to
    /// measure.
    async fn measured(&mut self, phase: Phase, sizes: [u32; 2]) -> Result<Option<Rates>> {
        let Limits { rows, context, blocks, block, .. } = self.limits;
        let sizes = sizes.map(|size| size.min(rows).min(context).min(blocks.saturating_mul(block)));
        let (dispatches, nodes) = self.first_layer(phase)?;
        if dispatches.is_empty() || (self.phases.prefill.program.needs_full_sequence() && phase == Phase::Decode) {
            return Ok(None);
        }
        let bytes: f64 = self.costs(phase, &[(1, 0)], 1).flatten().map(|cost| cost.bytes).sum();
        let start = bytes / 10.0 / self.phases[phase].program.nodes.len() as f64 + 1.0;
        let work = |gpu: &Self, rows| {
            let cost = gpu.costs(phase, &[(rows, 0)], 1).take(nodes).flatten().sum::<Cost>();
            [cost.bytes + nodes as f64 * start, cost.flops]
        };
        let [few, many] = sizes.map(|rows| work(self, rows));
        // A prompt should take no longer than its rows decoded one by one.
        let known = self.rates.decode.filter(|_| phase == Phase::Prefill);
        if let Some(known) = known.filter(|known| known.byte * few[0] + known.flop * few[1] > TOO_SLOW) {
            return Ok(Some(Rates { start, ..known }));
        }
        let first = self.time(phase, sizes[0], dispatches.clone()).await?;
        let second = match first > SLOW || sizes[0] == sizes[1] {
            true => None,
            false => Some(self.time(phase, sizes[1], dispatches).await?),
        };
        let [byte, flop] = Rates::solved([few[0], few[1], first], second.map(|second| [many[0], many[1], second]));
        Ok(Some(Rates { byte, flop, start }))
    }

    /// Lowers `Limits::rows`, by whole tiles, until the time that grows with the rows fits into a submission's, node by
    /// node. It assumes a depth that most prompts stay below.
    fn fewer_rows(&mut self, tile: u32) {
        const DEPTH: u32 = 4096;
        let (budget, Limits { context, seqs, .. }) = (self.pacing.budget.as_secs_f64(), self.limits);
        let Some(Rates { flop, .. }) = self.rates.prefill else { return };
        let fits = |rows: u32| {
            let span = [(rows, context.saturating_sub(rows).min(DEPTH))];
            self.costs(Phase::Prefill, &span, 1).flatten().all(|cost| flop * cost.flops <= budget)
        };
        let mut rows = self.limits.rows;
        while rows > tile && !fits(rows) {
            rows = (rows / 2).next_multiple_of(tile);
        }
        // Full sequences are not split.
        if !self.phases.prefill.program.needs_full_sequence() {
            self.limits.rows = rows.max(seqs);
        }
    }

    /// How long a step should take that has so many rows of one sequence, from a position on; none before
    /// [`calibrate`](Self::calibrate).
    pub fn predicted(&self, phase: Phase, rows: u32, pos: u32) -> Option<Duration> {
        Some(Duration::from_secs_f64(self.node_times(phase, &[(rows, pos)], 1)?.sum()))
    }

    /// Seconds that each node of a phase's program should take.
    fn node_times<'a>(
        &'a self,
        phase: Phase,
        seqs: &'a [SeqRows],
        outs: u32,
    ) -> Option<impl Iterator<Item = f64> + 'a> {
        let Rates { byte, flop, start } = self.rates[phase]?;
        let time = move |cost: Cost| byte * (cost.bytes + start) + flop * cost.flops;
        Some(self.costs(phase, seqs, outs).map(move |cost| cost.map_or(0.0, time)))
    }

    /// The dispatches of a phase's forward plan up to the end of its first layer, and how many nodes they are of.
    fn first_layer(&mut self, phase: Phase) -> Result<(Range<usize>, usize)> {
        self.make_plan(phase)?;
        let dispatches = self.phases[phase].plan.iter().flat_map(|(plan, _)| &plan.dispatches);
        let last = dispatches.enumerate().filter(|(_, dispatch)| dispatch.layer == Some(0)).last();
        Ok(last.map_or((0..0, 0), |(at, dispatch)| (0..at + 1, dispatch.node.map_or(0, |node| node + 1))))
    }

    /// What each node of a phase's program costs; none where it has no rows to work on.
    fn costs<'a>(&'a self, phase: Phase, seqs: &'a [SeqRows], outs: u32) -> impl Iterator<Item = Option<Cost>> + 'a {
        let program = &self.phases[phase].program;
        let format = |weight: WeightId| self.weights.matrices[weight.index()].format;
        let rows: u32 = seqs.iter().map(|seq| seq.0).sum();
        let load = |(rows, pos): SeqRows| Load { rows, pos, kv: self.kv };
        program.nodes.iter().map(move |Node { op, .. }| {
            if op.cost_depends_on_position() {
                return Some(seqs.iter().map(|seq| op.cost(&load(*seq), seq.0, &format)).sum());
            }
            let tile = op.tile(&self.tuning, &format).unwrap_or(self.tile);
            let own = match op.writes().map(|value| program.value(value).rows) {
                Some(Rows::Outs) => tile.made_rows(Phase::Decode, outs),
                Some(Rows::Seqs) => seqs.len() as u32,
                Some(Rows::Step) | None => tile.made_rows(phase, rows),
            };
            (own > 0).then(|| op.cost(&load((rows, 0)), own, &format))
        })
    }

    /// Seconds of some of a phase's dispatches for rows from position 0 on, the shorter of two measurements.
    async fn time(&mut self, phase: Phase, rows: u32, dispatches: Range<usize>) -> Result<f64> {
        let blocks: Vec<u32> = (0..rows.div_ceil(self.limits.block)).collect();
        let tables = vec![&blocks[..]; self.phases.prefill.program.groups as usize];
        let tokens = vec![Token::Host(0); rows as usize];
        let seq = SeqStep::new(0, phase, &tokens, 0, &tables);
        self.packed.pack(&Step { seqs: &[seq] }, &self.phases.prefill.program, &self.limits)?;
        self.writes.clear();
        self.write(phase);
        self.writes.write(&self.device);
        // Drivers finish compiling in the first run, whose time may be mostly that.
        let mut seconds = self.time_once(phase, dispatches.clone(), 1).await?;
        if seconds >= SLOW {
            seconds = seconds.min(self.time_once(phase, dispatches.clone(), 1).await?);
        }
        for _ in 0..2 {
            if seconds < SLOW {
                let times = (ENOUGH / seconds).clamp(1.0, 64.0) as u32;
                let measured = self.time_once(phase, dispatches.clone(), times).await?;
                // A clock may be too coarse for a single run.
                seconds = if seconds == 0.0 { measured } else { measured.min(seconds) };
            }
        }
        Ok(seconds)
    }

    /// Seconds of some of a phase's dispatches, run so many times in a row.
    async fn time_once(&self, phase: Phase, dispatches: Range<usize>, times: u32) -> Result<f64> {
        let state = &self.phases[phase];
        let mut encoder = self.device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for (plan, _) in (0..times).flat_map(|_| &state.plan) {
            plan.encode_part(&mut pass, dispatches.clone(), state.counts);
        }
        drop(pass);
        let started = Instant::now();
        self.device.queue.submit([encoder.finish()]);
        self.device.drained().await?;
        Ok(started.elapsed().as_secs_f64() / f64::from(times))
    }

    /// The dispatches of each phase's forward plan at which the packed step is split, so that no submission takes longer
    /// than it may. The second phase begins in the submission that the first one ends in.
    pub(super) fn split_points(&self) -> PerPhase<Vec<usize>> {
        let mut sum = 0.0;
        let [decode, prefill] = Phase::ALL.map(|phase| self.split_points_of(phase, &mut sum));
        PerPhase { prefill, decode }
    }

    /// The splits of one phase, in whose first submission there are `sum` seconds already.
    fn split_points_of(&self, phase: Phase, sum: &mut f64) -> Vec<usize> {
        let budget = self.pacing.budget.as_secs_f64();
        let batch = self.packed.batch(phase);
        if batch.seqs.is_empty() || budget == 0.0 {
            return Vec::new();
        }
        let seqs: Vec<SeqRows> = batch.seqs.iter().map(|seq| (seq.rows, seq.context - seq.rows)).collect();
        let times = self.node_times(phase, &seqs, batch.outs.len() as u32);
        let (Some(times), Some((plan, _))) = (times, &self.phases[phase].plan) else { return Vec::new() };
        let first = |node| plan.dispatches.iter().position(|dispatch| dispatch.node == Some(node));
        let mut split_points = Vec::new();
        for (node, time) in times.enumerate() {
            let full = *sum > 0.0 && *sum + time > budget;
            if let Some(at) = full.then(|| first(node)).flatten() {
                split_points.push(at);
                *sum = 0.0;
            }
            *sum += time;
        }
        split_points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_through_both_measurements() {
        // 4 bytes and 100 or 300 operations.
        let rates = |few, many| Rates::solved([4.0, 100.0, few], Some([4.0, 300.0, many]));
        assert_eq!(rates(3.0, 5.0), [0.5, 0.01]);
        // Noise: more work in less time; and more than in proportion.
        assert_eq!(rates(3.0, 2.0), [0.75, 0.0]);
        assert_eq!(rates(1.0, 6.0), [0.0, 0.02]);
        // No operations, no second measurement, bytes and operations that grow alike.
        assert_eq!(Rates::solved([4.0, 0.0, 1.0], Some([8.0, 0.0, 2.0])), [0.25, 0.0]);
        assert_eq!(Rates::solved([4.0, 100.0, 1.0], None), [0.0, 0.01]);
        assert_eq!(Rates::solved([4.0, 100.0, 1.0], Some([8.0, 200.0, 2.0])), [0.0, 0.01]);
    }
}
