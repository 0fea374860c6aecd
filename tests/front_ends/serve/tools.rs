//! Thoughts and calls of tools by all APIs, streamed and at once, in each way in which templates have models write calls.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::client::Server;
use super::scripted;

fn schema() -> Value {
    json!({ "type": "object", "properties": { "city": { "type": "string" }, "days": { "type": "integer" } } })
}

fn expected() -> Value {
    json!({ "city": "Rome", "days": 2 })
}

/// The arguments of a call, which OpenAI writes as a text.
fn parsed(arguments: &Value) -> Value {
    serde_json::from_str(arguments.as_str().unwrap()).unwrap()
}

fn texts(parts: &[Value], at: &str) -> String {
    parts.iter().filter_map(|part| part.pointer(at)?.as_str()).collect()
}

#[test]
fn tools_are_called_by_all_apis() {
    for (name, call, hint) in scripted::FORMATS {
        let folder = scripted::model(&format!("tools-{name}"), call, hint);
        let server = Server::start(&["--name", "scripted", folder.to_str().unwrap()]);
        chat(&server);
        responses(&server);
        messages(&server);
        ollama(&server);
        let shown = server.post("/api/show", &json!({ "model": "scripted" })).json();
        assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]), "{name}");
    }
}

/// examples/tools.rs, in which the program's own function is called.
#[test]
fn the_example_calls_tools() {
    let program = Path::new(env!("CARGO_BIN_EXE_wgslm")).with_file_name("examples").join("tools");
    for (name, call, hint) in scripted::FORMATS {
        let folder = scripted::model(&format!("example-{name}"), call, hint);
        let run = Command::new(&program).arg(&folder).output().unwrap();
        let (said, problem) = (String::from_utf8(run.stdout).unwrap(), String::from_utf8_lossy(&run.stderr));
        let call = "weather({\"city\":\"Rome\",\"days\":2}) -> Rome: sunny, 24 degrees";
        assert_eq!(said, format!("Let me see.\n{call}\nIt is sunny.\n"), "{name}: {problem}");
        assert!(run.status.success(), "{name}: {problem}");
    }
}

fn chat(server: &Server) {
    let function = json!({ "name": "weather", "parameters": schema() });
    let user = json!({ "role": "user", "content": "How is Rome?" });
    let tools = json!([{ "type": "function", "function": function }]);
    let body = json!({ "messages": [user], "tools": tools, "temperature": 0, "max_tokens": 50 });
    let whole = server.post("/v1/chat/completions", &body).json();
    let choice = &whole["choices"][0];
    let message = &choice["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("I look."), &json!("Let me see.")));
    assert_eq!(choice["finish_reason"], "tool_calls");
    let call = &message["tool_calls"][0];
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("weather")), "{call}");
    assert_eq!(parsed(&call["function"]["arguments"]), expected());
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let chunks = server.post("/v1/chat/completions", &streamed).objects();
    assert_eq!(texts(&chunks, "/choices/0/delta/reasoning_content"), "I look.");
    assert_eq!(texts(&chunks, "/choices/0/delta/content"), "Let me see.");
    assert_eq!(texts(&chunks, "/choices/0/finish_reason"), "tool_calls");
    let calls: Vec<&Value> = chunks.iter().filter_map(|chunk| chunk.pointer("/choices/0/delta/tool_calls/0")).collect();
    assert_eq!((calls.len(), &calls[0]["index"]), (1, &json!(0)));
    assert_eq!(parsed(&calls[0]["function"]["arguments"]), expected());
    // Its result leads to the answer; without the tools, or where none may be called, there is no call.
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "content": "sun" });
    for (messages, choice) in [(json!([user, message, result]), "auto"), (json!([user]), "none")] {
        let mut body = body.clone();
        (body["messages"], body["tool_choice"]) = (messages, choice.into());
        let choice = server.post("/v1/chat/completions", &body).json()["choices"][0].clone();
        assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!("It is sunny."), &json!("stop")));
        assert!(choice["message"].get("tool_calls").is_none(), "{choice}");
    }
}

fn responses(server: &Server) {
    let tools = json!([{ "type": "function", "name": "weather", "parameters": schema() }]);
    let body = json!({ "input": "How is Rome?", "tools": tools, "temperature": 0, "max_output_tokens": 50 });
    let whole = server.post("/v1/responses", &body).json();
    let of = |output: &Value| -> Vec<String> {
        output.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(of(&whole["output"]), ["reasoning", "message", "function_call"]);
    assert_eq!((&whole["status"], &whole["output"][2]["name"]), (&json!("completed"), &json!("weather")));
    assert_eq!(parsed(&whole["output"][2]["arguments"]), expected());
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = server.post("/v1/responses", &streamed).objects();
    let done: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "response.function_call_arguments.done").collect();
    assert_eq!((done.len(), parsed(&done[0]["arguments"])), (1, expected()));
    assert_eq!(of(&events.last().unwrap()["response"]["output"]), of(&whole["output"]));
    // All that came goes back, with the result.
    let mut input = vec![json!({ "role": "user", "content": "How is Rome?" })];
    input.extend(whole["output"].as_array().unwrap().clone());
    input.push(json!({ "type": "function_call_output", "call_id": whole["output"][2]["call_id"], "output": "sun" }));
    let mut second = body;
    second["input"] = input.into();
    let answer = server.post("/v1/responses", &second).json();
    assert_eq!(answer["output"][0]["content"][0]["text"], "It is sunny.", "{answer}");
}

fn messages(server: &Server) {
    let tools = json!([{ "name": "weather", "input_schema": schema() }]);
    let user = json!({ "role": "user", "content": "How is Rome?" });
    let body = json!({ "model": "scripted", "messages": [user], "tools": tools, "temperature": 0, "max_tokens": 50 });
    let whole = server.post("/v1/messages", &body).json();
    let content = &whole["content"];
    assert_eq!((&content[0]["thinking"], &content[1]["text"]), (&json!("I look."), &json!("Let me see.")));
    assert_eq!((&content[2]["name"], &content[2]["input"]), (&json!("weather"), &expected()));
    assert_eq!(whole["stop_reason"], "tool_use");
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = server.post("/v1/messages", &streamed).objects();
    let blocks: Vec<&str> = events.iter().filter_map(|event| event.pointer("/content_block/type")?.as_str()).collect();
    assert_eq!(blocks, ["thinking", "text", "tool_use"]);
    assert_eq!(texts(&events, "/delta/thinking"), "I look.");
    let input: Value = serde_json::from_str(&texts(&events, "/delta/partial_json")).unwrap();
    assert_eq!((input, texts(&events, "/delta/stop_reason")), (expected(), "tool_use".to_owned()));
    let result = json!({ "type": "tool_result", "tool_use_id": content[2]["id"], "content": "sun" });
    let answer = json!({ "role": "assistant", "content": content });
    let mut second = body;
    second["messages"] = json!([user, answer, { "role": "user", "content": [result] }]);
    let answer = server.post("/v1/messages", &second).json();
    assert_eq!((&answer["content"][0]["text"], &answer["stop_reason"]), (&json!("It is sunny."), &json!("end_turn")));
}

fn ollama(server: &Server) {
    let tools = json!([{ "type": "function", "function": { "name": "weather", "parameters": schema() } }]);
    let user = json!({ "role": "user", "content": "How is Rome?" });
    let options = json!({ "temperature": 0, "num_predict": 50 });
    let mut body =
        json!({ "model": "scripted", "messages": [user], "tools": tools, "options": options, "think": true });
    let lines = server.post("/api/chat", &body).text();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    body["stream"] = false.into();
    let whole = server.post("/api/chat", &body).json();
    for said in [&lines, &vec![whole.clone()]] {
        assert_eq!(texts(said, "/message/thinking"), "I look.");
        assert_eq!(texts(said, "/message/content"), "Let me see.");
        let calls: Vec<&Value> =
            said.iter().filter_map(|line| line.pointer("/message/tool_calls/0/function")).collect();
        assert_eq!(calls, [&json!({ "name": "weather", "arguments": expected() })]);
    }
    // As its clients send an answer of calls alone.
    let message = json!({ "role": "assistant", "content": null, "tool_calls": whole["message"]["tool_calls"] });
    body["messages"] = json!([user, message, { "role": "tool", "tool_name": "weather", "content": "sun" }]);
    assert_eq!(server.post("/api/chat", &body).json()["message"]["content"], "It is sunny.");
}
