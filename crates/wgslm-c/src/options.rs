//! How models are opened, and how answers are generated.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use wgslm::driver::{GenerateRequest, ServeOptions};
use wgslm::engine::Priority;
use wgslm::exec::{CacheSize, Numerics, Progress, SelfTestResults};
use wgslm::language_model::ModelText;
use wgslm::{Error, Result};

use crate::text::{array, optional, sized, text};

/// Is called while a model is opened: with what is going on ("test", "load" or "compile"), what is done of it and all there is.
pub type ProgressFn = Option<extern "C" fn(user: *mut c_void, what: *const c_char, done: u64, all: u64)>;

/// How a model is opened.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    /// sizeof(wgslm_options)
    pub size: usize,
    /// "auto", "gpu", "cpu", or the number of an adapter. NULL: "auto".
    pub device: *const c_char,
    /// Positions of context of a sequence. 0: 4096, or as many as the model has.
    pub context: u32,
    /// Answers that are generated at a time; more wait. 0: 4.
    pub parallel: u32,
    /// What the KV cache holds: "full", a number of positions, or bytes as in "512MB". NULL: "full".
    pub cache: *const c_char,
    /// Threads of the CPU. 0: as many as prove to be fastest.
    pub threads: u32,
    /// Not 0: sums in f32 and an f32 cache, whatever that costs.
    pub exact: u32,
    /// Requests that may wait; more are refused. 0: 256.
    pub queue: u32,
    /// Not 0: a GPU is used without being tested on known data before.
    pub no_self_test: u32,
    /// Is called while the model is opened, with `user`, in the thread that opens it.
    pub progress: ProgressFn,
    /// Goes to `progress`.
    pub user: *mut c_void,
}

/// How tokens are chosen. wgslm_sampling_of sets all of it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sampling {
    /// sizeof(wgslm_sampling)
    pub size: usize,
    /// 0 takes the most likely token; at most 100.
    pub temperature: f32,
    /// Only the k most likely tokens remain; 0 keeps all.
    pub top_k: u32,
    /// Only the most likely tokens whose probabilities reach this sum remain; 1 keeps all.
    pub top_p: f32,
    /// Only tokens at least this likely, relative to the most likely, remain; 0 keeps all.
    pub min_p: f32,
    /// Penalty on tokens that were there; 1 has no effect.
    pub repeat_penalty: f32,
    /// Penalty on tokens that were there, whatever the number; 0 has no effect.
    pub presence_penalty: f32,
    /// Penalty on tokens for each time that they were there; 0 has no effect.
    pub frequency_penalty: f32,
    /// How many of the last tokens the penalties look at.
    pub last_n: u32,
    /// The same seed gives the same text.
    pub seed: u64,
}

/// How an answer is generated.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Request {
    /// sizeof(wgslm_request)
    pub size: usize,
    /// NULL: as the model's files recommend.
    pub sampling: *const Sampling,
    /// Tokens to generate at most. 0: to the end of the answer, or of the context.
    pub max_tokens: u32,
    /// How many texts there are in `stop`.
    pub stop_count: u32,
    /// Texts that end the answer, each with a NUL; they are not part of it.
    pub stop: *const *const c_char,
    /// Only requests with the same salt share what is in the cache. NULL: those without one.
    pub salt: *const c_char,
    /// 0: normal, 1: before others, -1: after others, -2: in the background, which leaves the device to others.
    pub priority: i32,
    /// Milliseconds after which it ends with what it has. 0: none.
    pub deadline_ms: u32,
}

impl Options {
    /// # Safety
    ///
    /// `pointer` is null or points to options whose texts are alive.
    pub(crate) unsafe fn read(pointer: *const Self) -> Result<Self> {
        // SAFETY: as the caller promised; zeros are null pointers and numbers.
        let options = unsafe { sized("options", pointer)? };
        // SAFETY: as for any struct of numbers, pointers and functions that may be none.
        Ok(options.unwrap_or_else(|| unsafe { std::mem::zeroed() }))
    }

    /// # Safety
    ///
    /// The texts are alive.
    pub(crate) unsafe fn run(&self) -> Result<wgslm::Options> {
        let defaults = wgslm::Options::default();
        let or = |given: u32, default: u32| if given == 0 { default } else { given };
        // SAFETY: as the caller promised.
        let (device, cache) = unsafe { (optional("device", self.device)?, optional("cache", self.cache)?) };
        Ok(wgslm::Options {
            device: device.unwrap_or("auto").parse()?,
            context: or(self.context, defaults.context),
            seqs: or(self.parallel, 4),
            cache: cache.map_or(Ok(CacheSize::Full), str::parse)?,
            threads: (self.threads > 0).then_some(self.threads as usize),
            numerics: if self.exact > 0 { Numerics::Exact } else { Numerics::Fast },
            self_test_results: (self.no_self_test == 0).then(|| Arc::new(SelfTestResults::default())),
            ..defaults
        })
    }

    pub(crate) fn serve(&self) -> ServeOptions {
        let defaults = ServeOptions::default();
        let queue_requests = if self.queue == 0 { defaults.queue_requests } else { self.queue as usize };
        ServeOptions { queue_requests, ..defaults }
    }

    /// What reports progress to the caller.
    pub(crate) fn progress(&self) -> impl FnMut(Progress) + Send + use<> {
        struct User(*mut c_void);
        // SAFETY: it goes back to the caller's function, in the caller's thread.
        unsafe impl Send for User {}
        let (progress, user) = (self.progress, User(self.user));
        move |event| {
            let user = &user;
            let (what, done, all) = match event {
                Progress::Testing => (c"test", 0, 1),
                Progress::Loading(done, all) => (c"load", done, all),
                Progress::Compiling(done, all) => (c"compile", done, all),
            };
            if let Some(progress) = progress {
                progress(user.0, what.as_ptr(), done, all);
            }
        }
    }
}

impl Sampling {
    pub(crate) fn of(sampling: &wgslm::Sampling) -> Self {
        let penalties = sampling.penalties;
        Self {
            size: size_of::<Self>(),
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repeat_penalty: penalties.repeat,
            presence_penalty: penalties.presence,
            frequency_penalty: penalties.frequency,
            last_n: sampling.last_n,
            seed: sampling.seed,
        }
    }

    fn with(&self, base: wgslm::Sampling) -> wgslm::Sampling {
        let mut sampling = wgslm::Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            last_n: self.last_n,
            seed: self.seed,
            ..base
        };
        let penalties = &mut sampling.penalties;
        (penalties.repeat, penalties.presence) = (self.repeat_penalty, self.presence_penalty);
        penalties.frequency = self.frequency_penalty;
        sampling
    }
}

impl Request {
    /// A request for a prompt.
    ///
    /// # Safety
    ///
    /// `pointer` is null or points to a request whose texts and sampling are alive.
    pub(crate) unsafe fn read(pointer: *const Self, model: &ModelText, prompt: Vec<u32>) -> Result<GenerateRequest> {
        let mut request = model.request(prompt);
        request.sampling = model.sampling();
        // SAFETY: as the caller promised; zeros are null pointers and numbers.
        let Some(asked) = (unsafe { sized("request", pointer)? }) else { return Ok(request.into()) };
        // SAFETY: likewise.
        if let Some(sampling) = unsafe { sized("sampling", asked.sampling)? } {
            request.sampling = sampling.with(request.sampling);
        }
        request.max_tokens = (asked.max_tokens > 0).then_some(asked.max_tokens);
        // SAFETY: likewise.
        let (salt, stops) =
            unsafe { (optional("salt", asked.salt)?, array("stop", asked.stop, asked.stop_count as usize)?) };
        request.salt = salt.map(|salt| salt.as_bytes().into());
        request.priority = match asked.priority {
            0 => Priority::Normal,
            1 => Priority::High,
            -1 => Priority::Low,
            -2 => Priority::Background,
            other => return Err(Error::argument("priority", format!("{other}; -2 to 1 work"))),
        };
        request.deadline = (asked.deadline_ms > 0).then(|| Duration::from_millis(asked.deadline_ms.into()));
        // SAFETY: likewise.
        let stop = stops.iter().map(|stop| unsafe { text("stop", *stop, crate::WGSLM_TO_NUL) }.map(str::to_owned));
        Ok(GenerateRequest { request, stop: stop.collect::<Result<_>>()? })
    }
}
