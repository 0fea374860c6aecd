//! The device, and what it can do: asked once, here, and passed on as values.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[cfg(test)]
use super::compose::{Kernel, compose};
use super::pipeline::Made;
use super::tuning::Traits;
use super::{Matmul, Matrices, Matvec, Tuning, Vendor, cooperative};
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// How long a wait on a shared device lasts at a time. wgpu holds a lock meanwhile (30.0.1: `Device::poll`), for which whoever
/// destroys a buffer waits.
const SLICE: Duration = Duration::from_millis(1);

/// What kind of adapter it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A graphics card of its own memory.
    Discrete,
    /// A graphics unit that shares the processor's memory.
    Integrated,
    /// The processor pretending to be a GPU: lavapipe, SwiftShader, WARP.
    Software,
    /// Something else, or unknown (browsers do not report).
    Other,
}

/// One adapter of this machine.
#[derive(Clone, Debug)]
pub struct AdapterSummary {
    /// Its number for `--device`.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// The API: `Vulkan`, `Metal`, …
    pub backend: String,
    /// What it is.
    pub kind: Kind,
}

/// Which adapter to open, and how.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// By its number in [`Device::list`].
    pub index: Option<usize>,
    /// By a part of its name, in lower case.
    pub name: Option<String>,
    /// By its whole name and its API, as [`Caps`] has them: the one that was open before.
    pub exactly: Option<(String, String)>,
    /// Allows software adapters, which are otherwise taken only by number or name.
    pub software: bool,
    /// Asks for WebGPU's default limits and no features, as an external device may have them.
    pub default_limits: bool,
    /// Binds at most so many bytes at a time, as a device with small limits would.
    pub max_binding: Option<u64>,
    /// Leaves subgroup operations unused.
    pub no_subgroups: bool,
    /// Leaves wgpu's runtime checks in shaders on. They are off natively, because our kernels clamp what comes from outside.
    pub checked: bool,
    /// Overrides for numbers of the device's [`Tuning`], in lines `name = number`: for experiments.
    pub tuning: String,
}

/// What a device can do, as far as a kernel's choice depends on it.
#[derive(Clone, Debug)]
pub struct Caps {
    /// The adapter's name.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// The API.
    pub backend: String,
    /// What it is.
    pub kind: Kind,
    /// Smallest and largest subgroup, if subgroup operations may be used.
    pub subgroups: Option<(u32, u32)>,
    /// Largest storage binding, in bytes.
    pub max_binding: u64,
    /// Largest buffer, in bytes.
    pub max_buffer: u64,
    /// Workgroups in a dimension of a dispatch.
    pub max_groups: u32,
    /// Memory of a workgroup, in bytes.
    pub workgroup_memory: u32,
    /// Alignment of an offset in a uniform binding, in bytes.
    pub uniform_align: u32,
    /// Alignment of an offset in a storage binding, in bytes.
    pub storage_align: u32,
    /// Whether products of int8 are instructions, as far as can be known.
    pub dot: bool,
    /// Whether shaders may use f16.
    pub f16: bool,
    /// Cooperative matrices, if the device has some that fit.
    pub cooperative: Option<Matrices>,
    /// Whether attention may use them, too: it has computed correctly in a self-test.
    pub attend_cooperative: bool,
    /// Who made it.
    pub vendor: Vendor,
    /// What kernels are tuned by.
    pub tuning: Tuning,
}

impl Caps {
    /// What the table says for such devices, and why where it differs from the defaults.
    pub fn table(&self) -> (Tuning, Vec<&'static str>) {
        let subgroups = self.subgroups.unwrap_or_default();
        let traits = Traits { kind: self.kind, vendor: self.vendor, driver: &self.driver, subgroups };
        (Tuning::of(&traits), Tuning::reasons(&traits))
    }

    /// The mat-mat variant for matrices of a format with fast numerics: the requested one, or the next simpler one that the
    /// device and the format support.
    pub fn matmul(&self, format: BlockFormat) -> Matmul {
        let requested = self.tuning.matmul(format).matmul;
        let has = |form: &Matmul| match form {
            Matmul::Registers => true,
            Matmul::F16 => self.f16,
            Matmul::Dot => self.dot && format.has_ints(),
            Matmul::Cooperative => self.cooperative.is_some(),
        };
        let mut forms = Matmul::ALL.into_iter().filter(|form| *form <= requested && has(form));
        forms.next_back().unwrap_or(Matmul::Registers)
    }

    /// The variant of mat-vec for matrices of a format with fast numerics, of rows that are long enough.
    pub fn matvec(&self, format: BlockFormat) -> Matvec {
        if self.dot && format.has_ints() { self.tuning.matmul(format).matvec } else { Matvec::Registers }
    }

    /// What kernels are tuned by, with the variants of mat-mat and mat-vec that fast numerics take.
    pub(crate) fn fast(&self) -> Tuning {
        self.tuning.with_matmul(|format, _| self.matmul(format)).with_matvec(|format, _| self.matvec(format))
    }

    /// The cooperative matrices that attention of prompts uses with fast numerics: only where matmul with f16 matrices uses
    /// them, too.
    pub fn attend_matrices(&self) -> Option<Matrices> {
        self.cooperative.filter(|_| self.attend_cooperative && self.matmul(BlockFormat::F16) == Matmul::Cooperative)
    }
}

/// A device with its queue.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    caps: Arc<Caps>,
    /// Why it is gone: after a loss, wgpu's submissions silently do nothing.
    lost: Arc<OnceLock<String>>,
    /// The first error that nothing else caught, on a device of our own.
    failed: Arc<OnceLock<String>>,
    checked: bool,
    made: Arc<Mutex<Made>>,
    /// What it was opened on; none: a host did.
    adapter: Option<wgpu::Adapter>,
    /// Whether a caller's program, or a page's screen, uses it, too.
    shared: bool,
    /// What is wrong with its kernels on purpose.
    #[cfg(test)]
    mutation: Option<Mutation>,
    #[cfg(test)]
    pub(crate) faults: Arc<super::faults::Faults>,
}

/// A text in kernels, and what stands in its place.
#[cfg(test)]
pub(super) type Mutation = (&'static str, &'static str);

fn instance() -> wgpu::Instance {
    let mut desc = wgpu::InstanceDescriptor::new_without_display_handle();
    desc.backends = wgpu::Backends::PRIMARY | wgpu::Backends::BROWSER_WEBGPU;
    // WGPU_DEBUG=1 gives drivers and profilers the names of pipelines.
    desc.flags = wgpu::InstanceFlags::empty().with_env();
    wgpu::Instance::new(desc)
}

fn kind(info: &wgpu::AdapterInfo) -> Kind {
    match info.device_type {
        wgpu::DeviceType::DiscreteGpu | wgpu::DeviceType::VirtualGpu => Kind::Discrete,
        wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
        wgpu::DeviceType::Cpu => Kind::Software,
        wgpu::DeviceType::Other => {
            // Chromium names the adapter's architecture only.
            if info.name.to_lowercase().contains("swiftshader") { Kind::Software } else { Kind::Other }
        }
    }
}

fn driver(info: &wgpu::AdapterInfo) -> String {
    format!("{} {}", info.driver, info.driver_info).trim().to_owned()
}

impl Device {
    /// The adapters of this machine. In a browser there is one.
    pub async fn list() -> Vec<AdapterSummary> {
        let adapters = instance().enumerate_adapters(wgpu::Backends::all()).await;
        let summary = |(index, adapter): (usize, &wgpu::Adapter)| {
            let info = adapter.get_info();
            let backend = info.backend.to_string();
            AdapterSummary { index, driver: driver(&info), kind: kind(&info), name: info.name, backend }
        };
        adapters.iter().enumerate().map(summary).collect()
    }

    /// Opens an adapter; if none is requested, the one that the system prefers, unless it is a software adapter.
    pub async fn open(choice: &Choice) -> Result<Self> {
        let instance = instance();
        let adapter = if cfg!(target_arch = "wasm32") {
            let options = wgpu::RequestAdapterOptions {
                power_preference: wgpu::PowerPreference::HighPerformance,
                ..Default::default()
            };
            instance.request_adapter(&options).await.map_err(|e| Error::Device(format!("no WebGPU adapter: {e}")))?
        } else {
            pick_adapter(&instance, choice).await?
        };
        let available = adapter.features();
        let mut features = wgpu::Features::empty();
        let mut limits = wgpu::Limits::default();
        let mut matrices = None;
        if !choice.default_limits {
            let wanted = wgpu::Features::SUBGROUP | wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::SHADER_F16;
            features = available & wanted;
            if !choice.no_subgroups {
                matrices = cooperative::matrices(&adapter);
            }
            if choice.no_subgroups || cfg!(target_arch = "wasm32") {
                // wgpu 30 cannot ask a browser for subgroups.
                features.remove(wgpu::Features::SUBGROUP);
            }
            let there = adapter.limits();
            limits.max_storage_buffer_binding_size = there.max_storage_buffer_binding_size;
            limits.max_buffer_size = there.max_buffer_size;
            limits.max_compute_workgroup_storage_size = there.max_compute_workgroup_storage_size;
        }
        if let Some(most) = choice.max_binding {
            limits.max_storage_buffer_binding_size = limits.max_storage_buffer_binding_size.min(most);
        }
        let mut desc = wgpu::DeviceDescriptor {
            label: Some("wgslm"),
            required_features: features,
            required_limits: limits,
            ..Default::default()
        };
        if matrices.is_some() {
            desc.required_features |= cooperative::FEATURES;
            desc.experimental_features = cooperative::experimental();
        }
        let mut requested = adapter.request_device(&desc).await;
        if requested.is_err() && matrices.take().is_some() {
            // Experimental features may be refused; that is no reason to do without the others.
            desc.required_features = features;
            desc.experimental_features = wgpu::ExperimentalFeatures::disabled();
            requested = adapter.request_device(&desc).await;
        }
        let (device, queue) = requested.map_err(|e| Error::Device(e.to_string()))?;
        let mut opened = Self::from_host(&adapter.get_info(), device, queue);
        opened.checked = choice.checked;
        opened.shared = cfg!(target_arch = "wasm32");
        if cfg!(target_arch = "wasm32") {
            let packed = wgpu::WgslLanguageFeatures::Packed4x8IntegerDotProduct;
            let dot = instance.wgsl_language_features().contains(packed);
            opened.caps = Arc::new(Caps { dot, ..(*opened.caps).clone() });
        }
        opened.caps = Arc::new(Caps { cooperative: matrices, ..(*opened.caps).clone() });
        opened.adapter = Some(adapter);
        let opened = opened.tuned(&choice.tuning)?;
        opened.watch();
        Ok(opened)
    }

    /// Learns of losses, and of errors that nothing else catches.
    fn watch(&self) {
        let lost = self.lost.clone();
        let name = self.caps.name.clone();
        self.device.set_device_lost_callback(move |_, why| {
            let _ = lost.set(if why.is_empty() { name.clone() } else { format!("{name}: {why}") });
        });
        let failed = self.failed.clone();
        // wgpu's own handler panics.
        self.device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let _ = failed.set(error.to_string());
        }));
    }

    /// Another device on the same adapter, with the same features, limits and tuning, if it can be had. On a host's there is
    /// none.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) async fn beside(&self) -> Option<Self> {
        let mut desc = wgpu::DeviceDescriptor {
            label: Some("wgslm"),
            required_features: self.device.features(),
            required_limits: self.device.limits(),
            ..Default::default()
        };
        if desc.required_features.contains(cooperative::FEATURES) {
            desc.experimental_features = cooperative::experimental();
        }
        let (device, queue) = self.adapter.as_ref()?.request_device(&desc).await.ok()?;
        let (lost, failed, made) = Default::default();
        let other = Self { device, queue, lost, failed, made, ..self.clone() };
        other.watch();
        Some(other)
    }

    /// Works on an external device, with whatever features and limits it has.
    ///
    /// No callback of its owner is replaced; a loss is then noticed by a failed read-back.
    pub fn from_host(info: &wgpu::AdapterInfo, device: wgpu::Device, queue: wgpu::Queue) -> Self {
        let limits = device.limits();
        let subgroups = device
            .features()
            .contains(wgpu::Features::SUBGROUP)
            .then_some((info.subgroup_min_size, info.subgroup_max_size));
        let (kind, driver, vendor) = (kind(info), driver(info), Vendor::of(info.vendor, &info.name));
        let caps = Caps {
            name: info.name.clone(),
            backend: info.backend.to_string(),
            kind,
            subgroups,
            max_binding: limits.max_storage_buffer_binding_size,
            max_buffer: limits.max_buffer_size,
            max_groups: limits.max_compute_workgroups_per_dimension,
            workgroup_memory: limits.max_compute_workgroup_storage_size,
            uniform_align: limits.min_uniform_buffer_offset_alignment,
            storage_align: limits.min_storage_buffer_offset_alignment,
            // On Metal it is four multiplications, and a browser is asked by `open`.
            dot: !cfg!(target_arch = "wasm32")
                && info.backend != wgpu::Backend::Metal
                && !vendor.emulates_dot(subgroups),
            f16: device.features().contains(wgpu::Features::SHADER_F16),
            cooperative: None, // only the adapter knows
            attend_cooperative: false,
            vendor,
            tuning: Tuning::of(&Traits { kind, vendor, driver: &driver, subgroups: subgroups.unwrap_or_default() }),
            driver,
        };
        Self {
            device,
            queue,
            caps: Arc::new(caps),
            lost: Arc::default(),
            failed: Arc::default(),
            checked: false,
            made: Arc::default(),
            adapter: None,
            shared: true,
            #[cfg(test)]
            mutation: None,
            #[cfg(test)]
            faults: Arc::default(),
        }
    }

    /// What it can do.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Whether the time of single dispatches can be reported.
    pub fn has_timestamps(&self) -> bool {
        self.device.features().contains(wgpu::Features::TIMESTAMP_QUERY)
    }

    /// Whether a caller's program, or a page's screen, uses it, too: submissions should be short.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// The same device, without subgroup operations and cooperative matrices.
    pub(crate) fn without_subgroups(&self) -> Self {
        Self { caps: Arc::new(Caps { subgroups: None, cooperative: None, ..(*self.caps).clone() }), ..self.clone() }
    }

    /// The same device, its [`Tuning`] replaced by what lines `name = value` say: for experiments.
    pub fn tuned(&self, text: &str) -> Result<Self> {
        let tuning = self.caps.tuning.with(text)?;
        Ok(Self { caps: Arc::new(Caps { tuning, ..(*self.caps).clone() }), ..self.clone() })
    }

    /// The same device, with other mat-mat variants requested: what `form` makes of each format's.
    pub(crate) fn with_matmul(&self, form: impl Fn(BlockFormat, Matmul) -> Matmul) -> Self {
        let tuning = self.caps.tuning.with_matmul(form);
        Self { caps: Arc::new(Caps { tuning, ..(*self.caps).clone() }), ..self.clone() }
    }

    /// The same device, with other variants of mat-vec requested.
    pub(crate) fn with_matvec(&self, form: Matvec) -> Self {
        let tuning = self.caps.tuning.with_matvec(|_, _| form);
        Self { caps: Arc::new(Caps { tuning, ..(*self.caps).clone() }), ..self.clone() }
    }

    /// The same device, its cooperative matrices used by attention or not.
    pub(crate) fn with_attend_matrices(&self, used: bool) -> Self {
        Self { caps: Arc::new(Caps { attend_cooperative: used, ..(*self.caps).clone() }), ..self.clone() }
    }

    /// The same device, such matrices used by matmul and attention without a self-test. Where it has none, a stand-in's f16
    /// take twice their space.
    #[cfg(feature = "unstable_internals")]
    pub fn with_matrices(&self, matrices: Matrices) -> Self {
        let workgroup_memory = self.caps.workgroup_memory / if self.caps.cooperative.is_some() { 1 } else { 2 };
        let caps =
            Caps { cooperative: Some(matrices), attend_cooperative: true, workgroup_memory, ..(*self.caps).clone() };
        Self { caps: Arc::new(caps), made: Arc::default(), ..self.clone() }
    }

    /// The same device with kernels that are wrong on purpose: in each that contains `from`, its first occurrence becomes
    /// `to`.
    #[cfg(test)]
    pub(crate) fn mutated(&self, from: &'static str, to: &'static str) -> Self {
        Self { mutation: Some((from, to)), ..self.clone() }
    }

    /// Whether the two are one device.
    #[cfg(test)]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.faults, &other.faults)
    }

    /// What is wrong with this kernel on purpose: none but these are made anew for a mutated device.
    #[cfg(test)]
    pub(super) fn mutation_of(&self, kernel: &Kernel) -> Option<Mutation> {
        self.mutation.filter(|(from, _)| compose(kernel).is_ok_and(|text| text.contains(from)))
    }

    /// Fails once the device is gone, or has refused something.
    pub fn check(&self) -> Result<()> {
        if let Some(why) = self.lost.get() {
            return Err(Error::DeviceLost(why.clone()));
        }
        match self.failed.get() {
            Some(error) => Err(Error::Device(error.clone())),
            None => Ok(()),
        }
    }

    /// [`check`](Self::check) of a device that works on steps. What it refused is missing from then on, so it is as good as gone: all
    /// that was to run on it needs another one.
    pub(crate) fn check_running(&self) -> Result<()> {
        self.check().map_err(|error| match error {
            Error::Device(why) => Error::DeviceLost(why),
            other => other,
        })
    }

    /// Frees what a device of our own holds that is no longer used, as far as its driver lets it: another one is about to be
    /// opened, for which there may be no memory beside it.
    pub(crate) fn release(&self) {
        if !self.shared {
            self.device.destroy();
            // wgpu frees it once nothing is in flight.
            let soon = Some(Duration::from_secs(1));
            let _ = self.poll(wgpu::PollType::Wait { submission_index: None, timeout: soon });
        }
    }

    /// Lets the device work on what was submitted and run the callbacks that are due, without waiting.
    pub fn tick(&self) {
        let _ = self.poll(wgpu::PollType::Poll);
    }

    /// Waits until all that was submitted is done, but not for what others submit meanwhile. Does nothing in a browser, which
    /// cannot wait.
    pub fn finish(&self) -> Result<()> {
        self.finish_all().map(drop)
    }

    /// [`finish`](Self::finish); gives what is set then, in a browser later.
    fn finish_all(&self) -> Result<super::Signal> {
        let done = super::Signal::default();
        let signal = done.clone();
        self.queue.on_submitted_work_done(move || signal.set(true));
        while !self.poll(self.waiting(None))? && done.get().is_none() {}
        self.check().map(|()| done)
    }

    /// Waits until a submission is done, whatever was submitted after it. Does nothing in a browser.
    pub(crate) fn finish_submission(&self, index: wgpu::SubmissionIndex) -> Result<()> {
        while !self.poll(self.waiting(Some(index.clone())))? {}
        self.check_running()
    }

    /// A wait for a submission, or for the last one, as long as it may last at a time.
    fn waiting(&self, submission_index: Option<wgpu::SubmissionIndex>) -> wgpu::PollType {
        wgpu::PollType::Wait { submission_index, timeout: self.shared.then_some(SLICE) }
    }

    /// Polls; returns whether it was in time.
    fn poll(&self, until: wgpu::PollType) -> Result<bool> {
        let poll = || {
            #[cfg(test)]
            self.faults.poll();
            self.device.poll(until)
        };
        match no_panic(poll) {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(wgpu::PollError::Timeout)) => Ok(false),
            Ok(Err(error)) => Err(Error::DeviceLost(error.to_string())),
            Err(why) => {
                // Nobody else says so to a device of a host's.
                let _ = self.lost.set(why.clone());
                Err(Error::DeviceLost(why))
            }
        }
    }

    /// Waits until all that was submitted is done, in a browser too.
    pub(crate) async fn drained(&self) -> Result<()> {
        self.finish_all()?.wait().await;
        self.check()
    }

    /// Runs `make`; what wgpu finds wrong with it becomes an error that says so.
    pub(crate) async fn checked<T>(&self, what: &str, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        // For what a driver does not compile.
        let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let made = make();
        // All end before anything is awaited: meanwhile, a host may open scopes of its own or make errors of its own.
        let (internal, validation, memory) = (internal.pop(), validation.pop(), memory.pop());
        let (internal, validation, memory) = (internal.await, validation.await, memory.await);
        let made = made?;
        if let Some(error) = memory {
            let (needed, available) = (format!("more memory ({error})"), "less on this device".to_owned());
            let instead = "a smaller model, context or quantisation".to_owned();
            return Err(Error::Limit { what: what.to_owned(), needed, available, instead });
        }
        match validation.or(internal) {
            Some(error) => Err(Error::Device(format!("{what}: {error}"))),
            None => Ok(made),
        }
    }

    /// The same where nothing may be awaited: wgpu knows at once. A browser does not, and there an error is one that nothing
    /// caught.
    pub(crate) fn checked_now<T>(&self, what: &str, make: impl FnOnce() -> Result<T>) -> Result<T> {
        if cfg!(target_arch = "wasm32") {
            return make();
        }
        #[cfg(test)]
        self.faults.memory(what)?;
        let checked = std::pin::pin!(self.checked(what, make));
        match checked.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(made) => made,
            Poll::Pending => Err(Error::Device(format!("{what}: wgpu does not say whether there is memory"))),
        }
    }

    /// The modules and pipelines that were made on it.
    pub(super) fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A shader module of ours.
    #[allow(unsafe_code, reason = "trusted modules: see SAFETY")]
    pub(crate) fn module(&self, label: &str, source: String) -> wgpu::ShaderModule {
        #[cfg(test)]
        let source = match self.mutation {
            Some((from, to)) => source.replacen(from, to, 1),
            None => source,
        };
        let desc = wgpu::ShaderModuleDescriptor { label: Some(label), source: wgpu::ShaderSource::Wgsl(source.into()) };
        if self.checked {
            return self.device.create_shader_module(desc);
        }
        // SAFETY: our kernels guard every store by the sizes in their parameters and clamp token, block and row ids;
        // the kernel tests run them with the checks on and off. Loops are bounded by parameters.
        unsafe { self.device.create_shader_module_trusted(desc, wgpu::ShaderRuntimeChecks::unchecked()) }
    }
}

/// Runs what wgpu panics in where a driver reports that the device is gone (30.0.1: every `poll`, `handle_error_fatal`), and gives
/// why. Other panics go on: a host's callbacks run here, too.
#[cfg(not(target_arch = "wasm32"))]
fn no_panic<T>(poll: impl FnOnce() -> T) -> Result<T, String> {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    catch_unwind(AssertUnwindSafe(poll)).map_err(|panic| match panic.downcast::<String>() {
        // In one line: it says what was caused by what in several.
        Ok(text) if text.starts_with("Error in Device::poll") => text.split_whitespace().collect::<Vec<_>>().join(" "),
        Ok(other) => resume_unwind(other),
        Err(other) => resume_unwind(other),
    })
}

/// Nothing is polled in a browser, and nothing unwinds.
#[cfg(target_arch = "wasm32")]
fn no_panic<T>(poll: impl FnOnce() -> T) -> Result<T, String> {
    Ok(poll())
}

async fn pick_adapter(instance: &wgpu::Instance, choice: &Choice) -> Result<wgpu::Adapter> {
    let adapters = instance.enumerate_adapters(wgpu::Backends::all()).await;
    let mut names = Vec::new();
    let mut best: Option<(u32, wgpu::Adapter)> = None;
    for (index, adapter) in adapters.into_iter().enumerate() {
        let info = adapter.get_info();
        names.push(format!("{index} ({})", info.name));
        let wanted = choice.index.is_none_or(|i| i == index)
            && choice.name.as_ref().is_none_or(|n| info.name.to_lowercase().contains(n.as_str()))
            && choice.exactly.as_ref().is_none_or(|(name, api)| *name == info.name && *api == info.backend.to_string());
        let kind = kind(&info);
        let by_name = choice.index.is_some() || choice.name.is_some() || choice.exactly.is_some();
        if !wanted || (kind == Kind::Software && !choice.software && !by_name) {
            continue;
        }
        let rank = match kind {
            Kind::Discrete => 3,
            Kind::Integrated => 2,
            Kind::Other => 1,
            Kind::Software => 0,
        };
        if best.as_ref().is_none_or(|(r, _)| rank > *r) {
            best = Some((rank, adapter));
        }
    }
    best.map(|(_, adapter)| adapter).ok_or_else(|| {
        let there = if names.is_empty() {
            "none is there".to_owned()
        } else {
            format!("these are there: {}", names.join("; "))
        };
        let wanted = match (choice.index, &choice.name, &choice.exactly) {
            (Some(index), ..) => format!("there is no adapter {index}"),
            (None, Some(name), _) => format!("no adapter has {name:?} in its name"),
            (None, None, Some((name, api))) => format!("{name} ({api}) is not there"),
            (None, None, None) => "there is no GPU that may be used".to_owned(),
        };
        Error::Device(format!("{wanted}; {there}"))
    })
}
