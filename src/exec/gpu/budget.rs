//! How long steps take, predicted from what their nodes cost; and where a step is cut, so that each of its submissions is short.
//!
//! A cost model in two rates a role, seconds a byte of weights and seconds an operation, as in a roofline; both are measured on the
//! model's own first layer when it is loaded.

use std::ops::Range;
use std::time::Duration;

use super::GpuExecutor;
use super::submission::now;
use crate::Result;
use crate::exec::{Limits, Role, SeqStep, Step, Token};
use crate::gpu::wgpu;
use crate::ops::{Cost, Linear, Load, Op, Rows, WeightId};

/// A submission's time on a device that works for a screen or a host, too: half of a frame.
pub(super) const SHARED: Duration = Duration::from_millis(8);
/// On a device of our own.
pub(super) const OWN: Duration = Duration::from_millis(50);
/// Seconds of a measurement that is long enough to be believed.
const ENOUGH: f64 = 2e-3;
/// Seconds of a measurement behind which there is no further one.
const SLOW: f64 = 5e-2;
/// Seconds that a measurement may take, going by what is known.
const TOO_SLOW: f64 = 0.5;

/// What the nodes of a role's steps take.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rates {
    /// Seconds for a byte of weights, read once whatever the rows.
    byte: f64,
    /// Seconds for an operation.
    flop: f64,
    /// The bytes that each node reads for one row, and what its dispatches cost to start as if they were bytes.
    once: Vec<f64>,
}

impl Rates {
    /// From two measurements of (operations, seconds) over nodes that read so many bytes. More work never takes less time.
    fn new([few, many]: [(f64, f64); 2], bytes: f64, once: Vec<f64>) -> Self {
        let flop = ((many.1 - few.1) / (many.0 - few.0)).max(0.0);
        Self { byte: (few.1 - flop * few.0).max(0.0) / bytes, flop, once }
    }
}

/// Rows of a sequence in a step, and the position of the first.
pub(super) type Span = (u32, u32);

impl GpuExecutor {
    /// Measures the first layer with rows of each role, from which [`predicted`](Self::predicted) goes on, and lowers `Limits::rows`
    /// until no single dispatch should take longer than a submission may: a kernel is divided by its rows, down to a tile of them.
    /// Takes some 20 ms on a GPU, at most 0.5 s. Only while nothing is in the cache; results do not depend on it.
    pub async fn calibrate(&mut self) -> Result<()> {
        let budget = self.pace.budget.as_secs_f64();
        if now().is_none() || budget == 0.0 {
            return Ok(());
        }
        let Limits { rows, context, blocks, block, seqs, .. } = self.limits;
        let most = rows.min(context).min(blocks.saturating_mul(block));
        let whole = self.roles[0].program.whole();
        let tile = Linear::made_rows(Role::Prompt, 1);
        for (role, sizes) in
            [(Role::Generated, [1, Linear::made_rows(Role::Generated, 2)]), (Role::Prompt, [tile, 2 * tile])]
        {
            let sizes = sizes.map(|rows| rows.min(most));
            let (dispatches, nodes) = self.first_layer(role)?;
            if dispatches.is_empty() || (whole && role == Role::Generated) {
                continue;
            }
            let once = self.once(role);
            let bytes: f64 = once[..nodes].iter().sum();
            let flops =
                |gpu: &Self, rows| gpu.costs(role, &[(rows, 0)], 1).take(nodes).map(|cost| cost.flops).sum::<f64>();
            let flops = sizes.map(|rows| flops(self, rows));
            // A prompt should take no longer than as many rows one by one.
            let known = self.rates[Role::Generated as usize].as_ref().map(|rates| (rates.byte, rates.flop));
            let slow = known.filter(|(byte, flop)| role == Role::Prompt && byte * bytes + flop * flops[0] > TOO_SLOW);
            let rates = match slow {
                Some((byte, flop)) => Rates { byte, flop, once },
                None => {
                    let few = self.time(role, sizes[0], dispatches.clone()).await?;
                    let many = if few > SLOW || sizes[0] == sizes[1] {
                        None
                    } else {
                        Some(self.time(role, sizes[1], dispatches).await?)
                    };
                    // Without a second measurement all of the time grows with the rows.
                    let first = if many.is_some() { (flops[0], few) } else { (0.0, 0.0) };
                    let second = many.map_or((flops[0], few), |many| (flops[1], many));
                    Rates::new([first, second], bytes, once)
                }
            };
            self.rates[role as usize] = Some(rates);
        }
        let fits = |rows: u32| {
            let pos = context.saturating_sub(rows).min(4096);
            let span = [(rows, pos)];
            let times = self.node_times(Role::Prompt, &span, 1);
            times.is_none_or(|mut times| times.all(|time| time <= budget))
        };
        let mut rows = rows;
        while !whole && rows >= 2 * tile && !fits(rows) {
            rows /= 2;
        }
        self.limits.rows = rows.max(seqs);
        Ok(())
    }

    /// How long a step of so many rows of one sequence from a position on should take; none before [`calibrate`](Self::calibrate).
    pub fn predicted(&self, role: Role, rows: u32, pos: u32) -> Option<Duration> {
        Some(Duration::from_secs_f64(self.node_times(role, &[(rows, pos)], 1)?.sum()))
    }

    /// Seconds that each node of a role's program should take.
    fn node_times<'a>(&'a self, role: Role, spans: &'a [Span], outs: u32) -> Option<impl Iterator<Item = f64> + 'a> {
        let rates = self.rates[role as usize].as_ref()?;
        let costs = self.costs(role, spans, outs).zip(&rates.once);
        Some(costs.map(|(cost, bytes)| rates.byte * bytes + rates.flop * cost.flops))
    }

    /// The dispatches of a role's forward plan up to the end of its first layer, and how many nodes they are of.
    fn first_layer(&mut self, role: Role) -> Result<(Range<usize>, usize)> {
        self.make_plan(role)?;
        let dispatches = self.roles[role as usize].plan.iter().flat_map(|(plan, _)| &plan.dispatches);
        let last = dispatches.enumerate().filter(|(_, dispatch)| dispatch.layer == Some(0)).last();
        Ok(last.map_or((0..0, 0), |(at, dispatch)| (0..at + 1, dispatch.node.map_or(0, |node| node + 1))))
    }

    /// What each node of a role's program reads for one row, in bytes; a tenth of the mean stands for the start of its dispatches.
    fn once(&self, role: Role) -> Vec<f64> {
        let bytes = || self.costs(role, &[(1, 0)], 1).map(|cost| cost.bytes);
        let start = bytes().sum::<f64>() / 10.0 / bytes().count().max(1) as f64 + 1.0;
        bytes().map(|bytes| bytes + start).collect()
    }

    /// What each node of a role's program costs.
    fn costs<'a>(&'a self, role: Role, spans: &'a [Span], outs: u32) -> impl Iterator<Item = Cost> + 'a {
        let program = &self.roles[role as usize].program;
        let format = |weight: WeightId| self.weights.matrices[weight.index()].format;
        let rows: u32 = spans.iter().map(|span| span.0).sum();
        let load = |(rows, pos): Span| Load { rows, pos, kv: self.kv };
        program.nodes.iter().map(move |node| match &node.op {
            Op::Attend(_) => spans.iter().map(|span| node.op.cost(&load(*span), span.0, &format)).sum(),
            op => {
                let own = match op.writes().map(|value| program.value(value).rows) {
                    Some(Rows::Outs) => Linear::made_rows(Role::Generated, outs),
                    Some(Rows::Seqs) => spans.len() as u32,
                    Some(Rows::Step) | None => Linear::made_rows(role, rows),
                };
                op.cost(&load((rows, 0)), own, &format)
            }
        })
    }

    /// Seconds of some of a role's dispatches for rows from position 0 on, the shorter of two measurements.
    async fn time(&mut self, role: Role, rows: u32, dispatches: Range<usize>) -> Result<f64> {
        let blocks: Vec<u32> = (0..rows.div_ceil(self.limits.block)).collect();
        let tables = vec![&blocks[..]; self.roles[0].program.groups as usize];
        let tokens = vec![Token::Host(0); rows as usize];
        let seq = SeqStep::new(0, role, &tokens, 0, &tables);
        self.packed.pack(&Step { seqs: &[seq] }, &self.roles[0].program, &self.limits)?;
        self.writes.clear();
        self.write(role);
        self.writes.write(&self.device);
        // Drivers finish their compiling in the first run.
        let mut seconds = self.time_once(role, dispatches.clone(), 1).await?;
        for _ in 0..2 {
            if seconds < SLOW {
                let times = (ENOUGH / seconds).clamp(1.0, 64.0) as u32;
                seconds = self.time_once(role, dispatches.clone(), times).await?.min(seconds);
            }
        }
        Ok(seconds)
    }

    /// Seconds of some of a role's dispatches, run so many times in a row.
    async fn time_once(&self, role: Role, dispatches: Range<usize>, times: u32) -> Result<f64> {
        let state = &self.roles[role as usize];
        let mut encoder = self.device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for (plan, _) in state.plan.iter().cycle().take(times as usize) {
            plan.encode_part(&mut pass, dispatches.clone(), state.counts);
        }
        drop(pass);
        let started = now();
        self.device.queue.submit([encoder.finish()]);
        self.device.drained().await?;
        Ok(started.map_or(0.0, |started| started.elapsed().as_secs_f64()) / f64::from(times))
    }

    /// The dispatches of a packed batch's forward plan in front of which a submission ends, so that none takes longer than it may;
    /// at most so many.
    pub(super) fn cuts(&self, role: Role, most: usize) -> Vec<usize> {
        let budget = self.pace.budget.as_secs_f64();
        let batch = self.packed.batch(role);
        let spans: Vec<Span> = batch.seqs.iter().map(|seq| (seq.rows, seq.context - seq.rows)).collect();
        let times =
            self.node_times(role, &spans, batch.outs.len() as u32).filter(|_| budget > 0.0 && !spans.is_empty());
        let (Some(times), Some((plan, _))) = (times, &self.roles[role as usize].plan) else { return Vec::new() };
        let firsts = |node| plan.dispatches.iter().position(|dispatch| dispatch.node == Some(node));
        let (mut cuts, mut sum) = (Vec::new(), 0.0);
        for (node, time) in times.enumerate() {
            if sum > 0.0 && sum + time > budget && cuts.len() < most {
                cuts.extend(firsts(node));
                sum = 0.0;
            }
            sum += time;
        }
        cuts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_through_both_measurements() {
        let rates = |points| {
            let rates = Rates::new(points, 4.0, Vec::new());
            (rates.byte, rates.flop)
        };
        assert_eq!(rates([(100.0, 3.0), (300.0, 5.0)]), (0.5, 0.01));
        // Noise: more work in less time; and more than in proportion.
        assert_eq!(rates([(100.0, 3.0), (300.0, 2.0)]), (0.75, 0.0));
        assert_eq!(rates([(100.0, 1.0), (300.0, 5.0)]), (0.0, 0.02));
    }
}
