//! OpenAI's endpoints, byte by byte and field by field.

use serde_json::{Value, json};

use super::client::{Response, Server};

fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": "tiny", "messages": [{ "role": "user", "content": "Tell me about a dog." }], "max_tokens": 24, "seed": 7,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn completion(more: Value) -> Value {
    let mut body = json!({ "prompt": "Once upon a time", "max_tokens": 24, "seed": 7 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text(response: &Response) -> String {
    response.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// What the deltas of one answer say together.
fn said(chunks: &[Value], index: usize) -> String {
    let of = |chunk: &Value| {
        let choice = chunk["choices"].as_array().unwrap().iter().find(|choice| choice["index"] == index)?.clone();
        Some(choice["delta"]["content"].as_str().unwrap_or_default().to_owned())
    };
    chunks.iter().filter_map(of).collect()
}

#[test]
fn a_stream_is_what_official_clients_expect() {
    let server = Server::start(&[]);
    let whole = server.post("/v1/chat/completions", &chat(json!({})));
    let streamed = server
        .post("/v1/chat/completions", &chat(json!({ "stream": true, "stream_options": { "include_usage": true } })));
    for (name, value) in [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),
        ("transfer-encoding", "chunked"),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(streamed.header(name), Some(value));
    }
    let events = streamed.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    assert_eq!(events.iter().filter(|data| *data == "[DONE]").count(), 1);
    let chunks = streamed.objects();
    let head = |chunk: &Value| [&chunk["id"], &chunk["object"], &chunk["created"], &chunk["model"]].map(Value::clone);
    assert!(chunks.iter().all(|chunk| head(chunk) == head(&chunks[0])));
    assert_eq!((&chunks[0]["object"], &chunks[0]["model"]), (&json!("chat.completion.chunk"), &json!("tiny")));
    assert!(chunks[0]["id"].as_str().unwrap().starts_with("chatcmpl-"));
    // The role comes first, and once.
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "", "refusal": null }));
    assert!(chunks[1..].iter().all(|chunk| chunk["choices"][0]["delta"].get("role").is_none()));
    let (last, before) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], whole.json()["usage"]["completion_tokens"]);
    assert!(before.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
    let (ended, before) = before.split_last().unwrap();
    assert_eq!(ended["choices"][0]["delta"], json!({}));
    assert_eq!(ended["choices"][0]["finish_reason"], whole.json()["choices"][0]["finish_reason"]);
    assert!(before.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    assert_eq!(said(before, 0), text(&whole));
    // Without the option, no chunk speaks of it.
    let plain = server.post("/v1/chat/completions", &chat(json!({ "stream": true })));
    assert!(plain.objects().iter().all(|chunk| chunk.get("usage").is_none()));
    assert_eq!(said(&plain.objects(), 0), text(&whole));
}

#[test]
fn answers_have_what_was_asked_for() {
    let server = Server::start(&[]);
    let ask = |more: Value| server.post("/v1/chat/completions", &chat(more));
    let first = text(&ask(json!({})));
    assert!(!first.is_empty());
    assert_eq!(text(&ask(json!({}))), first, "the same seed");
    let others = [8, 9, 10].map(|seed| text(&ask(json!({ "seed": seed }))));
    assert!(others.iter().any(|other| *other != first), "other seeds");

    // A stop string is not part of the answer, wherever it stands.
    for from in 1..first.len() {
        let Some(stop) = first.get(from..(from + 3).min(first.len())) else { continue };
        let at = first.find(stop).unwrap();
        let stopped = ask(json!({ "stop": [stop] })).json();
        assert_eq!(stopped["choices"][0]["message"]["content"], first[..at], "{stop:?}");
        assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
        if from > 12 {
            break;
        }
    }

    // Several answers, streamed and not.
    let several = ask(json!({ "n": 3 })).json();
    let texts: Vec<&str> =
        several["choices"].as_array().unwrap().iter().map(|c| c["message"]["content"].as_str().unwrap()).collect();
    assert_eq!((texts.len(), texts[0]), (3, &*first));
    let streamed = ask(json!({ "n": 3, "stream": true })).objects();
    for (i, text) in texts.iter().enumerate() {
        assert_eq!(said(&streamed, i), *text);
    }
    let usage = |value: &Value| value["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage(&several), usage(&ask(json!({})).json()));

    // Probabilities: one for each token, and they are consistent.
    let found = ask(json!({ "logprobs": true, "top_logprobs": 3, "temperature": 0 })).json();
    let tokens = found["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(tokens.len() as u64, found["usage"]["completion_tokens"].as_u64().unwrap());
    for token in &tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"]), (3, &token["token"]), "greedy takes the most likely");
        assert!(token["logprob"].as_f64().unwrap() <= 1e-5 && top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
    }
    let streamed = ask(json!({ "logprobs": true, "top_logprobs": 3, "temperature": 0, "stream": true })).objects();
    let of = |chunk: &Value| chunk["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default();
    let streamed: Vec<Value> = streamed.iter().flat_map(of).collect();
    assert_eq!(streamed, tokens);

    // A bias of 100 is always taken, one of -100 never.
    let complete = |more: Value| server.post("/v1/completions", &completion(more)).json()["choices"][0].clone();
    let asked = json!({ "prompt": " dog", "add_special_tokens": false });
    let id = server.post("/tokenize", &asked).json()["tokens"][0].clone();
    let piece = server.post("/detokenize", &json!({ "tokens": [id] })).json()["prompt"].as_str().unwrap().to_owned();
    let only = complete(json!({ "logit_bias": { id.to_string(): 100 }, "max_tokens": 3 }));
    assert_eq!(only["text"], piece.repeat(3));
    let greedy = json!({ "temperature": 0, "logprobs": 1, "max_tokens": 1 });
    let likely = complete(greedy.clone())["logprobs"]["tokens"][0].as_str().unwrap().to_owned();
    let asked = json!({ "prompt": likely, "add_special_tokens": false });
    let id = server.post("/tokenize", &asked).json()["tokens"][0].clone();
    let mut never = greedy;
    never["logit_bias"] = json!({ id.to_string(): -100 });
    assert_ne!(complete(never)["logprobs"]["tokens"][0], likely);
}

#[test]
fn texts_are_continued() {
    let server = Server::start(&[]);
    let ask = |more: Value| server.post("/v1/completions", &completion(more));
    let whole = ask(json!({})).json();
    let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(
        (&whole["object"], &whole["choices"][0]["finish_reason"]),
        (&json!("text_completion"), &json!("length"))
    );
    let echoed = ask(json!({ "echo": true })).json();
    assert_eq!(echoed["choices"][0]["text"], format!("Once upon a time{text}"));
    let streamed = ask(json!({ "stream": true, "echo": true })).objects();
    let said: String = streamed.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(said, format!("Once upon a time{text}"));
    // As ids, and several at once: n answers to each.
    let ids = server.post("/tokenize", &json!({ "prompt": "Once upon a time" })).json()["tokens"].clone();
    assert_eq!(ask(json!({ "prompt": ids })).json()["choices"][0]["text"], text);
    let several = ask(json!({ "prompt": ["Once upon a time", ids], "n": 2 })).json();
    let texts: Vec<&Value> = several["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts.len(), 4);
    assert!(texts[0] == &json!(text) && texts[0] == texts[2] && texts[1] == texts[3]);
    assert_eq!(several["usage"]["prompt_tokens"].as_u64(), whole["usage"]["prompt_tokens"].as_u64().map(|n| n * 2));
    // No token at all.
    let none = ask(json!({ "max_tokens": 0, "echo": true })).json();
    assert_eq!(
        (&none["choices"][0]["text"], &none["usage"]["completion_tokens"]),
        (&json!("Once upon a time"), &json!(0))
    );
    let found = ask(json!({ "logprobs": 2, "temperature": 0 })).json()["choices"][0]["logprobs"].clone();
    let (tokens, offsets) = (found["tokens"].as_array().unwrap(), found["text_offset"].as_array().unwrap());
    assert_eq!((tokens.len(), offsets.len(), &offsets[0]), (24, 24, &json!(0)));
    assert_eq!(found["top_logprobs"][0].as_object().unwrap().len(), 2);
}

/// Each field, and what of a value becomes.
#[test]
fn numbers_keep_to_their_ranges() {
    let server = Server::start(&[]);
    const EVER: &[&str] = &["\"1\"", "true", "[1]", "{}", "1e300", "-1e300"];
    // The field, what works, what does not.
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("temperature", &["0", "2", "0.7", "null"], &["-0.1", "101", "-1"]),
        ("top_p", &["1", "0.1", "1e-9"], &["0", "-0.5", "1.1"]),
        ("min_p", &["0", "1"], &["-0.1", "1.5"]),
        ("typical_p", &["1", "0.5"], &["0", "2"]),
        ("top_k", &["0", "-1", "40", "4294967295", "40.0"], &["-2", "4294967296", "1.5"]),
        ("presence_penalty", &["0", "-2", "2"], &["11", "-11"]),
        ("frequency_penalty", &["0", "-2", "2"], &["11", "-11"]),
        ("repetition_penalty", &["1", "0.5"], &["0", "-1", "11"]),
        ("seed", &["0", "-5", "9223372036854775807"], &["1.5", "18446744073709551616"]),
        ("max_tokens", &["1", "4294967295"], &["0", "-1", "4294967296", "1.5"]),
        ("max_completion_tokens", &["1", "2"], &["0", "-1", "1.5"]),
        ("n", &["1", "2"], &["0", "-1", "129", "1.5"]),
    ];
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let chat = path.contains("chat");
        let asked = if chat { r#""messages":[{"role":"user","content":"Hi"}]"# } else { r#""prompt":"Hi""# };
        let most = |field: &str| if field.starts_with("max") { "" } else { r#","max_tokens":1,"stop":"." "# };
        for (field, works, fails) in cases {
            if !chat && field.starts_with("max") {
                continue;
            }
            let ask = |value: &str| {
                let body = format!("{{{asked}{},\"{field}\":{value}}}", most(field));
                server.send("POST", path, &[], &body)
            };
            for value in *works {
                // Some go on to the end of the context: a stop is likely before.
                let huge = field.starts_with("max") && value.len() > 3;
                if huge {
                    continue;
                }
                assert_eq!(ask(value).status, 200, "{path} {field}: {value}: {}", ask(value).text());
            }
            for value in fails.iter().chain(EVER) {
                let response = ask(value);
                assert_eq!(response.status, 400, "{path} {field}: {value}");
                let error = response.error();
                assert_eq!(error["param"], *field, "{value}: {error}");
                assert_eq!(error["type"], "invalid_request_error");
                assert!(error["message"].as_str().unwrap().starts_with(&format!("{field}: ")), "{error}");
            }
            for value in ["NaN", "Infinity", "1e999", "01", "+1", "1."] {
                assert_eq!(ask(value).error()["param"], "body", "{field}: {value}");
            }
        }
    }
    let chat_fails = |more: Value, param: &str| {
        let response = server.post("/v1/chat/completions", &chat(more.clone()));
        assert_eq!((response.status, &response.error()["param"]), (400, &json!(param)), "{more}");
    };
    for (top, param) in [(json!(-1), "top_logprobs"), (json!(21), "top_logprobs"), (json!(1.5), "top_logprobs")] {
        chat_fails(json!({ "logprobs": true, "top_logprobs": top }), param);
    }
    chat_fails(json!({ "top_logprobs": 2 }), "top_logprobs");
    for (bias, param) in [
        (json!({ "-1": 1 }), "logit_bias.-1"),
        (json!({ "x": 1 }), "logit_bias.x"),
        (json!({ "4294967296": 1 }), "logit_bias.4294967296"),
        (json!({ "999999": 1 }), "logit_bias.999999"),
        (json!({ "5": 101 }), "logit_bias.5"),
        (json!({ "5": -101 }), "logit_bias.5"),
        (json!({ "5": "1" }), "logit_bias.5"),
        (json!({ "5": 1, "05": 1 }), "logit_bias"),
        (json!([1]), "logit_bias"),
    ] {
        chat_fails(json!({ "logit_bias": bias }), param);
    }
    for (stop, works) in [
        (json!("x"), true),
        (json!(["x", "y"]), true),
        (json!([]), true),
        (json!(""), false),
        (json!([1]), false),
        (json!(7), false),
        (json!(vec!["x"; 65]), false),
    ] {
        let response = server.post("/v1/chat/completions", &chat(json!({ "stop": stop })));
        assert_eq!(response.status == 200, works, "{stop}");
    }
}

/// What cannot be done is refused by the name of the field; what asks for nothing is not.
#[test]
fn what_does_nothing_is_refused() {
    let server = Server::start(&[]);
    let tool = json!([{ "type": "function", "function": { "name": "f", "parameters": {} } }]);
    for (field, value) in [
        ("response_format", json!({ "type": "json_object" })),
        ("response_format", json!({ "type": "json_schema", "json_schema": {} })),
        ("tool_choice", json!("required")),
        ("tool_choice", json!({ "type": "function", "function": { "name": "f" } })),
        ("parallel_tool_calls", json!(false)),
        ("functions", json!([])),
        ("function_call", json!("auto")),
        ("audio", json!({})),
        ("modalities", json!(["text", "audio"])),
        ("prediction", json!({ "type": "content", "content": "" })),
        ("web_search_options", json!({})),
        ("verbosity", json!("low")),
        ("store", json!(true)),
        ("service_tier", json!("flex")),
        ("best_of", json!(2)),
        ("echo", json!(true)),
        ("ignore_eos", json!(true)),
        ("n_predict", json!(9)),
        ("prompt_logprobs", json!(1)),
        ("dry_sequence_breakers", json!(["."])),
        ("guided_json", json!({})),
        ("grammar", json!("root ::= x")),
        ("tools", tool.clone()),
    ] {
        let response = server.post("/v1/chat/completions", &chat(json!({ field: value })));
        let error = response.error();
        assert_eq!(
            (response.status, &error["param"], &error["code"]),
            (400, &json!(field), &json!("unsupported_parameter")),
            "{error}"
        );
    }
    let harmless = json!({
        "response_format": { "type": "text" }, "tool_choice": "auto", "parallel_tool_calls": true, "modalities": ["text"],
        "verbosity": "medium", "store": false, "service_tier": "auto", "user": "me", "metadata": { "a": "b" }, "n": null,
        "ignore_eos": false, "tools": [], "something_new": 1,
    });
    assert_eq!(server.post("/v1/chat/completions", &chat(harmless)).status, 200);
    for (body, status, param) in [
        (json!({ "messages": [] }), 400, "messages"),
        (json!({}), 400, "messages"),
        (json!({ "messages": "hi" }), 400, "messages"),
        (json!({ "messages": [1] }), 400, "messages[0]"),
        (json!({ "messages": [{ "content": "hi" }] }), 400, "messages[0].role"),
        (json!({ "messages": [{ "role": "robot", "content": "hi" }] }), 400, "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), 400, "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": 1 }] }), 400, "messages[0].content"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
            400,
            "messages[0].content[0].type",
        ),
        (json!({ "messages": [{ "role": "user", "content": "hi" }], "model": "gpt-4o" }), 404, "model"),
        (json!({ "messages": [{ "role": "user", "content": "hi" }], "stream": 1 }), 400, "stream"),
        (json!({ "messages": [{ "role": "user", "content": "hi" }], "stream_options": {} }), 400, "stream_options"),
    ] {
        let response = server.post("/v1/chat/completions", &body);
        assert_eq!((response.status, &response.error()["param"]), (status, &json!(param)), "{body}");
    }
    // Parts of text are text; a developer is a system.
    let parts = json!([{ "type": "text", "text": "Tell me " }, { "type": "text", "text": "about a dog." }]);
    let as_parts =
        server.post("/v1/chat/completions", &chat(json!({ "messages": [{ "role": "user", "content": parts }] })));
    assert_eq!(text(&as_parts), text(&server.post("/v1/chat/completions", &chat(json!({})))));
    let roles = ["system", "developer"].map(|role| {
        let messages = json!([{ "role": role, "content": "Be kind." }, { "role": "user", "content": "Hi" }]);
        text(&server.post("/v1/chat/completions", &chat(json!({ "messages": messages }))))
    });
    assert_eq!(roles[0], roles[1]);
}

/// A conversation goes on from what was computed: prompts and answers, but for the rest of a block.
#[test]
fn a_second_turn_reuses_the_first() {
    let server = Server::start(&[]);
    let story = "The little dog went to the park with his friend and they played all day. ".repeat(18);
    let mut messages = vec![json!({ "role": "user", "content": story })];
    let mut known = 0;
    for turn in 0..3 {
        // What is sampled at this temperature is hardly ever what its text is encoded as.
        let body = json!({ "messages": messages, "max_tokens": 32, "seed": 3, "temperature": 2 });
        let answer = server.post("/v1/chat/completions", &body).json();
        let usage = |name: &str| answer["usage"][name].as_u64().unwrap();
        let reused = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        if turn > 0 {
            assert!(reused * 100 >= known * 95, "turn {turn}: {reused} of {known}");
        }
        known = usage("prompt_tokens") + usage("completion_tokens");
        messages.push(answer["choices"][0]["message"].clone());
        messages.push(json!({ "role": "user", "content": "And?" }));
    }
}

/// What one key has asked helps no other, and cannot be learned by it.
#[test]
fn keys_share_no_cache() {
    let server = Server::start(&["--api-key", "one", "--api-key", "two"]);
    let body = json!({ "prompt": "The little dog went to the park. ".repeat(12), "max_tokens": 1 }).to_string();
    let reused = |key: &str| {
        let response = server.send("POST", "/v1/completions", &[("x-api-key", key)], &body).json();
        response["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!([reused("one"), reused("two")], [0, 0]);
    assert!(reused("one") > 64 && reused("two") > 64);
}
