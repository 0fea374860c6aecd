//! The other APIs: Anthropic's, Ollama's, OpenAI's responses; tokens and vectors.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::client::Server;
use super::scripted;
use crate::cli::embed::Folder;

fn say(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

#[test]
fn anthropic_clients_see_what_they_expect() {
    let server = Server::start(&[]);
    let ask = |more: Value| {
        let mut body = json!({ "model": "tiny", "max_tokens": 24, "messages": say("A dog?"), "seed": 5 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/messages", &body)
    };
    let whole = ask(json!({})).json();
    let text = whole["content"][0]["text"].as_str().unwrap();
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["content"][0]["type"]),
        (&json!("message"), &json!("assistant"), &json!("text"))
    );
    let count = json!({ "model": "tiny", "messages": say("A dog?") });
    let tokens = server.post("/v1/messages/count_tokens", &count).json()["input_tokens"].as_u64().unwrap();
    let events = ask(json!({ "stream": true })).objects();
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    assert!(names[3..names.len() - 3].iter().all(|name| *name == "content_block_delta"));
    let start = &events[0]["message"];
    assert_eq!(start["usage"]["input_tokens"].as_u64(), Some(tokens));
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
    let said: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(said, text);
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], whole["stop_reason"]);
    assert_eq!(end["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    // What is in the cache is not counted twice.
    let again = ask(json!({})).json();
    let sum =
        |usage: &Value| usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!([sum(&whole["usage"]), sum(&again["usage"])], [tokens; 2]);

    let stop: String = text.chars().skip(3).take(3).collect();
    let stopped = ask(json!({ "stop_sequences": [stop] })).json();
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    let system = |system: Value| ask(json!({ "system": system })).json()["content"].clone();
    assert_eq!(system(json!("Be kind.")), system(json!([{ "type": "text", "text": "Be kind." }])));
    let nonce = |nonce: &str| {
        let billing = format!("x-anthropic-billing-header: cch={nonce};");
        system(json!([{ "type": "text", "text": billing }, { "type": "text", "text": "Be kind." }]))
    };
    assert_eq!(nonce("1"), system(json!("Be kind.")));
    for (more, words) in [
        (json!({ "max_tokens": null }), "max_tokens: it is missing"),
        (json!({ "max_tokens": 0 }), "max_tokens: 0"),
        (json!({ "max_tokens": -1 }), "max_tokens: -1"),
        (json!({ "temperature": -1 }), "temperature: -1"),
        (json!({ "top_k": "x" }), "top_k: "),
        (json!({ "tool_choice": { "type": "any" } }), "tool_choice is not supported"),
        (json!({ "tools": [{ "name": "f", "input_schema": {} }] }), "tools is not supported"),
        (json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }), "messages[0].content[0].type"),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": -1 } }), "thinking.budget_tokens"),
        (json!({ "output_format": {} }), "output_format is not supported"),
    ] {
        let response = ask(more.clone());
        let error = response.error();
        assert_eq!((response.status, &error["type"]), (400, &json!("invalid_request_error")), "{more}");
        assert!(error["message"].as_str().unwrap().starts_with(words), "{more}: {error}");
    }
    let missing = ask(json!({ "model": "claude-opus-4" }));
    assert_eq!((missing.status, &missing.error()["type"]), (404, &json!("not_found_error")));
}

#[test]
fn ollama_clients_see_what_they_expect() {
    let server = Server::start(&[]);
    let lines = |path: &str, body: Value| -> Vec<Value> {
        let response = server.post(path, &body);
        assert_eq!(response.header("content-type"), Some("application/x-ndjson"));
        response.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let options = json!({ "seed": 5, "num_predict": 20, "num_ctx": 128, "num_gpu": 99, "repeat_last_n": 64 });
    let body = json!({ "model": "tiny:latest", "messages": say("A dog?"), "options": options });
    let streamed = lines("/api/chat", body.clone());
    let mut once = body;
    once["stream"] = false.into();
    let whole = server.post("/api/chat", &once).json();
    let said: String = streamed.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(said, whole["message"]["content"].as_str().unwrap());
    let (last, before) = streamed.split_last().unwrap();
    assert!(before.iter().all(|line| line["done"] == false) && last["done"] == true);
    for name in ["done_reason", "eval_count", "prompt_eval_count"] {
        assert_eq!(last[name], whole[name], "{name}");
    }
    assert!(last["total_duration"].as_u64().unwrap() > 0);

    let raw = json!({ "model": "tiny", "prompt": "Once", "raw": true, "options": options });
    let said: String =
        lines("/api/generate", raw).iter().map(|line| line["response"].as_str().unwrap().to_owned()).collect();
    let expected = json!({ "prompt": "Once", "max_tokens": 20, "seed": 5 });
    assert_eq!(said, server.post("/v1/completions", &expected).json()["choices"][0]["text"].as_str().unwrap());
    let loaded = server.post("/api/generate", &json!({ "model": "tiny" })).json();
    assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));

    assert_eq!(server.get("/api/tags").json()["models"][0]["name"], "tiny");
    assert_eq!(server.get("/api/ps").json()["models"][0]["name"], "tiny");
    assert!(server.get("/api/version").json()["version"].is_string());
    let shown = server.post("/api/show", &json!({ "model": "tiny" })).json();
    assert_eq!(shown["capabilities"], json!(["completion"]));
    for (path, body, words) in [
        (
            "/api/chat",
            json!({ "model": "tiny", "messages": say("a"), "options": { "num_ctx": 9_999_999 } }),
            "options.num_ctx",
        ),
        (
            "/api/chat",
            json!({ "model": "tiny", "messages": say("a"), "options": { "num_predict": -3 } }),
            "options.num_predict",
        ),
        (
            "/api/chat",
            json!({ "model": "tiny", "messages": say("a"), "options": { "temperature": -1 } }),
            "options.temperature",
        ),
        (
            "/api/chat",
            json!({ "model": "tiny", "messages": say("a"), "options": { "mirostat": 1 } }),
            "options.mirostat",
        ),
        ("/api/chat", json!({ "model": "tiny", "messages": say("a"), "format": "json" }), "format"),
        ("/api/chat", json!({ "messages": say("a") }), "model"),
        (
            "/api/chat",
            json!({ "model": "tiny", "messages": [{ "role": "user", "content": "a", "images": ["x"] }] }),
            "messages[0].images",
        ),
        ("/api/generate", json!({ "model": "tiny", "prompt": "a", "suffix": "b" }), "suffix"),
        ("/api/generate", json!({ "model": "tiny", "prompt": "a", "context": [1] }), "context"),
        ("/api/generate", json!({ "model": "tiny", "prompt": "a", "think": true }), "think: "),
        ("/api/chat", json!({ "model": "tiny", "messages": say("a"), "think": "high" }), "think: "),
    ] {
        let response = server.post(path, &body);
        assert_eq!(response.status, 400, "{body}");
        let error = response.error();
        assert!(error.as_str().unwrap().starts_with(words), "{error}");
    }
    assert_eq!(server.post("/api/chat", &json!({ "model": "llama3", "messages": say("a") })).status, 404);
    // Not to think is what it does; clients look for the words of those who cannot.
    let chat = |messages: Value, think: Value| {
        let options = json!({ "num_predict": 1 });
        let body =
            json!({ "model": "tiny", "messages": messages, "think": think, "stream": false, "options": options });
        server.post("/api/chat", &body)
    };
    assert_eq!(chat(say("a"), json!(false)).status, 200);
    let error = chat(say("a"), json!(true)).error();
    assert!(error.as_str().unwrap().contains("\"tiny\" does not support thinking"), "{error}");
    // An answer of calls alone has no text, or null.
    let called = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": null }]);
    assert_eq!(chat(called, json!(null)).status, 200);
}

#[test]
fn responses_are_streamed_in_their_events() {
    let server = Server::start(&[]);
    let ask = |more: Value| {
        let mut body = json!({ "model": "tiny", "max_output_tokens": 24, "input": "A dog?", "seed": 5 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/responses", &body)
    };
    let whole = ask(json!({})).json();
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!((&whole["object"], &whole["store"]), (&json!("response"), &json!(false)));
    let events = ask(json!({ "stream": true })).objects();
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        names[..4],
        ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    );
    assert_eq!(
        names[names.len() - 4..names.len() - 1],
        ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    );
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, text);
    let last = events.last().unwrap();
    assert_eq!(last["type"], format!("response.{}", whole["status"].as_str().unwrap()));
    assert_eq!(last["response"]["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(last["response"]["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    // The same words as messages.
    let items = json!([
        { "role": "user", "content": [{ "type": "input_text", "text": "A dog?" }] },
    ]);
    assert_eq!(ask(json!({ "input": items })).json()["output"][0]["content"], whole["output"][0]["content"]);
    let with_calls = json!([
        { "role": "user", "content": "a" }, { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c", "output": "1" }, { "type": "reasoning", "summary": [] },
    ]);
    assert_eq!(ask(json!({ "input": with_calls })).status, 200);
    for (field, value) in [
        ("previous_response_id", json!("resp_1")),
        ("background", json!(true)),
        ("truncation", json!("auto")),
        ("tool_choice", json!("required")),
        ("conversation", json!("c")),
        ("prompt", json!({ "id": "p" })),
        ("max_tool_calls", json!(1)),
        ("max_output_tokens", json!(0)),
        ("temperature", json!(-1)),
        ("top_p", json!(0)),
        ("include", json!("message.output_text.logprobs")),
    ] {
        let response = ask(json!({ field: value }));
        assert_eq!((response.status, &response.error()["param"]), (400, &json!(field)), "{field}");
    }
    assert_eq!(ask(json!({ "text": { "format": { "type": "json_schema" } } })).error()["param"], "text.format");
    assert_eq!(ask(json!({ "input": null })).error()["param"], "input");
    assert_eq!(ask(json!({ "include": ["reasoning.encrypted_content"] })).status, 200);
    assert_eq!(ask(json!({ "include": ["message.output_text.logprobs"] })).status, 400);
    for choice in ["auto", "none"] {
        assert_eq!(ask(json!({ "tool_choice": choice })).json()["tool_choice"], choice);
    }
}

#[test]
fn tokens_are_text_and_back() {
    let server = Server::start(&[]);
    for text in ["Once upon a time", "  two  spaces ", "äöü 中文 🦀", "<|im_start|>user", ""] {
        let asked = json!({ "prompt": text, "add_special_tokens": false });
        let tokens = server.post("/tokenize", &asked).json();
        assert_eq!(tokens["count"].as_u64().unwrap() as usize, tokens["tokens"].as_array().unwrap().len());
        let back = server.post("/detokenize", &json!({ "tokens": tokens["tokens"] })).json();
        assert_eq!(back["prompt"].as_str().unwrap().trim_start(), text.trim_start());
    }
    let messages = server.post("/tokenize", &json!({ "messages": say("Hi") })).json();
    let asked = json!({ "messages": say("Hi"), "max_tokens": 1 });
    let prompt = server.post("/v1/chat/completions", &asked).json()["usage"]["prompt_tokens"].clone();
    assert_eq!(messages["count"], prompt);
    for tokens in [json!([-1]), json!([1e9]), json!(["a"]), json!([1.5]), json!("a")] {
        assert_eq!(server.post("/detokenize", &json!({ "tokens": tokens })).status, 400, "{tokens}");
    }
    // A model that answers gives no vectors, and says what does.
    let refused = server.post("/v1/embeddings", &json!({ "input": "a" }));
    assert_eq!(refused.status, 400);
    assert!(refused.error()["message"].as_str().unwrap().contains("a model for embeddings works"));
}

#[test]
fn vectors_and_scores_are_served() {
    let folder = Folder::new("nomicbert-rope", "serve");
    let server = Server::start(&["--name", "vectors", folder.0.to_str().unwrap()]);
    let ask = |more: Value| {
        let mut body = json!({ "model": "vectors", "input": ["w4 w5 w6", "w7 w8"] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/embeddings", &body)
    };
    let made = ask(json!({})).json();
    assert_eq!((&made["object"], &made["model"]), (&json!("list"), &json!("vectors")));
    assert_eq!(made["usage"]["prompt_tokens"], 3 + 2 + 2 * 2);
    let vector = |i: usize| -> Vec<f64> {
        made["data"][i]["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    assert_ne!(vector(0), vector(1));
    let alone = ask(json!({ "input": "w7 w8" })).json();
    assert_eq!(alone["data"][0]["embedding"], made["data"][1]["embedding"]);
    // As official clients ask for it: bytes of 32-bit numbers.
    let coded = ask(json!({ "encoding_format": "base64" })).json()["data"][0]["embedding"].as_str().unwrap().to_owned();
    assert_eq!(coded.len(), (vector(0).len() * 4).div_ceil(3) * 4);
    let ollama = server.post("/api/embed", &json!({ "model": "vectors", "input": "w7 w8" })).json();
    assert_eq!(ollama["embeddings"][0], made["data"][1]["embedding"]);
    for (field, value) in [
        ("input", json!([])),
        ("input", json!(null)),
        ("input", json!({})),
        ("input[0]", json!([""])),
        ("input in tokens", json!([1, 2])),
        ("dimensions", json!(8)),
        ("encoding_format", json!("int8")),
    ] {
        let name = field.split(['[', ' ']).next().unwrap();
        let response = ask(json!({ name: value }));
        assert_eq!((response.status, &response.error()["param"]), (400, &json!(field)), "{value}");
    }
    let long = ask(json!({ "input": "w4 ".repeat(10_000) }));
    assert_eq!((long.status, &long.error()["code"]), (400, &json!("context_length_exceeded")));
    // Clients of Ollama get the vector of the beginning, unless they say otherwise.
    let ollama = |more: Value| {
        let mut body = json!({ "model": "vectors", "input": "w4 ".repeat(10_000) });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/api/embed", &body)
    };
    let [cut, said] = [json!({}), json!({ "truncate": true })].map(|more| ollama(more).json());
    assert_eq!(cut["embeddings"], said["embeddings"]);
    assert!(cut["prompt_eval_count"].as_u64().unwrap() < 10_000, "{cut}");
    let whole = ollama(json!({ "truncate": false }));
    assert_eq!(whole.status, 400);
    assert_eq!(ollama(json!({ "truncate": 1 })).status, 400);
    let again = ask(json!({ "input": "w4 ".repeat(10_000) }));
    assert_eq!(again.status, 400, "what one client allows is not what another does");
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/rerank", "/api/chat", "/tokenize"] {
        let response = server.post(path, &json!({ "model": "vectors", "query": "w4", "documents": ["w5"] }));
        assert_eq!(response.status, 400, "{path}");
    }
    assert_eq!(server.get("/health/ready").status, 200);

    let folder = Folder::new("bert-rerank", "serve-pairs");
    let server = Server::start(&["--name", "scores", folder.0.to_str().unwrap()]);
    let asked = json!({ "query": "w4 w5", "documents": ["w9 w10", "w4 w5", "w20"], "return_documents": true });
    let made = server.post("/v1/rerank", &asked).json();
    let results = made["results"].as_array().unwrap();
    let score = |result: &Value| result["relevance_score"].as_f64().unwrap();
    assert_eq!(results.len(), 3);
    assert!(results.windows(2).all(|pair| score(&pair[0]) >= score(&pair[1])));
    let index = results[0]["index"].as_u64().unwrap() as usize;
    assert_eq!(results[0]["document"]["text"], asked["documents"][index]);
    let mut first = asked.clone();
    first["top_n"] = 1.into();
    assert_eq!(server.post("/v1/rerank", &first).json()["results"].as_array().unwrap().len(), 1);
    for top_n in [json!(0), json!(-1), json!(1.5), json!("1")] {
        let mut wrong = asked.clone();
        wrong["top_n"] = top_n;
        assert_eq!(server.post("/v1/rerank", &wrong).error()["param"], "top_n");
    }
    assert_eq!(server.post("/v1/embeddings", &json!({ "input": "w4" })).status, 400);
}

/// The clients that people have, in Python, where scripts/test has installed them.
#[test]
fn official_clients_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let clients = root.join("target/clients");
    if !clients.exists() {
        assert!(std::env::var_os("CI").is_none(), "{} is not there: scripts/test installs it", clients.display());
        return;
    }
    let server = Server::start(&["--api-key", "secret"]);
    // What the embedded model does not do: it calls tools, thinks, and gives vectors.
    let [(_, call, hint), ..] = scripted::FORMATS;
    let (scripted, vectors) = (scripted::model("clients", call, hint), Folder::new("nomicbert-rope", "clients"));
    let models = [scripted.to_str().unwrap(), vectors.0.to_str().unwrap()];
    let others = Server::start(&["--api-key", "secret", "--name", "scripted", models[0], models[1]]);
    let name = vectors.0.file_name().unwrap().to_str().unwrap();
    let mut command = Command::new("python3");
    command.arg(root.join("tests/front_ends/serve/clients.py"));
    command.args([&format!("http://{}", server.address), "secret", &format!("http://{}", others.address), name]);
    let output = command.env("PYTHONPATH", clients).env("NO_PROXY", "127.0.0.1").stdin(Stdio::null()).output().unwrap();
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{errors}");
    let cases: u32 = out.split(' ').next().unwrap().parse().unwrap();
    assert!(cases >= 120, "{out}");
}

/// The client in JavaScript, where scripts/test has installed it.
#[test]
fn the_official_client_in_javascript_works() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/front_ends/serve/javascript");
    if !folder.join("node_modules/openai").exists() {
        assert!(std::env::var_os("CI").is_none(), "{}: scripts/test installs what it needs", folder.display());
        return;
    }
    let server = Server::start(&["--api-key", "secret"]);
    let mut command = Command::new("node");
    command.arg(folder.join("client.mjs")).args([&format!("http://{}", server.address), "secret"]);
    let output = command.env("NO_PROXY", "127.0.0.1").stdin(Stdio::null()).output().unwrap();
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{errors}");
    let cases: u32 = out.split(' ').next().unwrap().parse().unwrap();
    assert!(cases >= 40, "{out}");
}
