//! Steps on their way to the device and back: recorded, submitted alone or together, read.
//!
//! Steps of a submission run one after another. What the host writes for the first is written before the submission. For
//! each further step, a copy within the submission overwrites what the step before has read, from a buffer that holds all
//! of it.

use std::time::Duration;

use web_time::Instant;

use super::marker::CompletionMarkers;
use crate::exec::{Sampled, StepOut, Ticket};
use crate::gpu::{Buffer, Device, Plan, Signal, StepCounts, wgpu};
use crate::ops::Logprob;
use crate::{Error, Result};

/// Submissions of one step that should be in flight: the device works on two while the host looks at a third.
pub(super) const TARGET_SUBMISSIONS: u32 = 3;
/// The id that stands for no token.
const NONE: u32 = u32::MAX;
/// Bytes that the host may write for the steps of a submission after the first.
pub(super) const UPLOAD: u64 = 1 << 20;

/// Bytes of the completion marker that each submission of a step leaves among its results.
pub(super) const MARK: u64 = 4;

/// What the host writes for a step.
#[derive(Debug, Default)]
pub(super) struct Writes {
    words: Vec<u32>,
    /// Where the words go: a buffer, its word, how many.
    places: Vec<(Buffer, u64, usize)>,
}

impl Writes {
    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.places.clear();
    }

    pub(super) fn push<T: bytemuck::NoUninit>(&mut self, to: &Buffer, word: u64, data: &[T]) {
        let words: &[u32] = bytemuck::cast_slice(data);
        if !words.is_empty() {
            self.words.extend_from_slice(words);
            self.places.push((to.clone(), word, words.len()));
        }
    }

    fn bytes(&self) -> u64 {
        self.words.len() as u64 * 4
    }

    /// Writes it before all that is submitted from now on.
    pub(super) fn write(&self, device: &Device) {
        let mut words = &*self.words;
        for (buffer, word, n) in &self.places {
            let (data, rest) = words.split_at(*n);
            buffer.write(device, *word, data);
            words = rest;
        }
    }

    /// Copies it after what the encoder holds, through `upload` from a byte on.
    fn copy(&self, device: &Device, encoder: &mut wgpu::CommandEncoder, upload: &Buffer, mut at: u64) {
        upload.write(device, at / 4, &self.words);
        for (buffer, word, n) in &self.places {
            let bytes = *n as u64 * 4;
            encoder.copy_buffer_to_buffer(upload.raw(), at, buffer.raw(), word * 4, bytes);
            at += bytes;
        }
    }
}

/// Steps that are recorded and not submitted yet.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) encoder: wgpu::CommandEncoder,
    staging: Buffer,
    /// Bytes of results, and of what the host wrote for steps after the first.
    results: u64,
    uploaded: u64,
    /// Each with the byte where its results begin.
    steps: Vec<(u64, Recorded)>,
    /// The byte of each completion marker, and its value.
    marks: Vec<(u64, u32)>,
    /// Whether more steps may join: see [`SubmissionPacing`].
    short: bool,
    /// Moves of cache blocks before the first step: their parameters live until they are submitted.
    _moves: Vec<Plan>,
}

/// A sample: where its results lie.
#[derive(Debug)]
pub(super) struct RecordedSample {
    pub(super) slot: u32,
    /// The word of its token.
    pub(super) token: usize,
    /// The word of its probabilities, and how many it reports.
    pub(super) reported: (usize, usize),
}

/// A step that is recorded: where its results lie.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) ticket: Ticket,
    /// In the order of the step.
    pub(super) samples: Vec<RecordedSample>,
    /// Words of results before the logits.
    pub(super) words: usize,
    /// Elements of the logits, and after them of the pooled rows.
    pub(super) logits: usize,
    pub(super) pooled: usize,
}

impl Recorded {
    /// Bytes of results.
    pub(super) fn bytes(&self) -> u64 {
        (self.words + self.logits + self.pooled) as u64 * 4
    }

    /// The results.
    fn read(&self, bytes: &[u8], out: &mut StepOut) {
        let (words, rest) = bytes.split_at(self.words * 4);
        let (logits, pooled) = rest.split_at(self.logits * 4);
        out.sampled.clear();
        out.logprobs.resize_with(self.samples.len(), Vec::new);
        let word = |at: usize| bytemuck::pod_read_unaligned::<u32>(&words[at * 4..at * 4 + 4]);
        for (sample, logprobs) in self.samples.iter().zip(&mut out.logprobs) {
            let token = Some(word(sample.token)).filter(|token| *token != NONE);
            out.sampled.push(Sampled { slot: sample.slot, token });
            let (at, n) = sample.reported;
            let entry = |i: usize| Logprob { token: word(at + 2 * i), logprob: f32::from_bits(word(at + 2 * i + 1)) };
            // A small vocabulary has fewer tokens than are asked for.
            logprobs.clear();
            logprobs.extend((0..if token.is_some() { n } else { 0 }).map(entry).filter(|l| l.token != NONE));
        }
        let numbers = |bytes: &[u8], out: &mut Vec<f32>| {
            out.clear();
            out.extend(bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned::<f32>));
        };
        numbers(logits, &mut out.logits);
        numbers(pooled, &mut out.pooled);
    }
}

impl Recording {
    /// Begins with moves of cache blocks.
    pub(super) fn new(device: &Device, staging: Buffer, short: bool, moves: Vec<Plan>) -> Self {
        let mut encoder = device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        if !moves.is_empty() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            moves.iter().for_each(|plan| plan.encode(&mut pass, StepCounts::default()));
        }
        Self { encoder, staging, results: 0, uploaded: 0, steps: Vec::new(), short, marks: Vec::new(), _moves: moves }
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is capacity for a step in one part that writes this and gives so many bytes.
    pub(super) fn fits(&self, writes: &Writes, results: u64) -> bool {
        self.uploaded + writes.bytes() <= UPLOAD && self.results + results + MARK <= self.staging.size()
    }

    /// Writes what the host has for the step that follows.
    pub(super) fn write(&mut self, device: &Device, writes: &Writes, upload: &Buffer) {
        if self.steps.is_empty() {
            return writes.write(device);
        }
        writes.copy(device, &mut self.encoder, upload, self.uploaded);
        self.uploaded += writes.bytes();
    }

    /// Copies a part of the last step's results, after all others.
    pub(super) fn give(&mut self, from: &Buffer, word: u64, words: u64) {
        if words > 0 {
            self.encoder.copy_buffer_to_buffer(from.raw(), word * 4, self.staging.raw(), self.results, words * 4);
            self.results += words * 4;
        }
    }

    /// The step is complete.
    pub(super) fn push(&mut self, step: Recorded) {
        self.steps.push((self.results - step.bytes(), step));
    }

    /// Encodes a plan; before each of `split_points`, submits what is encoded so far.
    pub(super) fn encode(
        &mut self,
        device: &Device,
        markers: &mut CompletionMarkers,
        plan: &Plan,
        counts: StepCounts,
        split_points: &[usize],
    ) {
        let mut from = 0;
        for &split_point in split_points {
            plan.encode_part(&mut self.pass(), from..split_point, counts);
            self.send(device, markers);
            from = split_point;
        }
        plan.encode_part(&mut self.pass(), from..plan.dispatches.len(), counts);
    }

    fn pass(&mut self) -> wgpu::ComputePass<'_> {
        self.encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default())
    }

    /// Submits what is encoded, with a marker at its end. A long step's parts wait for what was submitted before on a device that
    /// others use, too: no more than one of ours is before their work then.
    fn send(&mut self, device: &Device, markers: &mut CompletionMarkers) -> wgpu::SubmissionIndex {
        if let Some(before) = markers.index.take().filter(|_| !self.short && device.is_shared()) {
            // If it fails, the step's results will, too.
            let _ = device.finish_submission(before);
        }
        let mark = markers.end(device, &mut self.encoder);
        self.marks.push((self.results, mark));
        self.give(&markers.mark, 0, 1);
        let empty = || device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let encoded = std::mem::replace(&mut self.encoder, empty());
        #[cfg(test)]
        let encoded = if markers.lose_next() { empty() } else { encoded };
        let index = device.queue.submit([encoded.finish()]);
        markers.index = Some(index.clone());
        index
    }

    /// Submits all of it.
    pub(super) fn submit(mut self, device: &Device, markers: &mut CompletionMarkers) -> Submission {
        let index = self.send(device, markers);
        let Self { staging, results, steps, short, marks, .. } = self;
        let mapped = Signal::default();
        let signal = mapped.clone();
        staging.raw().map_async(wgpu::MapMode::Read, 0..results.max(4), move |r| signal.set(r.is_ok()));
        Submission { index, mapped, short, started: Instant::now(), staging, results, steps, marks }
    }
}

/// Steps that the device works on.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) index: wgpu::SubmissionIndex,
    pub(super) mapped: Signal,
    /// Whether it holds short steps.
    pub(super) short: bool,
    started: Instant,
    staging: Buffer,
    results: u64,
    steps: Vec<(u64, Recorded)>,
    /// The byte and value of each completion marker, if all of it ran.
    marks: Vec<(u64, u32)>,
}

impl Submission {
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Gives the results of each step to `done`, once they are mapped (or `ok` says that they cannot be), and returns the
    /// staging buffer.
    pub(super) fn read(self, ok: bool, out: &mut StepOut, done: &mut dyn FnMut(Ticket, Result<&StepOut>)) -> Buffer {
        let view = match ok {
            true => self.staging.raw().get_mapped_range(0..self.results.max(4)).map_err(|e| e.to_string()),
            false => Err("a read-back failed".to_owned()),
        };
        let stands = |view: &[u8], &(at, mark): &(u64, u32)| view[at as usize..].starts_with(&mark.to_le_bytes());
        let marked = view.as_ref().is_ok_and(|view| self.marks.iter().all(|mark| stands(&view[..], mark)));
        for (at, step) in &self.steps {
            let (at, bytes) = (*at as usize, step.bytes() as usize);
            match &view {
                Ok(_) if !marked => done(step.ticket, Err(Error::LostStep { step: step.ticket.0 })),
                Ok(view) => {
                    step.read(&view[at..at + bytes], out);
                    done(step.ticket, Ok(out));
                }
                Err(why) => done(step.ticket, Err(Error::DeviceLost(why.clone()))),
            }
        }
        drop(view);
        self.staging.raw().unmap();
        self.staging
    }
}

/// How many decode steps a submission takes: as many as fit into its time, judging by the last ones.
#[derive(Debug)]
pub(super) struct SubmissionPacing {
    /// A submission's time.
    pub(super) budget: Duration,
    most: u32,
    steps: u32,
    /// When the last submission was found finished.
    last: Option<Instant>,
}

impl SubmissionPacing {
    /// Two submissions are in flight, so that the device has something to do while the host looks at results.
    pub(super) fn new(in_flight: u32, budget: Duration) -> Self {
        Self { budget, most: (in_flight / 2).max(1), steps: 1, last: None }
    }

    pub(super) fn steps(&self) -> u32 {
        if self.budget.is_zero() { 1 } else { self.steps }
    }

    /// Short steps that should be in flight.
    pub(super) fn target_in_flight(&self) -> u32 {
        (2 * self.steps()).max(TARGET_SUBMISSIONS)
    }

    /// A submission is finished.
    pub(super) fn finished(&mut self, submission: &Submission) {
        let now = Instant::now();
        // It began when it was submitted, or when the one before was finished.
        let began = self.last.map_or(submission.started, |last| last.max(submission.started));
        self.last = Some(now);
        if submission.short {
            self.learn(now - began, submission.steps.len());
        }
    }

    /// Learns that so many steps took so long.
    fn learn(&mut self, time: Duration, steps: usize) {
        let step = time.as_secs_f64() / steps as f64;
        // A saturating cast. One step says little about many, so the number at most doubles.
        self.steps = ((self.budget.as_secs_f64() / step.max(1e-6)) as u32).clamp(1, self.most.min(2 * self.steps));
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::OWN;
    use super::*;

    #[test]
    fn submissions_keep_to_their_time() {
        let mut pacing = SubmissionPacing::new(16, OWN);
        let steps = |pacing: &mut SubmissionPacing, ms: f64| {
            let n = pacing.steps();
            pacing.learn(Duration::from_secs_f64(ms / 1e3 * f64::from(n)), n as usize);
            pacing.steps()
        };
        // Steps of 1 ms: twice as many each time, up to half of those that may be in flight.
        assert_eq!([1.0; 5].map(|ms| steps(&mut pacing, ms)), [2, 4, 8, 8, 8]);
        assert_eq!(pacing.target_in_flight(), 16);
        // Of 9 ms: five fit into 50 ms. Of 60: one. Then it grows again.
        assert_eq!([9.0, 60.0, 1.0].map(|ms| steps(&mut pacing, ms)), [5, 1, 2]);
        assert_eq!((pacing.target_in_flight(), SubmissionPacing::new(3, OWN).target_in_flight()), (4, 3));
        pacing.budget = Duration::ZERO;
        assert_eq!(pacing.steps(), 1);
        let mut few = SubmissionPacing::new(3, OWN);
        assert_eq!([1.0; 2].map(|ms| steps(&mut few, ms)), [1, 1]);
    }
}
