//! How long dispatches take, by the device's own clock.

use std::time::Duration;

use super::plan::{Plan, StepCounts};
use super::{Buffer, Device};
use crate::{Error, Result};

/// Dispatches that a timer has capacity for: WebGPU allows 4096 queries in a set.
const CAPACITY: u32 = 2048;

/// Runs each dispatch in a pass of its own between two timestamps.
#[derive(Debug)]
pub(crate) struct Timer {
    set: wgpu::QuerySet,
    ticks: Buffer,
    used: u32,
}

impl Timer {
    /// Fails where the device has no timestamps.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        if !device.has_timestamps() {
            let what = format!("profiling on {}, which has no timestamps,", device.caps().name);
            return Err(Error::unsupported(what, "the CPU (--device cpu) works"));
        }
        let desc =
            wgpu::QuerySetDescriptor { label: Some("timer"), ty: wgpu::QueryType::Timestamp, count: 2 * CAPACITY };
        let set = device.device.create_query_set(&desc);
        Ok(Self { set, ticks: Buffer::queries(device, "timer", u64::from(CAPACITY) * 16)?, used: 0 })
    }

    /// Starts a step.
    pub(crate) fn restart(&mut self) {
        self.used = 0;
    }

    /// Encodes a plan's dispatches; those beyond the space for them are not timed.
    pub(crate) fn encode(&mut self, encoder: &mut wgpu::CommandEncoder, plan: &Plan, counts: StepCounts) {
        for dispatch in &plan.dispatches {
            let at = self.used;
            let writes = (at < CAPACITY).then(|| wgpu::ComputePassTimestampWrites {
                query_set: &self.set,
                beginning_of_pass_write_index: Some(2 * at),
                end_of_pass_write_index: Some(2 * at + 1),
            });
            let desc = wgpu::ComputePassDescriptor { label: Some(dispatch.label), timestamp_writes: writes };
            dispatch.encode(&mut encoder.begin_compute_pass(&desc), counts);
            self.used = (at + 1).min(CAPACITY);
        }
    }

    /// Ends a step: takes its timestamps to memory.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        encoder.resolve_query_set(&self.set, 0..2 * self.used, self.ticks.raw(), 0);
    }

    /// How long each dispatch of the step that was encoded last took, in order.
    pub(crate) async fn read(&self, device: &Device) -> Result<Vec<Duration>> {
        let words: Vec<u32> = self.ticks.read(device, 0..u64::from(self.used) * 4).await?;
        let period = f64::from(device.queue.get_timestamp_period());
        let tick = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let time = |w: &[u32; 4]| tick(w[2], w[3]).saturating_sub(tick(w[0], w[1]));
        Ok(words.as_chunks().0.iter().map(|w| Duration::from_nanos((time(w) as f64 * period) as u64)).collect())
    }
}
