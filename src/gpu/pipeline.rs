//! Pipelines, made once for each kernel, choice of fragments and set of override values.

use std::collections::HashMap;

use super::Device;
use super::compose::{Kernel, compose};
use super::plan::ArgKind;
use crate::Result;

/// The pipelines of one device, and the modules and layouts that they share.
#[derive(Debug)]
pub struct Pipelines {
    device: Device,
    modules: HashMap<String, wgpu::ShaderModule>,
    layouts: HashMap<Vec<ArgKind>, (wgpu::BindGroupLayout, wgpu::PipelineLayout)>,
    pipelines: HashMap<Key, wgpu::ComputePipeline>,
}

/// A kernel's identity: name, fragments, override values by their bits, kinds of bindings.
type Key = (&'static str, Vec<&'static str>, Vec<(&'static str, u64)>, Vec<ArgKind>);

impl Pipelines {
    /// None yet.
    pub fn new(device: &Device) -> Self {
        let (modules, layouts, pipelines) = Default::default();
        Self { device: device.clone(), modules, layouts, pipelines }
    }

    /// How many were made: variants cannot multiply unseen.
    pub fn count(&self) -> usize {
        self.pipelines.len()
    }

    /// The modules that were made: a kernel and its fragments, `matvec Q8_0 lib/reduce`.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.modules.keys().map(String::as_str)
    }

    /// The device that they run on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The layout of a bind group of these kinds of bindings, in order.
    pub(super) fn layout(&mut self, kinds: &[ArgKind]) -> &(wgpu::BindGroupLayout, wgpu::PipelineLayout) {
        let device = &self.device.device;
        self.layouts.entry(kinds.to_vec()).or_insert_with(|| {
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
        })
    }

    /// The pipeline of a kernel, made if it is new.
    pub(super) fn get(&mut self, kernel: &Kernel, kinds: &[ArgKind]) -> Result<wgpu::ComputePipeline> {
        let roles: Vec<_> = kernel.roles.iter().map(|(_, f)| f.name).collect();
        let overrides = kernel.overrides.iter().map(|(n, v)| (*n, v.to_bits())).collect();
        let key: Key = (kernel.name, roles, overrides, kinds.to_vec());
        if let Some(pipeline) = self.pipelines.get(&key) {
            return Ok(pipeline.clone());
        }
        let module_name = std::iter::once(kernel.name).chain(key.1.iter().copied()).collect::<Vec<_>>().join(" ");
        let module = match self.modules.get(&module_name) {
            Some(module) => module.clone(),
            None => {
                let module = self.device.module(&module_name, compose(kernel)?);
                self.modules.insert(module_name.clone(), module.clone());
                module
            }
        };
        let layout = self.layout(kinds).1.clone();
        let desc = wgpu::ComputePipelineDescriptor {
            label: Some(kernel.name),
            layout: Some(&layout),
            module: &module,
            entry_point: Some(kernel.name),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &kernel.overrides,
                // Our kernels write workgroup memory before they read it; on Metal zeroing it is a serial loop.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        };
        let pipeline = self.device.device.create_compute_pipeline(&desc);
        self.pipelines.insert(key, pipeline.clone());
        Ok(pipeline)
    }
}
