//! Who may ask, how much, and what becomes of those who go.

use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Response, Server, command};

fn long(more: Value) -> String {
    // A bias keeps it from ending: a dog for ever.
    let mut body = json!({ "prompt": "The dog", "max_tokens": 400, "temperature": 1.0, "stream": true });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

#[test]
fn strangers_are_refused() {
    let server = Server::with(
        &["--allow-host", "box.lan", "--allow-origin", "https://chat.example"],
        &[("WGSLM_API_KEY", "secret-1,secret-2")],
    );
    let key = ("authorization", "Bearer secret-2");
    let body = r#"{"prompt":"a","max_tokens":1}"#;
    for (headers, expected) in [
        (vec![key], 200),
        (vec![("x-api-key", "secret-1")], 200),
        (vec![key, ("host", "localhost")], 200),
        (vec![key, ("host", "box.lan:80")], 200),
        (vec![key, ("origin", "https://chat.example")], 200),
        (vec![], 401),
        (vec![("authorization", "Bearer secret")], 401),
        (vec![("authorization", "Bearer secret-1,secret-2")], 401),
        (vec![key, ("host", "evil.example")], 403),
        (vec![key, ("origin", "https://evil.example")], 403),
        (vec![key, ("origin", "null")], 403),
        // The host counts before the key: a page that was led here learns nothing.
        (vec![("host", "evil.example")], 403),
    ] {
        for (method, path, body) in
            [("POST", "/v1/completions", body), ("GET", "/v1/models", ""), ("GET", "/metrics", "")]
        {
            let response = server.send(method, path, &headers, body);
            assert_eq!(response.status, expected, "{path} {headers:?}: {}", response.text());
            let allowed = headers.contains(&("origin", "https://chat.example"));
            assert_eq!(response.header("access-control-allow-origin"), allowed.then_some("https://chat.example"));
        }
    }
    let refused = server.get("/v1/models");
    assert_eq!(refused.error()["code"], "invalid_api_key");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    // What says nothing about anybody needs no key.
    for path in ["/", "/chat.js", "/chat.css", "/health", "/health/live", "/health/ready"] {
        assert_eq!(server.get(path).status, 200, "{path}");
        assert_eq!(server.send("GET", path, &[("host", "evil.example")], "").status, 403, "{path}");
    }
    let preflight = |origin| {
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        server.send("OPTIONS", "/v1/chat/completions", &headers, "")
    };
    let allowed = preflight("https://chat.example");
    assert_eq!((allowed.status, allowed.header("access-control-allow-methods")), (204, Some("GET, POST")));
    assert_eq!(preflight("https://evil.example").status, 403);
    // Each API has its own words.
    let anthropic = server.send("POST", "/v1/messages", &[], "{}");
    let said: Value = serde_json::from_slice(&anthropic.body).unwrap();
    assert_eq!((&said["type"], &said["error"]["type"]), (&json!("error"), &json!("authentication_error")));
    let ollama = server.send("POST", "/api/chat", &[], "{}").error();
    assert!(ollama.as_str().unwrap().contains("a key is needed"), "{ollama}");
}

#[test]
fn addresses_of_others_need_a_key() {
    for (args, words) in [
        (&["--host", "0.0.0.0"][..], "with a key it works"),
        (&["--host", "::"], "with a key it works"),
        (&["--host", "192.168.7.7"], "with a key it works"),
        (&["--host", "localhost"], "invalid"),
        (&["--api-key", "two words"], "key"),
        (&["--api-key-file", "/nowhere/key"], "/nowhere/key"),
        (&["--port", "70000"], "70000"),
        (&["--parallel", "0"], "parallel"),
    ] {
        let output = command(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

/// Bytes that are no request, or more than one may be.
#[test]
fn what_is_no_request_is_refused() {
    let server = Server::start(&[]);
    let raw = |bytes: &[u8]| {
        let mut stream = server.connect();
        // The server may have closed before all was written.
        let _ = stream.write_all(bytes);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        all
    };
    let status = |bytes: &[u8]| Response::parse(&raw(bytes)).status;
    assert_eq!(status(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"), 400);
    assert_eq!(status(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), 400);
    assert_eq!(status(b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil\r\nconnection: close\r\n\r\n"), 400);
    let many = format!("GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{}\r\n", "a: b\r\n".repeat(200));
    assert_eq!(status(many.as_bytes()), 431);
    let large = format!("GET / HTTP/1.1\r\nhost: localhost\r\na: {}\r\n\r\n", "b".repeat(300_000));
    assert_eq!(status(large.as_bytes()), 431);
    assert_eq!(server.get("/nowhere").status, 404);
    assert_eq!(server.get("/v1/models/other").status, 404);
    assert_eq!(server.get("/v1/models/tiny").json()["id"], "tiny");
    let wrong = server.send("GET", "/v1/chat/completions", &[], "");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
    let wrong = server.send("POST", "/v1/models", &[], "{}");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("GET")));
    for body in ["", "{", "[]", "1", "\"a\"", "{\"prompt\":\"\\ud800\"}", "\u{feff}{}"] {
        let response = server.send("POST", "/v1/completions", &[], body);
        assert_eq!((response.status, &response.error()["param"]), (400, &json!("body")), "{body}");
    }
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(server.send("POST", "/v1/chat/completions", &[], &deep).status, 400);
    // Larger than a body may be: by what is announced, and by what comes.
    let announced = server.send("POST", "/v1/completions", &[("content-length", "99999999999")], "");
    assert_eq!((announced.status, &announced.error()["code"]), (413, &json!("too_large")));
    let mut chunk = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..17 {
        chunk.extend(b"100000\r\n");
        chunk.extend(vec![b' '; 1 << 20]);
        chunk.extend(b"\r\n");
    }
    chunk.extend(b"0\r\n\r\n");
    let all = raw(&chunk);
    assert!(all.is_empty() || Response::parse(&all).status == 413);
    // A prompt that cannot fit is refused by what fits.
    let long = json!({ "prompt": "dog ".repeat(20_000), "max_tokens": 1 });
    let refused = server.post("/v1/completions", &long);
    assert_eq!((refused.status, &refused.error()["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!(server.get("/health").status, 200);
}

/// Clients that go, at any moment: nothing of theirs stays.
#[test]
fn those_who_go_leave_nothing() {
    let server = Server::start(&["--parallel", "4"]);
    let never = json!({ "n": 2 });
    let request = server.request("POST", "/v1/completions", &[], &long(never));
    let whole = server.request("POST", "/v1/completions", &[], &long(json!({ "stream": false })));
    for i in 0..60usize {
        let mut stream = server.connect();
        let request = if i % 3 == 0 { &whole } else { &request };
        let part = if i % 5 == 4 { request.len() * i / 60 } else { request.len() };
        stream.write_all(&request.as_bytes()[..part]).unwrap();
        if i % 2 == 0 && i % 5 != 4 && i % 3 != 0 {
            let mut some = [0; 256];
            assert!(stream.read(&mut some).unwrap() > 0);
        }
        std::thread::sleep(Duration::from_millis((i as u64 * 7) % 20));
    }
    let begun = Instant::now();
    server.idle();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(server.metric("kv_cache_usage_perc"), 0.0);
    let aborted = server.get("/metrics").text();
    let aborted = aborted.lines().find(|line| line.contains("finished_reason=\"abort\"")).unwrap().to_owned();
    assert!(!aborted.ends_with(" 0"), "{aborted}");
    assert_eq!(server.get("/health/ready").status, 200);
}

/// More than can wait are refused at once, with a time.
#[test]
fn a_full_queue_refuses() {
    let server = Server::start(&["--parallel", "1", "--queue", "2"]);
    // What could never wait is no matter of time.
    let response = server.send("POST", "/v1/completions", &[], &long(json!({ "n": 5 })));
    assert_eq!((response.status, &response.error()["param"]), (400, &json!("n")));
    assert!(response.error()["message"].as_str().unwrap().contains("never fit into the queue; 2 work"));
    let mut open = Vec::new();
    let request = server.request("POST", "/v1/completions", &[], &long(json!({ "max_tokens": 2000 })));
    for _ in 0..3 {
        let mut stream = server.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut some = [0; 64];
        assert!(stream.read(&mut some).unwrap() > 0);
        assert!(some.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&some));
        open.push(stream);
        // It runs, so that the others alone wait.
        while server.metric("num_requests_running") < 1.0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let mut refused = 0;
    for _ in 0..10 {
        let begun = Instant::now();
        let response = server.send("POST", "/v1/completions", &[], &long(json!({})).replace("true", "false"));
        if response.status == 429 {
            refused += 1;
            assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
            let seconds: u64 = response.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=60).contains(&seconds));
            assert_eq!(
                (&response.error()["type"], &response.error()["code"]),
                (&json!("rate_limit_error"), &json!("queue_full"))
            );
        }
    }
    assert!(refused > 0, "none was refused");
    assert_eq!(server.metric("requests_refused_total"), f64::from(refused));
    drop(open);
    server.idle();
}

/// The system's limit on files is that of connections, and the usual one is too low.
#[cfg(target_os = "linux")]
#[test]
fn connections_are_not_limited_by_files() {
    let wgslm = command(&[]);
    let args: Vec<_> = wgslm.get_args().map(|arg| arg.to_str().unwrap()).collect();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -Sn 64; exec \"$0\" \"$@\"", wgslm.get_program().to_str().unwrap()]).args(args);
    let server = Server::spawned(limited);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut words = line.split_whitespace().skip(3);
    let (soft, hard) = (words.next().unwrap(), words.next().unwrap());
    let number = |word: &str| word.parse::<u64>().unwrap_or(u64::MAX);
    assert!(number(soft) >= 2048.min(number(hard)), "{line}");
    let many: Vec<_> = (0..200).map(|_| server.connect()).collect();
    assert_eq!(server.get("/health/live").status, 200);
    drop(many);
}

/// Asked to end, it takes nothing new and lets answers come to their end.
#[cfg(unix)]
#[test]
fn answers_in_flight_end_before_the_server() {
    let mut server = Server::start(&[]);
    let mut stream = server.connect();
    let request = server.request("POST", "/v1/completions", &[], &long(json!({ "max_tokens": 200 })));
    stream.write_all(request.as_bytes()).unwrap();
    let mut begun = vec![0; 300];
    let read = stream.read(&mut begun).unwrap();
    assert!(read > 0);
    begun.truncate(read);
    let killed = Command::new("kill").arg(server.child.id().to_string()).status().unwrap();
    assert!(killed.success());
    stream.read_to_end(&mut begun).unwrap();
    let events = Response::parse(&begun).events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let ended: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert!(ended["choices"][0]["finish_reason"].is_string(), "{ended}");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

/// The numbers that others collect.
#[test]
fn metrics_count_what_happened() {
    let server = Server::start(&[]);
    let (mut prompt, mut generated) = (0.0, 0.0);
    for i in 1..5 {
        let usage =
            server.post("/v1/completions", &json!({ "prompt": "The cat", "max_tokens": i * 3 })).json()["usage"]
                .clone();
        prompt += usage["prompt_tokens"].as_f64().unwrap();
        generated += usage["completion_tokens"].as_f64().unwrap();
    }
    server.idle();
    assert_eq!(server.metric("prompt_tokens_total"), prompt);
    assert_eq!(server.metric("generation_tokens_total"), generated);
    assert_eq!(server.metric("time_to_first_token_seconds_count"), 4.0);
    let response = server.get("/metrics");
    assert_eq!(response.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = response.text();
    // Each sample follows its help and type; buckets grow.
    let mut declared = String::new();
    let mut last = 0.0;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            name.clone_into(&mut declared);
            last = 0.0;
        } else if !line.starts_with("# HELP vllm:") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with(&declared) && name.contains("{model_name=\"tiny\""), "{line} after {declared}");
            let value: f64 = value.parse().unwrap();
            if name.contains("_bucket") {
                assert!(value >= last, "{line}");
                last = value;
            }
        }
    }
}

/// The page is this server's alone.
#[test]
fn the_page_loads_nothing_from_elsewhere() {
    let server = Server::start(&[]);
    let page = server.get("/");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    for path in ["/", "/chat.js", "/chat.css"] {
        let text = server.get(path).text();
        for word in ["innerHTML", "https://", "eval(", "document.write", "insertAdjacent", "onclick"] {
            assert!(!text.contains(word), "{path} has {word}");
        }
    }
    assert_eq!(server.send("HEAD", "/", &[], "").status, 200);
}
