//! Plans: the dispatches of a program, bound once and replayed for every step of its class.

use super::compose::{Kernel, Override};
use super::pipeline::Pipelines;
use super::{Buffer, Device};
use crate::Result;

/// What a kernel is bound to, in the order of its bindings after binding 0, its parameters.
#[derive(Clone, Debug)]
pub enum Arg<'a> {
    /// Read only; from a byte offset to the buffer's end.
    Read(&'a Buffer, u64),
    /// Read only, these bytes of it.
    ReadPart(&'a Buffer, std::ops::Range<u64>),
    /// Read and written.
    Write(&'a Buffer),
    /// Read and written, these bytes of it.
    WritePart(&'a Buffer, std::ops::Range<u64>),
    /// Written by other forms of the kernel: something that can be bound. Once in a dispatch.
    Unused,
}

/// The kind of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ArgKind {
    Uniform,
    Read,
    Write,
}

impl<'a> Arg<'a> {
    /// Reads a whole buffer.
    pub fn read(buffer: &'a Buffer) -> Self {
        Self::Read(buffer, 0)
    }
}

/// Workgroups in one dimension of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// The same in every step.
    Fixed(u32),
    /// One for so many rows of the step.
    Rows(u32),
    /// One for so many output rows.
    Outs(u32),
    /// One for so many sequences.
    Seqs(u32),
    /// One for so many rows, and one more for each sequence: enough if no two share one.
    Tiles(u32),
    /// One for an item of the work list.
    Items,
    /// One for a row whose KV splits are reduced.
    SplitRows,
    /// One for each sample.
    Samples,
    /// The same, if one of them has filters; else none.
    SamplesIfFiltered,
    /// The same, if one of them has penalties or a bias; else none.
    SamplesIfAdjusted,
    /// The same, if one of them reports probabilities; else none.
    SamplesIfReported,
}

/// How much a step of a plan's class holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepCounts {
    /// Rows.
    pub rows: u32,
    /// Output rows.
    pub outs: u32,
    /// Sequences.
    pub seqs: u32,
    /// Items of the work list of rows.
    pub items: u32,
    /// Rows whose KV splits are reduced.
    pub split_rows: u32,
    /// Samples.
    pub samples: u32,
    /// Samples, if one of them has filters; else 0.
    pub samples_if_filtered: u32,
    /// Samples, if one of them has penalties or a bias; else 0.
    pub samples_if_adjusted: u32,
    /// Samples, if one of them reports probabilities; else 0.
    pub samples_if_reported: u32,
}

impl Dim {
    fn groups(self, counts: StepCounts) -> u32 {
        match self {
            Self::Fixed(n) => n,
            Self::Rows(per) => counts.rows.div_ceil(per),
            Self::Outs(per) => counts.outs.div_ceil(per),
            Self::Seqs(per) => counts.seqs.div_ceil(per),
            Self::Tiles(per) => counts.rows / per + counts.seqs,
            Self::Items => counts.items,
            Self::SplitRows => counts.split_rows,
            Self::Samples => counts.samples,
            Self::SamplesIfFiltered => counts.samples_if_filtered,
            Self::SamplesIfAdjusted => counts.samples_if_adjusted,
            Self::SamplesIfReported => counts.samples_if_reported,
        }
    }
}

/// One dispatch, bound.
#[derive(Debug)]
pub struct Dispatch {
    /// The kernel's name.
    pub label: &'static str,
    /// The layer that it works for.
    pub layer: Option<u32>,
    /// The node of the program that it works for.
    pub node: Option<usize>,
    /// The values of its kernel's overrides.
    pub overrides: Vec<(&'static str, Override)>,
    pipeline: wgpu::ComputePipeline,
    bind_group: wgpu::BindGroup,
    grid: [Dim; 3],
    small: Option<BoundSmall>,
}

/// Another variant of a dispatch, with the same bindings, for steps of few rows.
#[derive(Debug)]
pub(crate) struct Small<'a> {
    pub(crate) kernel: &'a Kernel,
    /// Counts the rows.
    pub(crate) rows: Dim,
    /// So many of them at most.
    pub(crate) most: u32,
    pub(crate) grid: [Dim; 3],
}

/// The same with its pipeline.
#[derive(Clone, Debug)]
struct BoundSmall {
    rows: Dim,
    most: u32,
    pipeline: wgpu::ComputePipeline,
    grid: [Dim; 3],
}

impl Dispatch {
    /// What runs in a step of this size, and its workgroups; none where there is no work.
    fn form(&self, counts: StepCounts) -> Option<(&wgpu::ComputePipeline, [u32; 3])> {
        let (pipeline, grid) = match &self.small {
            Some(small) if small.rows.groups(counts) <= small.most => (&small.pipeline, small.grid),
            _ => (&self.pipeline, self.grid),
        };
        let groups = grid.map(|d| d.groups(counts));
        (!groups.contains(&0)).then_some((pipeline, groups))
    }

    /// Encodes the dispatch, if it has work in a step of this size.
    pub(super) fn encode(&self, pass: &mut wgpu::ComputePass<'_>, counts: StepCounts) {
        if let Some((pipeline, [x, y, z])) = self.form(counts) {
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &self.bind_group, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
    }
}

/// The dispatches of a program, in order.
#[derive(Debug, Default)]
pub struct Plan {
    /// In order.
    pub dispatches: Vec<Dispatch>,
    /// The most storage bindings that a dispatch has.
    pub bindings: usize,
    /// Bound by the dispatches, kept as long as they are.
    kept: Vec<Buffer>,
}

impl Plan {
    /// Encodes every dispatch that has work in a step of this size.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>, counts: StepCounts) {
        self.encode_part(pass, 0..self.dispatches.len(), counts);
    }

    /// How many dispatches have work in a step of this size.
    pub fn count(&self, counts: StepCounts) -> usize {
        self.dispatches.iter().filter(|dispatch| dispatch.form(counts).is_some()).count()
    }

    /// Adds another plan's dispatches after its own.
    pub fn append(&mut self, other: Self) {
        self.dispatches.extend(other.dispatches);
        self.kept.extend(other.kept);
        self.bindings = self.bindings.max(other.bindings);
    }

    /// The same of some of them.
    pub(crate) fn encode_part(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        part: std::ops::Range<usize>,
        counts: StepCounts,
    ) {
        self.dispatches[part].iter().for_each(|dispatch| dispatch.encode(pass, counts));
    }

    /// Encodes and submits it alone, without waiting.
    pub fn submit(&self, device: &Device, counts: StepCounts) {
        self.submit_times(device, counts, 1);
    }

    /// The same, so many times in a row.
    pub(crate) fn submit_times(&self, device: &Device, counts: StepCounts, times: u32) {
        let mut encoder = device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        (0..times).for_each(|_| self.encode(&mut pass, counts));
        drop(pass);
        device.queue.submit([encoder.finish()]);
    }
}

/// Collects dispatches and their parameters, then binds them all.
#[derive(Debug)]
pub struct PlanBuilder<'a> {
    pipelines: &'a mut Pipelines,
    params: Vec<u8>,
    pending: Vec<Pending>,
    /// The layer of the dispatches that follow.
    pub layer: Option<u32>,
    /// The node of the program that they work for.
    pub node: Option<usize>,
}

#[derive(Debug)]
struct Pending {
    label: &'static str,
    layer: Option<u32>,
    node: Option<usize>,
    overrides: Vec<(&'static str, Override)>,
    pipeline: wgpu::ComputePipeline,
    kinds: Vec<ArgKind>,
    buffers: Vec<Bound>,
    params: (u64, u64),
    grid: [Dim; 3],
    small: Option<BoundSmall>,
}

/// A buffer as it is bound: from a byte on, so many bytes or the rest.
type Bound = (Buffer, u64, Option<u64>);

impl<'a> PlanBuilder<'a> {
    /// An empty plan.
    pub fn new(pipelines: &'a mut Pipelines) -> Self {
        Self { pipelines, params: Vec::new(), pending: Vec::new(), layer: None, node: None }
    }

    /// The device that the plan is for.
    pub fn device(&self) -> &Device {
        self.pipelines.device()
    }

    /// Adds a dispatch: parameters (a uniform `struct Params` of the kernel), bindings from 1 on, workgroups.
    pub fn dispatch<P: bytemuck::NoUninit>(
        &mut self,
        kernel: &Kernel,
        params: &P,
        args: &[Arg<'_>],
        grid: [Dim; 3],
    ) -> Result<()> {
        self.dispatch_forms(kernel, params, args, grid, None)
    }

    /// The same, with another form for steps of few rows.
    pub(crate) fn dispatch_forms<P: bytemuck::NoUninit>(
        &mut self,
        kernel: &Kernel,
        params: &P,
        args: &[Arg<'_>],
        grid: [Dim; 3],
        small: Option<Small<'_>>,
    ) -> Result<()> {
        let mut kinds = vec![ArgKind::Uniform];
        let mut buffers = Vec::with_capacity(args.len());
        for arg in args {
            let (kind, bound) = match arg {
                Arg::Read(buffer, at) => (ArgKind::Read, ((*buffer).clone(), *at, None)),
                Arg::ReadPart(buffer, part) => {
                    (ArgKind::Read, ((*buffer).clone(), part.start, Some(part.end - part.start)))
                }
                Arg::Write(buffer) => (ArgKind::Write, ((*buffer).clone(), 0, None)),
                Arg::WritePart(buffer, part) => {
                    (ArgKind::Write, ((*buffer).clone(), part.start, Some(part.end - part.start)))
                }
                Arg::Unused => (ArgKind::Write, (Buffer::new(self.device(), "unused", 16)?, 0, None)),
            };
            kinds.push(kind);
            buffers.push(bound);
        }
        let pipeline = self.pipelines.get(kernel, &kinds)?;
        let small = match small {
            Some(Small { kernel, rows, most, grid }) => {
                Some(BoundSmall { rows, most, pipeline: self.pipelines.get(kernel, &kinds)?, grid })
            }
            None => None,
        };
        let align = self.device().caps().uniform_align as usize;
        let at = self.params.len().next_multiple_of(align);
        self.params.resize(at, 0);
        self.params.extend_from_slice(bytemuck::bytes_of(params));
        self.params.resize(self.params.len().next_multiple_of(16), 0);
        let size = (self.params.len() - at) as u64;
        let (label, layer, node) = (kernel.name, self.layer, self.node);
        self.pending.push(Pending {
            label,
            layer,
            node,
            overrides: kernel.overrides.clone(),
            pipeline,
            kinds,
            buffers,
            params: (at as u64, size),
            grid,
            small,
        });
        Ok(())
    }

    /// Uploads the parameters and binds every dispatch since the last call.
    pub fn finish(&mut self) -> Result<Plan> {
        let device = self.pipelines.device().clone();
        let params = Buffer::uniform(&device, "params", self.params.len() as u64)?;
        params.write(&device, 0, &self.params);
        let mut plan = Plan::default();
        self.params.clear();
        for pending in std::mem::take(&mut self.pending) {
            fn binding(buffer: &Buffer, offset: u64, size: Option<u64>) -> wgpu::BindingResource<'_> {
                let size = size.and_then(std::num::NonZeroU64::new);
                wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: buffer.raw(), offset, size })
            }
            let (at, size) = pending.params;
            let resources = std::iter::once(binding(&params, at, Some(size)))
                .chain(pending.buffers.iter().map(|(buffer, offset, size)| binding(buffer, *offset, *size)));
            let entries: Vec<_> = resources
                .enumerate()
                .map(|(i, resource)| wgpu::BindGroupEntry { binding: i as u32, resource })
                .collect();
            let layout = self.pipelines.layouts(&pending.kinds).0;
            let desc = wgpu::BindGroupDescriptor { label: Some(pending.label), layout: &layout, entries: &entries };
            let bind_group = device.device.create_bind_group(&desc);
            plan.bindings = plan.bindings.max(pending.buffers.len());
            plan.kept.extend(pending.buffers.into_iter().map(|(buffer, ..)| buffer));
            plan.dispatches.push(Dispatch {
                label: pending.label,
                layer: pending.layer,
                node: pending.node,
                overrides: pending.overrides,
                pipeline: pending.pipeline,
                bind_group,
                grid: pending.grid,
                small: pending.small,
            });
        }
        plan.kept.push(params);
        Ok(plan)
    }
}
