//! A model that calls functions of this program and answers with their results: cargo run --example tools -- MODEL [QUESTION]
//!
//! The model's chat template must know tools, as those of Qwen3, Llama 3, Mistral and gpt-oss do.
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use wgslm::chat::{self, AnswerFormat, Parts, ToolCall};
use wgslm::driver::{GenerationEvent, ServeOptions};
use wgslm::engine::{Finish, Request};
use wgslm::{Error, Options, ServedModel, block_on};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("a model is needed: cargo run --example tools -- MODEL [QUESTION]")?;
    let question = args.next().unwrap_or_else(|| "What will the weather be in Rome?".to_owned());
    let tools: Arc<[Value]> = Arc::new([json!({ "type": "function", "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": { "city": { "type": "string" }, "days": { "type": "integer", "description": "from today" } },
            "required": ["city"],
        },
    } })]);
    let (model, _driver) = block_on(wgslm::open(path, &Options::default()))?.serve(ServeOptions::default());
    let mut messages = vec![json!({ "role": "user", "content": question })];
    // A model may call again and again.
    for _ in 0..8 {
        let Parts { text, calls, .. } = answer(&model, &messages, &tools)?;
        println!("{text}");
        if calls.is_empty() {
            return Ok(());
        }
        let named = |call: &ToolCall| json!({ "type": "function", "function": { "name": call.name, "arguments": call.arguments } });
        let named: Vec<Value> = calls.iter().map(named).collect();
        messages.push(json!({ "role": "assistant", "content": text, "tool_calls": named }));
        for call in &calls {
            // What goes wrong is a result, too: the model can do something about it.
            let result = run(call).unwrap_or_else(|problem| format!("error: {problem}"));
            println!("{}({}) -> {result}", call.name, Value::from(call.arguments.clone()));
            messages.push(json!({ "role": "tool", "name": call.name, "content": result }));
        }
    }
    Err("the model calls tools without an end".into())
}

/// The functions that can be called. What a model asks for is checked like any input.
fn run(call: &ToolCall) -> std::result::Result<String, String> {
    let text = |name: &str| call.arguments.get(name).and_then(Value::as_str).ok_or(format!("{name} must be a string"));
    match call.name.as_str() {
        "weather" => Ok(format!("{}: sunny, 24 degrees", text("city")?)),
        other => Err(format!("there is no function {other}")),
    }
}

/// The answer to a conversation, taken apart. What is equal to an earlier prompt is not computed again.
fn answer(model: &ServedModel, messages: &[Value], tools: &Arc<[Value]>) -> Result<Parts> {
    let template = model.chat_template()?.ok_or("this model has no chat template")?;
    let format = AnswerFormat::of_template(model.model().chat_template.as_deref().unwrap_or_default());
    if !format.calls() {
        return Err("this model's chat template knows no tools".into());
    }
    let variables = Map::from_iter([("tools".to_owned(), tools.iter().cloned().collect())]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let prompt = chat::messages(model.tokenizer(), &template, messages, &variables, i64::try_from(now).ok())?;
    let mut splitter = format.splitter(&model.tokenizer().decode(&prompt, false), Arc::clone(tools));
    let request = Request { sampling: model.sampling(), ..model.request(prompt) };
    let mut generation = model.handle().generate(request)?;
    let mut parts = Parts::default();
    while let Some(event) = generation.wait() {
        match event {
            GenerationEvent::Token { id, text, .. } => parts.extend(splitter.push_token(model.tokenizer(), id, text)),
            GenerationEvent::Finished { reason: Finish::Error(error), .. } => {
                return Err(Error::from_shared(error).into());
            }
            GenerationEvent::Finished { text, .. } => {
                parts.extend(splitter.push(&text));
                parts.extend(splitter.finish());
            }
        }
    }
    Ok(parts)
}
