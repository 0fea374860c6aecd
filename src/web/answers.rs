//! Answers in the making: requests in, events out.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Task;
use super::executor::{self, WebExecutor};
use super::request::ChatRequest;
use crate::Result;
use crate::chat::{AnswerFormat, Parts, Splitter, Transcript};
use crate::driver::{Driver, GenerateRequest, Generation, GenerationEvent, ServeOptions};
use crate::engine::{Finish, Request, StepTime};
use crate::language_model::{LanguageModel, ServedModel};
use crate::text::{ChatTemplate, Tokenizer};

/// A model that answers.
pub(super) struct Answering {
    model: ServedModel,
    driver: Driver<WebExecutor>,
    language: Language,
    /// The last prompt and answer on the model's own sequence, whose cache is kept from one request to the next.
    transcript: Transcript,
    answers: Vec<Answer>,
    last_number: f64,
}

/// How the model reads conversations and writes answers.
pub(super) struct Language {
    pub(super) template: Option<ChatTemplate>,
    pub(super) source: String,
    pub(super) format: AnswerFormat,
}

/// An answer in flight.
struct Answer {
    /// As JavaScript knows it.
    number: f64,
    generation: Generation,
    splitter: Splitter,
    /// On the conversation's sequence: the ids and the text so far, to be recognised in the next request.
    reported: Option<(Vec<u32>, String)>,
}

impl Answering {
    pub(super) fn new(model: LanguageModel<WebExecutor>, step_time: Option<StepTime>) -> Result<Self> {
        let (driver, model) = model.driver(ServeOptions { step_time, ..ServeOptions::default() });
        let source = model.model().chat_template.clone().unwrap_or_default();
        let format = AnswerFormat::of_template(&source);
        let language = Language { template: model.chat_template()?, source, format };
        let transcript = Transcript::default();
        Ok(Self { model, driver, language, transcript, answers: Vec::new(), last_number: 0.0 })
    }

    pub(super) fn info(&self) -> Value {
        let mut info = super::described(self.model.model(), Task::Answer);
        info["context"] = self.model.context().into();
        info["smallerCache"] = executor::smaller_cache(self.driver.engine().executor()).into();
        if self.language.template.is_some() {
            info["chat"] = true.into();
            info["tools"] = self.language.format.calls().into();
            info["thinks"] = self.language.format.thinks().into();
        }
        info
    }

    pub(super) fn start(&mut self, request: &str) -> Result<f64> {
        let request = ChatRequest::parse(request)?;
        let on_conversation = self.answers.iter().all(|answer| answer.reported.is_none());
        let mut apart = Transcript::default();
        let transcript = if on_conversation { &mut self.transcript } else { &mut apart };
        let prompt = request.prompt(&self.language, self.model.tokenizer(), transcript)?;
        let ours = if on_conversation { self.model.kept_request(prompt.ids) } else { self.model.request(prompt.ids) };
        let sampling = request.sampling(&self.model.model().sampling);
        let ours = Request { sampling, max_tokens: request.max_tokens(), ..ours };
        let asked = GenerateRequest { request: ours, stop: request.stops().to_vec() };
        let generation = self.model.handle().generate(asked)?;
        self.last_number += 1.0;
        let reported = on_conversation.then(Default::default);
        self.answers.push(Answer { number: self.last_number, generation, splitter: prompt.splitter, reported });
        Ok(self.last_number)
    }

    /// Runs a step, and gives its events as JavaScript gets them.
    pub(super) async fn step(&mut self) -> Vec<Value> {
        self.driver.turn().await;
        let mut events = Vec::new();
        let tokenizer = Arc::clone(self.model.tokenizer());
        self.answers.retain_mut(|answer| {
            while let Some(event) = answer.generation.try_next() {
                let (mut event, parts) = match event {
                    GenerationEvent::Token { id, text, .. } => (json!({ "id": id }), answer.hear(id, text, &tokenizer)),
                    GenerationEvent::Finished { text, reason, usage, .. } => {
                        let parts = answer.end(&text, &reason, &mut self.transcript);
                        let error =
                            if let Finish::Error(error) = &reason { Some(super::describe(error)) } else { None };
                        let called = answer.splitter.called() && reason.name() == "stop";
                        let usage =
                            json!({ "prompt": usage.prompt, "reused": usage.reused, "generated": usage.generated });
                        let finish = if called { "tool_calls" } else { reason.name() };
                        (json!({ "finish": finish, "usage": usage, "error": error }), parts)
                    }
                };
                let over = event.get("finish").is_some();
                let calls =
                    parts.calls.into_iter().map(|call| json!({ "name": call.name, "arguments": call.arguments }));
                event["request"] = answer.number.into();
                event["thought"] = parts.thought.into();
                event["text"] = parts.text.into();
                event["calls"] = calls.collect();
                events.push(event);
                if over {
                    return false;
                }
            }
            true
        });
        events
    }

    /// Ends a request; its last event comes with the next step.
    pub(super) fn cancel(&self, request: f64) {
        let answer = self.answers.iter().find(|answer| answer.number == request);
        answer.into_iter().for_each(|answer| answer.generation.cancel());
    }

    /// Whether there is anything to do.
    pub(super) fn busy(&self) -> bool {
        !self.answers.is_empty()
    }
}

impl Answer {
    fn hear(&mut self, id: u32, mut text: String, tokenizer: &Tokenizer) -> Parts {
        if !self.splitter.spell(tokenizer, id, &mut text) {
            // What the template writes of it is not known.
            self.reported = None;
        }
        if let Some((ids, all)) = &mut self.reported {
            ids.push(id);
            all.push_str(&text);
        }
        self.splitter.push(&text)
    }

    fn end(&mut self, text: &str, reason: &Finish, transcript: &mut Transcript) -> Parts {
        // Where a string ended it, the ids say more than the text.
        let stopped = matches!(reason, Finish::StopString(_));
        if let Some((ids, all)) = self.reported.take().filter(|_| !stopped) {
            transcript.hear(&ids, &(all + text));
        }
        let mut parts = self.splitter.push(text);
        parts.extend(self.splitter.finish());
        parts
    }
}
