//! Ollama's `/api`: chat, generate, embed, embeddings, tags, ps, show.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::app::{App, Language, Loaded, Texts};
use super::ask::{self, Ask, Asked};
use super::catalog::Known;
use super::failure::{Dialect, Failure, Outcome};
use super::fields::Fields;
use super::http::{Answer, json_answer, on_a_thread};
use super::openai::reasoning;
use super::policy::Caller;
use super::reply::{End, NamedCall, Piece, gather};
use super::stream::{Writer, streamed};
use super::vectors;
use crate::chat::AnswerFormat;
use crate::engine::Finish;
use crate::model::Model;

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

/// How long the model is to stay when nobody asks for anything, if a request says it; none within: until another needs its
/// place.
type Keep = Option<Option<Duration>>;

/// `keep_alive`: seconds, or a text such as `5m`; less than 0: for ever; 0: no longer than the request.
fn keep_alive(fields: &mut Fields) -> Outcome<Keep> {
    let Some(value) = fields.take("keep_alive") else { return Ok(None) };
    let parsed = match &value {
        Value::Number(seconds) => seconds.as_f64().and_then(of_seconds),
        Value::String(text) => duration(text),
        _ => None,
    };
    let works = format!("{value}; seconds, or a text as in 5m, 1h30m or -1 works");
    parsed.map(Some).ok_or_else(|| Failure::invalid("keep_alive", works))
}

fn of_seconds(seconds: f64) -> Option<Option<Duration>> {
    match seconds {
        s if s < 0.0 => Some(None),
        // More than 30 years is a mistake, or for ever.
        s if s > 1e9 => None,
        s => Duration::try_from_secs_f64(s).ok().map(Some),
    }
}

/// A time as Go writes it; a number alone is seconds. None within: for ever.
pub(crate) fn duration(text: &str) -> Option<Option<Duration>> {
    const UNITS: [(&str, f64); 6] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let (sign, mut rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    let mut seconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, after) = rest.split_at(end);
        let number: f64 = digits.parse().ok()?;
        if after.is_empty() && digits.len() == text.trim_start_matches('-').len() {
            return of_seconds(sign * number);
        }
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        seconds += number * factor;
        rest = next;
    }
    of_seconds(sign * seconds)
}

/// How much the model is to think: `think`.
fn think(fields: &mut Fields, model: &Loaded, template: &str) -> Outcome<Map<String, Value>> {
    let mut variables = Map::new();
    let think = fields.take("think");
    // As Ollama has it: clients look for these words.
    let wanted = think.as_ref().is_some_and(|think| *think == true || think.is_string() && *think != "none");
    if wanted && !AnswerFormat::of_template(template).thinks() {
        let problem = format!("{:?} does not support thinking; false works", model.name());
        return Err(Failure::invalid("think", problem));
    }
    match think {
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
    // Some clients write null where an answer was calls alone.
    if message.get("content").is_none_or(Value::is_null) {
        message.insert("content".to_owned(), "".into());
    }
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
    let (name, keep) = (fields.needed("model", name)?, keep_alive(&mut fields)?);
    let stream = fields.flag("stream")?.unwrap_or(true);
    let list = fields.list("messages")?.unwrap_or_default();
    if list.is_empty() {
        return loaded(&app, name, keep, Kind::Chat).await;
    }
    let model = app.model(Some(name)).await?;
    app.keep(&model, keep);
    let (language, asked_of) = (Arc::clone(model.taking()?), Arc::clone(&model));
    let started = move || {
        let list = list.into_iter().enumerate().map(|(i, one)| message(one, i)).collect::<Outcome<_>>()?;
        let messages = ask::messages(list, &language.template_source)?;
        let tools = ask::tools(fields.list("tools")?.unwrap_or_default())?;
        let variables = think(&mut fields, &asked_of, &language.template_source)?;
        let mut ask = Ask::new(Asked::Messages { messages, tools, variables }, &language.model.model().sampling);
        options(&mut fields, &mut ask, &language)?;
        language.start(ask, caller.salt)
    };
    answer(&app, &model, Kind::Chat, stream, on_a_thread(started).await?).await
}

/// `/api/generate`.
pub(super) async fn generate(app: Arc<App>, caller: Caller, mut fields: Fields) -> Answer {
    let name = fields.text("model")?;
    let (name, keep) = (fields.needed("model", name)?, keep_alive(&mut fields)?);
    let stream = fields.flag("stream")?.unwrap_or(true);
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let system = fields.text("system")?.filter(|system| !system.is_empty());
    if prompt.is_empty() && system.is_none() {
        return loaded(&app, name, keep, Kind::Generate).await;
    }
    let model = app.model(Some(name)).await?;
    app.keep(&model, keep);
    let (language, asked_of) = (Arc::clone(model.taking()?), Arc::clone(&model));
    fields.refuse("suffix", &["".into()], "the template of the model, given as a raw prompt, works")?;
    fields.refuse("template", &["".into()], "the model's own is used; raw: true leaves it out")?;
    fields.refuse("context", &[json!([])], "/api/chat has conversations")?;
    fields.refuse("images", &[json!([])], "models answer texts")?;
    let raw = fields.flag("raw")?.unwrap_or(false) || !language.chats();
    let started = move || {
        let variables = think(&mut fields, &asked_of, &language.template_source)?;
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
    answer(&app, &model, Kind::Generate, stream, on_a_thread(started).await?).await
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Chat,
    Generate,
}

/// The answer to a request that asks nothing: it opens the model, or closes it.
async fn loaded(app: &Arc<App>, name: String, keep: Keep, kind: Kind) -> Answer {
    let (name, reason) = if keep == Some(Some(Duration::ZERO)) {
        let known = app.known(Some(name)).await?;
        app.unload(&known.name);
        (known.name, "unload")
    } else {
        let model = app.model(Some(name)).await?;
        model.language()?;
        app.keep(&model, keep);
        (model.name().to_owned(), "load")
    };
    let mut value = line(&name, kind, "", "", &[]);
    value.insert("done".to_owned(), true.into());
    value.insert("done_reason".to_owned(), reason.into());
    Ok(json_answer(&value.into()))
}

async fn answer(app: &App, model: &Loaded, kind: Kind, stream: bool, replies: Vec<super::reply::Reply>) -> Answer {
    let begun = Instant::now();
    let name = model.name().to_owned();
    if stream {
        return Ok(streamed(replies, Box::new(Lines { name, kind, begun }), app.limits.ping));
    }
    let whole = gather(replies).await?.pop().ok_or_else(|| Failure::unavailable("the engine has ended"))?;
    let mut value = line(&name, kind, &whole.text, &whole.thought, &whole.calls);
    finish(&mut value, &whole.end, begun);
    Ok(json_answer(&value.into()))
}

/// A line, without its end.
fn line(model: &str, kind: Kind, text: &str, thought: &str, calls: &[NamedCall]) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("model".to_owned(), model.into());
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
    name: String,
    kind: Kind,
    begun: Instant,
}

impl Writer for Lines {
    fn begin(&mut self, _: &mut String) {}

    fn piece(&mut self, _: usize, piece: Piece, out: &mut String) {
        let value = match piece {
            Piece::Delta { thought, text, calls, .. } => line(&self.name, self.kind, &text, &thought, &calls).into(),
            Piece::End(End { finish: Finish::Error(error), .. }) => Failure::from(&*error).json(Dialect::Ollama),
            Piece::End(end) => {
                let mut value = line(&self.name, self.kind, "", "", &[]);
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
pub(super) async fn embed(app: &Arc<App>, mut fields: Fields) -> Answer {
    let name = fields.text("model")?;
    let keep = keep_alive(&mut fields)?;
    let texts = vectors::texts(&mut fields, "input")?;
    let model = app.model(name).await?;
    app.keep(&model, keep);
    let made = of_texts(&model)?;
    fields.refuse("dimensions", &[], "vectors are as long as the model makes them")?;
    let truncate = fields.flag("truncate")?.unwrap_or(true);
    fields.ignore(&["options"]);
    let begun = Instant::now();
    let made = made.of(Texts::Single { texts, truncate }).await?;
    let time = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    on_a_thread(move || {
        let embeddings: Vec<Value> = made.vectors.iter().map(|vector| vectors::numbers(vector)).collect();
        Ok(json_answer(&json!({
            "model": model.name(), "embeddings": embeddings, "total_duration": time, "load_duration": 0,
            "prompt_eval_count": made.tokens,
        })))
    })
    .await
}

fn of_texts(model: &Loaded) -> Outcome<&super::app::Vectors> {
    let made = model.vectors()?;
    if made.scores {
        return Err(Failure::unsupported("a vector", "this model gives scores of pairs: /v1/rerank works"));
    }
    Ok(made)
}

/// `/api/embeddings`, the older form: one text.
pub(super) async fn embeddings(app: &Arc<App>, mut fields: Fields) -> Answer {
    let name = fields.text("model")?;
    let name = fields.needed("model", name)?;
    let keep = keep_alive(&mut fields)?;
    let text = fields.text("prompt")?;
    let text = fields.needed("prompt", text)?;
    if text.is_empty() {
        return Err(Failure::invalid("prompt", "it is empty; one character or more works"));
    }
    fields.ignore(&["options"]);
    let model = app.model(Some(name)).await?;
    app.keep(&model, keep);
    let made = of_texts(&model)?.of(Texts::Single { texts: vec![text], truncate: true }).await?;
    let vector = made.vectors.first().map_or(json!([]), |vector| vectors::numbers(vector));
    Ok(json_answer(&json!({ "embedding": vector })))
}

/// What is known of a model without its files: the quantisation stands in its name.
fn details(known: &Known, model: Option<&Model>) -> Value {
    let family = model.map_or("", |model| model.arch);
    let size = model.map_or_else(String::new, |model| format!("{:.1}M", model.parameters as f64 / 1e6));
    let quant = known.name.rsplit_once(':').map_or("", |(_, quant)| quant);
    json!({
        "parent_model": "", "format": "gguf", "family": family, "families": [family], "parameter_size": size,
        "quantization_level": quant,
    })
}

fn card(app: &App, known: &Known, model: Option<&Model>) -> Value {
    json!({
        "name": known.name, "model": known.name, "modified_at": timestamp(modified(app, known)), "size": known.bytes,
        "digest": known.commit, "details": details(known, model),
    })
}

fn modified(app: &App, known: &Known) -> SystemTime {
    known.modified.unwrap_or(UNIX_EPOCH + Duration::from_secs(app.created))
}

/// `/api/tags`: all models that are here.
pub(super) fn tags(app: &App, all: &[Known]) -> Value {
    let models: Vec<Value> = all.iter().map(|known| card(app, known, None)).collect();
    json!({ "models": models })
}

/// `/api/ps`: the models that are open.
pub(super) fn ps(app: &App) -> Value {
    let one = |(model, left): &(Arc<Loaded>, Option<Duration>)| {
        let language = model.language().ok();
        let mut card = card(app, &model.known, language.map(|language| language.model.model()));
        if let Value::Object(card) = &mut card {
            card.remove("modified_at");
            let ends = left.and_then(|left| SystemTime::now().checked_add(left));
            let ends = ends.map_or("9999-12-31T23:59:59Z".to_owned(), timestamp);
            card.insert("expires_at".to_owned(), ends.into());
            let on_gpu = if model.on_gpu { model.known.bytes } else { 0 };
            card.insert("size_vram".to_owned(), on_gpu.into());
            if let Some(language) = language {
                card.insert("context_length".to_owned(), language.model.handle().context().into());
            }
        }
        card
    };
    let models: Vec<Value> = app.loaded().iter().map(one).collect();
    json!({ "models": models })
}

/// `/api/show`: what the files of a model say; it is not opened for that.
pub(super) async fn show(app: &Arc<App>, mut fields: Fields) -> Answer {
    let name = fields.text("model")?.or(fields.text("name")?);
    let known = app.known(Some(fields.needed("model", name)?)).await?;
    let of = Arc::clone(app);
    on_a_thread(move || {
        let model = of.catalog.inspect(&known)?;
        let (mut template, mut capabilities, mut info) = (String::new(), Vec::new(), Map::new());
        info.insert("general.architecture".to_owned(), model.arch.into());
        info.insert("general.parameter_count".to_owned(), model.parameters.into());
        info.insert(format!("{}.context_length", model.arch), model.program.context.into());
        if model.program.logits().is_some() {
            template = model.chat_template.clone().unwrap_or_default();
            capabilities.push("completion");
            let format = AnswerFormat::of_template(&template);
            capabilities.extend(format.calls().then_some("tools"));
            capabilities.extend(format.thinks().then_some("thinking"));
        } else {
            capabilities.push("embedding");
        }
        Ok(json_answer(&json!({
            "modelfile": "", "parameters": "", "template": template, "details": details(&known, Some(&model)),
            "model_info": info, "capabilities": capabilities, "modified_at": timestamp(modified(&of, &known)),
        })))
    })
    .await
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
    fn times_to_stay_are_read_as_go_writes_them() {
        let of = |ms| Some(Some(Duration::from_millis(ms)));
        for (text, expected) in [
            ("5m", of(300_000)),
            ("1h30m", of(5_400_000)),
            ("1.5s", of(1500)),
            ("250ms", of(250)),
            ("60", of(60_000)),
            ("0", of(0)),
            ("-1", Some(None)),
            ("-1m", Some(None)),
            ("", None),
            ("-", None),
            ("m", None),
            ("5 m", None),
            ("5mm", None),
            ("5m3", None),
            ("1e9s", None),
            ("99999999999999999999999h", None),
            ("NaN", None),
        ] {
            assert_eq!(duration(text), expected, "{text}");
        }
    }

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
