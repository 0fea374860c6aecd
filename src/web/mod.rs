//! The front end for browsers, which the package in web/ calls. It runs in a worker of the page; a [`driver`](crate::driver)
//! does the work, a turn with each call. There are modules of it for WebGPU, for the processor (the feature `web-cpu`), and
//! for the processor's threads, of which a page loads the one that it needs: see docs/gpu.md.
//!
//! Requests come as JSON with OpenAI's field names, events go back as JSON. Files are JavaScript objects with a `read`
//! method, so that fetching and aborting are written in JavaScript, where they belong.

mod answers;
mod executor;
mod request;
mod source;

use std::sync::Arc;

use serde_json::{Value, json};
use wasm_bindgen::prelude::*;

use self::answers::Answering;
use self::executor::WebExecutor;
use self::source::{JsFile, JsSource};
use crate::engine::Embedder;
use crate::exec::{Numerics, Progress, SelfTestResults};
use crate::file::ModelFile;
use crate::model::Model;
use crate::{Error, Result};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(message: &str);
}

/// How an engine is made.
#[derive(Debug, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Options {
    /// Positions of context, at most the model's; for vectors, tokens of a text. None: 4096, at most what the model is meant for.
    context: Option<u32>,
    /// None: what the model was made for.
    task: Option<Task>,
    /// `fast` (16-bit cache) or `exact`.
    numerics: String,
    /// Whether the GPU's kernels are tested on known data before the model is loaded. None: only on a real GPU; a software
    /// adapter is the browser's own, and its test takes a minute.
    self_test: Option<bool>,
    /// What [`WebEngine::self_test_results`] said at an earlier visit.
    self_test_results: String,
}

/// What a model is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Task {
    Answer,
    Embed,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            context: None,
            task: None,
            numerics: "fast".to_owned(),
            self_test: None,
            self_test_results: String::new(),
        }
    }
}

impl Options {
    fn numerics(&self) -> Result<Numerics> {
        match self.numerics.as_str() {
            "fast" => Ok(Numerics::Fast),
            "exact" => Ok(Numerics::Exact),
            other => Err(Error::argument("numerics", format!("{other:?}; \"fast\" and \"exact\" work"))),
        }
    }
}

/// Promises that so many threads will compute together, the engine's among them: before a model is loaded. Gives what the other
/// workers make their instances of: the module, and the memory that all share.
#[cfg(all(feature = "web-cpu", target_feature = "atomics"))]
#[wasm_bindgen]
pub fn promise_threads(count: usize) -> js_sys::Array {
    crate::cpu::lent::promise(count);
    js_sys::Array::of2(&wasm_bindgen::module(), &wasm_bindgen::memory())
}

/// Computes for the engine from now on, and never returns: what another worker's instance calls. Each index from 1 to before the
/// number that was promised is called once.
#[cfg(all(feature = "web-cpu", target_feature = "atomics"))]
#[wasm_bindgen]
pub fn lend_thread(index: usize) {
    crate::cpu::lent::lend(index);
}

/// A model that is loaded.
#[wasm_bindgen]
pub struct WebEngine {
    model: Loaded,
    self_test_results: Arc<SelfTestResults>,
}

#[allow(clippy::large_enum_variant, reason = "there is one of it")]
enum Loaded {
    Answers(Answering),
    Vectors { embedder: Embedder<WebExecutor>, info: Value },
}

#[wasm_bindgen]
impl WebEngine {
    /// Loads a model from its files. `progress` is called with `"test"`, `"load"` or `"compile"`, what is done, and all there is.
    pub async fn load(
        files: Vec<JsFile>,
        options: String,
        progress: js_sys::Function,
    ) -> std::result::Result<WebEngine, JsValue> {
        Self::open(files, &options, &progress).await.map_err(|e| to_js(&e))
    }

    /// The model: `{name, architecture, parameters, context, task, chat, tools, thinks, faults, smallerCache}`; `faults` of the GPU
    /// are those worked around, and `smallerCache` says what the cache holds where there is no memory for all of it.
    pub fn info(&self) -> String {
        let mut info = match &self.model {
            Loaded::Answers(answering) => answering.info(),
            Loaded::Vectors { info, .. } => info.clone(),
        };
        info["faults"] = self.self_test_results.faults().into();
        info.to_string()
    }

    /// What the GPU has passed of the self-test, to be given to the next engine.
    pub fn self_test_results(&self) -> String {
        self.self_test_results.text()
    }

    /// Starts a request of `/v1/chat/completions`, or one with a `prompt` instead of `messages`; gives its number.
    pub fn submit(&mut self, request: &str) -> std::result::Result<f64, JsValue> {
        self.answering().and_then(|answering| answering.start(request)).map_err(|e| to_js(&e))
    }

    /// Runs a step, and gives what happened:
    /// `[{request, thought, text, calls, id} | {request, thought, text, calls, finish, usage, error}, …]`.
    pub async fn step(&mut self) -> std::result::Result<String, JsValue> {
        let answering = self.answering().map_err(|e| to_js(&e))?;
        Ok(Value::from(answering.step().await).to_string())
    }

    /// Ends a request; its last event comes with the next step.
    pub fn cancel(&mut self, request: f64) {
        if let Loaded::Answers(answering) = &self.model {
            answering.cancel(request);
        }
    }

    /// Whether there is anything to do.
    pub fn busy(&self) -> bool {
        matches!(&self.model, Loaded::Answers(answering) if answering.busy())
    }

    /// The vectors of texts, one after another, and how many tokens the texts have: `[Float32Array, number]`.
    pub async fn embed(&mut self, texts: Vec<String>) -> std::result::Result<js_sys::Array, JsValue> {
        self.vectors(&texts).await.map_err(|e| to_js(&e))
    }

    /// Buffers on the device that are alive: 0 once every engine was freed.
    pub fn live_buffers() -> f64 {
        executor::live_buffers() as f64
    }
}

impl WebEngine {
    async fn open(files: Vec<JsFile>, options: &str, progress: &js_sys::Function) -> Result<Self> {
        // A panic ends the instance with the word "unreachable"; its message goes to the console.
        std::panic::set_hook(Box::new(|panic| console_error(&panic.to_string())));
        let options: Options = serde_json::from_str(options).map_err(|e| Error::argument("options", e.to_string()))?;
        let report = |what: &str, done: f64, all: f64| {
            // The page's callback may throw; loading goes on.
            let _ = progress.call3(&JsValue::NULL, &what.into(), &done.into(), &all.into());
        };
        let sources = files.into_iter().map(|file| Box::new(JsSource::new(file)) as _).collect();
        let file = ModelFile::open_gguf(sources).await?;
        let self_test_results = Arc::new(SelfTestResults::parse(&options.self_test_results));
        let mut report = |progress| match progress {
            Progress::Testing => report("test", 0.0, 1.0),
            Progress::Loading(done, all) => report("load", done as f64, all as f64),
            Progress::Compiling(done, all) => report("compile", done as f64, all as f64),
        };
        let model = executor::load(file, &options, &self_test_results, &mut report).await?;
        Ok(Self { model, self_test_results })
    }

    fn answering(&mut self) -> Result<&mut Answering> {
        match &mut self.model {
            Loaded::Answers(answering) => Ok(answering),
            Loaded::Vectors { .. } => {
                Err(Error::unsupported("text from a model that gives vectors", "engine.embeddings works"))
            }
        }
    }

    async fn vectors(&mut self, texts: &[String]) -> Result<js_sys::Array> {
        let Loaded::Vectors { embedder, .. } = &mut self.model else {
            let instead = "an engine that was made with `task: \"embed\"` works";
            return Err(Error::unsupported("vectors from a model that answers", instead));
        };
        let inputs = texts.iter().map(|text| embedder.text(text)).collect::<Result<Vec<_>>>()?;
        let tokens: usize = inputs.iter().map(|input| input.ids.len()).sum();
        let vectors = embedder.run(&inputs).await?.concat();
        Ok(js_sys::Array::of2(&js_sys::Float32Array::from(vectors.as_slice()), &(tokens as f64).into()))
    }
}

/// What [`WebEngine::info`] says of any model; of one that answers there is more to say.
fn described(model: &Model, task: Task) -> Value {
    json!({
        "name": model.name,
        "architecture": model.arch,
        "parameters": model.parameters,
        "task": task,
        "chat": false,
        "tools": false,
        "thinks": false,
        "smallerCache": null,
    })
}

/// What JavaScript receives of an error: `{code, message}`.
fn describe(error: &Error) -> Value {
    // A page reads nothing but what it fetches.
    let code = if matches!(error, Error::Io { .. }) { "network" } else { error.code() };
    json!({ "code": code, "message": error.to_string() })
}

/// Thrown as a string of JSON, which a message between threads can carry.
fn to_js(error: &Error) -> JsValue {
    JsValue::from_str(&describe(error).to_string())
}
