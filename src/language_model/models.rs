//! Several models in one process: loaded when they are asked for, within a budget, and unloaded when nobody uses them.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{LanguageModel, ServedModel};
use crate::driver::ServeOptions;
use crate::exec::Executor;
use crate::{Error, Result};

/// How many models there may be, and for how long.
#[derive(Clone, Debug)]
pub struct ModelsOptions {
    /// Models that are loaded at once.
    pub most: usize,
    /// Bytes of weights of all of them together; one alone may have more.
    pub bytes: u64,
    /// Time after which a model is unloaded that nobody asked for anything; none: when another one needs its place.
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
    options: ModelsOptions,
    entries: Mutex<BTreeMap<String, Entry>>,
    loaded: Condvar,
}

/// Opens a model by its name, and starts to serve it.
type OpenFn = dyn Fn(&str, &ServeOptions) -> Result<Opened> + Send + Sync;
type Opened = (ServedModel, JoinHandle<()>);

enum Entry {
    /// Somebody opens it; others wait.
    Loading,
    Ready {
        model: ServedModel,
        thread: JoinHandle<()>,
        bytes: u64,
        used: Instant,
    },
}

impl Entry {
    /// Requests that it runs, and that wait; one for a model that is being opened.
    fn requests(&self) -> usize {
        match self {
            Self::Loading => 1,
            Self::Ready { model, .. } => {
                let metrics = model.handle().metrics();
                metrics.num_requests_running + metrics.num_requests_waiting
            }
        }
    }
}

impl Models {
    /// No models yet; `open` opens one by its name.
    pub fn new<E, F>(options: ModelsOptions, open: F) -> Self
    where
        E: Executor + Send + 'static,
        F: Fn(&str) -> Result<LanguageModel<E>> + Send + Sync + 'static,
    {
        let open = move |name: &str, serve: &ServeOptions| Ok(open(name)?.serve(serve.clone()));
        Self { open: Box::new(open), options, entries: Mutex::default(), loaded: Condvar::new() }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model of this name, opened if it is not there. Waits on this thread while it is opened, by whomever. Models that nobody
    /// uses are unloaded for it, the longest unused first; fails with [`Error::Refused`] where all are in use.
    pub fn get(&self, name: &str) -> Result<ServedModel> {
        self.unload_idle();
        let mut entries = self.entries();
        loop {
            match entries.get_mut(name) {
                Some(Entry::Ready { model, used, .. }) if !model.handle().is_closed() => {
                    *used = Instant::now();
                    return Ok(model.clone());
                }
                Some(Entry::Loading) => {
                    entries = self.loaded.wait(entries).unwrap_or_else(PoisonError::into_inner);
                }
                // Its driver has ended.
                Some(Entry::Ready { .. }) => _ = entries.remove(name),
                None => break,
            }
        }
        let mut unloaded = Vec::new();
        while entries.len() >= self.options.most.max(1) {
            match Self::longest_unused(&entries) {
                Some(unused) => unloaded.extend(entries.remove(&unused)),
                None => {
                    let what = format!("{} models are in use, as many as may be", entries.len());
                    return Err(Error::Refused { what, retry_after: Some(Duration::from_secs(5)) });
                }
            }
        }
        entries.insert(name.to_owned(), Entry::Loading);
        drop(entries);
        // Their memory is free before another one takes it.
        unloaded.into_iter().for_each(unload);
        let opening = Opening { models: self, name };
        let (model, thread) = (self.open)(name, &self.options.serve)?;
        let bytes = model.model().file.tensors().iter().map(|tensor| tensor.bytes).sum();
        let ready = Entry::Ready { model: model.clone(), thread, bytes, used: Instant::now() };
        self.entries().insert(name.to_owned(), ready);
        drop(opening);
        self.shrink();
        Ok(model)
    }

    /// The model that has waited longest for a request, of those without any.
    fn longest_unused(entries: &BTreeMap<String, Entry>) -> Option<String> {
        let used = |(name, entry): (&String, &Entry)| match entry {
            Entry::Ready { used, .. } if entry.requests() == 0 => Some((*used, name.clone())),
            Entry::Ready { .. } | Entry::Loading => None,
        };
        entries.iter().filter_map(used).min().map(|(_, name)| name)
    }

    /// Unloads until the weights fit, but for the model that was asked for last.
    fn shrink(&self) {
        loop {
            let mut entries = self.entries();
            let bytes = entries.values().map(|entry| match entry {
                Entry::Ready { bytes, .. } => *bytes,
                Entry::Loading => 0,
            });
            if entries.len() < 2 || bytes.sum::<u64>() <= self.options.bytes {
                return;
            }
            let Some(entry) = Self::longest_unused(&entries).and_then(|name| entries.remove(&name)) else { return };
            drop(entries);
            unload(entry);
        }
    }

    /// Unloads the models that nobody has asked for anything for as long as the options say.
    pub fn unload_idle(&self) {
        let Some(idle) = self.options.idle else { return };
        let mut entries = self.entries();
        let is_idle = |entry: &Entry| {
            matches!(entry, Entry::Ready { used, .. } if used.elapsed() >= idle) && entry.requests() == 0
        };
        let names: Vec<String> = entries.iter().filter(|(_, e)| is_idle(e)).map(|(name, _)| name.clone()).collect();
        let unloaded: Vec<Entry> = names.iter().filter_map(|name| entries.remove(name)).collect();
        drop(entries);
        unloaded.into_iter().for_each(unload);
    }

    /// Unloads a model, after the requests that it has; false if it is not loaded.
    pub fn unload(&self, name: &str) -> bool {
        let mut entries = self.entries();
        let ready = matches!(entries.get(name), Some(Entry::Ready { .. }));
        let entry = if ready { entries.remove(name) } else { None };
        drop(entries);
        entry.map(unload).is_some()
    }

    /// Forgets what caches keep for requests to come, and unloads what nobody uses.
    pub fn trim(&self) {
        loop {
            let mut entries = self.entries();
            let Some(entry) = Self::longest_unused(&entries).and_then(|name| entries.remove(&name)) else {
                for entry in entries.values() {
                    if let Entry::Ready { model, .. } = entry {
                        model.handle().trim();
                    }
                }
                return;
            };
            drop(entries);
            unload(entry);
        }
    }

    /// The models that are loaded, by name.
    pub fn loaded(&self) -> Vec<LoadedModel> {
        let of = |(name, entry): (&String, &Entry)| match entry {
            Entry::Loading => None,
            Entry::Ready { bytes, used, .. } => {
                let (idle, requests) = (used.elapsed(), entry.requests());
                Some(LoadedModel { name: name.clone(), bytes: *bytes, idle, requests })
            }
        };
        self.entries().iter().filter_map(of).collect()
    }
}

/// Ends a model's driver, after the requests that it has, and waits for it.
fn unload(entry: Entry) {
    if let Entry::Ready { model, thread, .. } = entry {
        model.handle().close();
        drop(model);
        // One that has panicked has ended its requests with an error.
        let _ = thread.join();
    }
}

/// While a model is opened: others wait until this ends, however it does.
struct Opening<'a> {
    models: &'a Models,
    name: &'a str,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut entries = self.models.entries();
        if matches!(entries.get(self.name), Some(Entry::Loading)) {
            entries.remove(self.name);
        }
        drop(entries);
        self.models.loaded.notify_all();
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        std::mem::take(&mut *self.entries()).into_values().for_each(unload);
    }
}

#[cfg(all(test, feature = "tiny"))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::driver::block_on;
    use crate::exec::{DeviceChoice, Options};
    use crate::{GenerateOptions, TINY};

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
}
