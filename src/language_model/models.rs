//! Several models in one process: loaded when they are asked for, within a budget, and unloaded when nobody uses them.

use std::time::Duration;

use super::slots::{Held, Listed, Opened, Slots};
use super::{LanguageModel, ServedModel};
use crate::Result;
use crate::driver::ServeOptions;
use crate::exec::Executor;

/// How many models there may be, and for how long.
#[derive(Clone, Debug)]
pub struct ModelsOptions {
    /// Models that are loaded at once.
    pub most: usize,
    /// Bytes of weights of all of them together; one alone may have more. What caches take is not among them.
    ///
    /// It holds as far as sizes are known before models are opened ([`Models::with_sizes`]). Else a model is opened beside the
    /// others, those that nobody uses are unloaded then, and there is more while all are in use.
    pub bytes: u64,
    /// Time after which a model is unloaded that nobody asked for anything; none: when another one needs its place. Only
    /// [`Models::get`] and [`Models::unload_idle`] look at the clock. The time counts from when it was asked for, or from the last
    /// such look that found it answering: who wants memory back in time calls the latter now and then.
    pub idle: Option<Duration>,
    /// How each is served.
    pub serve: ServeOptions,
}

impl Default for ModelsOptions {
    fn default() -> Self {
        Self { most: 4, bytes: u64::MAX, idle: None, serve: ServeOptions::default() }
    }
}

/// A model that is loaded.
#[derive(Clone, Debug)]
pub struct LoadedModel {
    /// The name that it was asked for by.
    pub name: String,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Time since it was asked for last.
    pub idle: Duration,
    /// Requests that it runs, and that wait.
    pub requests: usize,
}

/// Models by name. All that are opened on one [`Device`](crate::gpu::Device) share it, as they share the CPU's threads.
pub struct Models {
    open: Box<OpenFn>,
    sizes: Box<SizeFn>,
    serve: ServeOptions,
    slots: Slots<ServedModel>,
}

/// Opens a model by its name, and starts to serve it.
type OpenFn = dyn Fn(&str, &ServeOptions) -> Result<Opened<ServedModel>> + Send + Sync;
/// How many bytes of weights a model has, by its name; 0 if that is not known.
type SizeFn = dyn Fn(&str) -> u64 + Send + Sync;

impl Held for ServedModel {
    fn bytes(&self) -> u64 {
        self.model().file.tensors().iter().map(|tensor| tensor.bytes).sum()
    }

    fn requests(&self) -> usize {
        let metrics = self.handle().metrics();
        metrics.num_requests_running + metrics.num_requests_waiting
    }

    fn is_closed(&self) -> bool {
        // One whose device is gone for good gives way to one that is opened anew.
        self.handle().is_closed() || self.handle().is_lost()
    }

    fn trim(&self) {
        self.handle().trim();
    }

    fn close(&self) {
        self.handle().close();
    }
}

impl Models {
    /// No models yet; `open` opens one by its name.
    pub fn new<E, F>(options: ModelsOptions, open: F) -> Self
    where
        E: Executor + Send + 'static,
        F: Fn(&str) -> Result<LanguageModel<E>> + Send + Sync + 'static,
    {
        let open = move |name: &str, serve: &ServeOptions| {
            let (model, thread) = open(name)?.serve(serve.clone());
            Ok((model, Some(thread)))
        };
        let slots = Slots::new(options.most, options.bytes, options.idle);
        Self { open: Box::new(open), sizes: Box::new(|_| 0), serve: options.serve, slots }
    }

    /// With what says how many bytes of weights a model has before it is opened, by its name: about that of its files, or 0 where
    /// that is not known. Others are unloaded before it takes their memory, and where they are in use, it is refused.
    pub fn with_sizes(self, sizes: impl Fn(&str) -> u64 + Send + Sync + 'static) -> Self {
        Self { sizes: Box::new(sizes), ..self }
    }

    /// The model of this name, opened if it is not there. Waits on this thread while it is opened, by whomever. Models that nobody
    /// uses are unloaded for it, the longest unused first; fails with [`Error::Refused`](crate::Error::Refused) where all are in
    /// use.
    pub fn get(&self, name: &str) -> Result<ServedModel> {
        self.slots.get(name, (self.sizes)(name), || (self.open)(name, &self.serve))
    }

    /// Unloads the models that nobody has asked for anything for as long as the options say.
    pub fn unload_idle(&self) {
        self.slots.unload_idle();
    }

    /// Unloads a model, after the requests that it has; false if it is not loaded.
    pub fn unload(&self, name: &str) -> bool {
        self.slots.unload(name)
    }

    /// Forgets what caches keep for requests to come, and unloads what nobody uses.
    pub fn trim(&self) {
        self.slots.trim();
    }

    /// The models that are loaded, by name.
    pub fn loaded(&self) -> Vec<LoadedModel> {
        let of = |listed: Listed<ServedModel>| {
            let Listed { name, bytes, unused: idle, requests, .. } = listed;
            LoadedModel { name, bytes, idle, requests }
        };
        self.slots.list().into_iter().map(of).collect()
    }
}

#[cfg(all(test, feature = "tiny"))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::driver::block_on;
    use crate::exec::{CacheOp, CpuExecutor, DeviceChoice, Limits, Options, Phase, Step, StepOut, Ticket};
    use crate::file::CountFn;
    use crate::model::ModelSource;
    use crate::{Error, GenerateOptions, TINY};

    fn models(options: ModelsOptions) -> (Models, Arc<AtomicUsize>) {
        let opened = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&opened);
        let models = Models::new(options, move |name| {
            count.fetch_add(1, Ordering::Relaxed);
            if name == "missing" {
                return Err(Error::argument("model", "there is none of this name"));
            }
            let options = Options { device: DeviceChoice::Cpu, threads: Some(1), context: 256, ..Options::default() };
            block_on(crate::open(TINY, &options))
        });
        (models, opened)
    }

    fn names(models: &Models) -> Vec<String> {
        models.loaded().into_iter().map(|model| model.name).collect()
    }

    fn run(max_tokens: u32) -> GenerateOptions {
        GenerateOptions { max_tokens: Some(max_tokens), ..GenerateOptions::default() }
    }

    #[test]
    fn models_are_loaded_once_and_give_way() {
        let (models, opened) = models(ModelsOptions { most: 2, ..ModelsOptions::default() });
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| models.get("a").unwrap().generate("Once", &run(4)).unwrap().finish_blocking().unwrap());
            }
        });
        assert_eq!((opened.load(Ordering::Relaxed), names(&models)), (1, vec!["a".to_owned()]));
        assert!(models.get("missing").is_err() && models.get("missing").is_err());
        assert_eq!(names(&models), ["a"], "what cannot be opened takes no place");
        drop(models.get("b").unwrap());
        drop(models.get("a").unwrap());
        drop(models.get("c").unwrap());
        assert_eq!(names(&models), ["a", "c"], "the longest unused gives way");
        // Both are in use.
        let long = ["a", "c"].map(|name| models.get(name).unwrap().generate("Once", &run(200)).unwrap());
        let refused = models.get("d").err().unwrap();
        assert!(matches!(refused, Error::Refused { retry_after: Some(_), .. }), "{refused}");
        for generation in long {
            generation.finish_blocking().unwrap();
        }
        drop(models.get("d").unwrap());
        assert_eq!(names(&models).len(), 2);
        assert!(models.unload("d") && !models.unload("d"));
        models.trim();
        assert!(names(&models).is_empty());
    }

    #[test]
    fn models_that_nobody_asks_for_are_unloaded() {
        let (of_time, opened) = models(ModelsOptions { idle: Some(Duration::ZERO), ..ModelsOptions::default() });
        let kept = of_time.get("a").unwrap();
        drop(of_time.get("b").unwrap());
        assert_eq!((names(&of_time), opened.load(Ordering::Relaxed)), (vec!["b".to_owned()], 2));
        assert_eq!(kept.generate("Once", &run(2)).unwrap_err().code(), "refused");
        let (of_bytes, _) = models(ModelsOptions { bytes: 1, ..ModelsOptions::default() });
        drop(of_bytes.get("a").unwrap());
        drop(of_bytes.get("b").unwrap());
        assert_eq!(names(&of_bytes), ["b"], "one alone may have more");
    }

    /// Where sizes are known, nothing is opened beside what is in use; where they are not, it is.
    #[test]
    fn memory_is_kept_to_as_far_as_it_is_known() {
        let bytes = TINY.len() as u64 + 1;
        let of = || models(ModelsOptions { bytes, ..ModelsOptions::default() });
        let ((unknown, _), (known, opened)) = (of(), of());
        let known = known.with_sizes(|_| TINY.len() as u64);
        let busy = |models: &Models| models.get("a").unwrap().generate("Once", &run(200)).unwrap();
        let (first, second) = (busy(&known), busy(&unknown));
        assert!(matches!(known.get("b"), Err(Error::Refused { retry_after: Some(_), .. })));
        drop(unknown.get("b").unwrap());
        assert_eq!((names(&known), names(&unknown)), (vec!["a".to_owned()], vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(opened.load(Ordering::Relaxed), 1);
        for generation in [first, second] {
            generation.finish_blocking().unwrap();
        }
        drop(known.get("b").unwrap());
        assert_eq!((names(&known), opened.load(Ordering::Relaxed)), (vec!["b".to_owned()], 2));
    }

    /// The CPU as a device that can be lost, and that nothing opens again.
    struct Losable(CpuExecutor, Arc<AtomicUsize>);

    impl Executor for Losable {
        fn limits(&self) -> Limits {
            self.0.limits()
        }

        fn device(&self) -> String {
            self.0.device()
        }

        async fn plan(&mut self, phase: Phase, progress: &mut CountFn<'_>) -> Result<()> {
            self.0.plan(phase, progress).await
        }

        fn enqueue(&mut self, step: &Step<'_>) -> Result<Ticket> {
            match self.1.load(Ordering::Relaxed) {
                0 => self.0.enqueue(step),
                _ => Err(Error::DeviceLost("unplugged".to_owned())),
            }
        }

        fn cache(&mut self, ops: &[CacheOp]) -> Result<()> {
            self.0.cache(ops)
        }

        fn poll(&mut self, done: &mut dyn FnMut(Ticket, Result<&StepOut>)) -> usize {
            self.0.poll(done)
        }

        async fn wait(&mut self) -> Result<()> {
            self.0.wait().await
        }

        fn blocked(&self) -> u64 {
            self.0.blocked()
        }
    }

    #[test]
    fn a_model_whose_device_is_lost_is_opened_anew() {
        let (opened, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, gone) = (Arc::clone(&opened), Arc::clone(&lost));
        let models = Models::new(ModelsOptions::default(), move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            let model = block_on(ModelSource::from(TINY).model())?;
            let options = Options { threads: Some(1), context: 256, ..Options::default() };
            let cpu = block_on(CpuExecutor::open(&model, &options, &mut |_| {}))?;
            LanguageModel::with_executor(model, Losable(cpu, Arc::clone(&gone)))
        });
        let answer = || models.get("a").unwrap().generate("Once", &run(4)).unwrap().finish_blocking();
        let expected = answer().unwrap().text;
        lost.store(1, Ordering::Relaxed);
        assert_eq!(answer().unwrap_err().code(), "device_lost");
        lost.store(0, Ordering::Relaxed);
        assert_eq!((answer().unwrap().text, opened.load(Ordering::Relaxed)), (expected, 2));
        assert_eq!(names(&models), ["a"]);
    }
}
