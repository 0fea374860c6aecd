//! An executor for a model, of whatever kind fits.

use std::sync::Arc;
use std::time::Duration;

use super::cache_size::CacheSize;
use super::cpu::{CpuExecutor, CpuOptions};
use super::gpu::{GpuExecutor, GpuOptions};
use super::self_test::{SelfTestResults, self_test};
use super::{CacheOp, Executor, Limits, Numerics, Phase, Step, StepOut, Ticket, Timing};
use crate::file::CountFn;
use crate::gpu::{Choice, Device};
use crate::model::{Model, Program};
use crate::ops::{KvStorage, RING, ValueId};
use crate::{Error, Result};

/// Where a model shall run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// On a GPU, if there is a real one that has a kernel for every op of the model and computes correctly; else on the
    /// CPU. [`SelfTestResults::faults`] lists the faults of a GPU that does not.
    #[default]
    Auto,
    /// On the best GPU; a software adapter if there is no other.
    Gpu,
    /// On the CPU.
    Cpu,
    /// On this adapter of [`Device::list`].
    Adapter(usize),
    /// On the adapter of this name and API, and no other: what [`AnyExecutor::device_choice`] gives.
    Named {
        /// Its name.
        name: String,
        /// The API: `Vulkan`, `Metal`, …
        backend: String,
    },
}

impl DeviceChoice {
    /// The adapter to open; none: the CPU.
    pub(crate) fn adapter(&self) -> Option<Choice> {
        match self {
            Self::Cpu => None,
            Self::Auto => Some(Choice::default()),
            Self::Gpu => Some(Choice { software: true, ..Choice::default() }),
            Self::Adapter(index) => Some(Choice { index: Some(*index), ..Choice::default() }),
            Self::Named { name, backend } => {
                Some(Choice { exactly: Some((name.clone(), backend.clone())), ..Choice::default() })
            }
        }
    }
}

impl std::str::FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "auto" => Ok(Self::Auto),
            "gpu" => Ok(Self::Gpu),
            "cpu" => Ok(Self::Cpu),
            _ => s.parse().map(Self::Adapter).map_err(|_| {
                Error::argument("device", format!("{s:?}; auto, gpu, cpu and the number of an adapter work"))
            }),
        }
    }
}

/// How to make an executor.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where.
    pub device: DeviceChoice,
    /// How exact.
    pub numerics: Numerics,
    /// How keys and values are stored; none: as the numerics have it.
    pub kv: Option<KvStorage>,
    /// Positions in a sequence; a model that has fewer gets as many as it has.
    pub context: u32,
    /// Sequences at a time.
    pub seqs: u32,
    /// How much the cache holds of all sequences together.
    pub cache: CacheSize,
    /// Output rows of a step, if more than `seqs`: only to read the logits of whole prompts.
    pub outs: u32,
    /// Prefill tokens in a step, at most: enough for mat-mat kernels, and not too much memory. A step cannot be stopped, so
    /// a smaller limit makes [`Engine::cancel`](crate::engine::Engine::cancel) quicker.
    pub prefill_tokens: u32,
    /// Memory for the checkpoints of recurrent layers, from which sequences are resumed; a cache of so many bytes
    /// ([`CacheSize::Bytes`]) has it in its own.
    pub state_bytes: u64,
    /// Threads of the CPU; none: as many as prove to be fastest when the model is opened.
    pub threads: Option<usize>,
    /// Runs fused programs, not the canonical one.
    pub fused: bool,
    /// Lets every value be read after a step, for comparisons.
    pub keep_values: bool,
    /// Self-test results of devices, to be kept by the caller; none skips the self-test.
    pub self_test_results: Option<Arc<SelfTestResults>>,
    /// Overrides for numbers of a GPU's [`Tuning`](crate::gpu::Tuning), in lines `name = number`: for experiments.
    pub tuning: String,
}

/// What an executor reports while it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The self-test of a GPU begins.
    Testing,
    /// Bytes of weights loaded so far, and in all.
    Loading(u64, u64),
    /// Kernels compiled so far, and in all.
    Compiling(u64, u64),
}

/// Receives the [`Progress`] of opening a model. May move between threads with the future that reports to it; in a browser,
/// where there is one thread, it need not.
#[cfg(not(target_arch = "wasm32"))]
pub type ProgressFn<'a> = dyn FnMut(Progress) + Send + 'a;
/// Receives the [`Progress`] of opening a model.
#[cfg(target_arch = "wasm32")]
pub type ProgressFn<'a> = dyn FnMut(Progress) + 'a;

/// For one conversation: wherever the model fits, with a context of at most 4096 positions.
impl Default for Options {
    fn default() -> Self {
        Self {
            device: DeviceChoice::default(),
            numerics: Numerics::default(),
            kv: None,
            context: 4096, // enough for a conversation, and its cache fits anywhere
            seqs: 1,
            cache: CacheSize::default(),
            outs: 1,
            prefill_tokens: 512,
            state_bytes: 256 << 20,
            threads: None,
            fused: true,
            keep_values: false,
            self_test_results: Some(Arc::default()),
            tuning: String::new(),
        }
    }
}

impl Options {
    /// For one conversation of a model: wherever it fits, with a context of at most `context` positions.
    pub fn new(program: &Program, context: u32) -> Self {
        Self { context: context.min(program.context), ..Self::default() }
    }

    /// How keys and values are stored.
    pub(super) fn storage(&self) -> KvStorage {
        self.kv.unwrap_or(self.numerics.kv())
    }
}

/// A device whose kernels compute correctly: the given one, or the same with fewer of its features used.
async fn tested(device: Device, model: &Model, options: &Options, progress: &mut ProgressFn<'_>) -> Result<Device> {
    let Some(self_test_results) = &options.self_test_results else { return Ok(device) };
    progress(Progress::Testing);
    let tested = self_test(&device, &model.program, model, options.numerics, options.kv, self_test_results).await;
    if let (DeviceChoice::Auto, Err(fault)) = (&options.device, &tested) {
        self_test_results.report(format!("the CPU is used: {fault}"));
    }
    tested
}

/// Makes everything that steps need in advance, so that the first step is no slower than others.
async fn prepare(executor: &mut impl Executor, progress: &mut ProgressFn<'_>) -> Result<()> {
    for (i, phase) in (0..).zip(Phase::ALL) {
        let mut compiling = |done, all: u64| {
            let all = all.max(1);
            progress(Progress::Compiling(i * all + done, Phase::ALL.len() as u64 * all));
        };
        executor.plan(phase, &mut compiling).await?;
    }
    Ok(())
}

impl GpuExecutor {
    /// Makes an executor ready for a model's steps on an open device, which may be the caller's own: kernels tested and
    /// compiled, weights loaded. [`Options::device`] and [`Options::tuning`] have no effect here.
    pub async fn open(
        device: &Device,
        model: &Model,
        options: &Options,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Self> {
        model.program.on_gpu(options.storage())?;
        let options = Options { device: DeviceChoice::Gpu, ..options.clone() };
        let device = tested(device.clone(), model, &options, progress).await?;
        Self::open_tested(&device, model, &options, progress).await
    }

    async fn open_tested(
        device: &Device,
        model: &Model,
        options: &Options,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Self> {
        let gpu = GpuOptions {
            numerics: options.numerics,
            kv: options.kv,
            limits: options.limits(&model.program, RING)?,
            unfused: !options.fused,
            keep_values: options.keep_values,
        };
        let mut loading = |done, all| progress(Progress::Loading(done, all));
        let mut gpu = Self::load(device, &model.program, model, gpu, &mut loading).await?;
        prepare(&mut gpu, progress).await?;
        gpu.calibrate().await?;
        Ok(gpu)
    }
}

impl CpuExecutor {
    /// Makes an executor ready for a model's steps: weights loaded, threads chosen.
    pub async fn open(model: &Model, options: &Options, progress: &mut ProgressFn<'_>) -> Result<Self> {
        // Nothing runs while the caller does something else: a second step in flight would only be late.
        let cpu = CpuOptions {
            threads: options.threads,
            numerics: options.numerics,
            kv: options.kv,
            fuse: options.fused,
            keep_values: options.keep_values,
            ..CpuOptions::new(options.limits(&model.program, 1)?)
        };
        let weights = model.cpu_weights(&mut |done, all| progress(Progress::Loading(done, all))).await?;
        let mut cpu = Self::new(&model.program, Arc::new(weights), cpu)?;
        prepare(&mut cpu, progress).await?;
        Ok(cpu)
    }
}

/// An executor of either kind.
#[allow(clippy::large_enum_variant, reason = "there is one of it")]
pub enum AnyExecutor {
    /// On the CPU.
    Cpu(CpuExecutor),
    /// On a GPU.
    Gpu(GpuExecutor),
}

impl AnyExecutor {
    /// Makes an executor ready for a model's steps: weights loaded, kernels compiled.
    pub async fn open(model: &Model, options: &Options, progress: &mut ProgressFn<'_>) -> Result<Self> {
        let device = match Self::adapter(model, options)? {
            Some(choice) => Some(Device::open(&choice).await),
            None => None,
        };
        Self::open_on(device, model, options, progress).await
    }

    /// The adapter that it would open for a model; none: the CPU is used.
    pub(crate) fn adapter(model: &Model, options: &Options) -> Result<Option<Choice>> {
        let Some(choice) = options.device.adapter() else { return Ok(None) };
        match (model.program.on_gpu(options.storage()), &options.device) {
            (Ok(()), _) => Ok(Some(Choice { tuning: options.tuning.clone(), ..choice })),
            (Err(_), DeviceChoice::Auto) => Ok(None),
            (Err(error), _) => Err(error),
        }
    }

    /// [`open`](Self::open) on what came of opening that adapter.
    pub(crate) async fn open_on(
        device: Option<Result<Device>>,
        model: &Model,
        options: &Options,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Self> {
        let device = match device {
            Some(Ok(device)) => Some(tested(device, model, options, progress).await),
            Some(Err(error)) => Some(Err(error)),
            None => None,
        };
        match device {
            Some(Ok(device)) => Ok(Self::Gpu(GpuExecutor::open_tested(&device, model, options, progress).await?)),
            Some(Err(error)) if options.device != DeviceChoice::Auto || matches!(error, Error::Argument { .. }) => {
                Err(error)
            }
            Some(Err(_)) | None => Ok(Self::Cpu(CpuExecutor::open(model, options, progress).await?)),
        }
    }

    /// Where it runs, to open another one on the very same device when this one is lost: kernels of other devices give other
    /// tokens, and the CPU would be taken for good where a GPU is away for a moment.
    pub fn device_choice(&self) -> DeviceChoice {
        match self {
            Self::Cpu(_) => DeviceChoice::Cpu,
            Self::Gpu(gpu) => {
                let caps = gpu.opened_on().caps();
                DeviceChoice::Named { name: caps.name.clone(), backend: caps.backend.clone() }
            }
        }
    }

    /// The program that steps of a phase run.
    pub fn program(&self, phase: Phase) -> &Program {
        match self {
            Self::Cpu(cpu) => cpu.program(phase),
            Self::Gpu(gpu) => gpu.program(phase),
        }
    }

    /// Whether [`timings`](Self::timings) reports where the time of a step goes. Fails where the device cannot report.
    pub fn profile(&mut self, on: bool) -> Result<()> {
        match self {
            Self::Cpu(cpu) => cpu.profile(on),
            Self::Gpu(gpu) => gpu.profile(on)?,
        }
        Ok(())
    }

    /// How long each part of the last step took, which has finished and was of one phase.
    pub async fn timings(&self, phase: Phase) -> Result<Vec<Timing>> {
        match self {
            Self::Cpu(cpu) => Ok(cpu.timings(phase)),
            Self::Gpu(gpu) => gpu.timings(phase).await,
        }
    }

    /// Bytes a second that the decode threads read, or that the GPU reads and writes in a copy.
    pub async fn bandwidth(&mut self) -> Result<f64> {
        match self {
            Self::Cpu(cpu) => Ok(cpu.bandwidth()),
            Self::Gpu(gpu) => gpu.bandwidth().await,
        }
    }

    /// Fills all pages with seeded random numbers, the same on every device.
    pub fn seed_caches(&mut self, seed: u64) {
        match self {
            Self::Cpu(cpu) => cpu.seed_caches(seed),
            Self::Gpu(gpu) => gpu.seed_caches(seed),
        }
    }

    /// A value as the last step, of `rows` rows, left it, for comparisons. Empty if values are not kept.
    pub async fn value(&self, phase: Phase, id: ValueId, rows: u32) -> Result<Vec<f32>> {
        match self {
            Self::Cpu(cpu) => Ok(cpu.value(id).unwrap_or_default().to_vec()),
            Self::Gpu(gpu) => gpu.value(phase, id, rows).await,
        }
    }
}

impl Executor for AnyExecutor {
    fn limits(&self) -> Limits {
        match self {
            Self::Cpu(e) => e.limits(),
            Self::Gpu(e) => e.limits(),
        }
    }

    fn target_in_flight(&self) -> u32 {
        match self {
            Self::Cpu(e) => e.target_in_flight(),
            Self::Gpu(e) => e.target_in_flight(),
        }
    }

    fn device(&self) -> String {
        match self {
            Self::Cpu(e) => e.device(),
            Self::Gpu(e) => e.device(),
        }
    }

    async fn plan(&mut self, phase: Phase, progress: &mut CountFn<'_>) -> Result<()> {
        match self {
            Self::Cpu(e) => e.plan(phase, progress).await,
            Self::Gpu(e) => e.plan(phase, progress).await,
        }
    }

    fn predict(&self, phase: Phase, rows: u32, pos: u32) -> Option<Duration> {
        match self {
            Self::Cpu(e) => e.predict(phase, rows, pos),
            Self::Gpu(e) => e.predict(phase, rows, pos),
        }
    }

    fn enqueue(&mut self, step: &Step<'_>) -> Result<Ticket> {
        match self {
            Self::Cpu(e) => e.enqueue(step),
            Self::Gpu(e) => e.enqueue(step),
        }
    }

    fn cache(&mut self, ops: &[CacheOp]) -> Result<()> {
        match self {
            Self::Cpu(e) => e.cache(ops),
            Self::Gpu(e) => e.cache(ops),
        }
    }

    fn poll(&mut self, done: &mut dyn FnMut(Ticket, Result<&StepOut>)) -> usize {
        match self {
            Self::Cpu(e) => e.poll(done),
            Self::Gpu(e) => e.poll(done),
        }
    }

    async fn wait(&mut self) -> Result<()> {
        match self {
            Self::Cpu(e) => e.wait().await,
            Self::Gpu(e) => e.wait().await,
        }
    }

    fn release(&mut self) {
        match self {
            Self::Cpu(e) => e.release(),
            Self::Gpu(e) => e.release(),
        }
    }

    fn blocked(&self) -> u64 {
        match self {
            Self::Cpu(e) => e.blocked(),
            Self::Gpu(e) => e.blocked(),
        }
    }
}
