//! The adapters that the tests run on: both must be there, or every other device test would be moot. And an external device,
//! shared with the application that made it: each does its own work, and each gets its own errors.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pollster::block_on;
use wgslm::driver::{Driver, GenerationEvent, Next, ServeOptions};
use wgslm::engine::{Engine, Event, Request};
use wgslm::exec::{Executor, GpuExecutor, GpuOptions, Limits, Numerics, Phase, SelfTestResults, self_test};
use wgslm::file::ModelFile;
use wgslm::gpu::{Choice, Device, Kind, Matmul, wgpu};
use wgslm::model::Model;
use wgslm::quant::BlockFormat;
use wgslm::text::{Special, Tokenizer};

/// Opens the adapter whose name holds `name`, with WebGPU's default limits; scripts/test makes both visible.
fn open(name: &str) -> Device {
    let choice = Choice { name: Some(name.to_owned()), default_limits: true, ..Choice::default() };
    block_on(Device::open(&choice)).unwrap_or_else(|e| panic!("{e}; scripts/test installs {name} and shows it"))
}

#[test]
fn lavapipe_opens_by_name() {
    let device = open("llvmpipe");
    assert_eq!(device.caps().kind, Kind::Software);
    assert!(device.caps().name.contains("llvmpipe"), "{}", device.caps().name);
}

#[test]
fn swiftshader_opens_by_name() {
    let device = open("swiftshader");
    assert_eq!(device.caps().kind, Kind::Software);
    assert!(device.caps().name.contains("SwiftShader"), "{}", device.caps().name);
}

#[test]
fn no_gpu_is_picked_by_a_name_that_none_has() {
    let choice = Choice { name: Some("no such adapter".into()), ..Choice::default() };
    let error = block_on(Device::open(&choice)).expect_err("opened an adapter that is not there").to_string();
    assert!(error.starts_with("device: "), "{error}");
}

/// An adapter's own cooperative matrices pass the self-test, for prompts' products and attention.
#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/newest-lavapipe"]
fn gpu_cooperative_matrices_of_the_adapter_pass_the_self_test() {
    let tuning = "matmul = cooperative".to_owned();
    let choice = Choice { name: Some("llvmpipe".to_owned()), tuning, ..Choice::default() };
    let device = block_on(Device::open(&choice)).expect("lavapipe");
    assert!(device.caps().cooperative.is_some(), "lavapipe of Mesa 26 has cooperative matrices");
    let ((model, _), results) = (tiny(), SelfTestResults::default());
    let tested = block_on(self_test(&device, &model.program, &model, Numerics::Fast, None, &results)).unwrap();
    assert_eq!(results.faults(), Vec::<String>::new());
    assert_eq!(tested.caps().matmul(BlockFormat::Q8_0), Matmul::Cooperative);
    assert!(tested.caps().attend_matrices().is_some(), "{}", results.text());
}

// --- an external device ------------------------------------------------------------------------------------------------

/// An application with a device of its own, work on it, and callbacks for its errors.
struct Host {
    info: wgpu::AdapterInfo,
    device: wgpu::Device,
    queue: wgpu::Queue,
    /// Counted up by the host's own compute passes.
    counter: wgpu::Buffer,
    /// What its callback for uncaught errors received.
    errors: Arc<Mutex<Vec<String>>>,
    /// How often its callback for a lost device was called.
    losses: Arc<AtomicUsize>,
}

impl Host {
    fn new(adapter_name: &str, limits: wgpu::Limits) -> Self {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapters = block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        let adapter = adapters.into_iter().find(|a| a.get_info().name.to_lowercase().contains(adapter_name));
        let adapter = adapter.unwrap_or_else(|| panic!("no {adapter_name}; scripts/test installs it"));
        let desc = wgpu::DeviceDescriptor { required_limits: limits, ..Default::default() };
        let (device, queue) = block_on(adapter.request_device(&desc)).unwrap();

        let (errors, losses) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let heard: Arc<Mutex<Vec<String>>> = Arc::clone(&errors);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| heard.lock().unwrap().push(error.to_string())));
        let lost = Arc::clone(&losses);
        device.set_device_lost_callback(move |_, _| {
            lost.fetch_add(1, Ordering::Relaxed);
        });

        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        let desc = wgpu::BufferDescriptor { label: Some("host"), size: 4, usage, mapped_at_creation: false };
        let counter = device.create_buffer(&desc);
        Self { info: adapter.get_info(), device, queue, counter, errors, losses }
    }

    fn shared(&self) -> Device {
        Device::from_host(&self.info, self.device.clone(), self.queue.clone())
    }

    /// A compute pass of its own: this, on its number `n`, so often.
    fn compute(&self, body: &str, times: u32) {
        let header = "@group(0) @binding(0) var<storage, read_write> n: u32; @compute @workgroup_size(1) fn main()";
        let source = wgpu::ShaderSource::Wgsl(format!("{header} {{ {body} }}").into());
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: Some("host"), source });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some("host"),
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: Default::default(),
            cache: None,
        });
        let entries = [wgpu::BindGroupEntry { binding: 0, resource: self.counter.as_entire_binding() }];
        let layout = &pipeline.get_bind_group_layout(0);
        let desc = wgpu::BindGroupDescriptor { label: Some("host"), layout, entries: &entries };
        let group = self.device.create_bind_group(&desc);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(times, 1, 1);
        drop(pass);
        self.queue.submit([encoder.finish()]);
    }

    /// A pass that [`counted`](Self::counted) sees.
    fn count(&self) {
        self.compute("n += 1u;", 1);
    }

    /// What its passes have counted.
    fn counted(&self) -> u32 {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let desc = wgpu::BufferDescriptor { label: Some("host"), size: 4, usage, mapped_at_creation: false };
        let read = self.device.create_buffer(&desc);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.counter, 0, &read, 0, 4);
        self.queue.submit([encoder.finish()]);
        read.map_async(wgpu::MapMode::Read, .., |result| result.unwrap());
        self.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let view = read.get_mapped_range(..).unwrap();
        u32::from_le_bytes(view[..].try_into().unwrap())
    }

    /// Something that wgpu refuses: a buffer that is mapped for two ends at once.
    fn blunder(&self, label: &str) {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE;
        let desc = wgpu::BufferDescriptor { label: Some(label), size: 4, usage, mapped_at_creation: false };
        drop(self.device.create_buffer(&desc));
    }
}

fn tiny() -> (Model, Vec<u32>) {
    let model = block_on(Model::open(ModelFile::from_bytes("tiny.gguf", wgslm::TINY).unwrap())).unwrap();
    let prompt = Tokenizer::of(&model.file).unwrap().encode("Once upon a time", Special::Plain).unwrap();
    (model, prompt)
}

fn load(device: &Device, model: &Model) -> wgslm::Result<GpuExecutor> {
    load_with(device, model, 32, 512)
}

/// The same with another cache.
fn load_with(device: &Device, model: &Model, blocks: u32, context: u32) -> wgslm::Result<GpuExecutor> {
    load_within(
        device,
        model,
        Limits { rows: 64, seqs: 1, outs: 1, block: 16, blocks, context, in_flight: 2, checkpoints: 0 },
    )
}

fn load_within(device: &Device, model: &Model, limits: Limits) -> wgslm::Result<GpuExecutor> {
    let options = GpuOptions { numerics: Numerics::Fast, kv: None, limits, unfused: false, keep_values: false };
    block_on(async {
        let mut gpu = GpuExecutor::load(device, &model.program, model, options, &mut |_, _| {}).await?;
        for phase in Phase::ALL {
            gpu.plan(phase, &mut |_, _| {}).await?;
        }
        Ok(gpu)
    })
}

/// An answer of 24 tokens, with something done between any two steps.
fn generate(gpu: GpuExecutor, model: &Model, prompt: &[u32], mut between: impl FnMut(usize)) -> Vec<u32> {
    let mut engine = Engine::new(gpu, &model.program);
    engine.submit(Request { max_tokens: Some(24), ..Request::new(prompt.to_vec()) }).unwrap();
    let (mut ids, mut steps) = (Vec::new(), 0);
    while engine.busy() {
        for event in block_on(engine.step()) {
            match event {
                Event::Token { id, .. } => ids.push(id),
                Event::Finished { reason, .. } => assert_eq!(reason.name(), "length"),
            }
        }
        between(steps);
        steps += 1;
    }
    ids
}

fn a_host_shares_its_device(adapter: &str) {
    let (model, prompt) = tiny();
    let expected = generate(load(&open(adapter), &model).unwrap(), &model, &prompt, |_| {});
    assert_eq!(expected.len(), 24);

    let host = Host::new(adapter, wgpu::Limits::default());
    let mut passes = 0;
    let self_test_results = SelfTestResults::default();
    // Two engines, one after another, on the device that lives on.
    for round in 0..2 {
        let shared = host.shared();
        assert_eq!(shared.caps().subgroups, None, "a device of default features");
        // A scope of the host's stays open while weights are loaded and kernels are compiled in scopes of ours.
        let scope = host.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let tested =
            block_on(self_test(&shared, &model.program, &model, Numerics::Fast, None, &self_test_results)).unwrap();
        let mut gpu = load(&tested, &model).unwrap();
        if round == 1 {
            // Every step in as many parts as can be, one after another.
            block_on(gpu.calibrate()).unwrap();
            gpu.set_budget(Duration::from_nanos(1));
        }
        let mut steps = Some(scope);
        let ids = generate(gpu, &model, &prompt, |step| {
            host.count();
            passes += 1;
            if step == 8 {
                host.blunder("in the scope");
            }
            if step == 16 {
                let error = block_on(steps.take().unwrap().pop());
                let error = error.expect("what the host did wrong arrives in the host's scope").to_string();
                assert!(error.contains("in the scope"), "{error}");
                host.blunder("uncaught");
            }
        });
        assert_eq!(ids, expected, "the answer of a device of our own");
        assert_eq!(host.counted(), passes, "the host's own passes");
        shared.check().expect("errors of the host are none of ours");
        let mut errors = host.errors.lock().unwrap();
        assert_eq!(errors.len(), 1, "round {round}: {errors:?}");
        assert!(errors[0].contains("uncaught"), "{errors:?}");
        errors.clear();
    }
    assert_eq!(host.losses.load(Ordering::Relaxed), 0);
    let shared = host.shared();
    host.device.destroy();
    let _ = host.device.poll(wgpu::PollType::Poll);
    assert_eq!(host.losses.load(Ordering::Relaxed), 1, "the host hears of the loss");
    assert!(load(&shared, &model).is_err(), "nothing runs on a device that is gone");
}

#[test]
fn lavapipe_is_shared_with_a_host() {
    a_host_shares_its_device("llvmpipe");
}

#[test]
fn swiftshader_is_shared_with_a_host() {
    a_host_shares_its_device("swiftshader");
}

/// Takes tenths of a second, run a thousand times. lavapipe ends a loop at some 65,000.
const SLOW: &str = "for (var i = 0u; i < 60000u; i++) { n = (n ^ (n >> 3u)) * 1664525u; }";

/// While the engine waits for the device, the application can destroy what it no longer needs.
fn a_host_goes_on_while_the_engine_waits(adapter: &str) {
    let host = Host::new(adapter, wgpu::Limits::default());
    let shared = host.shared();
    // Of a few, since other programs may have the processor meanwhile.
    let least = (0..5).map(|_| {
        let usage = wgpu::BufferUsages::STORAGE;
        let desc = wgpu::BufferDescriptor { label: Some("old"), size: 4, usage, mapped_at_creation: false };
        let buffer = host.device.create_buffer(&desc);
        host.compute(SLOW, 1000);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let begun = Instant::now();
                shared.finish().unwrap();
                begun.elapsed()
            });
            std::thread::sleep(Duration::from_millis(10));
            let begun = Instant::now();
            buffer.destroy();
            let held = begun.elapsed();
            held.div_duration_f64(waits.join().unwrap())
        })
    });
    let least = least.fold(f64::MAX, f64::min);
    assert!(least < 0.3, "{least}");

    // And what it submits meanwhile, faster than the device works, is not waited for.
    let waited = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        host.compute(SLOW, 300);
        scope.spawn(|| {
            shared.finish().unwrap();
            waited.store(1, Ordering::Relaxed);
        });
        let ended = (0..30).any(|_| {
            host.compute(SLOW, 300);
            std::thread::sleep(Duration::from_millis(20));
            waited.load(Ordering::Relaxed) == 1
        });
        assert!(ended, "30 submissions later");
    });
}

#[test]
fn lavapipe_host_goes_on_while_the_engine_waits() {
    a_host_goes_on_while_the_engine_waits("llvmpipe");
}

#[test]
fn swiftshader_host_goes_on_while_the_engine_waits() {
    a_host_goes_on_while_the_engine_waits("swiftshader");
}

/// A device below WebGPU's default limits: the engine's caller gets an error, and the application's callbacks get nothing.
#[test]
fn gpu_of_a_host_that_is_too_small_is_refused() {
    let (model, _) = tiny();
    let host = Host::new("llvmpipe", wgpu::Limits::downlevel_defaults());
    let error = load(&host.shared(), &model).expect_err("four storage buffers do not suffice").to_string();
    assert!(error.starts_with("device: kernels: "), "{error}");
    assert_eq!(host.errors.lock().unwrap().len(), 0);
    host.count();
    assert_eq!(host.counted(), 1);
}

/// A cache that does not fit is made smaller, and the answer is the same; where not even one sequence fits, the error says what
/// would.
#[test]
fn gpu_caches_are_as_large_as_fits() {
    let (model, prompt) = tiny();
    let expected = generate(load(&open("llvmpipe"), &model).unwrap(), &model, &prompt, |_| {});
    let host = Host::new("llvmpipe", wgpu::Limits { max_storage_buffer_binding_size: 8 << 20, ..Default::default() });
    let gpu = load_with(&host.shared(), &model, 1 << 16, 512).unwrap();
    let smaller = gpu.smaller_cache().expect("so much does not fit");
    let [holds, wanted] = smaller.positions;
    assert!(smaller.to_string().starts_with(&format!("the KV cache holds {holds} positions: ")), "{smaller}");
    assert_eq!((wanted, holds), (16 << 16, u64::from(gpu.limits().blocks) * 16));
    assert!((512..1 << 19).contains(&holds), "{holds}");
    assert_eq!(generate(gpu, &model, &prompt, |_| {}), expected);
    assert!(load(&host.shared(), &model).unwrap().smaller_cache().is_none());
    let error = load_with(&host.shared(), &model, 1 << 20, 1 << 22).expect_err("a context of four million").to_string();
    assert!(error.contains("the KV cache of a layer") && error.contains("positions fits"), "{error}");
    assert_eq!(*host.errors.lock().unwrap(), [""; 0]);
}

/// An application's device is lost at one step or another: the driver goes on with the next one, and two answers that are given at
/// once stay what they are.
#[test]
fn gpu_that_is_lost_is_opened_again() {
    let (model, prompt) = tiny();
    let tokenizer = Arc::new(Tokenizer::of(&model.file).unwrap());
    let prompts = [prompt, tokenizer.encode("The dog was", Special::Plain).unwrap()];
    let alone = |prompt: &Vec<u32>| generate(load(&open("llvmpipe"), &model).unwrap(), &model, prompt, |_| {});
    let expected = prompts.each_ref().map(alone);
    let limits =
        Limits { rows: 64, seqs: 2, outs: 2, block: 16, blocks: 64, context: 512, in_flight: 2, checkpoints: 0 };
    let model = Arc::new(model);
    for at in 0..20 {
        let host = Host::new("llvmpipe", wgpu::Limits::default());
        let engine = Engine::new(load_within(&host.shared(), &model, limits).unwrap(), &model.program);
        let (driver, handle) = Driver::new(engine, Arc::clone(&tokenizer), ServeOptions::default());
        let again = Arc::clone(&model);
        let mut driver = driver.reopen_with(Box::new(move || {
            let again = Arc::clone(&again);
            Box::pin(async move { load_within(&open("llvmpipe"), &again, limits) })
        }));
        let ask = |prompt: &Vec<u32>| {
            handle.generate(Request { max_tokens: Some(24), ..Request::new(prompt.clone()) }).unwrap()
        };
        let mut asked = prompts.each_ref().map(|prompt| (ask(prompt), Vec::new(), false));
        for turn in 0.. {
            if turn == at {
                assert_eq!(handle.metrics().num_requests_running, if at > 0 { 2 } else { 0 }, "lost in turn {at}");
                host.device.destroy();
            }
            assert_ne!(block_on(driver.turn()), Next::Over);
            for (generation, ids, over) in &mut asked {
                while let Some(event) = generation.try_next() {
                    match event {
                        GenerationEvent::Token { id, .. } => ids.push(id),
                        GenerationEvent::Finished { reason, .. } => {
                            assert_eq!(reason.name(), "length", "lost in turn {at}: {reason:?}");
                            *over = true;
                        }
                    }
                }
            }
            if asked.iter().all(|(.., over)| *over) {
                break;
            }
            assert!(turn < 1000, "lost in turn {at}: it does not end");
        }
        for ((_, ids, _), expected) in asked.iter().zip(&expected) {
            assert_eq!(ids, expected, "lost in turn {at}");
        }
        assert_eq!(handle.metrics().devices_lost, 1, "lost in turn {at}");
    }
}
