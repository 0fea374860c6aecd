//! What a client asks a model for, whichever API it speaks: fields that several have, and messages as templates read them.

use std::hash::{BuildHasher, Hasher, RandomState};

use serde_json::{Map, Value, json};

use super::failure::{Failure, Outcome};
use super::fields::{Fields, kind};
use crate::chat::adapt;
use crate::model::SamplingDefaults;
use crate::ops::Penalties;
use crate::sample::Sampling;

/// Stop strings at most.
pub(super) const STOPS: usize = 64;
/// Messages at most.
const MESSAGES: usize = 16_384;
/// Tools at most.
const TOOLS: usize = 1024;

/// A prompt, as one of the APIs gives it.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// Messages as templates read them, tools, and more variables of the template.
    Messages { messages: Vec<Value>, tools: Vec<Value>, variables: Map<String, Value> },
    /// A text to be continued as it is.
    Text(String),
    /// Tokens to be continued.
    Ids(Vec<u32>),
}

/// A request to a model.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) asked: Asked,
    pub(super) sampling: Sampling,
    pub(super) max_tokens: Option<u32>,
    pub(super) stop: Vec<String>,
    pub(super) stop_ids: Vec<u32>,
    pub(super) logprobs: Option<u32>,
    pub(super) bias: Vec<(u32, f32)>,
    /// How many answers.
    pub(super) n: u32,
}

impl Ask {
    /// One answer, sampled as a model's files recommend, else as OpenAI does.
    pub(super) fn new(asked: Asked, files: &SamplingDefaults) -> Self {
        let sampling = Sampling {
            temperature: files.temperature.unwrap_or(1.0),
            top_p: files.top_p.unwrap_or(1.0),
            top_k: files.top_k.unwrap_or(0),
            min_p: files.min_p.unwrap_or(0.0),
            penalties: Penalties { repeat: files.repeat_penalty.unwrap_or(1.0), ..Penalties::NONE },
            last_n: files.last_n.unwrap_or(Sampling::GREEDY.last_n),
            seed: random(),
            ..Sampling::GREEDY
        };
        // Files may say what does not work; then they say nothing.
        let sampling = if sampling.check().is_ok() {
            sampling
        } else {
            Sampling { temperature: 1.0, seed: random(), ..Sampling::GREEDY }
        };
        Self {
            asked,
            sampling,
            max_tokens: None,
            stop: Vec::new(),
            stop_ids: Vec::new(),
            logprobs: None,
            bias: Vec::new(),
            n: 1,
        }
    }

    /// The fields about sampling that OpenAI has, and those that other servers added under names that all use.
    pub(super) fn sample(&mut self, fields: &mut Fields, vocab: u32) -> Outcome<()> {
        let sampling = &mut self.sampling;
        let set = |to: &mut f32, value: Option<f32>| *to = value.unwrap_or(*to);
        set(&mut sampling.temperature, fields.number("temperature", 0.0..=100.0)?);
        set(&mut sampling.top_p, fields.part("top_p")?);
        set(&mut sampling.min_p, fields.number("min_p", 0.0..=1.0)?);
        set(&mut sampling.typical, fields.part("typical_p")?);
        set(&mut sampling.penalties.presence, fields.number("presence_penalty", -10.0..=10.0)?);
        set(&mut sampling.penalties.frequency, fields.number("frequency_penalty", -10.0..=10.0)?);
        set(&mut sampling.penalties.repeat, fields.number("repetition_penalty", 0.01..=10.0)?);
        set(&mut sampling.penalties.repeat, fields.number("repeat_penalty", 0.01..=10.0)?);
        set(&mut sampling.xtc.probability, fields.number("xtc_probability", 0.0..=1.0)?);
        set(&mut sampling.xtc.threshold, fields.number("xtc_threshold", 0.0..=1.0)?);
        set(&mut sampling.dry.multiplier, fields.number("dry_multiplier", 0.0..=100.0)?);
        set(&mut sampling.dry.base, fields.number("dry_base", 1.0..=100.0)?);
        sampling.dry.allowed = fields.count("dry_allowed_length", 0..=4096)?.unwrap_or(sampling.dry.allowed);
        // llama.cpp's -1 searches all, and 0 none.
        match fields.integer("dry_penalty_last_n", -1..=i64::from(u32::MAX))? {
            None => {}
            Some(0) => sampling.dry.multiplier = 0.0,
            Some(last) => sampling.dry.last_n = u32::try_from(last).unwrap_or(0),
        }
        fields.refuse(
            "dry_sequence_breakers",
            &[json!([])],
            "repetitions are found over all tokens; an empty list works",
        )?;
        if let Some(top_k) = fields.integer("top_k", -1..=i64::from(u32::MAX))? {
            // vLLM's -1: all.
            sampling.top_k = u32::try_from(top_k).unwrap_or(0);
        }
        if let Some(seed) = fields.integer("seed", i64::MIN..=i64::MAX)? {
            sampling.seed = seed.cast_unsigned();
        }
        self.n = fields.count("n", 1..=128)?.unwrap_or(1);
        self.stop = fields.texts("stop", STOPS)?;
        if let Some(ids) = fields.list("stop_token_ids")? {
            self.stop_ids = token_ids(&ids, "stop_token_ids", vocab)?;
            if self.stop_ids.len() > STOPS / 2 {
                return Err(Failure::invalid(
                    "stop_token_ids",
                    format!("{} ids; at most {} work", ids.len(), STOPS / 2),
                ));
            }
        }
        if let Some(bias) = fields.object("logit_bias")? {
            self.bias = biases(bias.rest(), vocab)?;
        }
        const GRAMMARS: &str = "answers cannot be held to a grammar yet";
        for name in ["grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar"] {
            fields.refuse(name, &[], GRAMMARS)?;
        }
        fields.refuse("structured_outputs", &[], GRAMMARS)?;
        fields.refuse("ignore_eos", &[false.into()], "a logit_bias of -100 for the last token works")?;
        fields.refuse("min_tokens", &[0.into()], "a logit_bias of -100 for the last token works")?;
        fields.refuse("use_beam_search", &[false.into()], "n answers work")?;
        Ok(())
    }
}

/// Token ids in a request.
pub(super) fn token_ids(ids: &[Value], name: &str, vocab: u32) -> Outcome<Vec<u32>> {
    let one = |(i, id): (usize, &Value)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < vocab);
        id.ok_or_else(|| Failure::invalid(format!("{name}[{i}]"), format!("{}; 0 to {} work", ids[i], vocab - 1)))
    };
    ids.iter().enumerate().map(one).collect()
}

fn biases(map: Map<String, Value>, vocab: u32) -> Outcome<Vec<(u32, f32)>> {
    const MOST: usize = 1024;
    if map.len() > MOST {
        return Err(Failure::invalid("logit_bias", format!("{} tokens; at most {MOST} work", map.len())));
    }
    let mut biases: Vec<(u32, f32)> = map
        .into_iter()
        .map(|(token, bias)| {
            let at = format!("logit_bias.{token}");
            let id = token.parse::<u32>().ok().filter(|id| *id < vocab);
            let id = id.ok_or_else(|| {
                let works = format!("no token; ids from 0 to {} work, /tokenize shows them", vocab - 1);
                Failure::invalid(&at, works)
            })?;
            let value = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
            let value = value.ok_or_else(|| Failure::invalid(&at, format!("{bias}; -100 to 100 works")))?;
            Ok((id, value as f32))
        })
        .collect::<Outcome<_>>()?;
    // "1" and "01" are one token.
    biases.sort_by_key(|(id, _)| *id);
    if let Some(pair) = biases.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Failure::invalid("logit_bias", format!("token {} twice; once works", pair[0].0)));
    }
    Ok(biases)
}

/// OpenAI's messages, as templates read them. A template that knows no developer is given a system's message.
pub(super) fn messages(list: Vec<Value>, template: &str) -> Outcome<Vec<Value>> {
    if list.is_empty() {
        return Err(Failure::invalid("messages", "there is none; one or more work"));
    }
    if list.len() > MESSAGES {
        return Err(Failure::invalid("messages", format!("{} messages; at most {MESSAGES} work", list.len())));
    }
    list.into_iter().enumerate().map(|(i, message)| one_message(format!("messages[{i}]"), message, template)).collect()
}

fn one_message(path: String, message: Value, template: &str) -> Outcome<Value> {
    let mut fields = Fields::within(path, message)?;
    let role = fields.text("role")?;
    let role = fields.needed("role", role)?;
    let mut to = Map::new();
    let content = content(&mut fields)?;
    match role.as_str() {
        "system" | "user" | "developer" => {
            let content = fields.needed("content", content)?;
            to.insert("content".to_owned(), content.into());
        }
        "assistant" => {
            fields.refuse("audio", &[], "text works")?;
            fields.refuse("function_call", &[], "tool_calls works")?;
            let calls = fields.list("tool_calls")?.filter(|calls| !calls.is_empty());
            // An answer without a word is an answer, too: a model may end at once.
            let content = content.unwrap_or_default();
            let thought = fields.text("reasoning_content")?;
            if let Some(thought) = fields.text("reasoning")?.or(thought) {
                to.insert("reasoning_content".to_owned(), thought.into());
            }
            to.insert("content".to_owned(), content.into());
            if let Some(calls) = calls {
                let at = fields.at("tool_calls");
                let calls: Vec<Value> = calls
                    .into_iter()
                    .enumerate()
                    .map(|(i, call)| tool_call(format!("{at}[{i}]"), call))
                    .collect::<Outcome<_>>()?;
                to.insert("tool_calls".to_owned(), calls.into());
            }
        }
        "tool" => {
            let content = fields.needed("content", content)?;
            to.insert("content".to_owned(), content.into());
            if let Some(id) = fields.text("tool_call_id")? {
                to.insert("tool_call_id".to_owned(), id.into());
            }
        }
        other => {
            let problem = format!("{other:?}; system, developer, user, assistant and tool work");
            return Err(Failure::invalid(fields.at("role"), problem));
        }
    }
    if let Some(name) = fields.text("name")? {
        to.insert("name".to_owned(), name.into());
    }
    to.insert("role".to_owned(), role.into());
    adapt(&mut to, template);
    Ok(Value::Object(to))
}

/// A text, or parts that are texts.
fn content(fields: &mut Fields) -> Outcome<Option<String>> {
    let at = fields.at("content");
    match fields.take("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let mut all = String::new();
            for (i, part) in parts.into_iter().enumerate() {
                let mut part = Fields::within(format!("{at}[{i}]"), part)?;
                let kind = part.text("type")?;
                match part.needed("type", kind)?.as_str() {
                    "text" | "input_text" | "output_text" | "refusal" => {
                        let text = part.text("text")?.or(part.text("refusal")?);
                        all.push_str(&part.needed("text", text)?);
                    }
                    other => {
                        return Err(Failure::unsupported(
                            part.at("type"),
                            format!("{other} needs a model with other senses; text works"),
                        ));
                    }
                }
            }
            Ok(Some(all))
        }
        Some(other) => {
            Err(Failure::invalid(at, format!("it is {}; a string, or a list of parts, works", kind(&other))))
        }
    }
}

/// A call that a model made. Templates want its arguments as an object.
fn tool_call(path: String, call: Value) -> Outcome<Value> {
    let mut call = Fields::within(path, call)?;
    let id = call.text("id")?;
    let function = call.object("function")?;
    let mut function = call.needed("function", function)?;
    let name = function.text("name")?;
    let name = function.needed("name", name)?;
    let arguments = match function.take("arguments") {
        None => Value::Object(Map::new()),
        Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(Value::Object(arguments)) => Value::Object(arguments),
            _ => Value::String(text),
        },
        Some(Value::Object(arguments)) => Value::Object(arguments),
        Some(other) => {
            return Err(Failure::invalid(function.at("arguments"), format!("it is {}; a string works", kind(&other))));
        }
    };
    Ok(json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }))
}

/// OpenAI's tools, as templates read them.
pub(super) fn tools(list: Vec<Value>) -> Outcome<Vec<Value>> {
    if list.len() > TOOLS {
        return Err(Failure::invalid("tools", format!("{} tools; at most {TOOLS} work", list.len())));
    }
    list.into_iter()
        .enumerate()
        .map(|(i, tool)| {
            let mut tool = Fields::within(format!("tools[{i}]"), tool)?;
            let kind = tool.text("type")?;
            if kind.as_deref().is_some_and(|kind| kind != "function") {
                return Err(Failure::unsupported(tool.at("type"), "function works"));
            }
            let function = tool.object("function")?;
            let mut function = tool.needed("function", function)?;
            let name = function.text("name")?;
            let name = function.needed("name", name)?;
            function.refuse("strict", &[false.into()], "calls cannot be held to a grammar yet")?;
            if let Some(parameters) = function.object("parameters")? {
                let mut rest = function.rest();
                rest.insert("name".to_owned(), name.into());
                rest.insert("parameters".to_owned(), parameters.rest().into());
                return Ok(json!({ "type": "function", "function": in_order(rest) }));
            }
            let mut rest = function.rest();
            rest.insert("name".to_owned(), name.into());
            Ok(json!({ "type": "function", "function": in_order(rest) }))
        })
        .collect()
}

/// As models have seen functions: name, description, parameters.
fn in_order(mut function: Map<String, Value>) -> Value {
    let mut to = Map::new();
    for name in ["name", "description", "parameters"] {
        if let Some(value) = function.remove(name) {
            to.insert(name.to_owned(), value);
        }
    }
    to.extend(function);
    Value::Object(to)
}

/// A random number: seeds and names.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random name of so many letters and digits.
pub(super) fn random_name(length: usize) -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut name = String::new();
    while name.len() < length {
        let mut bits = random();
        for _ in 0..12.min(length - name.len()) {
            name.push(char::from(LETTERS[(bits % 36) as usize]));
            bits /= 36;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_get_thoughts_by_their_names() {
        let call = json!({ "id": "c", "function": { "name": "f", "arguments": "{}" } });
        for (template, content, calls, expected) in [
            ("{{ message.thinking }}", "a", json!([]), Some("Hm.")),
            ("{{ message.thinking }}", "", json!([call]), Some("Hm.")),
            ("{{ message.thinking }}", "a", json!([call]), None),
            ("{{ message.reasoning_content }}", "a", json!([]), None),
        ] {
            let message = json!({
                "role": "assistant", "content": content, "reasoning_content": "Hm.", "tool_calls": calls,
            });
            let read = one_message("messages[0]".to_owned(), message, template).unwrap();
            assert_eq!(read.get("thinking").and_then(Value::as_str), expected, "{template} {content:?}");
            assert_eq!((&read["reasoning_content"], &read["content"]), (&json!("Hm."), &json!(content)));
        }
    }
}
