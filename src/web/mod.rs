//! The front end for browsers, which the package in web/ calls. It runs in a worker of the page; a [`driver`](crate::driver)
//! does the work, a turn with each call. There are two modules of it: one for WebGPU, and one for the processor (the feature
//! `web-cpu`), of which a page loads the one that it needs.
//!
//! Requests come as JSON with OpenAI's field names, events go back as JSON. Files are JavaScript objects with a `read`
//! method, so that fetching and aborting are written in JavaScript, where they belong.

mod executor;
mod request;
mod source;

use std::sync::Arc;

use serde_json::{Value, json};
use wasm_bindgen::prelude::*;

use self::executor::WebExecutor;
use self::request::ChatRequest;
use self::source::{JsFile, JsSource};
use crate::chat::Transcript;
use crate::driver::{Driver, GenerateRequest, Generation, GenerationEvent, ServeOptions};
use crate::engine::{Finish, Request};
use crate::exec::{Numerics, Progress, SelfTestResults};
use crate::file::ModelFile;
use crate::language_model::ServedModel;
use crate::text::ChatTemplate;
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
    /// Positions of context, at most the model's.
    context: u32,
    /// `fast` (16-bit cache) or `exact`.
    numerics: String,
    /// Whether the GPU's kernels are tested on known data before the model is loaded. None: only on a real GPU; a software
    /// adapter is the browser's own, and its test takes a minute.
    self_test: Option<bool>,
    /// What [`WebEngine::self_test_results`] said at an earlier visit.
    self_test_results: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { context: 4096, numerics: "fast".to_owned(), self_test: None, self_test_results: String::new() }
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

/// A model that is loaded and answers.
#[wasm_bindgen]
pub struct WebEngine {
    model: ServedModel,
    driver: Driver<WebExecutor>,
    template: Option<ChatTemplate>,
    /// The last prompt and answer on the model's own sequence, whose cache is kept from one request to the next.
    transcript: Transcript,
    answers: Vec<Answer>,
    last_number: f64,
    self_test_results: Arc<SelfTestResults>,
}

/// An answer in flight.
struct Answer {
    /// As JavaScript knows it.
    number: f64,
    generation: Generation,
    /// On the conversation's sequence: the ids and the text so far, to be recognised in the next request.
    reported: Option<(Vec<u32>, String)>,
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

    /// The model: `{name, architecture, parameters, context, chat, faults, smallerCache}`; `faults` of the GPU are those
    /// worked around, and `smallerCache` says what the cache holds where there is no memory for all of it.
    pub fn info(&self) -> String {
        let model = self.model.model();
        json!({
            "name": model.name,
            "architecture": model.arch,
            "parameters": model.parameters,
            "context": self.model.context(),
            "chat": self.template.is_some(),
            "faults": self.self_test_results.faults(),
            "smallerCache": executor::smaller_cache(self.driver.engine().executor()),
        })
        .to_string()
    }

    /// What the GPU has passed of the self-test, to be given to the next engine.
    pub fn self_test_results(&self) -> String {
        self.self_test_results.text()
    }

    /// Starts a request of `/v1/chat/completions`, or one with a `prompt` instead of `messages`; gives its number.
    pub fn submit(&mut self, request: &str) -> std::result::Result<f64, JsValue> {
        self.start(request).map_err(|e| to_js(&e))
    }

    /// Runs a step, and gives what happened: `[{request, text, id} | {request, text, finish, usage, error}, …]`.
    pub async fn step(&mut self) -> std::result::Result<String, JsValue> {
        self.driver.turn().await;
        Ok(Value::from(self.report()).to_string())
    }

    /// Ends a request; its last event comes with the next step.
    pub fn cancel(&mut self, request: f64) {
        let answer = self.answers.iter().find(|answer| answer.number == request);
        answer.into_iter().for_each(|answer| answer.generation.cancel());
    }

    /// Whether there is anything to do.
    pub fn busy(&self) -> bool {
        !self.answers.is_empty()
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
        let (model, step_time) = executor::load(file, &options, &self_test_results, &mut report).await?;
        let (driver, model) = model.driver(ServeOptions { step_time, ..ServeOptions::default() });
        let template = model.chat_template()?;
        let transcript = Transcript::default();
        Ok(Self { model, driver, template, transcript, answers: Vec::new(), last_number: 0.0, self_test_results })
    }

    fn start(&mut self, request: &str) -> Result<f64> {
        let request = ChatRequest::parse(request)?;
        let on_conversation = self.answers.iter().all(|answer| answer.reported.is_none());
        let mut apart = Transcript::default();
        let transcript = if on_conversation { &mut self.transcript } else { &mut apart };
        let prompt = request.prompt(self.template.as_ref(), self.model.tokenizer(), transcript)?;
        let ours = if on_conversation { self.model.kept_request(prompt) } else { self.model.request(prompt) };
        let sampling = request.sampling(&self.model.model().sampling);
        let ours = Request { sampling, max_tokens: request.max_tokens(), ..ours };
        let asked = GenerateRequest { request: ours, stop: request.stops().to_vec() };
        let generation = self.model.handle().generate(asked)?;
        self.last_number += 1.0;
        let reported = on_conversation.then(Default::default);
        self.answers.push(Answer { number: self.last_number, generation, reported });
        Ok(self.last_number)
    }

    /// Events as JavaScript gets them.
    fn report(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        self.answers.retain_mut(|answer| {
            let number = answer.number;
            while let Some(event) = answer.generation.try_next() {
                match event {
                    GenerationEvent::Token { id, text, .. } => {
                        if let Some((ids, all)) = &mut answer.reported {
                            ids.push(id);
                            all.push_str(&text);
                        }
                        events.push(json!({ "request": number, "text": text, "id": id }));
                    }
                    GenerationEvent::Finished { text, reason, usage, .. } => {
                        // Where a string ended it, the ids say more than the text.
                        let stopped = matches!(reason, Finish::StopString(_));
                        if let Some((ids, all)) = answer.reported.take().filter(|_| !stopped) {
                            self.transcript.hear(&ids, &(all + &text));
                        }
                        let error = if let Finish::Error(error) = &reason { Some(describe(error)) } else { None };
                        events.push(json!({
                            "request": number,
                            "text": text,
                            "finish": reason.name(),
                            "usage": { "prompt": usage.prompt, "reused": usage.reused, "generated": usage.generated },
                            "error": error,
                        }));
                        return false;
                    }
                }
            }
            true
        });
        events
    }
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
