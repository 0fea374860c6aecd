//! Several models: loaded when they are asked for, unloaded when nobody uses them, downloaded when that is asked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wgslm::gpu::Device;
use wgslm_test::data;

use super::client::{Server, command};
use crate::cli::embed::Folder;
use crate::hub::server::{FakeHub, Fault};

const NAME: &str = "org/repo:Q8_0";

/// A server whose cache is a folder of this test, which holds nothing yet.
fn server(test: &str, fake: &FakeHub, args: &[&str]) -> Server {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-models-{test}"));
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(&home).unwrap();
    Server::with(args, &[("HF_HOME", home.to_str().unwrap()), ("HF_ENDPOINT", &fake.address)])
}

fn hub() -> FakeHub {
    let model = fs::read(data("stories/stories-q8_0.gguf")).unwrap();
    FakeHub::new(&[("stories-Q8_0.gguf", &model)])
}

fn names(value: &Value, list: &str, name: &str) -> Vec<String> {
    value[list].as_array().unwrap().iter().map(|one| one[name].as_str().unwrap().to_owned()).collect()
}

fn loaded(server: &Server) -> Vec<String> {
    names(&server.get("/api/ps").json(), "models", "name")
}

fn listed(server: &Server) -> Vec<String> {
    names(&server.get("/v1/models").json(), "data", "id")
}

fn ask(server: &Server, model: &str) -> (u16, Value) {
    let response = server.post("/v1/completions", &json!({ "model": model, "prompt": "Once", "max_tokens": 2 }));
    (response.status, serde_json::from_slice(&response.body).unwrap())
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn models_are_pulled_loaded_and_unloaded() {
    let fake = hub();
    let server = server("pull", &fake, &["--models-max", "2"]);
    assert_eq!((loaded(&server), listed(&server)), (vec!["tiny".to_owned()], vec!["tiny".to_owned()]));
    // A request downloads nothing: it says what there is.
    for model in ["org/repo", NAME, "repo", "other", "/etc/passwd", "../tiny", "", "~/x", "hf.co/org/repo", "a b"] {
        let (status, said) = ask(&server, model);
        let error = &said["error"];
        assert_eq!(
            (status, &error["code"], &error["param"]),
            (404, &json!("model_not_found"), &json!("model")),
            "{said}"
        );
        let words = error["message"].as_str().unwrap();
        assert!(words.contains(&format!("{model:?}")) && words.contains("\"tiny\""), "{words}");
    }
    assert_eq!(fake.connections(), 0);

    let pulled = server.post("/api/pull", &json!({ "model": "org/repo" }));
    assert_eq!((pulled.status, pulled.header("content-type")), (200, Some("application/x-ndjson")));
    let lines: Vec<Value> = pulled.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], json!({ "status": "pulling manifest" }));
    assert_eq!(lines.last(), Some(&json!({ "status": "success" })));
    let bytes: Vec<_> = lines.iter().filter(|line| line["total"].is_u64()).collect();
    let complete = bytes.last().unwrap();
    assert!(complete["total"].as_u64().unwrap() > 100_000 && complete["total"] == complete["completed"], "{complete}");
    assert!(bytes.windows(2).all(|two| two[0]["completed"].as_u64() <= two[1]["completed"].as_u64()));
    let all = server.get("/api/tags").json();
    assert_eq!(names(&all, "models", "name"), ["tiny", NAME]);
    assert_eq!(all["models"][1]["size"], complete["total"]);
    assert_eq!(all["models"][1]["details"]["quantization_level"], "Q8_0");
    assert_eq!((listed(&server), loaded(&server)), (vec!["tiny".to_owned(), NAME.to_owned()], vec!["tiny".to_owned()]));
    assert_eq!(server.get("/v1/models/org%2Frepo:Q8_0").json()["id"], NAME);
    assert_eq!(server.get("/v1/models/org/repo").json()["id"], NAME);
    // What its files say needs no loading.
    let shown = server.post("/api/show", &json!({ "model": "org/repo" })).json();
    assert_eq!((&shown["details"]["family"], &shown["capabilities"][0]), (&json!("llama"), &json!("completion")));
    assert_eq!(loaded(&server), ["tiny"]);

    // It comes when it is asked for, by any of its names, once.
    for model in [NAME, "org/repo", "repo", "repo:Q8_0", "org/repo:latest"] {
        let (status, said) = ask(&server, model);
        if model.ends_with(":latest") && status == 404 {
            // `latest` could be a quantisation of a repository.
            continue;
        }
        assert_eq!((status, &said["model"]), (200, &json!(NAME)), "{said}");
    }
    assert_eq!(loaded(&server), [NAME, "tiny"]);
    for path in ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate"] {
        let messages = json!([{ "role": "user", "content": "a" }]);
        let body = match path {
            "/v1/responses" => json!({ "model": "tiny", "input": "a", "max_output_tokens": 1 }),
            "/api/chat" => json!({ "model": "tiny", "messages": messages, "stream": false }),
            "/api/generate" => json!({ "model": "tiny", "prompt": "a", "stream": false }),
            _ => json!({ "model": "tiny", "messages": messages, "max_tokens": 1 }),
        };
        assert_eq!(server.post(path, &body).json()["model"], "tiny", "{path}");
    }
    let text = server.get("/metrics").text();
    for name in [NAME, "tiny"] {
        assert!(text.contains(&format!("vllm:engine_steps_total{{model_name=\"{name}\"}}")), "{name}: {text}");
    }
    assert_eq!(text.matches("# TYPE vllm:num_requests_running gauge").count(), 1);

    // `keep_alive` of Ollama's requests: 0 unloads it, a time sets when.
    let unloaded = server.post("/api/generate", &json!({ "model": NAME, "keep_alive": 0 })).json();
    assert_eq!((&unloaded["done_reason"], &unloaded["model"]), (&json!("unload"), &json!(NAME)));
    eventually("it is unloaded", || loaded(&server) == ["tiny"]);
    let begun = server.post("/api/generate", &json!({ "model": NAME, "keep_alive": "1h" })).json();
    assert_eq!(begun["done_reason"], "load");
    let expires = |name: &str| {
        let ps = server.get("/api/ps").json();
        let model = ps["models"].as_array().unwrap().iter().find(|model| model["name"] == name).unwrap().clone();
        model["expires_at"].as_str().unwrap().to_owned()
    };
    let soon = expires(NAME);
    assert!(soon.starts_with("20") && expires("tiny").starts_with("9999"), "{soon}");
    let body =
        json!({ "model": NAME, "prompt": "Once", "stream": false, "options": { "num_predict": 1 }, "keep_alive": -1 });
    assert_eq!(server.post("/api/generate", &body).json()["done"], true);
    assert!(expires(NAME).starts_with("9999"));
    let body =
        json!({ "model": NAME, "prompt": "Once", "stream": false, "options": { "num_predict": 1 }, "keep_alive": 0.2 });
    server.post("/api/generate", &body).json();
    eventually("its time is over", || loaded(&server) == ["tiny"]);
    for wrong in [json!("soon"), json!(true), json!([]), json!("5 m"), json!(1e300), json!("")] {
        let response = server.post("/api/chat", &json!({ "model": "tiny", "messages": [], "keep_alive": wrong }));
        assert_eq!(response.status, 400, "{wrong}");
        assert!(response.error().as_str().unwrap().starts_with("keep_alive: "));
    }
    // The same once more is here already.
    let again = server.post("/api/pull", &json!({ "name": "org/repo", "stream": false })).json();
    assert_eq!(again, json!({ "status": "success" }));
}

/// A file that is both given on the command line and known to the cache by another name has one place.
#[test]
fn one_file_is_opened_once() {
    let fake = hub();
    let pulled = server("once", &fake, &[]);
    assert_eq!(pulled.post("/api/pull", &json!({ "model": "org/repo", "stream": false })).status, 200);
    drop(pulled);
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve-models-once");
    let snapshots = home.join("hub/models--org--repo/snapshots");
    let commit = fs::read_dir(snapshots).unwrap().next().unwrap().unwrap().path();
    let file = commit.join("stories-Q8_0.gguf");
    let given = [file.to_str().unwrap()];
    let server = Server::with(&given, &[("HF_HOME", home.to_str().unwrap()), ("HF_ENDPOINT", &fake.address)]);
    for name in ["default", NAME, "org/repo", "stories-Q8_0"] {
        let (status, said) = ask(&server, name);
        assert_eq!((status, &said["model"]), (200, &json!("stories-Q8_0")), "{name}: {said}");
    }
    assert_eq!((listed(&server), loaded(&server)), (vec!["stories-Q8_0".to_owned()], vec!["stories-Q8_0".to_owned()]));
}

#[test]
fn the_longest_unused_gives_way() {
    let first = data("stories/stories-q8_0.gguf");
    let link = |name: &str| -> PathBuf {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-{name}.gguf"));
        fs::copy(&first, &path).unwrap();
        path
    };
    let [a, b] = ["a", "b"].map(link);
    let fake = hub();
    let server = server("way", &fake, &["--models-max", "1", a.to_str().unwrap(), b.to_str().unwrap()]);
    assert_eq!(
        (listed(&server), loaded(&server)),
        (vec!["serve-a".to_owned(), "serve-b".to_owned()], vec!["serve-a".to_owned()])
    );
    // Without a name it is the first.
    for (asked, is) in [("serve-b", "serve-b"), ("default", "serve-a"), ("SERVE-B:latest", "serve-b")] {
        assert_eq!(ask(&server, asked).1["model"], is);
        assert_eq!(loaded(&server), [is]);
        // The first stays, also when it is back.
        let until = names(&server.get("/api/ps").json(), "models", "expires_at");
        assert_eq!(until[0].starts_with("9999"), is == "serve-a", "{asked}: {until:?}");
    }
    // One that answers is not sent away.
    let body = json!({ "model": "serve-b", "prompt": "Once", "max_tokens": 1500, "stream": true }).to_string();
    let mut stream = server.connect();
    std::io::Write::write_all(&mut stream, server.request("POST", "/v1/completions", &[], &body).as_bytes()).unwrap();
    std::io::Read::read_exact(&mut stream, &mut [0; 64]).unwrap();
    let (status, said) = ask(&server, "serve-a");
    assert_eq!((status, &said["error"]["code"]), (429, &json!("queue_full")), "{said}");
    drop(stream);
    eventually("nobody uses it", || ask(&server, "serve-a").0 == 200);
    // Gone from the disk, it is an error; the others work.
    fs::remove_file(&b).unwrap();
    assert_eq!(ask(&server, "serve-b").0, 500);
    assert_eq!(ask(&server, "serve-a").0, 200);
    // Two of one name are a mistake.
    let output = command(&[a.to_str().unwrap(), a.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("two models are called serve-a"));
}

/// A model for chats and one for vectors at one address.
#[test]
fn text_and_vectors_at_one_address() {
    let folder = Folder::new("nomicbert-rope", "serve-beside");
    let fake = hub();
    let tiny = data("stories/stories-q8_0.gguf");
    let server =
        server("beside", &fake, &["--keep-alive", "300ms", tiny.to_str().unwrap(), folder.0.to_str().unwrap()]);
    let all = listed(&server);
    let vectors = all[1].as_str();
    let made = server.post("/v1/embeddings", &json!({ "model": vectors, "input": "w4 w5" })).json();
    assert_eq!(made["model"], vectors);
    // Ollama's older form has one vector, the same.
    let older = server.post("/api/embeddings", &json!({ "model": vectors, "prompt": "w4 w5" })).json();
    assert_eq!(older["embedding"], made["data"][0]["embedding"]);
    for (field, body) in [
        ("model", json!({ "prompt": "w4" })),
        ("prompt", json!({ "model": vectors })),
        ("prompt", json!({ "model": vectors, "prompt": "" })),
        ("prompt", json!({ "model": vectors, "prompt": ["w4"] })),
        ("keep_alive", json!({ "model": vectors, "prompt": "w4", "keep_alive": {} })),
    ] {
        let response = server.post("/api/embeddings", &body);
        assert_eq!(response.status, 400, "{body}");
        assert!(response.error().as_str().unwrap().contains(field), "{body}");
    }
    assert_eq!(server.post("/api/embeddings", &json!({ "model": all[0], "prompt": "a" })).status, 400);
    // With --keep-alive none stays, and each comes back.
    eventually("both are unloaded", || loaded(&server).is_empty());
    assert_eq!(server.get("/health/ready").status, 200);
    assert_eq!(server.get("/metrics").text(), "");
    assert_eq!(ask(&server, "default").0, 200);
}

/// Two models on one device of a GPU, asked at once: each answers as it does on the CPU, and one goes on without the other.
#[test]
fn two_models_share_lavapipe() {
    let adapters = pollster::block_on(Device::list());
    let lavapipe =
        adapters.iter().find(|adapter| adapter.name.contains("llvmpipe")).expect("lavapipe").index.to_string();
    let stories = data("stories/stories-q8_0.gguf");
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve-second.gguf");
    fs::copy(&stories, &copy).unwrap();
    let models = [stories.to_str().unwrap(), copy.to_str().unwrap()];
    let prompts = ["The dog", "Once upon a time"];
    let answer = |server: &Server, model: &str, prompt: &str| {
        let body = json!({ "model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0 });
        let answer = server.post("/v1/completions", &body).json();
        assert_eq!(answer["model"], model);
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let expected = {
        let cpu = Server::start(&[models[0], "--numerics", "exact"]);
        prompts.map(|prompt| answer(&cpu, "stories-q8_0", prompt))
    };
    let server = Server::start(&[
        models[0],
        models[1],
        "--device",
        &lavapipe,
        "--context",
        "256",
        "--parallel",
        "2",
        "--numerics",
        "exact",
    ]);
    let all_right = |models: &[&str]| {
        std::thread::scope(|scope| {
            for model in models {
                for (prompt, expected) in prompts.iter().zip(&expected) {
                    let (server, answer) = (&server, &answer);
                    scope.spawn(move || assert_eq!(answer(server, model, prompt), *expected, "{model}"));
                }
            }
        });
    };
    for _ in 0..2 {
        all_right(&["stories-q8_0", "serve-second"]);
    }
    let ps = server.get("/api/ps").json();
    let on_gpu: Vec<bool> =
        ps["models"].as_array().unwrap().iter().map(|m| m["size_vram"].as_u64() > Some(0)).collect();
    assert_eq!(on_gpu, [true, true], "{ps}");
    server.post("/api/generate", &json!({ "model": "stories-q8_0", "keep_alive": 0 })).json();
    eventually("it is unloaded", || loaded(&server) == ["serve-second"]);
    all_right(&["serve-second"]);
    all_right(&["stories-q8_0", "serve-second"]);
}

/// A file in several parts is as large as all of them.
#[test]
fn parts_count_together() {
    let part = |n: u32| data(&format!("hostile/g-ok-split2-0000{n}-of-00002.gguf"));
    let bytes: u64 = [1, 2].map(|n| fs::metadata(part(n)).unwrap().len()).iter().sum();
    let server = Server::start(&[data("stories/stories-q8_0.gguf").to_str().unwrap(), part(1).to_str().unwrap()]);
    assert_eq!(server.get("/api/tags").json()["models"][1]["size"], bytes);
}

#[test]
fn what_cannot_be_pulled_is_said() {
    let fake = hub();
    let server = server("refused", &fake, &[]);
    // Nobody who may ask makes the server connect to an address of theirs.
    let trap = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    trap.set_nonblocking(true).unwrap();
    let last = |body: Value| {
        let text = server.post("/api/pull", &body).text();
        serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap()
    };
    for (body, words) in [
        (json!({}), "model"),
        (json!({ "model": 1 }), "model"),
        (json!({ "model": "org/repo", "insecure": true }), "insecure"),
        (json!({ "model": "llama3.2" }), "is no name of a model"),
        (json!({ "model": "/etc/passwd" }), "is no name of a model"),
        (json!({ "model": format!("http://{}/m.gguf", trap.local_addr().unwrap()) }), "wgslm pull takes addresses"),
        (
            json!({ "model": "http://169.254.169.254/latest/m-Q8_0.gguf", "stream": false }),
            "wgslm pull takes addresses",
        ),
        (json!({ "model": "https://example.org/m.gguf" }), "wgslm pull takes addresses"),
        (json!({ "model": "org/repo:Q2_K" }), "Q2_K"),
    ] {
        let said = last(body.clone());
        assert!(said["error"].as_str().is_some_and(|error| error.contains(words)), "{body}: {said}");
    }
    assert!(trap.accept().is_err(), "it has connected");
    fake.always(Some(Fault::Status(401, "GatedRepo")));
    let said = last(json!({ "model": "org/repo" }));
    assert!(said["error"].is_string(), "{said}");
    fake.always(None);
    assert_eq!(listed(&server), ["tiny"]);
    // In the stream or as a status, an error is one.
    fake.info(404, "RepoNotFound", "{}");
    let refused = server.post("/api/pull", &json!({ "model": "org/other", "stream": false }));
    assert!(refused.status >= 400 && refused.error().is_string(), "{}", refused.text());
    let before = fake.connections();
    let offline = self::server("offline", &fake, &["--offline"]);
    let said = offline.post("/api/pull", &json!({ "model": "org/repo" })).text();
    assert!(said.contains("\"error\"") && said.contains("--offline"), "{said}");
    assert_eq!(fake.connections(), before);
}
