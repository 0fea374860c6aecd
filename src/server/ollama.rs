//! Ollama's `/api`: chat, generate, embed, tags, ps, show.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::app::{App, Language, Texts};
use super::ask::{self, Ask, Asked};
use super::failure::{Dialect, Failure, Outcome};
use super::fields::Fields;
use super::http::{Answer, json_answer, on_a_thread};
use super::openai::reasoning;
use super::policy::Caller;
use super::reply::{End, NamedCall, Piece, gather};
use super::stream::{Writer, streamed};
use super::vectors;
use crate::engine::Finish;

/// What runs a model elsewhere and changes no answer; here it runs as it was started.
const ELSEWHERE: &[&str] = &[
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "use_mmap",
    "use_mlock",
    "num_thread",
    "numa",
    "low_vram",
    "f16_kv",
    "vocab_only",
    "penalize_newline",
];

/// The fields that `/api/chat` and `/api/generate` share.
fn options(fields: &mut Fields, ask: &mut Ask, language: &Language) -> Outcome<()> {
    fields.refuse("format", &["".into()], "answers cannot be held to a grammar yet; leave it out")?;
    // The model stays as long as the server.
    fields.ignore(&["keep_alive"]);
    fields.refuse("logprobs", &[false.into()], "/v1/chat/completions has them")?;
    fields.refuse("top_logprobs", &[0.into()], "/v1/chat/completions has them")?;
    let Some(mut options) = fields.object("options")? else { return Ok(()) };
    options.ignore(ELSEWHERE);
    if let Some(most) = options.integer("num_predict", -2..=i64::from(u32::MAX))? {
        ask.max_tokens = u32::try_from(most).ok();
    }
    let context = language.model.handle().context();
    if let Some(wanted) = options.count("num_ctx", 1..=u32::MAX)?
        && wanted > context
    {
        let problem = format!("{wanted}; the server was started with {context}: wgslm serve --context N");
        return Err(Failure::invalid("options.num_ctx", problem));
    }
    if let Some(last) = options.integer("repeat_last_n", -1..=4096)? {
        ask.sampling.last_n = u32::try_from(last).unwrap_or(4096);
    }
    let tau = options.number("mirostat_tau", 0.0..=100.0)?;
    let eta = options.number("mirostat_eta", 0.0..=1.0)?;
    match options.integer("mirostat", 0..=2)? {
        None | Some(0) => {}
        Some(1) => return Err(Failure::unsupported("options.mirostat: 1", "2 works")),
        Some(_) => {
            ask.sampling.mirostat.tau = tau.unwrap_or(5.0);
            ask.sampling.mirostat.eta = eta.unwrap_or(0.1);
        }
    }
    options.refuse("tfs_z", &[1.into(), 1.0.into()], "top_p works")?;
    options.refuse("n", &[1.into()], "/v1/chat/completions has it")?;
    ask.sample(&mut options, language.vocab())
}

/// How much the model is to think: `think`.
fn think(fields: &mut Fields) -> Outcome<Map<String, Value>> {
    let mut variables = Map::new();
    match fields.take("think") {
        None => {}
        Some(Value::Bool(think)) => _ = variables.insert("enable_thinking".to_owned(), think.into()),
        Some(Value::String(effort)) => reasoning(&effort, &mut variables)?,
        Some(_) => return Err(Failure::invalid("think", "true, false, low, medium and high work")),
    }
    Ok(variables)
}

/// Ollama's messages as OpenAI's.
fn message(message: Value, i: usize) -> Outcome<Value> {
    let mut fields = Fields::within(format!("messages[{i}]"), message)?;
    if fields.list("images")?.is_some_and(|images| !images.is_empty()) {
        return Err(Failure::unsupported(fields.at("images"), "models answer texts"));
    }
    let thinking = fields.text("thinking")?;
    let name = fields.text("tool_name")?;
    let mut message = fields.rest();
    message.entry("content").or_insert("".into());
    for (key, value) in [("reasoning_content", thinking), ("name", name)] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            message.insert(key.to_owned(), value.into());
        }
    }
    Ok(Value::Object(message))
}

/// `/api/chat`.
pub(super) async fn chat(app: Arc<App>, caller: Caller, mut fields: Fields) -> Answer {
    let name = fields.text("model")?;
    app.check_name(Some(&fields.needed("model", name)?))?;
    let language = Arc::clone(app.language()?);
    let stream = fields.flag("stream")?.unwrap_or(true);
    let list = fields.list("messages")?.unwrap_or_default();
    if list.is_empty() {
        return Ok(json_answer(&loaded(&app, Kind::Chat)));
    }
    let started = move || {
        let list = list.into_iter().enumerate().map(|(i, one)| message(one, i)).collect::<Outcome<_>>()?;
        let messages = ask::messages(list, &language.template_source)?;
        let tools = ask::tools(fields.list("tools")?.unwrap_or_default())?;
        let variables = think(&mut fields)?;
        let mut ask = Ask::new(Asked::Messages { messages, tools, variables }, &language.model.model().sampling);
        options(&mut fields, &mut ask, &language)?;
        language.start(ask, caller.salt)
    };
    answer(app, Kind::Chat, stream, on_a_thread(started).await?).await
}

/// `/api/generate`.
pub(super) async fn generate(app: Arc<App>, caller: Caller, mut fields: Fields) -> Answer {
    let name = fields.text("model")?;
    app.check_name(Some(&fields.needed("model", name)?))?;
    let language = Arc::clone(app.language()?);
    let stream = fields.flag("stream")?.unwrap_or(true);
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let system = fields.text("system")?.filter(|system| !system.is_empty());
    if prompt.is_empty() && system.is_none() {
        return Ok(json_answer(&loaded(&app, Kind::Generate)));
    }
    fields.refuse("suffix", &["".into()], "the template of the model, given as a raw prompt, works")?;
    fields.refuse("template", &["".into()], "the model's own is used; raw: true leaves it out")?;
    fields.refuse("context", &[json!([])], "/api/chat has conversations")?;
    fields.refuse("images", &[json!([])], "models answer texts")?;
    let raw = fields.flag("raw")?.unwrap_or(false) || !language.chats();
    let started = move || {
        let variables = think(&mut fields)?;
        let asked = match (raw, system) {
            (true, None) => Asked::Text(prompt),
            (true, Some(_)) => return Err(Failure::unsupported("system without a template", "a prompt works")),
            (false, system) => {
                let system = system.map(|content| json!({ "role": "system", "content": content }));
                let user = json!({ "role": "user", "content": prompt });
                let messages = system.into_iter().chain([user]).collect();
                Asked::Messages { messages, tools: Vec::new(), variables }
            }
        };
        let mut ask = Ask::new(asked, &language.model.model().sampling);
        options(&mut fields, &mut ask, &language)?;
        language.start(ask, caller.salt)
    };
    answer(app, Kind::Generate, stream, on_a_thread(started).await?).await
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Chat,
    Generate,
}

/// The answer to a request that asks nothing but whether the model is there.
fn loaded(app: &App, kind: Kind) -> Value {
    let mut value = line(app, kind, "", "", &[]);
    value.insert("done".to_owned(), true.into());
    value.insert("done_reason".to_owned(), "load".into());
    value.into()
}

async fn answer(app: Arc<App>, kind: Kind, stream: bool, replies: Vec<super::reply::Reply>) -> Answer {
    let begun = Instant::now();
    if stream {
        let ping = app.limits.ping;
        return Ok(streamed(replies, Box::new(Lines { app, kind, begun }), ping));
    }
    let whole = gather(replies).await?.pop().ok_or_else(|| Failure::unavailable("the engine has ended"))?;
    let mut value = line(&app, kind, &whole.text, &whole.thought, &whole.calls);
    finish(&mut value, &whole.end, begun);
    Ok(json_answer(&value.into()))
}

/// A line, without its end.
fn line(app: &App, kind: Kind, text: &str, thought: &str, calls: &[NamedCall]) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("model".to_owned(), app.name.clone().into());
    line.insert("created_at".to_owned(), timestamp(SystemTime::now()).into());
    match kind {
        Kind::Generate => {
            line.insert("response".to_owned(), text.into());
            if !thought.is_empty() {
                line.insert("thinking".to_owned(), thought.into());
            }
        }
        Kind::Chat => {
            let mut message = Map::new();
            message.insert("role".to_owned(), "assistant".into());
            message.insert("content".to_owned(), text.into());
            if !thought.is_empty() {
                message.insert("thinking".to_owned(), thought.into());
            }
            if !calls.is_empty() {
                let call = |named: &NamedCall| json!({ "id": named.id, "function": { "name": named.call.name, "arguments": named.call.arguments } });
                message.insert("tool_calls".to_owned(), calls.iter().map(call).collect());
            }
            line.insert("message".to_owned(), message.into());
        }
    }
    line.insert("done".to_owned(), false.into());
    line
}

/// The end of the last line.
fn finish(line: &mut Map<String, Value>, end: &End, begun: Instant) {
    let nanos = |time: Duration| Value::from(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let reason = if end.reason() == "length" { "length" } else { "stop" };
    line.insert("done".to_owned(), true.into());
    for (name, value) in [
        ("done_reason", reason.into()),
        ("total_duration", nanos(begun.elapsed())),
        ("load_duration", 0.into()),
        ("prompt_eval_count", end.usage.prompt.into()),
        ("prompt_eval_duration", nanos(end.timings.prefill)),
        ("eval_count", end.usage.generated.into()),
        ("eval_duration", nanos(end.timings.decode)),
    ] {
        line.insert(name.to_owned(), value);
    }
}

struct Lines {
    app: Arc<App>,
    kind: Kind,
    begun: Instant,
}

impl Writer for Lines {
    fn begin(&mut self, _: &mut String) {}

    fn piece(&mut self, _: usize, piece: Piece, out: &mut String) {
        let value = match piece {
            Piece::Delta { thought, text, calls, .. } => line(&self.app, self.kind, &text, &thought, &calls).into(),
            Piece::End(End { finish: Finish::Error(error), .. }) => Failure::from(&*error).json(Dialect::Ollama),
            Piece::End(end) => {
                let mut value = line(&self.app, self.kind, "", "", &[]);
                finish(&mut value, &end, self.begun);
                value.into()
            }
        };
        out.push_str(&value.to_string());
        out.push('\n');
    }

    fn end(&mut self, _: &mut String) {}

    fn ping(&mut self, _: &mut String) {}

    fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }
}

/// `/api/embed`.
pub(super) async fn embed(app: &App, mut fields: Fields) -> Answer {
    app.check_name(fields.text("model")?.as_deref())?;
    let made = app.vectors()?;
    if made.scores {
        return Err(Failure::unsupported("a vector", "this model gives scores of pairs: /v1/rerank works"));
    }
    let texts = vectors::texts(&mut fields, "input")?;
    fields.refuse("dimensions", &[], "vectors are as long as the model makes them")?;
    fields.refuse("truncate", &[true.into(), false.into()], "true and false work")?;
    fields.ignore(&["keep_alive", "options"]);
    let begun = Instant::now();
    let made = made.of(Texts::Single(texts)).await?;
    let embeddings: Vec<Value> = made.vectors.iter().map(|vector| vectors::numbers(vector)).collect();
    let time = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(json_answer(&json!({
        "model": app.name, "embeddings": embeddings, "total_duration": time, "load_duration": 0,
        "prompt_eval_count": made.tokens,
    })))
}

fn details(app: &App) -> Value {
    let model = app.language().ok().map(|language| language.model.model());
    let family = model.map_or("", |model| model.arch);
    let size = model.map_or_else(String::new, |model| format!("{:.1}M", model.parameters as f64 / 1e6));
    json!({
        "parent_model": "", "format": "gguf", "family": family, "families": [family], "parameter_size": size,
        "quantization_level": "",
    })
}

fn card(app: &App) -> Value {
    let created = UNIX_EPOCH + Duration::from_secs(app.created);
    json!({
        "name": app.name, "model": app.name, "modified_at": timestamp(created), "size": 0, "digest": "",
        "details": details(app),
    })
}

/// `/api/tags`.
pub(super) fn tags(app: &App) -> Value {
    json!({ "models": [card(app)] })
}

/// `/api/ps`: the model stays as long as the server.
pub(super) fn ps(app: &App) -> Value {
    let mut card = card(app);
    if let Value::Object(card) = &mut card {
        card.remove("modified_at");
        card.insert("expires_at".to_owned(), "9999-12-31T23:59:59Z".into());
        card.insert("size_vram".to_owned(), 0.into());
    }
    json!({ "models": [card] })
}

/// `/api/show`.
pub(super) fn show(app: &App, mut fields: Fields) -> Answer {
    let name = fields.text("model")?.or(fields.text("name")?);
    app.check_name(Some(&fields.needed("model", name)?))?;
    let (mut template, mut capabilities, mut info) = (String::new(), Vec::new(), Map::new());
    match app.language() {
        Ok(language) => {
            capabilities.push("completion");
            capabilities.extend(language.calls_tools().then_some("tools"));
            capabilities.extend(language.thinks().then_some("thinking"));
            template.clone_from(&language.template_source);
            let arch = language.model.model().arch;
            let context = language.model.handle().context();
            info.insert(format!("{arch}.context_length"), context.into());
            info.insert("general.architecture".to_owned(), arch.into());
        }
        Err(_) => capabilities.push("embedding"),
    }
    let created = UNIX_EPOCH + Duration::from_secs(app.created);
    Ok(json_answer(&json!({
        "modelfile": "", "parameters": "", "template": template, "details": details(app), "model_info": info,
        "capabilities": capabilities, "modified_at": timestamp(created),
    })))
}

/// A time as RFC 3339 has it, in UTC.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days since 0000-03-01, in eras of 400 years: Hinnant's civil_from_days.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
            (1_764_032_461, "2025-11-25T01:01:01.000000Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }
}
