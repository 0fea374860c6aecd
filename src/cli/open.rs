//! Opening what commands work with.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use super::exit::Exit;
use super::models::{self, HubArg};
use super::self_test_results;
use super::term::{self, Bar};
use crate::driver::{Driver, ServeOptions};
use crate::exec::{AnyExecutor, DeviceChoice, Numerics, Options};
use crate::file::{Access, ModelFile};
use crate::language_model::{LanguageModel, ServedModel};
use crate::model::{KnownShape, Model};
use crate::ops::KvStorage;
use crate::quant::mix::FileType;

/// Which model, for all commands.
#[derive(Debug, clap::Args)]
pub(super) struct ModelArg {
    /// GGUF file, safetensors folder, ORG/REPO[:QUANT] on huggingface.co, or an address; without it, WGSLM_MODEL names it, else it
    /// is the small model that is compiled in.
    #[arg(short, long, value_name = "MODEL")]
    pub(super) model: Option<PathBuf>,
    #[command(flatten)]
    pub(super) hub: HubArg,
    #[command(flatten)]
    pub(super) access: AccessArg,
}

/// How model files are read.
#[derive(Debug, clap::Args)]
pub(super) struct AccessArg {
    /// Reads files piece by piece instead of mapping them: slower to load, and it takes memory for the weights, but a file that
    /// shrinks meanwhile (on a network, while it is downloaded) is an error.
    #[arg(long, env = "WGSLM_NO_MMAP", hide_env_values = true, value_parser = clap::builder::FalseyValueParser::new())]
    no_mmap: bool,
}

impl AccessArg {
    /// How they are read.
    pub(super) fn access(&self) -> Access {
        if self.no_mmap { Access::Read } else { Access::Mapped }
    }

    /// Opens a model's files. One that is not there is a model that was not found.
    pub(super) fn open(&self, path: &Path) -> Result<ModelFile, Exit> {
        ModelFile::open_as(path, self.access()).map_err(models::of_open)
    }
}

/// Which model, and how its weights are loaded.
#[derive(Debug, clap::Args)]
pub(super) struct WeightsArg {
    #[command(flatten)]
    model: ModelArg,
    /// Quantises weights while they are loaded: a type that convert writes.
    #[arg(long, value_name = "TYPE", value_parser = file_type)]
    quantize: Option<FileType>,
}

impl WeightsArg {
    /// Whether it is the model that is compiled in.
    pub(super) fn embedded(&self) -> bool {
        self.model.chosen().is_none()
    }

    /// The model that `-m` names.
    pub(super) fn given(&self) -> Option<&Path> {
        self.model.model.as_deref()
    }

    /// Takes another model.
    pub(super) fn set(&mut self, model: PathBuf) {
        self.model.model = Some(model);
    }

    /// What `-m` or the environment names.
    pub(super) fn chosen(&self) -> Option<PathBuf> {
        self.model.chosen()
    }

    /// Where names of models lead.
    pub(super) fn hub(&self) -> &HubArg {
        &self.model.hub
    }

    /// Opens the model, one that gives logits.
    pub(super) fn open(&self) -> Result<Model, Exit> {
        gives_logits(self.open_any()?)
    }

    /// Opens another model than the one that was asked for, one that gives logits.
    pub(super) fn open_named(&self, model: &Path) -> Result<Model, Exit> {
        gives_logits(self.model_of(self.model.access.open(&self.model.hub.locate(model)?)?)?)
    }

    /// Opens the model, whatever it gives.
    pub(super) fn open_any(&self) -> Result<Model, Exit> {
        self.model_of(self.model.file()?)
    }

    fn model_of(&self, file: ModelFile) -> Result<Model, Exit> {
        let mut model = pollster::block_on(Model::open(file))?;
        self.quantized(&mut model);
        Ok(model)
    }

    /// Has a model's weights quantised while they are loaded, if that was asked for.
    pub(super) fn quantized(&self, model: &mut Model) {
        if let Some(to) = self.quantize {
            model.quantize(to, std::thread::available_parallelism().map_or(1, usize::from));
        }
    }

    /// How files are read.
    pub(super) fn access(&self) -> &AccessArg {
        &self.model.access
    }
}

fn gives_logits(model: Model) -> Result<Model, Exit> {
    match model.program.logits() {
        Some(_) => Ok(model),
        None => Err(Exit::usage(format!("{} turns texts into vectors or scores: wgslm embed", model.name))),
    }
}

/// Where a model runs, and with which numerics: for commands that run a model as `run` does.
#[derive(Debug, clap::Args)]
pub(super) struct ExecArgs {
    /// auto (a real GPU, else the CPU), gpu, cpu, or the number of an adapter (see `wgslm devices`).
    #[arg(long, default_value = "auto", env = "WGSLM_DEVICE", hide_env_values = true, value_parser = device)]
    device: DeviceChoice,
    /// fast (16-bit cache, 8-bit activations) or exact (f32 outside the weights).
    #[arg(long, default_value = "fast", env = "WGSLM_NUMERICS", hide_env_values = true, value_parser = numerics)]
    pub(super) numerics: Numerics,
    /// What keys and values are stored as: f32, f16 or q8 (8-bit integers and a scale for each vector) [default: as the numerics].
    #[arg(long, value_name = "TYPE", env = "WGSLM_KV_TYPE", hide_env_values = true, value_parser = kv_type)]
    kv_type: Option<KvStorage>,
}

impl ExecArgs {
    /// `base`, where and as it was asked for.
    pub(super) fn options(&self, threads: Option<usize>, base: Options) -> Options {
        let threads = threads.map(at_most_the_cores);
        Options { device: self.device.clone(), numerics: self.numerics, kv: self.kv_type, threads, ..base }
    }

    /// What keys and values are stored as.
    pub(super) fn storage(&self) -> KvStorage {
        self.kv_type.unwrap_or(self.numerics.kv())
    }
}

/// Threads that were asked for; says so where there are fewer cores, which is how many the CPU uses at most.
pub(super) fn at_most_the_cores(threads: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if threads > cores {
        term::note(&format!("--threads {threads}: there are {cores} cores, so no more threads than these work"));
    }
    threads
}

/// Which model, or the shape of one.
#[derive(Debug, clap::Args)]
pub(super) struct SourceArg {
    #[command(flatten)]
    weights: WeightsArg,
    /// Random weights of a known shape: tiny, 160M, Llama-3.2-1B, Qwen3-0.6B, Llama-3-8B, Qwen3-30B-A3B;
    /// and one of each kind: moe, latent, hybrid, delta, recurrent, windows, sinks, learned-positions, encoder.
    #[arg(long, conflicts_with = "model", value_parser = shape)]
    shape: Option<KnownShape>,
    /// What the weights of a shape are stored as: a type that convert writes.
    #[arg(long, value_name = "TYPE", requires = "shape", default_value = "Q4_K_M", value_parser = file_type)]
    quant: FileType,
}

impl SourceArg {
    /// Opens the model, whatever it gives.
    pub(super) fn open_any(&self) -> Result<Model, Exit> {
        match &self.shape {
            None => self.weights.open_any(),
            Some(shape) => self.weights.model_of(pollster::block_on(shape.model_file(self.quant, 1))?),
        }
    }
}

/// How a command names a shape.
pub(super) fn shape(s: &str) -> Result<KnownShape, String> {
    s.parse().map_err(|error: crate::Error| error.to_string())
}

/// A type of weights, or a mix of them.
pub(super) fn file_type(s: &str) -> Result<FileType, String> {
    s.parse().map_err(|error: crate::Error| error.to_string())
}

impl ModelArg {
    /// What `-m` or the environment names; none: the model that is compiled in.
    fn chosen(&self) -> Option<PathBuf> {
        let named = || std::env::var_os("WGSLM_MODEL").filter(|name| !name.is_empty()).map(PathBuf::from);
        self.model.clone().or_else(named)
    }

    /// Opens the model's files; downloads them first where they are named and not here.
    pub(super) fn file(&self) -> Result<ModelFile, Exit> {
        match self.chosen() {
            Some(model) => self.access.open(&self.hub.locate(&model)?),
            None => embedded(),
        }
    }
}

#[cfg(feature = "tiny")]
fn embedded() -> Result<ModelFile, Exit> {
    Ok(ModelFile::from_bytes("tiny.gguf", crate::TINY)?)
}

#[cfg(not(feature = "tiny"))]
fn embedded() -> Result<ModelFile, Exit> {
    Err(Exit::not_found("no model is compiled in (feature tiny); give one: -m MODEL"))
}

/// How a command names a device.
pub(super) fn device(s: &str) -> Result<DeviceChoice, String> {
    s.parse().map_err(|error: crate::Error| error.to_string())
}

/// How a command names a type of keys and values.
pub(super) fn kv_type(s: &str) -> Result<KvStorage, String> {
    s.parse().map_err(|error: crate::Error| error.to_string())
}

/// `exact` or `fast`.
pub(super) fn numerics(s: &str) -> Result<Numerics, String> {
    match s {
        "exact" => Ok(Numerics::Exact),
        "fast" => Ok(Numerics::Fast),
        _ => Err("exact and fast work".to_owned()),
    }
}

/// Makes an executor, with a progress bar.
pub(super) fn executor(model: &Model, options: &Options) -> Result<AnyExecutor, Exit> {
    opened(options, |options, bar| {
        pollster::block_on(AnyExecutor::open(model, options, &mut |progress| bar.show(progress)))
    })
}

/// Makes a model ready to answer, with a progress bar.
pub(super) fn language_model(model: Model, options: &Options) -> Result<LanguageModel, Exit> {
    let model = opened(options, |options, bar| {
        pollster::block_on(LanguageModel::open(model, options, &mut |progress| bar.show(progress)))
    })?;
    if let AnyExecutor::Gpu(gpu) = model.engine().executor()
        && let Some(smaller) = gpu.smaller_cache()
    {
        term::note(&smaller.to_string());
    }
    Ok(model)
}

/// A model, and the driver that whoever waits for its answers runs: a command needs no other thread.
pub(super) struct Served {
    model: ServedModel,
    pub(super) driver: Driver<AnyExecutor>,
}

impl Deref for Served {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        &self.model
    }
}

/// Makes a model ready to answer, with a progress bar. A device that is lost is opened again, with the same tuning and self-test
/// results, and answers go on: without a bar, which would be in the midst of them.
pub(super) fn served(model: Model, options: &Options, serve: ServeOptions) -> Result<Served, Exit> {
    let (driver, model) = language_model(model, options)?.driver(serve);
    Ok(Served { model, driver })
}

/// Runs `open`, which may test devices, with the tuning of the environment and the stored self-test results.
fn opened<T>(options: &Options, open: impl FnOnce(&Options, &mut Bar) -> crate::Result<T>) -> Result<T, Exit> {
    let mut bar = Bar::new();
    let tuning = tuning()?;
    Ok(self_test_results::keeping(|self_test_results| {
        open(&Options { self_test_results: Some(self_test_results), tuning, ..options.clone() }, &mut bar)
    })?)
}

/// The text of the file that `WGSLM_TUNING` names: numbers that replace those that a GPU's kernels are tuned by, for experiments.
pub(super) fn tuning() -> Result<String, Exit> {
    let Some(path) = std::env::var_os("WGSLM_TUNING").filter(|path| !path.is_empty()) else { return Ok(String::new()) };
    let path = PathBuf::from(path);
    std::fs::read_to_string(&path).map_err(|e| Exit::usage(format!("WGSLM_TUNING: {}: {e}", path.display())))
}
