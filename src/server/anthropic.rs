//! Anthropic's `/v1/messages`, and what a prompt counts.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::app::{App, Language};
use super::ask::{self, Ask, Asked, random_name};
use super::failure::{Dialect, Failure, Outcome};
use super::fields::Fields;
use super::http::{Answer, json_answer, on_a_thread};
use super::openai::reasoning;
use super::policy::Caller;
use super::reply::{End, NamedCall, Piece, gather};
use super::stream::{Writer, event, streamed};
use crate::engine::Finish;

/// How a line begins that one popular client writes anew for each request at the start of the system prompt: it counts calls, and
/// says nothing to the model. With it no prompt would begin as the one before.
const BILLING: &str = "x-anthropic-billing-header:";

/// What is asked, without how it is sampled.
fn asked(fields: &mut Fields, language: &Language) -> Outcome<Asked> {
    let list = fields.list("messages")?;
    let list = fields.needed("messages", list)?;
    let mut messages = Vec::new();
    if let Some(system) = system(fields)? {
        messages.push(json!({ "role": "system", "content": system }));
    }
    for (i, message) in list.into_iter().enumerate() {
        one_message(format!("messages[{i}]"), message, &mut messages)?;
    }
    let mut tools = Vec::new();
    for (i, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        tools.push(one_tool(format!("tools[{i}]"), tool)?);
    }
    let mut tools = ask::tools(tools)?;
    if let Some(mut choice) = fields.object("tool_choice")? {
        choice.refuse("disable_parallel_tool_use", &[false.into()], "the model decides how many tools it calls")?;
        let kind = choice.text("type")?;
        match choice.needed("type", kind)?.as_str() {
            "auto" => {}
            "none" => tools.clear(),
            _ => {
                let instead = "calls cannot be held to a grammar yet; auto and none work";
                return Err(Failure::unsupported("tool_choice", instead));
            }
        }
    }
    let mut variables = Map::new();
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind = thinking.text("type")?;
        // How long it may think is up to max_tokens.
        thinking.count("budget_tokens", 1..=u32::MAX)?;
        let enabled = match thinking.needed("type", kind)?.as_str() {
            "enabled" | "adaptive" => true,
            "disabled" => false,
            other => {
                let works = format!("{other:?}; enabled, adaptive and disabled work");
                return Err(Failure::invalid("thinking.type", works));
            }
        };
        variables.insert("enable_thinking".to_owned(), enabled.into());
    }
    if let Some(mut output) = fields.object("output_config")? {
        output.refuse("format", &[], "answers cannot be held to a grammar yet")?;
        if let Some(effort) = output.text("effort")? {
            reasoning(if effort == "max" { "xhigh" } else { &effort }, &mut variables)?;
        }
    }
    fields.refuse("output_format", &[], "answers cannot be held to a grammar yet")?;
    fields.refuse("mcp_servers", &[json!([])], "the server opens no other connection; tools of yours work")?;
    fields.refuse("container", &[], "there are none")?;
    Ok(Asked::Messages { messages: ask::messages(messages, &language.template_source)?, tools, variables })
}

fn system(fields: &mut Fields) -> Outcome<Option<String>> {
    match fields.take("system") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(blocks)) => {
            let mut texts = Vec::new();
            for (i, block) in blocks.into_iter().enumerate() {
                let mut block = Fields::within(format!("system[{i}]"), block)?;
                let text = block.text("text")?;
                let text = block.needed("text", text)?;
                match without_billing(&text).filter(|_| i == 0) {
                    Some("") => {}
                    Some(rest) => texts.push(rest.to_owned()),
                    None => texts.push(text),
                }
            }
            Ok(Some(texts.join("\n\n")).filter(|text| !text.is_empty()))
        }
        Some(_) => Err(Failure::invalid("system", "a string or a list of text blocks works")),
    }
}

/// A text without its first line, if that is the one that counts calls.
fn without_billing(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let begins = text.get(..BILLING.len()).is_some_and(|start| start.eq_ignore_ascii_case(BILLING));
    begins.then(|| text.split_once('\n').map_or("", |(_, rest)| rest.trim_start_matches(['\r', '\n'])))
}

fn one_tool(path: String, tool: Value) -> Outcome<Value> {
    let mut tool = Fields::within(path, tool)?;
    let kind = tool.text("type")?;
    if kind.as_deref().is_some_and(|kind| kind != "custom") {
        return Err(Failure::unsupported(tool.at("type"), "tools of yours, with an input_schema, work"));
    }
    let name = tool.text("name")?;
    let name = tool.needed("name", name)?;
    let description = tool.text("description")?;
    let schema = tool.object("input_schema")?.map(Fields::rest).unwrap_or_default();
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    if let Some(description) = description {
        function.insert("description".to_owned(), description.into());
    }
    function.insert("parameters".to_owned(), schema.into());
    Ok(json!({ "type": "function", "function": function }))
}

/// A message as OpenAI's, or several: results of tools are messages of their own there.
fn one_message(path: String, message: Value, to: &mut Vec<Value>) -> Outcome<()> {
    let mut message = Fields::within(path, message)?;
    let role = message.text("role")?;
    let role = message.needed("role", role)?;
    if role != "user" && role != "assistant" {
        return Err(Failure::invalid(message.at("role"), format!("{role:?}; user and assistant work")));
    }
    let at = message.at("content");
    let content = message.take("content");
    let blocks = match message.needed("content", content)? {
        Value::String(text) => {
            to.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        _ => return Err(Failure::invalid(at, "a string or a list of blocks works")),
    };
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), String::new(), Vec::new());
    for (i, block) in blocks.into_iter().enumerate() {
        let mut block = Fields::within(format!("{at}[{i}]"), block)?;
        let kind = block.text("type")?;
        let kind = block.needed("type", kind)?;
        match (kind.as_str(), role.as_str()) {
            ("text", _) => {
                let text = block.text("text")?;
                texts.push(block.needed("text", text)?);
            }
            ("thinking", "assistant") => thoughts += &block.text("thinking")?.unwrap_or_default(),
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => {
                let (id, name) = (block.text("id")?, block.text("name")?);
                let (id, name) = (block.needed("id", id)?, block.needed("name", name)?);
                let input = block.object("input")?.map(Fields::rest).unwrap_or_default();
                calls.push(json!({ "id": id, "type": "function", "function": { "name": name, "arguments": input } }));
            }
            ("tool_result", "user") => {
                let id = block.text("tool_use_id")?;
                let id = block.needed("tool_use_id", id)?;
                let content = result_text(&mut block)?;
                let failed = block.flag("is_error")?.unwrap_or(false);
                let content = if failed { format!("Error: {content}") } else { content };
                to.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
            }
            (other, _) => {
                let instead = format!("{other} in a message of the {role}; text works");
                return Err(Failure::unsupported(block.at("type"), instead));
            }
        }
    }
    let said = texts.join("\n\n");
    let mut message = json!({ "role": role, "content": said });
    if let Value::Object(message) = &mut message {
        if !thoughts.is_empty() {
            message.insert("reasoning_content".to_owned(), thoughts.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), calls.into());
        }
    }
    // A message of results alone has become those.
    if role == "assistant" || !texts.is_empty() {
        to.push(message);
    }
    Ok(())
}

fn result_text(block: &mut Fields) -> Outcome<String> {
    let at = block.at("content");
    match block.take("content") {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let mut texts = Vec::new();
            for (i, part) in parts.into_iter().enumerate() {
                let mut part = Fields::within(format!("{at}[{i}]"), part)?;
                if part.text("type")?.as_deref() != Some("text") {
                    return Err(Failure::unsupported(part.at("type"), "text works"));
                }
                let text = part.text("text")?;
                texts.push(part.needed("text", text)?);
            }
            Ok(texts.join("\n"))
        }
        Some(_) => Err(Failure::invalid(at, "a string or a list of blocks works")),
    }
}

/// `/v1/messages`.
pub(super) async fn messages(app: Arc<App>, caller: Caller, mut fields: Fields) -> Answer {
    let name = fields.text("model")?;
    let served = app.model(Some(fields.needed("model", name)?)).await?;
    let language = Arc::clone(served.taking()?);
    let stream = fields.flag("stream")?.unwrap_or(false);
    let started = move || {
        let most = fields.count("max_tokens", 1..=u32::MAX)?;
        let most = fields.needed("max_tokens", most)?;
        let stops = fields.texts("stop_sequences", ask::STOPS)?;
        let asked = asked(&mut fields, &language)?;
        let mut ask = Ask::new(asked, &language.model.model().sampling);
        fields.refuse("n", &[1.into()], "/v1/chat/completions has it")?;
        fields.refuse("stop", &[], "stop_sequences works")?;
        ask.sample(&mut fields, language.vocab())?;
        fields.ignore(&["metadata", "service_tier", "context_management"]);
        (ask.max_tokens, ask.stop) = (Some(most), stops.clone());
        Ok((language.start(ask, caller.salt)?, stops))
    };
    let (replies, stops) = on_a_thread(started).await?;
    let prompt = replies.first().map_or(0, |reply| reply.prompt);
    let (id, model) = (format!("msg_{}", random_name(24)), served.name().to_owned());
    if stream {
        let writer = Events { id, model, prompt, stops, block: None, blocks: 0, end: None };
        return Ok(streamed(replies, Box::new(writer), app.limits.ping));
    }
    let whole = gather(replies).await?.pop().ok_or_else(|| Failure::unavailable("the engine has ended"))?;
    let mut content = Vec::new();
    if !whole.thought.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": whole.thought, "signature": "" }));
    }
    if !whole.text.is_empty() || whole.calls.is_empty() {
        content.push(json!({ "type": "text", "text": whole.text }));
    }
    let call = |named: &NamedCall| json!({ "type": "tool_use", "id": named.id, "name": named.call.name, "input": named.call.arguments });
    content.extend(whole.calls.iter().map(call));
    let (reason, stop) = reason(&whole.end, &stops);
    Ok(json_answer(&json!({
        "id": id, "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": reason, "stop_sequence": stop, "usage": usage(&whole.end),
    })))
}

/// Why an answer ended, and the text that ended it.
fn reason(end: &End, stops: &[String]) -> (&'static str, Option<String>) {
    match (end.reason(), &end.finish) {
        ("length", _) => ("max_tokens", None),
        ("tool_calls", _) => ("tool_use", None),
        (_, Finish::StopString(i)) => ("stop_sequence", stops.get(*i).cloned()),
        _ => ("end_turn", None),
    }
}

fn usage(end: &End) -> Value {
    json!({
        "input_tokens": end.usage.prompt - end.usage.reused, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": end.usage.reused, "output_tokens": end.usage.generated,
    })
}

/// `/v1/messages/count_tokens`.
pub(super) async fn count_tokens(app: Arc<App>, caller: Caller, mut fields: Fields) -> Answer {
    let name = fields.text("model")?;
    let served = app.model(Some(fields.needed("model", name)?)).await?;
    let language = Arc::clone(served.language()?);
    let count = on_a_thread(move || {
        let asked = asked(&mut fields, &language)?;
        Ok(language.prompt(&asked, caller.salt.as_deref())?.0.len())
    });
    Ok(json_answer(&json!({ "input_tokens": count.await? })))
}

/// The block that is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thought,
    Text,
}

struct Events {
    id: String,
    model: String,
    prompt: u32,
    stops: Vec<String>,
    block: Option<Block>,
    blocks: usize,
    end: Option<End>,
}

impl Events {
    fn close(&mut self, out: &mut String) {
        let Some(block) = self.block.take() else { return };
        if block == Block::Thought {
            self.delta(&json!({ "type": "signature_delta", "signature": "" }), out);
        }
        self.stop(out);
    }

    fn stop(&mut self, out: &mut String) {
        let value = json!({ "type": "content_block_stop", "index": self.blocks });
        event("content_block_stop", &value, out);
        self.blocks += 1;
    }

    fn start(&self, content: &Value, out: &mut String) {
        let value = json!({ "type": "content_block_start", "index": self.blocks, "content_block": content });
        event("content_block_start", &value, out);
    }

    fn delta(&self, delta: &Value, out: &mut String) {
        let value = json!({ "type": "content_block_delta", "index": self.blocks, "delta": delta });
        event("content_block_delta", &value, out);
    }

    fn open(&mut self, block: Block, out: &mut String) {
        if self.block == Some(block) {
            return;
        }
        self.close(out);
        self.block = Some(block);
        match block {
            Block::Thought => self.start(&json!({ "type": "thinking", "thinking": "", "signature": "" }), out),
            Block::Text => self.start(&json!({ "type": "text", "text": "" }), out),
        }
    }
}

impl Writer for Events {
    fn begin(&mut self, out: &mut String) {
        let usage = json!({
            "input_tokens": self.prompt, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": 0,
        });
        let message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage,
        });
        event("message_start", &json!({ "type": "message_start", "message": message }), out);
        self.ping(out);
    }

    fn piece(&mut self, _: usize, piece: Piece, out: &mut String) {
        match piece {
            Piece::Delta { thought, text, calls, .. } => {
                if !thought.is_empty() {
                    self.open(Block::Thought, out);
                    self.delta(&json!({ "type": "thinking_delta", "thinking": thought }), out);
                }
                if !text.is_empty() {
                    self.open(Block::Text, out);
                    self.delta(&json!({ "type": "text_delta", "text": text }), out);
                }
                for named in calls {
                    self.close(out);
                    let NamedCall { id, call } = named;
                    self.start(&json!({ "type": "tool_use", "id": id, "name": call.name, "input": {} }), out);
                    let json = Value::Object(call.arguments).to_string();
                    self.delta(&json!({ "type": "input_json_delta", "partial_json": json }), out);
                    self.stop(out);
                }
            }
            Piece::End(end) => {
                if let Finish::Error(error) = &end.finish {
                    event("error", &Failure::from(&**error).json(Dialect::Anthropic), out);
                }
                self.end = Some(end);
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        let Some(end) = self.end.take().filter(|end| !matches!(end.finish, Finish::Error(_))) else { return };
        if self.block.is_none() && self.blocks == 0 {
            // Clients read the first block of an answer.
            self.open(Block::Text, out);
        }
        self.close(out);
        let (reason, stop) = reason(&end, &self.stops);
        let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
        event("message_delta", &json!({ "type": "message_delta", "delta": delta, "usage": usage(&end) }), out);
        event("message_stop", &json!({ "type": "message_stop" }), out);
    }

    fn ping(&mut self, out: &mut String) {
        event("ping", &json!({ "type": "ping" }), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_in_the_system_prompt_is_left_out() {
        let system = |json: &str| system(&mut Fields::parse(json.as_bytes()).unwrap()).unwrap();
        let blocks = |nonce: &str| {
            let first = format!("x-anthropic-billing-header: cc_version=2.1; cch={nonce};");
            system(&json!({ "system": [{"type": "text", "text": first}, {"type": "text", "text": "Be."}] }).to_string())
        };
        assert_eq!(blocks("a1"), Some("Be.".to_owned()));
        assert_eq!(blocks("a1"), blocks("b2"));
        // What else stands in the block is an instruction, and stays.
        let first = "X-Anthropic-Billing-Header: cch=a1;\n\nBe kind.\nBe short.";
        let body = json!({ "system": [{"type": "text", "text": first}, {"type": "text", "text": "Be."}] });
        assert_eq!(system(&body.to_string()).as_deref(), Some("Be kind.\nBe short.\n\nBe."));
        let body = json!({ "system": [{"type": "text", "text": "Be."}, {"type": "text", "text": first}] });
        assert_eq!(system(&body.to_string()), Some(format!("Be.\n\n{first}")));
        assert_eq!(system(r#"{"system": "a"}"#).as_deref(), Some("a"));
        assert_eq!(system("{}"), None);
    }

    #[test]
    fn results_of_tools_are_messages_of_their_own() {
        let mut to = Vec::new();
        let mut add = |message: Value| one_message("m".to_owned(), message, &mut to);
        add(json!({ "role": "assistant", "content": [
            { "type": "thinking", "thinking": "Hm.", "signature": "" }, { "type": "text", "text": "I look." },
            { "type": "tool_use", "id": "t1", "name": "f", "input": { "x": 1 } },
        ] }))
        .unwrap();
        add(json!({ "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "2" }] },
            { "type": "text", "text": "And?" },
        ] }))
        .unwrap();
        assert!(add(json!({ "role": "user", "content": [{ "type": "image" }] })).is_err());
        assert!(add(json!({ "role": "system", "content": "a" })).is_err());
        let roles: Vec<&str> = to.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["assistant", "tool", "user"]);
        assert_eq!(to[0]["reasoning_content"], "Hm.");
        assert_eq!(to[0]["tool_calls"][0]["function"]["arguments"], json!({ "x": 1 }));
        assert_eq!((&to[1]["content"], &to[2]["content"]), (&json!("2"), &json!("And?")));
    }
}
