//! OpenAI's `/v1/responses`, without what it stores.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::app::{App, Language, now};
use super::ask::{self, Ask, Asked, random_name};
use super::failure::{Failure, Outcome};
use super::fields::Fields;
use super::http::{Answer, json_answer, on_a_thread};
use super::openai::reasoning;
use super::policy::Caller;
use super::reply::{End, NamedCall, Piece, gather};
use super::stream::{Writer, event, streamed};
use crate::engine::Finish;

/// Reads a request; what of it the response repeats, too.
fn read(fields: &mut Fields, language: &Language) -> Outcome<(Ask, Map<String, Value>)> {
    let mut echo = Map::new();
    let mut messages = Vec::new();
    let instructions = fields.text("instructions")?;
    if let Some(text) = &instructions {
        messages.push(json!({ "role": "system", "content": text }));
    }
    echo.insert("instructions".to_owned(), instructions.into());
    match fields.take("input") {
        None => fields.needed("input", None)?,
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(items)) => {
            let mut thought = String::new();
            for (i, item) in items.into_iter().enumerate() {
                one_item(format!("input[{i}]"), item, &mut messages, &mut thought)?;
            }
        }
        Some(_) => return Err(Failure::invalid("input", "a string or a list of items works")),
    }
    let list = fields.list("tools")?.unwrap_or_default();
    echo.insert("tools".to_owned(), list.clone().into());
    let one = |(i, tool): (usize, Value)| {
        let mut tool = Fields::within(format!("tools[{i}]"), tool)?;
        let kind = tool.text("type")?;
        if tool.needed("type", kind)? != "function" {
            return Err(Failure::unsupported(tool.at("type"), "the server has no tools of its own; function works"));
        }
        Ok(json!({ "type": "function", "function": tool.rest() }))
    };
    let mut tools = ask::tools(list.into_iter().enumerate().map(one).collect::<Outcome<_>>()?)?;
    match fields.take("tool_choice") {
        None => {}
        Some(Value::String(choice)) if choice == "auto" => {}
        Some(Value::String(choice)) if choice == "none" => {
            tools.clear();
            echo.insert("tool_choice".to_owned(), choice.into());
        }
        Some(_) => {
            let instead = "calls cannot be held to a grammar yet; auto and none work";
            return Err(Failure::unsupported("tool_choice", instead));
        }
    }
    let mut variables = Map::new();
    if let Some(mut thinking) = fields.object("reasoning")? {
        if let Some(effort) = thinking.text("effort")? {
            reasoning(&effort, &mut variables)?;
        }
        // The thoughts themselves are sent: no summary is made of them.
        thinking.ignore(&["summary", "generate_summary"]);
    }
    if let Some(mut text) = fields.object("text")? {
        text.refuse("format", &[json!({ "type": "text" })], "answers cannot be held to a grammar yet; text works")?;
        text.refuse("verbosity", &["medium".into()], "a word about it in the instructions works")?;
    }
    fields.refuse("previous_response_id", &[], "nothing is stored: the whole conversation, as input, works")?;
    fields.refuse("conversation", &[], "nothing is stored: the whole conversation, as input, works")?;
    fields.refuse("prompt", &[], "nothing is stored: instructions works")?;
    fields.refuse("background", &[false.into()], "nothing is stored: stream works")?;
    fields.refuse("truncation", &["disabled".into()], "fewer items work")?;
    fields.refuse("parallel_tool_calls", &[true.into()], "the model decides how many tools it calls; true works")?;
    fields.refuse("max_tool_calls", &[], "the server has no tools of its own")?;
    fields.refuse("service_tier", &["auto".into(), "default".into()], "there is one tier; auto works")?;
    fields.refuse("top_logprobs", &[0.into()], "/v1/chat/completions has them")?;
    fields.refuse("n", &[1.into()], "/v1/chat/completions has it")?;
    // Thoughts are in the answer as they are, and what the other names add comes of tools that the server has not.
    for what in fields.list("include")?.unwrap_or_default() {
        if what == "message.output_text.logprobs" {
            return Err(Failure::unsupported("include: message.output_text.logprobs", "/v1/chat/completions has them"));
        }
    }
    // Clients ask to store by default; that nothing is stored shows when they ask for it, and in the response.
    fields.ignore(&[
        "store",
        "metadata",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "client_metadata",
    ]);
    let asked = Asked::Messages { messages: ask::messages(messages, &language.template_source)?, tools, variables };
    let mut ask = Ask::new(asked, &language.model.model().sampling);
    ask.sample(fields, language.vocab())?;
    ask.max_tokens = fields.count("max_output_tokens", 1..=u32::MAX)?;
    echo.insert("max_output_tokens".to_owned(), ask.max_tokens.into());
    echo.insert("temperature".to_owned(), f64::from(ask.sampling.temperature).into());
    echo.insert("top_p".to_owned(), f64::from(ask.sampling.top_p).into());
    Ok((ask, echo))
}

/// An item of the input as messages. A thought belongs to the answer that follows it: some templates show it to the model again.
fn one_item(path: String, item: Value, to: &mut Vec<Value>, thought: &mut String) -> Outcome<()> {
    let mut item = Fields::within(path, item)?;
    let kind = item.text("type")?;
    match kind.as_deref().unwrap_or("message") {
        "message" => {
            item.ignore(&["id", "status"]);
            let mut message = item.rest();
            let thought = std::mem::take(thought);
            if !thought.is_empty() && message.get("role").is_some_and(|role| role == "assistant") {
                message.insert("reasoning_content".to_owned(), thought.into());
            }
            to.push(message.into());
        }
        "function_call" => {
            let (id, name) = (item.text("call_id")?, item.text("name")?);
            let (id, name) = (item.needed("call_id", id)?, item.needed("name", name)?);
            let arguments = item.text("arguments")?;
            let call = json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
            // Calls follow the words of the same answer, or one another.
            match to.last_mut() {
                Some(Value::Object(last)) if last.get("role").is_some_and(|role| role == "assistant") => {
                    match last.get_mut("tool_calls") {
                        Some(Value::Array(calls)) => calls.push(call),
                        _ => _ = last.insert("tool_calls".to_owned(), json!([call])),
                    }
                }
                _ => {
                    let mut message = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
                    if !thought.is_empty() {
                        message["reasoning_content"] = std::mem::take(thought).into();
                    }
                    to.push(message);
                }
            }
            thought.clear();
        }
        "function_call_output" => {
            let id = item.text("call_id")?;
            let id = item.needed("call_id", id)?;
            let output = item.take("output");
            let output = item.needed("output", output)?;
            to.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
        }
        // A summary is none of what the model has thought.
        "reasoning" => {
            let at = item.at("content");
            for (i, part) in item.list("content")?.unwrap_or_default().into_iter().enumerate() {
                let mut part = Fields::within(format!("{at}[{i}]"), part)?;
                thought.push_str(&part.text("text")?.unwrap_or_default());
            }
        }
        other => {
            let instead = format!("{other}: message, function_call, function_call_output and reasoning work");
            return Err(Failure::unsupported(item.at("type"), instead));
        }
    }
    Ok(())
}

/// `/v1/responses`.
pub(super) async fn create(app: Arc<App>, caller: Caller, mut fields: Fields) -> Answer {
    let served = app.model(fields.text("model")?).await?;
    let language = Arc::clone(served.taking()?);
    let stream = fields.flag("stream")?.unwrap_or(false);
    if let Some(mut options) = fields.object("stream_options")? {
        options.refuse("include_obfuscation", &[false.into()], "nothing is hidden here; false works")?;
    }
    let started = move || {
        let (ask, echo) = read(&mut fields, &language)?;
        Ok((language.start(ask, caller.salt)?, echo))
    };
    let (replies, echo) = on_a_thread(started).await?;
    let (id, model) = (format!("resp_{}", random_name(24)), served.name().to_owned());
    let head = Head { id, created: now().unwrap_or(0), model, echo };
    if stream {
        let writer = Events { head, number: 0, open: None, output: Vec::new(), end: None };
        return Ok(streamed(replies, Box::new(writer), app.limits.ping));
    }
    let whole = gather(replies).await?.pop().ok_or_else(|| Failure::unavailable("the engine has ended"))?;
    let mut output = Vec::new();
    if !whole.thought.is_empty() {
        output.push(Item::new(Kind::Thought, whole.thought).done());
    }
    if !whole.text.is_empty() || whole.calls.is_empty() {
        output.push(Item::new(Kind::Text, whole.text).done());
    }
    output.extend(whole.calls.iter().map(|named| call(named, "completed")));
    Ok(json_answer(&head.response(&output, Some(&whole.end))))
}

/// What is the same in all states of a response.
struct Head {
    id: String,
    created: i64,
    model: String,
    echo: Map<String, Value>,
}

impl Head {
    fn response(&self, output: &[Value], end: Option<&End>) -> Value {
        let (status, details) = match end {
            None => ("in_progress", Value::Null),
            Some(End { finish: Finish::Error(_), .. }) => ("failed", Value::Null),
            Some(end) if end.reason() == "length" => ("incomplete", json!({ "reason": "max_output_tokens" })),
            Some(_) => ("completed", Value::Null),
        };
        let error = match end.map(|end| &end.finish) {
            Some(Finish::Error(error)) => {
                json!({ "code": "server_error", "message": Failure::from(&**error).message })
            }
            _ => Value::Null,
        };
        let usage = end.map_or(Value::Null, |end| {
            let (prompt, made) = (end.usage.prompt, end.usage.generated);
            json!({
                "input_tokens": prompt, "input_tokens_details": { "cached_tokens": end.usage.reused },
                "output_tokens": made, "output_tokens_details": { "reasoning_tokens": end.thought },
                "total_tokens": prompt + made,
            })
        });
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": error,
            "incomplete_details": details, "model": self.model, "output": output, "parallel_tool_calls": true,
            "previous_response_id": null, "reasoning": { "effort": null, "summary": null }, "store": false,
            "text": { "format": { "type": "text" } }, "tool_choice": "auto", "truncation": "disabled",
            "usage": usage, "user": null, "metadata": {},
        });
        if let Value::Object(response) = &mut response {
            response.extend(self.echo.clone());
        }
        response
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thought,
    Text,
}

/// An item of the output that holds text.
struct Item {
    kind: Kind,
    id: String,
    text: String,
}

impl Item {
    fn new(kind: Kind, text: String) -> Self {
        let prefix = if kind == Kind::Text { "msg" } else { "rs" };
        Self { kind, id: format!("{prefix}_{}", random_name(24)), text }
    }

    fn part(&self) -> Value {
        match self.kind {
            Kind::Text => json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] }),
            Kind::Thought => json!({ "type": "reasoning_text", "text": self.text }),
        }
    }

    fn value(&self, status: &str, content: &[Value]) -> Value {
        match self.kind {
            Kind::Text => {
                json!({ "type": "message", "id": self.id, "status": status, "role": "assistant", "content": content })
            }
            Kind::Thought => {
                json!({ "type": "reasoning", "id": self.id, "summary": [], "content": content, "status": status })
            }
        }
    }

    fn done(&self) -> Value {
        self.value("completed", &[self.part()])
    }

    /// What events about its text are called.
    fn name(&self) -> &'static str {
        if self.kind == Kind::Text { "response.output_text" } else { "response.reasoning_text" }
    }
}

fn call(named: &NamedCall, status: &str) -> Value {
    let arguments = Value::Object(named.call.arguments.clone()).to_string();
    json!({
        "type": "function_call", "id": format!("fc_{}", named.id), "call_id": named.id, "name": named.call.name,
        "arguments": if status == "completed" { arguments } else { String::new() }, "status": status,
    })
}

struct Events {
    head: Head,
    number: u64,
    open: Option<Item>,
    output: Vec<Value>,
    end: Option<End>,
}

impl Events {
    fn send(&mut self, name: &str, mut value: Value, out: &mut String) {
        if let Value::Object(value) = &mut value {
            value.insert("type".to_owned(), name.into());
            value.insert("sequence_number".to_owned(), self.number.into());
        }
        self.number += 1;
        event(name, &value, out);
    }

    fn open(&mut self, kind: Kind, out: &mut String) {
        if self.open.as_ref().is_some_and(|item| item.kind == kind) {
            return;
        }
        self.close(out);
        let (item, index) = (Item::new(kind, String::new()), self.output.len());
        let value = json!({ "output_index": index, "item": item.value("in_progress", &[]) });
        self.send("response.output_item.added", value, out);
        let value = json!({ "item_id": item.id, "output_index": index, "content_index": 0, "part": item.part() });
        self.send("response.content_part.added", value, out);
        self.open = Some(item);
    }

    fn close(&mut self, out: &mut String) {
        let Some(item) = self.open.take() else { return };
        let index = self.output.len();
        let value = json!({
            "item_id": item.id, "output_index": index, "content_index": 0, "text": item.text, "logprobs": [],
        });
        self.send(&format!("{}.done", item.name()), value, out);
        let value = json!({ "item_id": item.id, "output_index": index, "content_index": 0, "part": item.part() });
        self.send("response.content_part.done", value, out);
        self.send("response.output_item.done", json!({ "output_index": index, "item": item.done() }), out);
        self.output.push(item.done());
    }

    fn say(&mut self, kind: Kind, text: &str, out: &mut String) {
        if text.is_empty() {
            return;
        }
        self.open(kind, out);
        let index = self.output.len();
        let Some(item) = &mut self.open else { return };
        item.text.push_str(text);
        let (name, id) = (format!("{}.delta", item.name()), item.id.clone());
        let value = json!({ "item_id": id, "output_index": index, "content_index": 0, "delta": text, "logprobs": [] });
        self.send(&name, value, out);
    }

    fn call(&mut self, named: &NamedCall, out: &mut String) {
        self.close(out);
        let index = self.output.len();
        let value = json!({ "output_index": index, "item": call(named, "in_progress") });
        self.send("response.output_item.added", value, out);
        let done = call(named, "completed");
        let arguments = json!({ "item_id": done["id"], "output_index": index, "delta": done["arguments"] });
        self.send("response.function_call_arguments.delta", arguments, out);
        let arguments = json!({
            "item_id": done["id"], "output_index": index, "name": done["name"], "arguments": done["arguments"],
        });
        self.send("response.function_call_arguments.done", arguments, out);
        self.send("response.output_item.done", json!({ "output_index": index, "item": done }), out);
        self.output.push(done);
    }
}

impl Writer for Events {
    fn begin(&mut self, out: &mut String) {
        let response = self.head.response(&[], None);
        self.send("response.created", json!({ "response": response }), out);
        self.send("response.in_progress", json!({ "response": response }), out);
    }

    fn piece(&mut self, _: usize, piece: Piece, out: &mut String) {
        match piece {
            Piece::Delta { thought, text, calls, .. } => {
                self.say(Kind::Thought, &thought, out);
                self.say(Kind::Text, &text, out);
                calls.iter().for_each(|named| self.call(named, out));
            }
            Piece::End(end) => self.end = Some(end),
        }
    }

    fn end(&mut self, out: &mut String) {
        let Some(end) = self.end.take() else { return };
        if let Finish::Error(error) = &end.finish {
            let failure = Failure::from(&**error);
            let error = json!({ "code": failure.code, "message": failure.message, "param": null });
            self.send("error", error, out);
        } else if self.output.is_empty() && self.open.is_none() {
            self.open(Kind::Text, out);
        }
        self.close(out);
        let response = self.head.response(&self.output, Some(&end));
        let status = response["status"].as_str().unwrap_or("completed").to_owned();
        self.send(&format!("response.{status}"), json!({ "response": response }), out);
    }

    fn ping(&mut self, out: &mut String) {
        out.push_str(": ping\n\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_belong_to_the_answers_that_follow_them() {
        let (mut to, mut thought) = (Vec::new(), String::new());
        let mut add = |item: Value| one_item("input[0]".to_owned(), item, &mut to, &mut thought).unwrap();
        let reasoning = |text: &str| {
            json!({ "type": "reasoning", "summary": [{ "type": "summary_text", "text": "Short." }],
                "content": [{ "type": "reasoning_text", "text": text }] })
        };
        add(json!({ "role": "user", "content": "a" }));
        add(reasoning("I look."));
        add(json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" }));
        add(json!({ "type": "function_call_output", "call_id": "c", "output": "1" }));
        add(reasoning("I say it."));
        add(json!({ "type": "message", "role": "assistant", "content": "1" }));
        add(json!({ "type": "reasoning", "summary": [], "encrypted_content": null }));
        add(reasoning("Nothing follows."));
        add(json!({ "role": "user", "content": "b" }));
        add(json!({ "role": "assistant", "content": "c" }));
        let thoughts: Vec<_> = to.iter().map(|message| message["reasoning_content"].as_str()).collect();
        assert_eq!(thoughts, [None, Some("I look."), None, Some("I say it."), None, None]);
    }
}
