//! Completion markers: they distinguish a submission that ran from one that a driver dropped.

use super::wgpu;
use crate::Result;
use crate::gpu::{Buffer, Device, Pipelines, Plan, PlanBuilder, StepCounts};
use crate::ops::marker;

/// The marker dispatch, which is the last of each submission.
#[derive(Debug)]
pub(super) struct CompletionMarkers {
    /// The submission's number, as the host writes it.
    number: Buffer,
    /// The marker that the dispatch writes.
    pub(super) mark: Buffer,
    plan: Plan,
    last: u64,
    /// What was submitted last.
    pub(super) index: Option<wgpu::SubmissionIndex>,
    /// The next submission is dropped, as a driver may.
    #[cfg(test)]
    pub(super) lose: bool,
}

impl CompletionMarkers {
    pub(super) fn new(pipelines: &mut Pipelines) -> Result<Self> {
        let device = pipelines.device().clone();
        let [number, mark] = ["number", "mark"].map(|label| Buffer::new(&device, label, 4));
        let (number, mark) = (number?, mark?);
        let mut plan = PlanBuilder::new(pipelines);
        marker::dispatch(&mut plan, &number, &mark)?;
        Ok(Self {
            plan: plan.finish()?,
            number,
            mark,
            last: 0,
            index: None,
            #[cfg(test)]
            lose: false,
        })
    }

    #[cfg(test)]
    pub(super) fn lose_next(&mut self) -> bool {
        std::mem::take(&mut self.lose)
    }

    /// Submissions so far.
    pub(super) fn count(&self) -> u64 {
        self.last
    }

    /// Ends what an encoder holds, which is submitted next; returns the marker that its results must contain.
    pub(super) fn end(&mut self, device: &Device, encoder: &mut wgpu::CommandEncoder) -> u32 {
        self.last += 1;
        // The low 32 bits distinguish it from all others that may still lie in a buffer.
        let number = self.last as u32;
        self.number.write(device, 0, &[number]);
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        self.plan.encode(&mut pass, StepCounts::default());
        marker::mark(number)
    }
}
