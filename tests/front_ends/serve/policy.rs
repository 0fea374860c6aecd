//! Who may ask, case by case; and every field that is a number, with what is none.

use serde_json::{Value, json};

use super::client::Server;

/// A case: what is sent, and the status that comes.
type Case<'a> = (&'a [(&'a str, &'a str)], u16);

fn check(server: &Server, cases: &[Case]) -> usize {
    for (headers, expected) in cases {
        // What costs something, what shows something, and what is the server's own.
        let body = r#"{"prompt":"a","max_tokens":1}"#;
        for (method, path, body) in [("POST", "/v1/completions", body), ("GET", "/api/ps", "")] {
            let response = server.send(method, path, headers, body);
            assert_eq!(response.status, *expected, "{method} {path} {headers:?}: {}", response.text());
            let shown = response.header("access-control-allow-origin").is_some();
            assert!(!shown || *expected != 403, "{headers:?}");
        }
    }
    cases.len()
}

#[test]
fn names_and_pages_case_by_case() {
    let server = Server::start(&["--allow-host", "box.lan", "--allow-origin", "https://chat.example"]);
    let own = format!("http://{}", server.address);
    let port = server.address.rsplit_once(':').unwrap().1;
    let local = format!("http://localhost:{port}");
    let mut cases: Vec<Case> = Vec::new();
    let host = |name: &'static str| vec![("host", name)];
    let hosts: Vec<(Vec<(&str, &str)>, u16)> = [
        ("localhost", 200),
        ("localhost:1", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1", 200),
        ("127.0.0.1:8080", 200),
        ("127.9.9.9", 200),
        ("192.168.1.7:8080", 200),
        ("[::1]", 200),
        ("[::1]:8080", 200),
        ("box.lan", 200),
        ("BOX.lan", 200),
        ("box.lan:8080", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("evillocalhost", 403),
        ("127.0.0.1.evil.example", 403),
        ("127.0.0.1.nip.io", 403),
        ("box.lan.evil.example", 403),
        ("evilbox.lan", 403),
        ("box.lan.", 403),
        ("2130706433", 403),
        ("0x7f.1", 403),
        ("127.1", 403),
        ("[::1", 403),
        ("::1", 403),
        ("[localhost]", 403),
        ("localhost:80:80", 403),
        ("localhost@evil.example", 403),
        ("evil.example@localhost", 403),
        ("localhost evil.example", 403),
        ("localhost/evil", 403),
        ("localhost,evil.example", 403),
        ("", 400),
        (":8080", 403),
        ("*", 403),
        ("null", 403),
    ]
    .into_iter()
    .map(|(name, status)| (host(name), status))
    .collect();
    cases.extend(hosts.iter().map(|(headers, status)| (headers.as_slice(), *status)));
    let origins: Vec<(Vec<(&str, &str)>, u16)> = [
        (own.as_str(), 200),
        ("https://chat.example", 200),
        ("https://CHAT.example", 200),
        ("http://chat.example", 403),
        ("https://chat.example:444", 403),
        ("https://chat.example.evil", 403),
        ("https://evil.chat.example", 403),
        ("https://chat.example/", 403),
        ("https://chat.example@evil", 403),
        ("chat.example", 403),
        ("null", 403),
        ("", 403),
        ("*", 403),
        ("file://", 403),
        ("chrome-extension://abcdef", 403),
        ("http://evil.example", 403),
        ("http://localhost", 403),
        ("http://127.0.0.1", 403),
        (local.as_str(), 403),
        ("https://localhost", 403),
        ("http://[::1]", 403),
        ("http://localhost.evil.example", 403),
    ]
    .into_iter()
    .map(|(page, status)| (vec![("origin", page)], status))
    .collect();
    cases.extend(origins.iter().map(|(headers, status)| (headers.as_slice(), *status)));
    let both: [Case; 4] = [
        (&[("host", "evil.example"), ("origin", "https://chat.example")], 403),
        (&[("host", "evil.example"), ("origin", "http://evil.example")], 403),
        (&[("host", "box.lan"), ("origin", "http://box.lan")], 200),
        (&[("host", "box.lan"), ("origin", "http://evil.example")], 403),
    ];
    cases.extend(both);
    assert!(check(&server, &cases) >= 60);
    // Two headers of one name: neither counts.
    for twice in [
        [("origin", "https://chat.example"), ("origin", "http://evil.example")],
        [("host", "localhost"), ("host", "evil.example")],
    ] {
        let response = server.send("GET", "/v1/models", &twice, "");
        assert!([400, 403].contains(&response.status), "{twice:?}: {}", response.status);
    }
}

#[test]
fn keys_case_by_case() {
    let server = Server::with(&[], &[("WGSLM_API_KEY", "secret-1,secret-2")]);
    let long = "s".repeat(4000);
    let cases: Vec<Case> = vec![
        (&[("authorization", "Bearer secret-1")], 200),
        (&[("authorization", "bearer secret-2")], 200),
        (&[("authorization", "BEARER secret-2")], 200),
        (&[("authorization", "Bearer  secret-2 ")], 200),
        (&[("x-api-key", "secret-1")], 200),
        (&[("x-api-key", "wrong"), ("authorization", "Bearer secret-1")], 200),
        (&[], 401),
        (&[("authorization", "")], 401),
        (&[("authorization", "Bearer")], 401),
        (&[("authorization", "Bearer ")], 401),
        (&[("authorization", "secret-1")], 401),
        (&[("authorization", "Basic secret-1")], 401),
        (&[("authorization", "Bearer secret-")], 401),
        (&[("authorization", "Bearer secret-11")], 401),
        (&[("authorization", "Bearer SECRET-1")], 401),
        (&[("authorization", "Bearer secret-1,secret-2")], 401),
        (&[("authorization", "Bearer secret-1 secret-2")], 401),
        (&[("x-api-key", "")], 401),
        (&[("x-api-key", "Bearer secret-1")], 401),
        (&[("api-key", "secret-1")], 401),
        (&[("cookie", "key=secret-1")], 401),
        (&[("x-forwarded-for", "127.0.0.1")], 401),
    ];
    assert_eq!(check(&server, &cases), 22);
    check(&server, &[(&[("x-api-key", &long)], 401)]);
    // What brings models, and what has none in its address, needs a key, too.
    for (method, path) in [
        ("POST", "/api/pull"),
        ("POST", "/api/show"),
        ("POST", "/api/embeddings"),
        ("GET", "/api/tags"),
        ("GET", "/v1/models/tiny"),
        ("GET", "/metrics"),
        ("GET", "/nowhere"),
        ("GET", "/?key=secret-1"),
        ("GET", "//"),
        ("GET", "/health/../v1/models"),
    ] {
        let status = server.send(method, path, &[], "{}").status;
        assert!(status == 401 || path.starts_with("/?") && status == 200, "{path}: {status}");
    }
}

/// What no field that is a number takes. NaN and infinities are no JSON: the body is refused.
fn wrong_numbers() -> Vec<(String, bool)> {
    let wrong = ["-1e9", "1e300", "-1e300", "\"1\"", "\"\"", "true", "[]", "[1]", "{}"];
    let no_json = ["NaN", "Infinity", "-Infinity", "1e999", "01", "+1", ".5", "0x10", "1_000"];
    let wrong = wrong.map(|text| (text.to_owned(), true)).into_iter();
    wrong.chain(no_json.map(|text| (text.to_owned(), false))).collect()
}

#[test]
fn numbers_that_do_not_work_are_refused() {
    let server = Server::start(&[]);
    let chat = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1 });
    let text = json!({ "model": "tiny", "prompt": "a", "max_tokens": 1 });
    let ollama = json!({ "model": "tiny", "prompt": "a", "stream": false });
    let responses = json!({ "model": "tiny", "input": "a", "max_output_tokens": 1 });
    let logprobs = json!({ "model": "tiny", "messages": chat["messages"], "max_tokens": 1, "logprobs": true });
    let sampling = [
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "top_k",
        "seed",
        "xtc_probability",
        "xtc_threshold",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
    ];
    let mut cases = 0;
    let mut refused = |path: &str, base: &Value, object: Option<&str>, field: &str, number: &str, is_json: bool| {
        let mut base = base.clone();
        let at = match object {
            Some(object) => {
                base[object] = json!({ field: "HERE" });
                format!("{object}.{field}")
            }
            None => {
                base[field] = "HERE".into();
                field.to_owned()
            }
        };
        let body = base.to_string().replace("\"HERE\"", number);
        let response = server.send("POST", path, &[], &body);
        assert_eq!(response.status, 400, "{path} {at} {number}: {}", response.text());
        let text = response.text();
        assert!(text.contains(if is_json { at.as_str() } else { "body" }), "{path} {at} {number}: {text}");
        cases += 1;
    };
    for (number, is_json) in wrong_numbers() {
        refused("/v1/chat/completions", &logprobs, None, "top_logprobs", &number, is_json);
        for field in sampling.into_iter().chain(["max_tokens", "max_completion_tokens", "n"]) {
            // A seed may be any integer.
            if field == "seed" && number.starts_with("-1e9") {
                continue;
            }
            refused("/v1/chat/completions", &chat, None, field, &number, is_json);
        }
        for field in ["max_tokens", "n", "logprobs", "best_of"] {
            refused("/v1/completions", &text, None, field, &number, is_json);
        }
        refused("/v1/responses", &responses, None, "max_output_tokens", &number, is_json);
        for field in ["max_tokens", "temperature", "top_k", "top_p"] {
            refused("/v1/messages", &chat, None, field, &number, is_json);
        }
        for field in
            ["num_predict", "num_ctx", "repeat_last_n", "mirostat", "mirostat_tau", "temperature", "top_k", "min_p"]
        {
            refused("/api/generate", &ollama, Some("options"), field, &number, is_json);
        }
    }
    // Where nothing is too little.
    for field in ["top_p", "typical_p", "repetition_penalty", "dry_base", "max_tokens", "max_completion_tokens", "n"] {
        for zero in ["0", "0.0", "-0.0"] {
            refused("/v1/chat/completions", &chat, None, field, zero, true);
        }
    }
    for field in ["n", "best_of"] {
        refused("/v1/completions", &text, None, field, "0", true);
    }
    refused("/v1/responses", &responses, None, "max_output_tokens", "0", true);
    refused("/v1/messages", &chat, None, "max_tokens", "0", true);
    refused("/api/generate", &ollama, Some("options"), "num_ctx", "0", true);
    assert!(cases > 400, "{cases}");
    // What is at the edges works.
    for (field, numbers) in [
        ("temperature", ["0", "100"]),
        ("top_p", ["0.01", "1"]),
        ("min_p", ["0", "1.0"]),
        ("top_k", ["0", "1"]),
        ("seed", ["0", "9007199254740993"]),
        ("n", ["1", "2"]),
        ("top_logprobs", ["0", "20"]),
        ("xtc_probability", ["0", "1"]),
        ("dry_multiplier", ["0", "100"]),
        ("dry_penalty_last_n", ["-1", "0"]),
    ] {
        for number in numbers {
            let mut body = if field == "top_logprobs" { logprobs.clone() } else { chat.clone() };
            body[field] = "HERE".into();
            let body = body.to_string().replace("\"HERE\"", number);
            let response = server.send("POST", "/v1/chat/completions", &[], &body);
            assert_eq!(response.status, 200, "{field} {number}: {}", response.text());
        }
    }
}
