//! A model on a GPU device that somebody else made, at default limits, between the host's own compute passes.
use wgslm::engine::{Engine, Event, Request};
use wgslm::exec::{GpuExecutor, GpuOptions, Limits, Numerics};
use wgslm::gpu::{Device, wgpu};
use wgslm::{file::ModelFile, model::Model, text::Special, text::Tokenizer};

const HOST: &str =
    "@group(0) @binding(0) var<storage, read_write> n: u32; @compute @workgroup_size(1) fn f() { n += 1u; }";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    pollster::block_on(async {
        // The host's device, and something of its own to do on it.
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapter = instance.request_adapter(&Default::default()).await?;
        let (device, queue) = adapter.request_device(&Default::default()).await?;
        let usage = wgpu::BufferUsages::STORAGE;
        let desc = wgpu::BufferDescriptor { label: None, size: 4, usage, mapped_at_creation: false };
        let counter = device.create_buffer(&desc);
        let source = wgpu::ShaderSource::Wgsl(HOST.into());
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

        // The engine takes it as it is; no callback or error scope of the host is replaced.
        let shared = Device::from_host(&adapter.get_info(), device.clone(), queue.clone());
        let model = Model::open(ModelFile::from_bytes("tiny.gguf", wgslm::TINY)?).await?;
        let tokenizer = Tokenizer::of(&model.file)?;
        let limits =
            Limits { rows: 64, seqs: 1, outs: 1, block: 16, blocks: 32, context: 512, in_flight: 2, checkpoints: 0 };
        let options = GpuOptions { numerics: Numerics::Fast, kv: None, limits, unfused: false, keep_values: false };
        let gpu = GpuExecutor::load(&shared, &model.program, &model, options, &mut |_, _| {}).await?;
        let mut engine = Engine::new(gpu, &model.program);
        let prompt = tokenizer.encode("Once upon a time", Special::Plain)?;
        engine.submit(Request { max_tokens: Some(24), ..Request::new(prompt) })?;
        let mut ids = Vec::new();
        while engine.busy() {
            for event in engine.step().await? {
                ids.extend(if let Event::Token { id, .. } = event { Some(id) } else { None });
            }
            let mut encoder = device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(1, 1, 1);
            drop(pass);
            queue.submit([encoder.finish()]);
        }
        println!("Once upon a time{}", tokenizer.decode(&ids, true));
        Ok(())
    })
}
