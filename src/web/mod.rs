//! The browser's face: what the package in web/ calls. It runs in a worker of the page; [`engine`](crate::engine) does the work.
//!
//! Requests come as JSON in OpenAI's words, events go back as JSON. Files are JavaScript objects with a `read` method, so
//! that fetching and aborting are written where they are at home.

mod request;
mod source;

use std::rc::Rc;

use serde_json::{Value, json};
use wasm_bindgen::prelude::*;

use self::request::ChatRequest;
use self::source::{JsFile, JsSource};
use crate::chat::{self, Transcript};
use crate::engine::{Engine, Event, Finish, RequestId, SeqId};
use crate::exec::{Executor, GpuExecutor, GpuOptions, Limits, Numerics, Role, Verdicts, self_test};
use crate::file::ModelFile;
use crate::gpu::{Buffer, Choice, Device, Kind};
use crate::model::Model;
use crate::ops::RING;
use crate::text::{ChatTemplate, StopMatcher, TextStream, Tokenizer};
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
    /// Whether the GPU's kernels are tested on known data before it is trusted with the model; none: if it is one, not a processor that
    /// pretends to be, which takes a minute and is the browser's own.
    self_test: Option<bool>,
    /// What [`WebEngine::verdicts`] said at an earlier visit.
    verdicts: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { context: 4096, numerics: "fast".to_owned(), self_test: None, verdicts: String::new() }
    }
}

/// A model that is loaded and answers.
#[wasm_bindgen]
pub struct WebEngine {
    model: Model,
    tokenizer: Rc<Tokenizer>,
    template: Option<ChatTemplate>,
    engine: Engine<GpuExecutor>,
    /// The conversation whose cache is kept from one request to the next.
    conversation: SeqId,
    /// What was read and written on it last.
    transcript: Transcript,
    answers: Vec<Answer>,
    verdicts: Verdicts,
}

/// An answer under way: ids become text, and text ends at a stop string.
struct Answer {
    request: RequestId,
    text: TextStream<Rc<Tokenizer>>,
    stops: StopMatcher,
    /// On the conversation's sequence: the ids and the text so far, to be recognised in the next request.
    told: Option<(Vec<u32>, String)>,
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

    /// The model: `{name, architecture, parameters, context, chat, faults}`; faults of the GPU that were found and are gone round.
    pub fn info(&self) -> String {
        let executor = self.engine.executor();
        json!({
            "name": self.model.name,
            "architecture": self.model.arch,
            "parameters": self.model.parameters,
            "context": executor.limits().context,
            "chat": self.template.is_some(),
            "faults": self.verdicts.faults(),
        })
        .to_string()
    }

    /// What the GPU has passed of the self-test, to be given to the next engine.
    pub fn verdicts(&self) -> String {
        self.verdicts.text()
    }

    /// Starts a request of `/v1/chat/completions`, or one with a `prompt` instead of `messages`; gives its number.
    pub fn submit(&mut self, request: &str) -> std::result::Result<f64, JsValue> {
        self.start(request).map_err(|e| to_js(&e))
    }

    /// Runs a step, and gives what happened: `[{request, text, id} | {request, text, finish, usage, error}, …]`.
    pub async fn step(&mut self) -> std::result::Result<String, JsValue> {
        let events = self.engine.step().await.map_err(|e| to_js(&e))?;
        Ok(Value::from(self.tell(events)).to_string())
    }

    /// Ends a request; its last event comes with the next step.
    pub fn cancel(&mut self, request: f64) {
        self.engine.cancel(RequestId(request as u64));
    }

    /// Whether there is anything to do.
    pub fn busy(&self) -> bool {
        self.engine.busy()
    }

    /// Buffers on the device that are alive: 0 once every engine was freed.
    pub fn live_buffers() -> f64 {
        Buffer::live() as f64
    }
}

impl WebEngine {
    async fn open(files: Vec<JsFile>, options: &str, progress: &js_sys::Function) -> Result<Self> {
        // A panic ends the instance with the word "unreachable"; its message goes to the console.
        std::panic::set_hook(Box::new(|panic| console_error(&panic.to_string())));
        let options: Options = serde_json::from_str(options).map_err(|e| Error::argument("options", e.to_string()))?;
        let numerics = match options.numerics.as_str() {
            "fast" => Numerics::Fast,
            "exact" => Numerics::Exact,
            other => return Err(Error::argument("numerics", format!("{other:?}; \"fast\" and \"exact\" work"))),
        };
        let tell = |what: &str, done: f64, all: f64| {
            // Who listens may fail; that is none of ours.
            let _ = progress.call3(&JsValue::NULL, &what.into(), &done.into(), &all.into());
        };
        let sources = files.into_iter().map(|file| Box::new(JsSource::new(file)) as _).collect();
        let model = Model::open(ModelFile::open_gguf(sources).await?).await?;
        let tokenizer = Rc::new(Tokenizer::of(&model.file)?);
        let template = model.chat_template.as_ref();
        let template = template.map(|source| ChatTemplate::for_tokenizer(source, &tokenizer)).transpose()?;

        let mut device = Device::open(&Choice { software: true, ..Choice::default() }).await?;
        let verdicts = Verdicts::parse(&options.verdicts);
        if options.self_test.unwrap_or(device.caps().kind != Kind::Software) {
            tell("test", 0.0, 1.0);
            device = self_test(&device, &model.program, &model, numerics, None, &verdicts).await?;
        }
        let limits = limits(options.context.min(model.program.context), device.caps().kind);
        let gpu = GpuOptions { numerics, kv: None, limits, unfused: false, keep_values: false };
        let mut loading = |done, all| tell("load", done as f64, all as f64);
        let mut executor = GpuExecutor::load(&device, &model.program, &model, gpu, &mut loading).await?;
        for (i, role) in Role::ALL.into_iter().enumerate() {
            tell("compile", i as f64, Role::ALL.len() as f64);
            executor.plan(role, &mut |_, _| {}).await?;
        }
        executor.calibrate().await?;
        let mut engine = Engine::new(executor, &model.program);
        let conversation = engine.open();
        Ok(Self {
            model,
            tokenizer,
            template,
            engine,
            conversation,
            transcript: Transcript::default(),
            answers: Vec::new(),
            verdicts,
        })
    }

    fn start(&mut self, request: &str) -> Result<f64> {
        let request = ChatRequest::parse(request)?;
        let on_conversation = self.answers.iter().all(|answer| answer.told.is_none());
        let mut apart = Transcript::default();
        let transcript = if on_conversation { &mut self.transcript } else { &mut apart };
        let prompt = request.prompt(self.template.as_ref(), &self.tokenizer, transcript)?;
        let stop = chat::stops(&self.model, &self.tokenizer);
        let text = TextStream::after(Rc::clone(&self.tokenizer), &prompt);
        let request_id = self.engine.submit(crate::engine::Request {
            sampling: request.sampling(),
            max_tokens: request.max_tokens(),
            stop,
            sequence: on_conversation.then_some(self.conversation),
            ..crate::engine::Request::new(prompt)
        })?;
        let stops = StopMatcher::new(request.stops());
        let told = on_conversation.then(Default::default);
        self.answers.push(Answer { request: request_id, text, stops, told });
        Ok(request_id.0 as f64)
    }

    /// Events as JavaScript gets them.
    fn tell(&mut self, events: Vec<Event>) -> Vec<Value> {
        let mut told = Vec::new();
        for event in events {
            let (Event::Token { request, .. } | Event::Finished { request, .. }) = &event;
            let request = *request;
            let Some(at) = self.answers.iter().position(|answer| answer.request == request) else { continue };
            let answer = &mut self.answers[at];
            match event {
                Event::Token { id, .. } => {
                    if answer.stops.stopped().is_some() {
                        continue;
                    }
                    let text = answer.stops.push(&answer.text.push(id));
                    if let Some((ids, all)) = &mut answer.told {
                        ids.push(id);
                        all.push_str(&text);
                    }
                    told.push(json!({ "request": request.0, "text": text, "id": id }));
                    if answer.stops.stopped().is_some() {
                        self.engine.cancel(request);
                    }
                }
                Event::Finished { reason, usage, .. } => {
                    let mut answer = self.answers.swap_remove(at);
                    let stopped = answer.stops.stopped().is_some();
                    let mut text = answer.stops.push(&answer.text.finish());
                    text += &answer.stops.finish();
                    // Where a string ended it, the ids say more than the text.
                    if let Some((ids, all)) = answer.told.filter(|_| !stopped) {
                        self.transcript.hear(&ids, &(all + &text));
                    }
                    let error = if let Finish::Error(error) = &reason { Some(describe(error)) } else { None };
                    told.push(json!({
                        "request": request.0,
                        "text": text,
                        "finish": if stopped { "stop" } else { reason.name() },
                        "usage": { "prompt": usage.prompt, "reused": usage.reused, "generated": usage.generated },
                        "error": error,
                    }));
                }
            }
        }
        told
    }
}

/// Room for one conversation.
fn limits(context: u32, kind: Kind) -> Limits {
    /// Positions in a block of the cache.
    const BLOCK: u32 = 16;
    // A step cannot be stopped: on a software adapter a row takes some 20 ms of a model of 135M parameters.
    let rows = if kind == Kind::Software { 16 } else { 256 };
    let blocks = context.div_ceil(BLOCK);
    Limits { rows: rows.min(context), seqs: 1, outs: 1, block: BLOCK, blocks, context, in_flight: RING, checkpoints: 0 }
}

/// What JavaScript is told of an error: `{code, message}`.
fn describe(error: &Error) -> Value {
    // A page reads nothing but what it fetches.
    let code = if matches!(error, Error::Io { .. }) { "network" } else { error.code() };
    json!({ "code": code, "message": error.to_string() })
}

/// Thrown as a string of JSON, which a message between threads can carry.
fn to_js(error: &Error) -> JsValue {
    JsValue::from_str(&describe(error).to_string())
}
