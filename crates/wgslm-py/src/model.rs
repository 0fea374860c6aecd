//! A model that is open, and what is asked of it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value};
use wgslm::chat::{self, Answers};
use wgslm::driver::{GenerateRequest, ServeOptions};
use wgslm::engine::Priority;
use wgslm::exec::{CacheSize, Numerics, Progress, SelfTestResults};
use wgslm::hub::{self, Hub, Reference};
use wgslm::language_model::OwnedModel;
use wgslm::model::ModelSource;
use wgslm::text::{ChatTemplate, Special};
use wgslm::{Error, LanguageModel, Options, Result, ServedModel, block_on};

use crate::error::to_py;
use crate::generation::{Asked, Generation};

/// A model that is loaded, and a thread that answers requests.
#[pyclass(frozen, module = "wgslm._wgslm")]
pub(crate) struct Model(Arc<Served>);

/// What a model and its generations share. The last of them ends the thread.
pub(crate) struct Served {
    model: OwnedModel,
    template: Option<ChatTemplate>,
    answers: Mutex<Answers>,
}

impl Served {
    pub(crate) fn answers(&self) -> std::sync::MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What names a model: a path, the bytes of a GGUF file, or nothing.
#[derive(FromPyObject)]
pub(crate) enum Source {
    /// A GGUF file's.
    Bytes(Vec<u8>),
    /// A path, or a reference to the hub.
    Path(PathBuf),
}

impl Source {
    /// What opens it. A reference is looked up in the cache, and downloaded if it is not there.
    pub(crate) fn model(source: Option<Self>, report: &mut dyn FnMut(&str, u64, u64)) -> Result<ModelSource> {
        let path = match source {
            None => return Ok(wgslm::TINY.into()),
            Some(Self::Bytes(bytes)) => return Ok(bytes.into()),
            Some(Self::Path(path)) => path,
        };
        if path.exists() {
            return Ok(path.into());
        }
        let hub = Hub::from_env()?;
        let reference = path.to_str().map_or(Ok(None), |text| Reference::parse(text, hub.endpoint()))?;
        // What names no model is a file that is not there: its error says so.
        let Some(reference) = reference else { return Ok(path.into()) };
        if let Some(local) = hub.find(&reference)? {
            return Ok(local.path.into());
        }
        let plan = hub.plan(&reference)?;
        let mut progress = |event: hub::Progress<'_>| {
            match event {
                hub::Progress::Waiting(_) => report("wait", 0, 1),
                hub::Progress::Bytes(done, all) => report("download", done, all),
            }
            Ok(())
        };
        Ok(hub.download(&plan, &mut progress)?.path.into())
    }
}

/// How a model is opened, as keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct How {
    device: String,
    context: Option<u32>,
    parallel: Option<u32>,
    cache: Option<String>,
    threads: Option<usize>,
    exact: bool,
    queue: Option<usize>,
    progress: Option<Py<PyAny>>,
}

impl How {
    pub(crate) fn context(&self) -> Option<u32> {
        self.context
    }

    pub(crate) fn options(&self) -> Result<Options> {
        let defaults = Options::default();
        Ok(Options {
            device: self.device.parse()?,
            context: self.context.unwrap_or(defaults.context),
            seqs: self.parallel.unwrap_or(4),
            cache: self.cache.as_deref().map_or(Ok(CacheSize::Full), str::parse)?,
            threads: self.threads,
            numerics: if self.exact { Numerics::Exact } else { Numerics::Fast },
            self_test_results: Some(Arc::new(SelfTestResults::default())),
            ..defaults
        })
    }

    /// What reports to Python. What the function there raises is dropped: nothing waits for it.
    pub(crate) fn report(&self, what: &str, done: u64, all: u64) {
        if let Some(progress) = &self.progress {
            Python::attach(|py| _ = progress.call1(py, (what, done, all)));
        }
    }

    pub(crate) fn progress(&self) -> impl FnMut(Progress) + Send + '_ {
        |event| match event {
            Progress::Testing => self.report("test", 0, 1),
            Progress::Loading(done, all) => self.report("load", done, all),
            Progress::Compiling(done, all) => self.report("compile", done, all),
        }
    }
}

/// How an answer is generated, as keyword arguments: none is what the model's files recommend.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Wanted {
    max_tokens: Option<u32>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repeat_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    last_n: Option<u32>,
    seed: Option<u64>,
    stop: Vec<String>,
    logprobs: Option<u32>,
    logit_bias: Vec<(u32, f32)>,
    salt: Option<String>,
    exact: bool,
    priority: String,
    deadline: Option<f64>,
}

impl Wanted {
    fn request(self, model: &ServedModel, prompt: Vec<u32>) -> Result<GenerateRequest> {
        let mut request = model.request(prompt);
        let mut sampling = model.sampling();
        let penalties = &mut sampling.penalties;
        penalties.repeat = self.repeat_penalty.unwrap_or(penalties.repeat);
        penalties.presence = self.presence_penalty.unwrap_or(penalties.presence);
        penalties.frequency = self.frequency_penalty.unwrap_or(penalties.frequency);
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        sampling.top_k = self.top_k.unwrap_or(sampling.top_k);
        sampling.top_p = self.top_p.unwrap_or(sampling.top_p);
        sampling.min_p = self.min_p.unwrap_or(sampling.min_p);
        sampling.typical = self.typical_p.unwrap_or(sampling.typical);
        sampling.last_n = self.last_n.unwrap_or(sampling.last_n);
        sampling.seed = self.seed.unwrap_or_else(seed);
        (request.sampling, request.max_tokens) = (sampling, self.max_tokens);
        (request.bias, request.logprobs, request.exact) = (self.logit_bias, self.logprobs, self.exact);
        request.salt = self.salt.map(|salt| salt.into_bytes().into());
        request.priority = match self.priority.as_str() {
            "high" => Priority::High,
            "normal" => Priority::Normal,
            "low" => Priority::Low,
            "background" => Priority::Background,
            other => {
                let problem = format!("{other:?}; \"high\", \"normal\", \"low\" and \"background\" work");
                return Err(Error::argument("priority", problem));
            }
        };
        let wrong = |seconds| Error::argument("deadline", format!("{seconds}; seconds from 0 on work"));
        let deadline = self.deadline.map(|seconds| Duration::try_from_secs_f64(seconds).map_err(|_| wrong(seconds)));
        request.deadline = deadline.transpose()?;
        Ok(GenerateRequest { request, stop: self.stop })
    }
}

/// Another seed each time.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64)
}

#[pymethods]
impl Model {
    /// Opens a model.
    #[new]
    fn new(py: Python<'_>, source: Option<Source>, how: How) -> PyResult<Self> {
        /// Bytes of answers that are remembered by their text.
        const REMEMBERED: usize = 64 << 20;
        let open = || {
            let source = Source::model(source, &mut |what, done, all| how.report(what, done, all))?;
            let options = how.options()?;
            let model: LanguageModel = block_on(LanguageModel::open(source, &options, &mut how.progress()))?;
            let template = model.chat_template()?;
            let defaults = ServeOptions::default();
            let serve = ServeOptions { queue_requests: how.queue.unwrap_or(defaults.queue_requests), ..defaults };
            let answers = Mutex::new(Answers::new(REMEMBERED));
            Ok(Self(Arc::new(Served { model: model.serve_owned(serve), template, answers })))
        };
        py.detach(open).map_err(to_py)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.0.model.model().name
    }

    #[getter]
    fn architecture(&self) -> &str {
        self.0.model.model().arch
    }

    #[getter]
    fn device(&self) -> &str {
        self.0.model.device()
    }

    #[getter]
    fn context(&self) -> u32 {
        self.0.model.context()
    }

    #[getter]
    fn has_chat(&self) -> bool {
        self.0.template.is_some()
    }

    #[getter]
    fn vocab(&self) -> usize {
        self.0.model.tokenizer().vocab_size()
    }

    fn tokenize(&self, text: &str) -> PyResult<Vec<u32>> {
        self.0.model.tokenizer().encode(text, Special::Plain).map_err(to_py)
    }

    fn detokenize(&self, ids: Vec<u32>) -> PyResult<String> {
        self.0.model.detokenize(&ids).map_err(to_py)
    }

    /// Continues a text.
    fn generate(&self, py: Python<'_>, prompt: &str, wanted: Wanted) -> PyResult<Generation> {
        let ask = || {
            let ids = chat::continuation(self.0.model.tokenizer(), prompt)?;
            self.ask(ids, wanted, None)
        };
        py.detach(ask).map_err(to_py)
    }

    /// Continues tokens.
    fn generate_ids(&self, py: Python<'_>, prompt: Vec<u32>, wanted: Wanted) -> PyResult<Generation> {
        py.detach(|| self.ask(prompt, wanted, None)).map_err(to_py)
    }

    /// Answers messages: JSON, as the chat template gets them, with more variables of it.
    fn chat(&self, py: Python<'_>, messages: &str, variables: &str, wanted: Wanted) -> PyResult<Generation> {
        let ask = || {
            let json = |what: &str, e: serde_json::Error| Error::argument(what, e.to_string());
            let messages: Vec<Value> = serde_json::from_str(messages).map_err(|e| json("messages", e))?;
            let variables: Map<String, Value> = serde_json::from_str(variables).map_err(|e| json("variables", e))?;
            let instead = "generate works: it continues a text";
            let template = self.0.template.as_ref();
            let template = template.ok_or_else(|| Error::unsupported("messages without a chat template", instead))?;
            let segments = chat::render(template, &messages, &variables, Some(now()))?;
            let salt = wanted.salt.clone();
            let found = self.0.answers().find(&segments, salt.as_deref().map(str::as_bytes));
            let ids = found.unwrap_or_default().encode(self.0.model.tokenizer(), &segments, false)?;
            let text = segments.iter().map(|segment| segment.text.as_str()).collect();
            let salt = salt.map(|salt| salt.into_bytes().into());
            self.ask(ids.clone(), wanted, Some(Asked { text, ids, salt }))
        };
        py.detach(ask).map_err(to_py)
    }

    /// Forgets what is in the cache.
    fn trim(&self) {
        self.0.model.handle().trim();
    }

    /// Numbers of what happened so far.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metrics = self.0.model.handle().metrics();
        let dict = PyDict::new(py);
        dict.set_item("requests_running", metrics.num_requests_running)?;
        dict.set_item("requests_waiting", metrics.num_requests_waiting)?;
        dict.set_item("prompt_tokens", metrics.prompt_tokens)?;
        dict.set_item("generation_tokens", metrics.generation_tokens)?;
        dict.set_item("seconds_to_first_token", metrics.time_to_first_token.quantile(0.5))?;
        Ok(dict)
    }
}

impl Model {
    fn ask(&self, prompt: Vec<u32>, wanted: Wanted, asked: Option<Asked>) -> Result<Generation> {
        let request = wanted.request(&self.0.model, prompt)?;
        let generation = self.0.model.handle().generate(request)?;
        Ok(Generation::new(generation, Arc::clone(&self.0), asked))
    }
}
