//! Pipelines, made once for each kernel, choice of fragments and set of override values.

use std::collections::{BTreeSet, HashMap};

use super::Device;
use super::compose::{Kernel, compose, set_constants};
use super::plan::ArgKind;
use crate::Result;

/// The pipelines that somebody uses on a device.
#[derive(Debug)]
pub struct Pipelines {
    device: Device,
    used: HashMap<Key, wgpu::ComputePipeline>,
}

/// What was made on a device, for whoever needs it next: compiling takes longer than most of what is run.
#[derive(Debug, Default)]
pub(super) struct Made {
    modules: HashMap<(ModuleKey, Values), wgpu::ShaderModule>,
    layouts: HashMap<Vec<ArgKind>, Layouts>,
    pipelines: HashMap<Key, wgpu::ComputePipeline>,
}

/// The layouts of a bind group and of a pipeline with that group alone.
pub(super) type Layouts = (wgpu::BindGroupLayout, wgpu::PipelineLayout);

/// Values of overrides, by their bits.
type Values = Vec<(&'static str, u64)>;

/// A shader module's identity, but for the constants that are written into its text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ModuleKey {
    kernel: &'static str,
    fragments: Vec<&'static str>,
    /// What is wrong with it on purpose.
    #[cfg(test)]
    mutation: Option<super::device::Mutation>,
}

impl ModuleKey {
    /// A kernel and its fragments: `matvec Q8_0 lib/reduce`.
    fn name(&self) -> String {
        std::iter::once(self.kernel).chain(self.fragments.iter().copied()).collect::<Vec<_>>().join(" ")
    }
}

/// A pipeline's identity: its module, override values by their bits, kinds of bindings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    module: ModuleKey,
    overrides: Values,
    kinds: Vec<ArgKind>,
}

impl Key {
    /// Its module and overrides, as profilers and drivers show them: `matvec Q8_0 lib/reduce COLS=8 WG=32`.
    fn label(&self, kernel: &Kernel) -> String {
        let overrides = kernel.overrides.iter().map(|(name, value)| format!(" {name}={}", value.constant()));
        self.module.name() + &overrides.collect::<String>()
    }
}

impl Pipelines {
    /// None yet.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), used: HashMap::new() }
    }

    /// How many are used: variants cannot multiply unseen.
    pub fn count(&self) -> usize {
        self.used.len()
    }

    /// The modules that are used: a kernel and its fragments, `matvec Q8_0 lib/reduce`.
    pub fn modules(&self) -> impl Iterator<Item = String> {
        self.used.keys().map(|key| key.module.name()).collect::<BTreeSet<_>>().into_iter()
    }

    /// The device that they run on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The layouts for these kinds of bindings, in order.
    pub(super) fn layouts(&self, kinds: &[ArgKind]) -> Layouts {
        self.device.made().layouts(&self.device.device, kinds)
    }

    /// The pipeline of a kernel, made if it is new to the device.
    pub(super) fn get(&mut self, kernel: &Kernel, kinds: &[ArgKind]) -> Result<wgpu::ComputePipeline> {
        let module = ModuleKey {
            kernel: kernel.name,
            fragments: kernel.slots.iter().map(|(_, f)| f.name).collect(),
            #[cfg(test)]
            mutation: self.device.mutation_of(kernel),
        };
        let overrides = kernel.overrides.iter().map(|(name, value)| (*name, value.constant().to_bits())).collect();
        let key = Key { module, overrides, kinds: kinds.to_vec() };
        if let Some(pipeline) = self.used.get(&key) {
            return Ok(pipeline.clone());
        }
        let pipeline = self.device.made().pipeline(&self.device, kernel, &key)?;
        self.used.insert(key, pipeline.clone());
        Ok(pipeline)
    }
}

impl Made {
    fn layouts(&mut self, device: &wgpu::Device, kinds: &[ArgKind]) -> Layouts {
        let make = || {
            let entry = |(binding, kind): (usize, &ArgKind)| {
                let ty = match kind {
                    ArgKind::Uniform => wgpu::BufferBindingType::Uniform,
                    ArgKind::Read => wgpu::BufferBindingType::Storage { read_only: true },
                    ArgKind::Write => wgpu::BufferBindingType::Storage { read_only: false },
                };
                wgpu::BindGroupLayoutEntry {
                    binding: binding as u32,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
                    count: None,
                }
            };
            let entries: Vec<_> = kinds.iter().enumerate().map(entry).collect();
            let desc = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
            let group = device.create_bind_group_layout(&desc);
            let desc =
                wgpu::PipelineLayoutDescriptor { label: None, bind_group_layouts: &[Some(&group)], immediate_size: 0 };
            let pipeline = device.create_pipeline_layout(&desc);
            (group, pipeline)
        };
        self.layouts.entry(kinds.to_vec()).or_insert_with(make).clone()
    }

    fn pipeline(&mut self, device: &Device, kernel: &Kernel, key: &Key) -> Result<wgpu::ComputePipeline> {
        if let Some(pipeline) = self.pipelines.get(key) {
            return Ok(pipeline.clone());
        }
        let text = compose(kernel)?;
        kernel.check(&text)?;
        let in_text: BTreeSet<_> = set_constants(&text).map(|(name, _)| name.to_owned()).collect();
        let (written, overrides): (Vec<_>, Vec<_>) =
            kernel.overrides.iter().partition(|(name, _)| in_text.contains(*name));
        let written = written.into_iter().map(|(name, value)| (name, value.constant().to_bits())).collect();
        let make = || device.module(&key.module.name(), text);
        let module = self.modules.entry((key.module.clone(), written)).or_insert_with(make).clone();
        let layout = self.layouts(&device.device, &key.kinds).1;
        let constants: Vec<_> = overrides.iter().map(|(name, value)| (*name, value.constant())).collect();
        let desc = wgpu::ComputePipelineDescriptor {
            label: Some(&key.label(kernel)),
            layout: Some(&layout),
            module: &module,
            entry_point: Some(kernel.name),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &constants,
                // Our kernels write workgroup memory before they read it; on Metal zeroing it is a serial loop.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        };
        let pipeline = device.device.create_compute_pipeline(&desc);
        self.pipelines.insert(key.clone(), pipeline.clone());
        Ok(pipeline)
    }
}
