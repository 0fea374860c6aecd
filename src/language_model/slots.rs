//! What is opened by name when somebody asks for it, and closed when nobody uses it.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// What a slot holds: clones are the same one.
pub(crate) trait Held: Clone {
    /// Bytes of its weights.
    fn bytes(&self) -> u64;
    /// Requests that it runs, that wait, and that are about to come.
    fn requests(&self) -> usize;
    /// Whether it has ended by itself.
    fn is_closed(&self) -> bool;
    /// Forgets what it keeps for requests to come.
    fn trim(&self);
    /// Takes no more requests.
    fn close(&self);
}

/// Something that was opened, and the thread that ends when it has been closed.
pub(crate) type Opened<M> = (M, Option<JoinHandle<()>>);

/// Models by name, some of them open.
pub(crate) struct Slots<M: Held> {
    most: usize,
    bytes: u64,
    idle: Option<Duration>,
    entries: Mutex<BTreeMap<String, Entry<M>>>,
    opened: Condvar,
}

enum Entry<M> {
    /// Somebody opens it; others wait.
    Opening {
        bytes: u64,
    },
    Ready(Box<Ready<M>>),
}

struct Ready<M> {
    model: M,
    thread: Option<JoinHandle<()>>,
    bytes: u64,
    used: Instant,
    /// Time after which it is closed; none: it stays until another one needs its place.
    idle: Option<Duration>,
}

/// How it stands with a name.
#[cfg(feature = "server")]
pub(crate) enum Standing<M> {
    Ready(M),
    Opening,
    Absent,
}

/// One that is open.
pub(crate) struct Listed<M> {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Time since it was asked for last.
    pub(crate) unused: Duration,
    pub(crate) requests: usize,
    /// Time until it is closed, if nobody asks for it.
    #[cfg_attr(not(feature = "server"), allow(dead_code, reason = "the server needs it"))]
    pub(crate) left: Option<Duration>,
    #[cfg_attr(not(feature = "server"), allow(dead_code, reason = "the server needs it"))]
    pub(crate) model: M,
}

impl<M: Held> Ready<M> {
    /// Somebody asks for it. One that was to be closed after its last request stays.
    fn asked_for(&mut self, idle: Option<Duration>) -> M {
        self.used = Instant::now();
        if self.idle == Some(Duration::ZERO) {
            self.idle = idle;
        }
        self.model.clone()
    }
}

impl<M: Held> Entry<M> {
    /// One that is being opened has one.
    fn requests(&self) -> usize {
        match self {
            Self::Opening { .. } => 1,
            Self::Ready(ready) => ready.model.requests(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Opening { bytes } => *bytes,
            Self::Ready(ready) => ready.bytes,
        }
    }
}

impl<M: Held> Slots<M> {
    /// At most so many at once, with so many bytes of weights together (one alone may have more), each for so long without
    /// requests.
    pub(crate) fn new(most: usize, bytes: u64, idle: Option<Duration>) -> Self {
        Self { most: most.max(1), bytes, idle, entries: Mutex::default(), opened: Condvar::new() }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry<M>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one of this name, of about so many bytes, opened if it is not there. Waits on this thread while it is opened, by
    /// whomever. Those that nobody uses are closed for it, the longest unused first; fails with [`Error::Refused`] where all are
    /// in use.
    pub(crate) fn get(&self, name: &str, bytes: u64, open: impl FnOnce() -> Result<Opened<M>>) -> Result<M> {
        self.unload_idle();
        let mut entries = self.entries();
        loop {
            match entries.get_mut(name) {
                Some(Entry::Ready(ready)) if !ready.model.is_closed() => return Ok(ready.asked_for(self.idle)),
                Some(Entry::Opening { .. }) => {
                    entries = self.opened.wait(entries).unwrap_or_else(PoisonError::into_inner);
                }
                // It has ended.
                Some(Entry::Ready(_)) => _ = entries.remove(name),
                None => break,
            }
        }
        let mut unloaded = Vec::new();
        loop {
            let full = entries.len() >= self.most;
            let together: u64 = entries.values().map(Entry::bytes).sum();
            if !full && (entries.is_empty() || together.saturating_add(bytes) <= self.bytes) {
                break;
            }
            match Self::longest_unused(&entries) {
                Some(unused) => unloaded.extend(entries.remove(&unused)),
                // One alone may have more.
                None if entries.is_empty() => break,
                None => {
                    let models = format!("{} models are in use", entries.len());
                    let what = if full {
                        format!("{models}, as many as may be")
                    } else {
                        format!("{models}, and memory is used up")
                    };
                    drop(entries);
                    unloaded.into_iter().for_each(unload);
                    return Err(Error::Refused { what, retry_after: Some(Duration::from_secs(5)) });
                }
            }
        }
        entries.insert(name.to_owned(), Entry::Opening { bytes });
        drop(entries);
        let opening = Opening { slots: self, name };
        // Their memory is free before another one takes it.
        unloaded.into_iter().for_each(unload);
        let (model, thread) = open()?;
        let bytes = model.bytes();
        let ready = Ready { model: model.clone(), thread, bytes, used: Instant::now(), idle: self.idle };
        self.entries().insert(name.to_owned(), Entry::Ready(Box::new(ready)));
        drop(opening);
        self.shrink(name);
        Ok(model)
    }

    /// The one of this name if it is open; never waits.
    #[cfg(feature = "server")]
    pub(crate) fn peek(&self, name: &str) -> Standing<M> {
        match self.entries().get_mut(name) {
            Some(Entry::Ready(ready)) if !ready.model.is_closed() => Standing::Ready(ready.asked_for(self.idle)),
            Some(Entry::Opening { .. }) => Standing::Opening,
            Some(Entry::Ready(_)) | None => Standing::Absent,
        }
    }

    /// The name of one that is being opened.
    #[cfg(feature = "server")]
    pub(crate) fn opening(&self) -> Option<String> {
        self.entries().iter().find(|(_, entry)| matches!(entry, Entry::Opening { .. })).map(|(name, _)| name.clone())
    }

    /// How long one stays without requests from now on.
    #[cfg(feature = "server")]
    pub(crate) fn keep(&self, name: &str, idle: Option<Duration>) {
        if let Some(Entry::Ready(ready)) = self.entries().get_mut(name) {
            (ready.idle, ready.used) = (idle, Instant::now());
        }
    }

    /// The one that has waited longest for a request, of those without any.
    fn longest_unused(entries: &BTreeMap<String, Entry<M>>) -> Option<String> {
        let used = |(name, entry): (&String, &Entry<M>)| match entry {
            Entry::Ready(ready) if entry.requests() == 0 => Some((ready.used, name.clone())),
            Entry::Ready(_) | Entry::Opening { .. } => None,
        };
        entries.iter().filter_map(used).min().map(|(_, name)| name)
    }

    /// Unloads until the weights fit, but for the one that was asked for last.
    fn shrink(&self, last: &str) {
        loop {
            let mut entries = self.entries();
            if entries.len() < 2 || entries.values().map(Entry::bytes).sum::<u64>() <= self.bytes {
                return;
            }
            let unused = Self::longest_unused(&entries).filter(|unused| unused != last);
            let Some(entry) = unused.and_then(|name| entries.remove(&name)) else { return };
            drop(entries);
            unload(entry);
        }
    }

    /// Closes those that nobody has asked for anything for as long as they stay. Nothing else looks at the clock, but for
    /// [`get`](Self::get).
    pub(crate) fn unload_idle(&self) {
        let mut entries = self.entries();
        let mut names = Vec::new();
        for (name, entry) in entries.iter_mut() {
            let requests = entry.requests();
            let Entry::Ready(ready) = entry else { continue };
            let Some(idle) = ready.idle else { continue };
            if requests > 0 {
                // The time counts from the last look that found a request.
                ready.used = Instant::now();
            } else if ready.used.elapsed() >= idle {
                names.push(name.clone());
            }
        }
        let unloaded: Vec<Entry<M>> = names.iter().filter_map(|name| entries.remove(name)).collect();
        drop(entries);
        unloaded.into_iter().for_each(unload);
    }

    /// Closes one, after the requests that it has; false if it is not open.
    pub(crate) fn unload(&self, name: &str) -> bool {
        let mut entries = self.entries();
        let ready = matches!(entries.get(name), Some(Entry::Ready(_)));
        let entry = if ready { entries.remove(name) } else { None };
        drop(entries);
        entry.map(unload).is_some()
    }

    /// Forgets what caches keep for requests to come, and closes what nobody uses.
    pub(crate) fn trim(&self) {
        loop {
            let mut entries = self.entries();
            let Some(entry) = Self::longest_unused(&entries).and_then(|name| entries.remove(&name)) else {
                for entry in entries.values() {
                    if let Entry::Ready(ready) = entry {
                        ready.model.trim();
                    }
                }
                return;
            };
            drop(entries);
            unload(entry);
        }
    }

    /// Shows those that are open. Nobody holds them the longer for it.
    #[cfg(feature = "server")]
    pub(crate) fn look(&self, look: impl Fn(&M)) {
        for entry in self.entries().values() {
            if let Entry::Ready(ready) = entry {
                look(&ready.model);
            }
        }
    }

    /// Those that are open, by name.
    pub(crate) fn list(&self) -> Vec<Listed<M>> {
        let of = |(name, entry): (&String, &Entry<M>)| match entry {
            Entry::Opening { .. } => None,
            Entry::Ready(ready) => {
                let (unused, requests) = (ready.used.elapsed(), entry.requests());
                let left = ready.idle.map(|idle| idle.saturating_sub(unused));
                let (name, bytes, model) = (name.clone(), ready.bytes, ready.model.clone());
                Some(Listed { name, bytes, unused, requests, left, model })
            }
        };
        self.entries().iter().filter_map(of).collect()
    }
}

/// Closes one, and waits until the requests that it has have ended.
fn unload<M: Held>(entry: Entry<M>) {
    if let Entry::Ready(ready) = entry {
        let Ready { model, thread, .. } = *ready;
        model.close();
        drop(model);
        if let Some(thread) = thread {
            // One that has panicked has ended its requests with an error.
            let _ = thread.join();
        }
    }
}

/// While one is opened: others wait until this ends, however it does.
struct Opening<'a, M: Held> {
    slots: &'a Slots<M>,
    name: &'a str,
}

impl<M: Held> Drop for Opening<'_, M> {
    fn drop(&mut self) {
        let mut entries = self.slots.entries();
        if matches!(entries.get(self.name), Some(Entry::Opening { .. })) {
            entries.remove(self.name);
        }
        drop(entries);
        self.slots.opened.notify_all();
    }
}

impl<M: Held> Drop for Slots<M> {
    fn drop(&mut self) {
        std::mem::take(&mut *self.entries()).into_values().for_each(unload);
    }
}
