//! The commands of a desktop app whose window is a web page, as Tauri has them: cargo run --example commands
//!
//! To use it in one: `app.manage(Models::default())`, `#[tauri::command]` above each function, `State<'_, Models>` for `&Models`,
//! and a `tauri::ipc::Channel<Event>`, whose `send` is the `emit` here. Everything that crosses is serde's.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use wgslm::chat;
use wgslm::driver::{Canceller, GenerationEvent, ServeOptions};
use wgslm::engine::{Finish, Request};
use wgslm::exec::Progress;
use wgslm::model::ModelSource;
use wgslm::{LanguageModel, Options, Sampling, ServedModel};

/// What the app keeps.
#[derive(Default)]
struct Models {
    /// The model that is open. The last clone that is dropped ends its thread.
    open: Mutex<Option<ServedModel>>,
    /// Answers in flight, by the window's own number.
    running: Mutex<HashMap<u32, Canceller>>,
}

impl Models {
    fn open(&self) -> MutexGuard<'_, Option<ServedModel>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, HashMap<u32, Canceller>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the window hears.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
enum Event {
    /// How much of a model is loaded, from 0 to 1.
    Loading { part: f64 },
    /// A piece of an answer.
    Text { text: String },
    /// An answer's end: `stop`, `length`, `context` or `cancelled`.
    End { reason: String, tokens: u32 },
}

/// What went wrong: the code is for the page, the message for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Failure {
    code: String,
    message: String,
}

impl From<wgslm::Error> for Failure {
    fn from(error: wgslm::Error) -> Self {
        Self { code: error.code().to_owned(), message: error.to_string() }
    }
}

/// A message of a conversation, as chat templates read it.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Message {
    role: String,
    content: String,
}

/// What the window asks.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Question {
    /// A number of the window's, for [`stop`].
    answer: u32,
    messages: Vec<Message>,
    max_tokens: Option<u32>,
    temperature: Option<f32>,
}

/// Opens a model; none: the small one that is compiled in. Answers of the one before end as cancelled.
async fn open(models: &Models, path: Option<String>, emit: impl Fn(Event) + Send + Sync) -> Result<String, Failure> {
    // First, so that there is memory for the new one.
    models.running().drain().for_each(|(_, answer)| answer.cancel());
    *models.open() = None;
    let source: ModelSource = path.map_or_else(|| wgslm::TINY.into(), ModelSource::from);
    let mut progress = |progress| {
        if let Progress::Loading(done, all) = progress {
            emit(Event::Loading { part: done as f64 / all.max(1) as f64 });
        }
    };
    let options = Options { seqs: 2, ..Options::default() };
    let (model, _) = LanguageModel::open(source, &options, &mut progress).await?.serve(ServeOptions::default());
    let name = model.model().name.clone();
    *models.open() = Some(model);
    Ok(name)
}

/// Answers a conversation. What it shares with earlier ones is not computed again, so the window keeps the messages.
async fn ask(models: &Models, question: Question, emit: impl Fn(Event) + Send + Sync) -> Result<(), Failure> {
    let model = models.open().clone();
    let model = model.ok_or(Failure { code: "closed".into(), message: "no model is open".into() })?;
    let template = model.chat_template()?;
    let template =
        template.ok_or(Failure { code: "unsupported".into(), message: "this model does not chat".into() })?;
    let json = |message: &Message| serde_json::json!({ "role": message.role, "content": message.content });
    let messages: Vec<_> = question.messages.iter().map(json).collect();
    let prompt = chat::messages(model.tokenizer(), &template, &messages, &serde_json::Map::new(), None)?;
    let own = model.sampling();
    let sampling = Sampling { temperature: question.temperature.unwrap_or(own.temperature), ..own };
    let request = Request { sampling, max_tokens: question.max_tokens, ..model.request(prompt) };
    let mut generation = model.handle().generate(request)?;
    models.running().insert(question.answer, generation.canceller());
    let mut result = Ok(());
    while let Some(event) = generation.next_event().await {
        match event {
            GenerationEvent::Token { text, .. } if text.is_empty() => {}
            GenerationEvent::Token { text, .. } => emit(Event::Text { text }),
            GenerationEvent::Finished { reason: Finish::Error(error), .. } => {
                result = Err(wgslm::Error::from_shared(error).into());
            }
            GenerationEvent::Finished { text, reason, usage, .. } => {
                if !text.is_empty() {
                    emit(Event::Text { text });
                }
                emit(Event::End { reason: reason.name().to_owned(), tokens: usage.generated });
            }
        }
    }
    models.running().remove(&question.answer);
    result
}

/// Ends an answer; its `End` still comes. Of one that has ended nothing happens.
fn stop(models: &Models, answer: u32) {
    if let Some(answer) = models.running().get(&answer) {
        answer.cancel();
    }
}

/// What a window would do: an answer to its end, and one that is stopped after its first piece.
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let models = Arc::new(Models::default());
    let failed = |failure: Failure| format!("{}: {}", failure.code, failure.message);
    let question = |answer: u32| -> Question {
        serde_json::from_value(serde_json::json!({
            "answer": answer, "messages": [{ "role": "user", "content": "Tell me a story." }], "maxTokens": 200,
        }))
        .expect("it is as a window sends it")
    };
    let early = ask(&models, question(0), |_| {}).await.unwrap_err();
    println!("{}", serde_json::to_string(&early)?);
    open(&models, std::env::args().nth(1), |_| {}).await.map_err(failed)?;
    for answer in [1, 2] {
        let shown = Arc::clone(&models);
        let emit = move |event: Event| {
            println!("{}", serde_json::to_string(&event).expect("it is plain data"));
            if answer == 2 {
                stop(&shown, answer);
            }
        };
        // As a runtime runs commands: on any of its threads.
        let (models, question) = (Arc::clone(&models), question(answer));
        tokio::spawn(async move { ask(&models, question, emit).await }).await?.map_err(failed)?;
    }
    Ok(())
}
