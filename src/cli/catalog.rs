//! The models that `wgslm serve` may open: those of the command line, and those in the cache.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::models::is_plainly_a_path;
use super::open::{AccessArg, WeightsArg};
use super::{self_test_results, term};
use crate::driver::ServeOptions;
use crate::engine::{EmbedOptions, Embedder};
use crate::exec::{AnyExecutor, CacheSize, Options, Progress, ProgressFn};
use crate::file::{ModelFile, parts};
use crate::gpu::{Choice, Device};
use crate::hub::{self, Hub, Reference};
use crate::language_model::LanguageModel;
use crate::model::Model;
use crate::server::{Catalog, Known, Pulling, Served};
use crate::{Error, Result};

/// A model of the command line.
pub(super) struct Given {
    /// What clients call it.
    pub(super) name: String,
    /// Its file or folder; none: the model that is compiled in.
    pub(super) path: Option<PathBuf>,
}

/// How each is run.
#[derive(Clone)]
pub(super) struct RunOptions {
    /// Where, and with which numerics.
    pub(super) options: Options,
    pub(super) serve: ServeOptions,
    pub(super) parallel: u32,
    pub(super) context: Option<u32>,
    pub(super) cache: Option<CacheSize>,
}

/// The models that there are.
pub(super) struct Models {
    pub(super) given: Vec<Given>,
    pub(super) weights: WeightsArg,
    /// None where there is no place for a cache.
    pub(super) hub: Option<Hub>,
    pub(super) run: RunOptions,
    pub(super) device: Shared,
}

/// The device that all models on a GPU share: opened by the first of them, and again when it was lost.
#[derive(Clone, Default)]
pub(super) struct Shared(std::sync::Arc<Mutex<Option<Device>>>);

impl Shared {
    /// An executor on the shared device, or on the CPU.
    fn executor(&self, model: &Model, options: &Options, progress: &mut ProgressFn<'_>) -> Result<AnyExecutor> {
        let device = AnyExecutor::adapter(model, options)?.map(|choice| self.device(&choice));
        pollster::block_on(AnyExecutor::open_on(device, model, options, progress))
    }

    /// The shared device. Whoever asks while it is opened waits, for there shall be one.
    fn device(&self, choice: &Choice) -> Result<Device> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |device: &&Device| {
            let caps = device.caps();
            let named = |(name, api): &(String, String)| (name, api) == (&caps.name, &caps.backend);
            device.check().is_ok() && choice.exactly.as_ref().is_none_or(named)
        };
        if let Some(device) = shared.as_ref().filter(is_it) {
            return Ok(device.clone());
        }
        let device = pollster::block_on(Device::open(choice))?;
        *shared = Some(device.clone());
        Ok(device)
    }
}

impl Models {
    fn known(&self, given: &Given) -> Known {
        let metadata = given.path.as_ref().and_then(|path| std::fs::metadata(path).ok());
        let bytes = match (&given.path, &metadata) {
            (None, _) => embedded_bytes(),
            (Some(path), Some(there)) if there.is_dir() => bytes_within(path),
            (Some(path), _) => bytes_of(path),
        };
        let modified = metadata.and_then(|there| there.modified().ok());
        Known { name: given.name.clone(), bytes, modified, commit: String::new() }
    }

    fn given(&self, name: &str) -> Option<&Given> {
        self.given.iter().find(|given| given.name.eq_ignore_ascii_case(name))
    }

    /// The model of a name in the cache.
    fn cached(&self, name: &str) -> Result<Option<hub::Local>> {
        let Some(hub) = self.hub.as_ref().filter(|_| !is_plainly_a_path(name)) else { return Ok(None) };
        // What is no name at all is the name of nothing.
        let Ok(parsed) = Reference::parse(name, hub.endpoint()) else { return Ok(None) };
        let reference = match parsed {
            Some(reference) => Some(reference),
            None => hub.named(name)?,
        };
        reference.map_or(Ok(None), |reference| hub.find(&reference))
    }

    fn file(&self, known: &Known) -> Result<ModelFile> {
        let access = self.weights.access();
        match self.given(&known.name) {
            Some(Given { path: Some(path), .. }) => open(access, path.clone()),
            Some(Given { path: None, .. }) => embedded(),
            None => match self.cached(&known.name)? {
                Some(local) => open(access, local.path),
                None => Err(Error::NotFound {
                    what: format!("{} is no longer in the cache", known.name),
                    instead: "/api/pull gets it".to_owned(),
                }),
            },
        }
    }

    fn model(&self, known: &Known) -> Result<Model> {
        pollster::block_on(Model::open(self.file(known)?))
    }
}

fn open(access: &AccessArg, path: PathBuf) -> Result<ModelFile> {
    ModelFile::open_as(&path, access.access())
}

#[cfg(feature = "tiny")]
fn embedded() -> Result<ModelFile> {
    ModelFile::from_bytes("tiny.gguf", crate::TINY)
}

#[cfg(not(feature = "tiny"))]
fn embedded() -> Result<ModelFile> {
    let instead = "wgslm serve MODEL works".to_owned();
    Err(Error::NotFound { what: "no model is compiled in (feature tiny)".to_owned(), instead })
}

/// Bytes of the model that is compiled in.
fn embedded_bytes() -> u64 {
    #[cfg(feature = "tiny")]
    return crate::TINY.len() as u64;
    #[cfg(not(feature = "tiny"))]
    return 0;
}

/// Bytes of a file, with the other parts of a split one.
fn bytes_of(path: &std::path::Path) -> u64 {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    parts(path, &name).iter().filter_map(|part| std::fs::metadata(part).ok()).map(|there| there.len()).sum()
}

/// Bytes of the files in a folder.
fn bytes_within(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok());
    entries
        .filter_map(|entry| std::fs::metadata(entry.path()).ok())
        .filter(|there| there.is_file())
        .map(|f| f.len())
        .sum()
}

impl Catalog for Models {
    fn find(&self, name: &str) -> Result<Option<Known>> {
        if let Some(given) = self.given(name) {
            return Ok(Some(self.known(given)));
        }
        let Some(local) = self.cached(name)? else { return Ok(None) };
        // One of the command line is opened once, whichever of its names is used.
        if let Some(given) = self.given.iter().find(|given| given.path.as_ref() == Some(&local.path)) {
            return Ok(Some(self.known(given)));
        }
        let all = self.hub.as_ref().map_or(Ok(Vec::new()), Hub::list)?;
        let same = all.into_iter().find(|cached| cached.path == local.path);
        let bytes = || bytes_of(&local.path);
        Ok(Some(match same {
            Some(cached) => known(cached),
            None => Known { bytes: bytes(), name: local.name, modified: None::<SystemTime>, commit: String::new() },
        }))
    }

    fn list(&self) -> Result<Vec<Known>> {
        let mut all: Vec<Known> = self.given.iter().map(|given| self.known(given)).collect();
        let cached = self.hub.as_ref().map_or(Ok(Vec::new()), Hub::list)?;
        // One of the command line is listed by its name there.
        let given = |cached: &hub::Cached| self.given.iter().any(|given| given.path.as_ref() == Some(&cached.path));
        all.extend(cached.into_iter().filter(|cached| !given(cached)).map(known));
        Ok(all)
    }

    fn inspect(&self, known: &Known) -> Result<Model> {
        self.model(known)
    }

    fn open(&self, known: &Known) -> Result<Served> {
        let mut model = self.model(known)?;
        self.weights.quantized(&mut model);
        let run = &self.run;
        let mut bar = term::Bar::new();
        let mut progress = |progress: Progress| bar.show(progress);
        self_test_results::keeping(|self_test_results| {
            let base = Options { self_test_results: Some(self_test_results), ..run.options.clone() };
            if model.program.logits().is_none() {
                let context = run.context.filter(|context| *context > 0);
                let context = context.map(|context| context.min(model.program.context));
                let options = EmbedOptions { context, ..EmbedOptions::default() };
                let embedder = pollster::block_on(Embedder::open(model, &options, &base, &mut progress))?;
                return Ok(Served::Vectors(Box::new(embedder)));
            }
            let context = match run.context {
                None => model.program.context.min(4096),
                Some(0) => model.program.context,
                Some(context) => context.min(model.program.context),
            };
            let cache = run.cache.unwrap_or(CacheSize::Positions(context.saturating_mul(run.parallel.min(4))));
            let options = Options { context, seqs: run.parallel, cache, ..base };
            let executor = self.device.executor(&model, &options, &mut progress)?;
            if let AnyExecutor::Gpu(gpu) = &executor
                && let Some(smaller) = gpu.smaller_cache()
            {
                term::note(&smaller.to_string());
            }
            let on_gpu = matches!(executor, AnyExecutor::Gpu(_));
            let options = Options { device: executor.device_choice(), ..options };
            let (driver, model) = LanguageModel::with_executor(model, executor)?.driver(run.serve.clone());
            let (again, device) = (Arc::clone(model.text()), self.device.clone());
            // A device that is lost is opened again, and answers go on.
            let driver = driver.reopen_with(Box::new(move || {
                let (text, options, device) = (std::sync::Arc::clone(&again), options.clone(), device.clone());
                let mut bar = term::Bar::new();
                Box::pin(async move { device.executor(text.model(), &options, &mut |progress| bar.show(progress)) })
            }));
            let thread = std::thread::spawn(move || driver.run());
            Ok(Served::Language { model, thread, on_gpu })
        })
    }

    fn pull(&self, name: &str, progress: &mut dyn FnMut(Pulling) -> Result<()>) -> Result<()> {
        let hub = self.hub.as_ref().ok_or_else(|| {
            let instead = "HOME or HF_HUB_CACHE names one".to_owned();
            Error::NotFound { what: "a folder for models".to_owned(), instead }
        })?;
        let reference = match Reference::parse(name, hub.endpoint())? {
            Some(reference) => reference,
            None => hub.named(name)?.ok_or_else(|| {
                Error::argument("model", format!("{name:?} is no name of a model; {}", super::models::suggestion(name)))
            })?,
        };
        // Who may ask this server may not choose where it connects to.
        if matches!(reference, Reference::Url(_)) {
            let problem = format!("{name:?} is an address; ORG/REPO:QUANT works, and wgslm pull takes addresses");
            return Err(Error::argument("model", problem));
        }
        if hub.is_offline() {
            return match hub.find(&reference)? {
                Some(_) => Ok(()),
                None => Err(Error::Denied {
                    what: format!("{name} is not here, and the server opens no connection"),
                    instead: "wgslm serve without --offline and HF_HUB_OFFLINE".to_owned(),
                }),
            };
        }
        let plan = hub.plan(&reference)?;
        progress(Pulling::Found { digest: if plan.commit.is_empty() { plan.name() } else { plan.commit.clone() } })?;
        hub.download(&plan, &mut |step| match step {
            hub::Progress::Waiting(_) => progress(Pulling::Waiting),
            hub::Progress::Bytes(have, all) => progress(Pulling::Bytes(have, all)),
        })?;
        Ok(())
    }
}

fn known(cached: hub::Cached) -> Known {
    Known { name: cached.name, bytes: cached.bytes, modified: cached.modified, commit: cached.commit }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Models that are opened at the same time share a device, the first ones, too; after a loss there is one again.
    #[test]
    fn gpu_models_share_a_device_from_the_first() {
        let (shared, choice) = (Shared::default(), Choice { name: Some("llvmpipe".to_owned()), ..Choice::default() });
        let ask = || {
            std::thread::scope(|scope| {
                let asked = [(); 4].map(|()| scope.spawn(|| shared.device(&choice)));
                let devices = asked.map(|thread| thread.join().unwrap().expect("scripts/test installs it"));
                assert!(devices.iter().all(|device| device.is(&devices[0])));
                devices[0].clone()
            })
        };
        let first = ask();
        assert!(ask().is(&first));
        first.device.destroy();
        first.tick();
        let second = ask();
        assert!(!second.is(&first));
        // Another one is not taken for it.
        let other = Choice { exactly: Some(("no such adapter".to_owned(), "Vulkan".to_owned())), ..Choice::default() };
        assert!(shared.device(&other).is_err());
        assert!(ask().is(&second));
    }
}
