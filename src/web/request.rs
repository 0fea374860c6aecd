//! A request with OpenAI's field names.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::answers::Language;
use crate::chat::{self, Splitter, Transcript};
use crate::language_model::now;
use crate::model::SamplingDefaults;
use crate::ops::Penalties;
use crate::sample::Sampling;
use crate::text::Tokenizer;
use crate::{Error, Result};

/// The fields of `/v1/chat/completions` that are understood, and `prompt`, `top_k`, `min_p`, `repetition_penalty` besides.
#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest {
    /// As templates read them: contents are texts, and arguments of calls objects.
    messages: Option<Vec<Map<String, Value>>>,
    #[serde(default)]
    tools: Vec<Value>,
    prompt: Option<String>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<u64>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    stop: Option<Stops>,
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
}

/// What is asked, and what takes its answer apart.
pub(super) struct Prompt {
    pub(super) ids: Vec<u32>,
    pub(super) splitter: Splitter,
}

/// One stop string or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stops {
    One(String),
    Several(Vec<String>),
}

impl ChatRequest {
    pub(super) fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|e| Error::argument("request", e.to_string()))
    }

    /// The prompt: the messages as the model's template writes them, or the text as it is.
    pub(super) fn prompt(
        &self,
        language: &Language,
        tokenizer: &Tokenizer,
        transcript: &mut Transcript,
    ) -> Result<Prompt> {
        match (&self.messages, &self.prompt) {
            (Some(messages), None) => {
                let Language { template, source, format } = language;
                let template = template.as_ref().ok_or_else(|| {
                    let what = "a conversation with a model that has no chat template";
                    Error::unsupported(what, "a prompt works: it is continued")
                })?;
                let adapted = |mut message: Map<String, Value>| {
                    chat::adapt(&mut message, source);
                    Value::Object(message)
                };
                let messages: Vec<Value> = messages.iter().cloned().map(adapted).collect();
                let mut variables = self.chat_template_kwargs.clone();
                if !self.tools.is_empty() {
                    if !format.calls() {
                        let what = "tools for a model whose chat template knows none";
                        return Err(Error::unsupported(what, "a request without tools works"));
                    }
                    variables.insert("tools".to_owned(), self.tools.clone().into());
                }
                let segments = chat::render(template, &messages, &variables, now())?;
                let ids = transcript.encode(tokenizer, &segments, false)?;
                transcript.ask(&segments, &ids);
                Ok(Prompt { ids, splitter: format.splitter(&chat::text(&segments), self.tools.as_slice().into()) })
            }
            (None, Some(prompt)) => {
                *transcript = Transcript::default();
                Ok(Prompt { ids: chat::continuation(tokenizer, prompt)?, splitter: Splitter::plain() })
            }
            _ => Err(Error::argument("messages", "either messages or a prompt is needed")),
        }
    }

    /// As the request says, else as the model's files recommend, else OpenAI's defaults.
    pub(super) fn sampling(&self, files: &SamplingDefaults) -> Sampling {
        Sampling {
            temperature: self.temperature.or(files.temperature).unwrap_or(1.0),
            top_p: self.top_p.or(files.top_p).unwrap_or(1.0),
            top_k: self.top_k.or(files.top_k).unwrap_or(0),
            min_p: self.min_p.or(files.min_p).unwrap_or(0.0),
            seed: self.seed.unwrap_or_else(|| (js_sys::Math::random() * f64::from(u32::MAX)) as u64),
            penalties: Penalties {
                repeat: self.repetition_penalty.or(files.repeat_penalty).unwrap_or(1.0),
                presence: self.presence_penalty.unwrap_or(0.0),
                frequency: self.frequency_penalty.unwrap_or(0.0),
            },
            ..Sampling::GREEDY
        }
    }

    pub(super) fn max_tokens(&self) -> Option<u32> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    pub(super) fn stops(&self) -> &[String] {
        match &self.stop {
            None => &[],
            Some(Stops::One(stop)) => std::slice::from_ref(stop),
            Some(Stops::Several(stops)) => stops,
        }
    }
}
