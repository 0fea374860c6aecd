//! A model on an application's own GPU device, at default limits, between the application's compute passes.
use wgslm::gpu::{Device, wgpu};
use wgslm::{GenerateOptions, LanguageModel, Options, Sampling, block_on};

const COUNT: &str =
    "@group(0) @binding(0) var<storage, read_write> n: u32; @compute @workgroup_size(1) fn f() { n += 1u; }";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The application's device, and something of its own to do on it.
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = block_on(instance.request_adapter(&Default::default()))?;
    let (device, queue) = block_on(adapter.request_device(&Default::default()))?;
    let usage = wgpu::BufferUsages::STORAGE;
    let desc = wgpu::BufferDescriptor { label: None, size: 4, usage, mapped_at_creation: false };
    let counter = device.create_buffer(&desc);
    let source = wgpu::ShaderSource::Wgsl(COUNT.into());
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: None,
        compilation_options: Default::default(),
        cache: None,
    });
    let entries = [wgpu::BindGroupEntry { binding: 0, resource: counter.as_entire_binding() }];
    let layout = &pipeline.get_bind_group_layout(0);
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries });

    // The engine takes it as it is; no callback or error scope of the application is replaced. Without `self_test_results`
    // there is no self-test of the device.
    let shared = Device::from_host(&adapter.get_info(), device.clone(), queue.clone());
    let options = Options { context: 512, prefill_tokens: 64, self_test_results: None, ..Options::default() };
    let mut model = block_on(LanguageModel::open_on(&shared, wgslm::TINY, &options, &mut |_| {}))?;
    let options =
        GenerateOptions { sampling: Some(Sampling::GREEDY), max_tokens: Some(24), ..GenerateOptions::default() };
    print!("Once upon a time");
    for piece in model.stream("Once upon a time", &options)? {
        print!("{}", piece?);
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
        drop(pass);
        queue.submit([encoder.finish()]);
    }
    println!();
    Ok(())
}
