//! `/v1/chat/completions` and `/v1/completions`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::app::{App, Language, now};
use super::ask::{self, Ask, Asked, random_name};
use super::failure::{Dialect, Failure, Outcome};
use super::fields::Fields;
use super::http::{Answer, json_answer};
use super::policy::Caller;
use super::reply::{End, NamedCall, Piece, TokenLogprobs, Whole, gather, usage};
use super::stream::{Writer, data, streamed};
use crate::engine::Finish;
use crate::ops::LOGPROBS;

/// How an answer is sent.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    stream: bool,
    include_usage: bool,
}

impl Sent {
    fn of(fields: &mut Fields) -> Outcome<Self> {
        let stream = fields.flag("stream")?.unwrap_or(false);
        let mut include_usage = false;
        if let Some(mut options) = fields.object("stream_options")? {
            if !stream {
                return Err(Failure::invalid("stream_options", "it needs stream: true"));
            }
            include_usage = options.flag("include_usage")?.unwrap_or(false);
            options.refuse("include_obfuscation", &[false.into()], "nothing is hidden here; false works")?;
        }
        Ok(Self { stream, include_usage })
    }
}

/// What both endpoints refuse or leave alone.
fn common(fields: &mut Fields) -> Outcome<()> {
    fields.refuse("store", &[false.into()], "nothing is stored; false works")?;
    fields.refuse("service_tier", &["auto".into(), "default".into()], "there is one tier; auto works")?;
    // Names of other servers for what has one here, or nowhere.
    fields.refuse("n_predict", &[], "max_tokens works")?;
    fields.refuse("prompt_logprobs", &[], "wgslm logits has those of a text")?;
    // About the caller, and hints; nothing about the answer.
    fields.ignore(&["user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"]);
    Ok(())
}

/// Reads `/v1/chat/completions`.
fn chat_ask(fields: &mut Fields, language: &Language) -> Outcome<Ask> {
    let list = fields.list("messages")?;
    let list = fields.needed("messages", list)?;
    let messages = ask::messages(list, &language.template_source)?;
    let mut tools = ask::tools(fields.list("tools")?.unwrap_or_default())?;
    match fields.take("tool_choice") {
        None => {}
        Some(Value::String(choice)) if choice == "auto" => {}
        Some(Value::String(choice)) if choice == "none" => tools.clear(),
        Some(_) => {
            let instead = "calls cannot be held to a grammar yet; auto and none work";
            return Err(Failure::unsupported("tool_choice", instead));
        }
    }
    fields.refuse("parallel_tool_calls", &[true.into()], "the model decides how many tools it calls; true works")?;
    if let Some(mut format) = fields.object("response_format")? {
        let kind = format.text("type")?;
        if format.needed("type", kind)? != "text" {
            let instead = "answers cannot be held to a grammar yet; text works";
            return Err(Failure::unsupported("response_format", instead));
        }
    }
    fields.refuse("functions", &[], "tools works")?;
    fields.refuse("function_call", &[], "tool_choice works")?;
    fields.refuse("audio", &[], "models answer texts")?;
    fields.refuse("modalities", &[json!(["text"])], "models answer texts")?;
    fields.refuse("prediction", &[], "an answer is not predicted from a text")?;
    fields.refuse("web_search_options", &[], "the server opens no other connection; a tool of yours works")?;
    fields.refuse("verbosity", &["medium".into()], "a word about it in the system message works")?;
    fields.refuse("continue_final_message", &[false.into()], "/v1/completions continues a text")?;
    fields.refuse("add_generation_prompt", &[true.into()], "/v1/completions continues a text")?;
    fields.refuse("best_of", &[1.into()], "n works")?;
    fields.refuse("echo", &[false.into()], "/v1/completions has it")?;
    let mut variables = fields.object("chat_template_kwargs")?.map(Fields::rest).unwrap_or_default();
    for name in ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"] {
        if variables.contains_key(name) {
            let problem = "the request or the model says what it is";
            return Err(Failure::invalid(format!("chat_template_kwargs.{name}"), problem));
        }
    }
    if let Some(effort) = fields.text("reasoning_effort")? {
        reasoning(&effort, &mut variables)?;
    }
    let mut ask = Ask::new(Asked::Messages { messages, tools, variables }, &language.model.model().sampling);
    ask.sample(fields, language.vocab())?;
    let old = fields.count("max_tokens", 1..=u32::MAX)?;
    ask.max_tokens = fields.count("max_completion_tokens", 1..=u32::MAX)?.or(old);
    let logprobs = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=LOGPROBS)?;
    if top.is_some() && !logprobs {
        return Err(Failure::invalid("top_logprobs", "it needs logprobs: true"));
    }
    ask.logprobs = logprobs.then(|| top.unwrap_or(0));
    Ok(ask)
}

/// How much a model is to think, as templates are asked.
pub(super) fn reasoning(effort: &str, variables: &mut Map<String, Value>) -> Outcome<()> {
    match effort {
        "none" => _ = variables.entry("enable_thinking").or_insert(false.into()),
        "minimal" | "low" | "medium" | "high" | "xhigh" => {
            variables.entry("enable_thinking").or_insert(true.into());
            variables.entry("reasoning_effort").or_insert(effort.into());
        }
        other => {
            let works = format!("{other:?}; none, minimal, low, medium, high and xhigh work");
            return Err(Failure::invalid("reasoning_effort", works));
        }
    }
    Ok(())
}

/// `/v1/chat/completions`.
pub(super) async fn chat(app: Arc<App>, caller: Caller, mut fields: Fields) -> Answer {
    let model = app.model(fields.text("model")?).await?;
    let language = Arc::clone(model.taking()?);
    let name = model.name().to_owned();
    let sent = Sent::of(&mut fields)?;
    common(&mut fields)?;
    let started = move || {
        let ask = chat_ask(&mut fields, &language)?;
        language.start(ask, caller.salt)
    };
    let replies = super::http::on_a_thread(started).await?;
    let head = Head { id: format!("chatcmpl-{}", random_name(24)), created: now().unwrap_or(0), model: name };
    if sent.stream {
        let count = replies.len();
        let language = Arc::clone(model.language()?);
        let ends = Vec::new();
        let writer =
            ChatWriter { head, include_usage: sent.include_usage, language, calls: vec![0; count], ends, n: count };
        return Ok(streamed(replies, Box::new(writer), app.limits.ping));
    }
    let wholes = gather(replies).await?;
    let language = model.language()?;
    let choices: Vec<Value> = wholes.iter().enumerate().map(|(i, whole)| choice(i, whole, language)).collect();
    let ends: Vec<_> = wholes.into_iter().map(|whole| whole.end).enumerate().collect();
    Ok(json_answer(&json!({
        "id": head.id, "object": "chat.completion", "created": head.created, "model": head.model,
        "choices": choices, "usage": usage(&ends, ends.len()), "system_fingerprint": null, "service_tier": null,
    })))
}

fn choice(index: usize, whole: &Whole, language: &Language) -> Value {
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    let silent = whole.text.is_empty() && !whole.calls.is_empty();
    message.insert("content".to_owned(), if silent { Value::Null } else { whole.text.clone().into() });
    message.insert("refusal".to_owned(), Value::Null);
    if !whole.thought.is_empty() {
        message.insert("reasoning_content".to_owned(), whole.thought.clone().into());
    }
    if !whole.calls.is_empty() {
        let calls: Vec<Value> = whole.calls.iter().map(call).collect();
        message.insert("tool_calls".to_owned(), calls.into());
    }
    json!({
        "index": index, "message": message, "logprobs": logprobs(&whole.logprobs, language),
        "finish_reason": whole.end.reason(),
    })
}

fn call(named: &NamedCall) -> Value {
    let arguments = Value::Object(named.call.arguments.clone()).to_string();
    json!({ "id": named.id, "type": "function", "function": { "name": named.call.name, "arguments": arguments } })
}

fn logprobs(tokens: &[TokenLogprobs], language: &Language) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    let one = |id: u32, logprob: f32| {
        let bytes = language.model.tokenizer().piece(id).unwrap_or_default();
        json!({ "token": String::from_utf8_lossy(bytes), "logprob": f64::from(logprob), "bytes": bytes })
    };
    let content: Vec<Value> = tokens
        .iter()
        .map(|token| {
            let mut value = one(token.id, token.logprob);
            let top: Vec<Value> = token.top.iter().map(|top| one(top.token, top.logprob)).collect();
            if let Value::Object(value) = &mut value {
                value.insert("top_logprobs".to_owned(), top.into());
            }
            value
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

/// What all chunks of an answer begin with.
struct Head {
    id: String,
    created: i64,
    model: String,
}

impl Head {
    /// A chunk. Where the usage is asked for, all chunks have the field, and only the last has a value in it.
    fn chunk(&self, object: &str, choices: Value, usage: Option<Value>) -> Value {
        let mut chunk = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        });
        if let (Value::Object(chunk), Some(usage)) = (&mut chunk, usage) {
            chunk.insert("usage".to_owned(), usage);
        }
        chunk
    }
}

struct ChatWriter {
    head: Head,
    include_usage: bool,
    language: Arc<Language>,
    /// Calls so far, of each answer.
    calls: Vec<usize>,
    ends: Vec<(usize, End)>,
    n: usize,
}

impl ChatWriter {
    fn chunk(&self, index: usize, delta: &Value, logprobs: &Value, reason: Option<&str>, out: &mut String) {
        let choices = json!([{ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason }]);
        data(&self.head.chunk("chat.completion.chunk", choices, self.include_usage.then_some(Value::Null)), out);
    }
}

impl Writer for ChatWriter {
    fn begin(&mut self, out: &mut String) {
        for index in 0..self.calls.len() {
            let delta = json!({ "role": "assistant", "content": "", "refusal": null });
            self.chunk(index, &delta, &Value::Null, None, out);
        }
    }

    fn piece(&mut self, index: usize, piece: Piece, out: &mut String) {
        match piece {
            Piece::Delta { thought, text, calls, logprobs: tokens } => {
                let mut delta = Map::new();
                if !thought.is_empty() {
                    delta.insert("reasoning_content".to_owned(), thought.into());
                }
                if !text.is_empty() {
                    delta.insert("content".to_owned(), text.into());
                }
                if !calls.is_empty() {
                    let first = self.calls[index];
                    self.calls[index] += calls.len();
                    let calls: Vec<Value> = calls
                        .iter()
                        .enumerate()
                        .map(|(i, named)| {
                            let mut call = call(named);
                            if let Value::Object(call) = &mut call {
                                call.insert("index".to_owned(), (first + i).into());
                            }
                            call
                        })
                        .collect();
                    delta.insert("tool_calls".to_owned(), calls.into());
                }
                let logprobs = logprobs(&tokens, &self.language);
                self.chunk(index, &delta.into(), &logprobs, None, out);
            }
            Piece::End(end) => {
                match &end.finish {
                    Finish::Error(error) => data(&Failure::from(&**error).json(Dialect::OpenAi), out),
                    _ => self.chunk(index, &json!({}), &Value::Null, Some(end.reason()), out),
                }
                self.ends.push((index, end));
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        if self.include_usage {
            data(&self.head.chunk("chat.completion.chunk", json!([]), Some(usage(&self.ends, self.n))), out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn ping(&mut self, out: &mut String) {
        out.push_str(": ping\n\n");
    }
}

/// Reads `/v1/completions`; the prompts, the ask of one, and whether the prompt is repeated.
fn completion_ask(fields: &mut Fields, language: &Language) -> Outcome<(Vec<Asked>, Ask, bool)> {
    let vocab = language.vocab();
    let wrong =
        || Failure::invalid("prompt", "a string, a list of strings, a list of token ids or of lists of them works");
    let asked = match fields.take("prompt") {
        None => return Err(fields.needed::<()>("prompt", None).unwrap_err()),
        Some(Value::String(text)) => vec![Asked::Text(text)],
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => {
            vec![Asked::Ids(ask::token_ids(&list, "prompt", vocab)?)]
        }
        Some(Value::Array(list)) => {
            let one = |(i, prompt): (usize, Value)| match prompt {
                Value::String(text) => Ok(Asked::Text(text)),
                Value::Array(ids) => Ok(Asked::Ids(ask::token_ids(&ids, &format!("prompt[{i}]"), vocab)?)),
                _ => Err(wrong()),
            };
            list.into_iter().enumerate().map(one).collect::<Outcome<_>>()?
        }
        Some(_) => return Err(wrong()),
    };
    if asked.is_empty() || asked.len() > 128 {
        return Err(Failure::invalid("prompt", format!("{} prompts; 1 to 128 work", asked.len())));
    }
    let mut ask = Ask::new(Asked::Ids(Vec::new()), &language.model.model().sampling);
    ask.sample(fields, vocab)?;
    ask.max_tokens = Some(fields.count("max_tokens", 0..=u32::MAX)?.unwrap_or(16));
    ask.logprobs = fields.count("logprobs", 0..=LOGPROBS)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && ask.logprobs.is_some() {
        return Err(Failure::unsupported("echo with logprobs", "one of them works; wgslm logits has those of a text"));
    }
    if let Some(best_of) = fields.count("best_of", 1..=128)?
        && best_of != ask.n
    {
        return Err(Failure::unsupported("best_of", "n works"));
    }
    fields.refuse("suffix", &["".into()], "the template of the model, given as the prompt, works")?;
    Ok((asked, ask, echo))
}

/// `/v1/completions`.
pub(super) async fn completions(app: Arc<App>, caller: Caller, mut fields: Fields) -> Answer {
    let model = app.model(fields.text("model")?).await?;
    let language = Arc::clone(model.taking()?);
    let name = model.name().to_owned();
    let sent = Sent::of(&mut fields)?;
    common(&mut fields)?;
    let started = move || {
        let (prompts, ask, echo) = completion_ask(&mut fields, &language)?;
        let mut echoes = Vec::new();
        for asked in &prompts {
            let text = match asked {
                Asked::Text(text) if echo => text.clone(),
                Asked::Ids(ids) if echo => language.model.tokenizer().decode(ids, true),
                _ => String::new(),
            };
            echoes.extend(std::iter::repeat_n(text, ask.n as usize));
        }
        Ok((language.start_all(&prompts, &ask, caller.salt)?, echoes, ask.n as usize))
    };
    let (replies, echoes, n) = super::http::on_a_thread(started).await?;
    let head = Head { id: format!("cmpl-{}", random_name(24)), created: now().unwrap_or(0), model: name };
    let language = Arc::clone(model.language()?);
    if sent.stream {
        let said = vec![0; echoes.len()];
        let ends = Vec::new();
        let writer = TextWriter { head, include_usage: sent.include_usage, language, echoes, said, ends, n };
        return Ok(streamed(replies, Box::new(writer), app.limits.ping));
    }
    let wholes = gather(replies).await?;
    let choices: Vec<Value> = wholes
        .iter()
        .zip(&echoes)
        .enumerate()
        .map(|(index, (whole, echo))| {
            let logprobs = text_logprobs(&whole.logprobs, 0, &language);
            let text = format!("{echo}{}", whole.text);
            json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": whole.end.reason() })
        })
        .collect();
    let ends: Vec<_> = wholes.into_iter().map(|whole| whole.end).enumerate().collect();
    Ok(json_answer(&json!({
        "id": head.id, "object": "text_completion", "created": head.created, "model": head.model,
        "choices": choices, "usage": usage(&ends, n), "system_fingerprint": null,
    })))
}

/// Probabilities as `/v1/completions` has them; the first token stands at `offset` of the text.
fn text_logprobs(tokens: &[TokenLogprobs], mut offset: usize, language: &Language) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    let text = |id: u32| {
        let bytes = language.model.tokenizer().piece(id).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let (mut texts, mut own, mut top, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for token in tokens {
        let name = text(token.id);
        offsets.push(offset);
        offset += name.chars().count();
        let most: Map<String, Value> =
            token.top.iter().map(|top| (text(top.token), f64::from(top.logprob).into())).collect();
        top.push(most);
        own.push(f64::from(token.logprob));
        texts.push(name);
    }
    json!({ "tokens": texts, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets })
}

struct TextWriter {
    head: Head,
    include_usage: bool,
    language: Arc<Language>,
    echoes: Vec<String>,
    /// Characters so far, of each answer.
    said: Vec<usize>,
    ends: Vec<(usize, End)>,
    n: usize,
}

impl TextWriter {
    fn chunk(&self, index: usize, text: &str, logprobs: &Value, reason: Option<&str>, out: &mut String) {
        let choices = json!([{ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason }]);
        data(&self.head.chunk("text_completion", choices, self.include_usage.then_some(Value::Null)), out);
    }
}

impl Writer for TextWriter {
    fn begin(&mut self, out: &mut String) {
        for (index, echo) in std::mem::take(&mut self.echoes).into_iter().enumerate() {
            if !echo.is_empty() {
                self.said[index] = echo.chars().count();
                self.chunk(index, &echo, &Value::Null, None, out);
            }
        }
    }

    fn piece(&mut self, index: usize, piece: Piece, out: &mut String) {
        match piece {
            Piece::Delta { text, logprobs, .. } => {
                let logprobs = text_logprobs(&logprobs, self.said[index], &self.language);
                self.said[index] += text.chars().count();
                self.chunk(index, &text, &logprobs, None, out);
            }
            Piece::End(end) => {
                match &end.finish {
                    Finish::Error(error) => data(&Failure::from(&**error).json(Dialect::OpenAi), out),
                    _ => self.chunk(index, "", &Value::Null, Some(end.reason()), out),
                }
                self.ends.push((index, end));
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        if self.include_usage {
            data(&self.head.chunk("text_completion", json!([]), Some(usage(&self.ends, self.n))), out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn ping(&mut self, out: &mut String) {
        out.push_str(": ping\n\n");
    }
}
