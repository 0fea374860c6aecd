//! The server with models that come when the tests say so, and engines that stand still.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Access, Catalog, Known, Limits, Pulling, Residence, Served, Server};
use crate::driver::ServeOptions;
use crate::exec::{AnyExecutor, DeviceChoice, Options};
use crate::file::ModelFile;
use crate::language_model::LanguageModel;
use crate::model::Model;
use crate::{Error, Result, TINY, block_on};

/// `quick` is open at once, `slow` when it is released, `broken` never, the engine of `stuck` stands still until then, and that
/// of `dying` ends then.
#[derive(Default)]
struct Models {
    released: Mutex<bool>,
    release: Condvar,
    opened: AtomicUsize,
    /// Downloads without an end that began, and that were ended.
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl Models {
    fn release(&self) {
        *self.released.lock().unwrap() = true;
        self.release.notify_all();
    }

    fn wait(&self) {
        drop(self.release.wait_while(self.released.lock().unwrap(), |released| !*released).unwrap());
    }
}

const NAMES: [&str; 5] = ["quick", "slow", "broken", "stuck", "dying"];

fn known(name: &str) -> Known {
    Known { name: name.to_owned(), bytes: 1, modified: None, commit: String::new() }
}

struct Given(Arc<Models>);

impl Catalog for Given {
    fn find(&self, name: &str) -> Result<Option<Known>> {
        Ok(NAMES.contains(&name).then(|| known(name)))
    }

    fn list(&self) -> Result<Vec<Known>> {
        Ok(NAMES.map(known).to_vec())
    }

    fn inspect(&self, _: &Known) -> Result<Model> {
        block_on(Model::open(ModelFile::from_bytes("tiny.gguf", TINY)?))
    }

    fn open(&self, known: &Known) -> Result<Served> {
        self.0.opened.fetch_add(1, Ordering::Relaxed);
        match known.name.as_str() {
            "slow" => self.0.wait(),
            "broken" => {
                std::thread::sleep(Duration::from_millis(300));
                return Err(Error::Device("it is broken".to_owned()));
            }
            _ => {}
        }
        let options = Options { device: DeviceChoice::Cpu, threads: Some(1), context: 512, ..Options::default() };
        let model: LanguageModel<AnyExecutor> = block_on(crate::open(TINY, &options))?;
        let (driver, model) = model.driver(ServeOptions::default());
        let (models, name) = (Arc::clone(&self.0), known.name.clone());
        let thread = std::thread::spawn(move || match name.as_str() {
            "dying" => {
                models.wait();
                drop(driver);
            }
            "stuck" => {
                models.wait();
                driver.run();
            }
            _ => driver.run(),
        });
        Ok(Served::Language { model, thread, on_gpu: false })
    }

    fn pull(&self, name: &str, progress: &mut dyn FnMut(Pulling) -> Result<()>) -> Result<()> {
        progress(Pulling::Found { digest: "0123456789abcdef".to_owned() })?;
        if name == "endless" {
            self.0.begun.fetch_add(1, Ordering::Relaxed);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(20) {
                progress(Pulling::Bytes(1, 7)).inspect_err(|_| _ = self.0.ended.fetch_add(1, Ordering::Relaxed))?;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.0.wait();
        progress(Pulling::Bytes(7, 7))?;
        if name == "broken" { Err(Error::Device("it is broken".to_owned())) } else { Ok(()) }
    }
}

struct Running {
    address: SocketAddr,
    models: Arc<Models>,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<Result<bool>>>,
}

impl Running {
    fn start() -> Self {
        Self::with(None, |_| {})
    }

    /// One that opens a model at the start, if that is named.
    fn with(first: Option<&str>, change: impl FnOnce(&mut Limits)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let models = Arc::new(Models::default());
        let mut limits = Limits {
            stuck: Duration::from_millis(300),
            drain: Duration::ZERO,
            header_time: Duration::from_secs(2),
            body_time: Duration::from_secs(1),
            write_time: Duration::from_secs(1),
            connections: 1000,
            ..Limits::default()
        };
        change(&mut limits);
        let catalog = Box::new(Given(Arc::clone(&models)));
        let access = Access::default();
        let name = first.unwrap_or("quick");
        let server = Server::new(listener, name, catalog, access, limits, &Residence::default()).unwrap();
        if first.is_some() {
            let open = server.first();
            std::thread::spawn(move || open(None).unwrap());
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let server = std::thread::spawn(move || server.run(|| stopped.load(Ordering::Relaxed)));
        Self { address, models, stop, server: Some(server) }
    }

    fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn get(&self, path: &str) -> (u16, String) {
        read(self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")))
    }

    fn asked(&self, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        let length = body.len();
        let head = format!("host: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n");
        self.send(&format!("POST {path} HTTP/1.1\r\n{head}\r\n{body}"))
    }

    fn ask(&self, model: &str) -> TcpStream {
        self.asked("/v1/completions", &json!({ "model": model, "prompt": "Once", "max_tokens": 4 }))
    }

    fn eventually(&self, what: &str, path: &str, holds: impl Fn(u16, &str) -> bool) {
        let begun = Instant::now();
        loop {
            let (status, text) = self.get(path);
            if holds(status, &text) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}: {status} {text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.models.release();
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.server.take().map(|server| server.join().unwrap());
        if !std::thread::panicking() {
            ended.map(Result::unwrap);
        }
    }
}

/// The status of a response, and all that follows.
fn read(mut stream: TcpStream) -> (u16, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    (status, text)
}

/// An engine that has work and comes to no end of a step is not ready, and says so; one that waits for work is.
#[test]
fn a_stuck_engine_is_not_ready() {
    let server = Running::start();
    assert_eq!(read(server.ask("quick")).0, 200);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(server.get("/health/ready").0, 200, "nothing is to be done");
    // However long nobody has looked.
    assert_eq!(read(server.ask("quick")).0, 200);
    std::thread::sleep(Duration::from_millis(700));
    let waiting = server.ask("stuck");
    while !server.get("/metrics").1.contains("num_requests_waiting{model_name=\"stuck\"} 1") {}
    let (status, text) = server.get("/health/ready");
    assert!(status == 200 || text.contains("no progress for 0."), "{text}");
    server.eventually("it is stuck", "/health/ready", |status, text| {
        status == 503 && text.contains("stuck shows no progress for 0.")
    });
    assert_eq!(server.get("/health/live").0, 200);
    assert_eq!(read(server.ask("quick")).0, 200, "the others go on");
    assert_eq!(server.get("/health/ready").0, 503);
    server.models.release();
    assert_eq!(read(waiting).0, 200);
    assert_eq!(server.get("/health/ready").0, 200);
}

/// An engine that has ended is opened by the next request, which a server that is not ready would not get.
#[test]
fn an_engine_that_has_ended_keeps_nobody_away() {
    let server = Running::start();
    server.models.release();
    for round in 1..=2 {
        let (status, text) = read(server.ask("dying"));
        assert!([200, 503].contains(&status), "{text}");
        assert_eq!(server.models.opened.load(Ordering::Relaxed), round, "it is opened again");
        server.eventually("it is ready", "/health/ready", |status, _| status == 200);
    }
    assert_eq!(read(server.ask("quick")).0, 200);
}

/// While nothing comes, a stream shows that it lives; what goes wrong later is said in it, in the words of each API.
#[test]
fn streams_show_life_and_errors() {
    let server = Running::with(None, |limits| limits.ping = Duration::from_millis(50));
    let messages = json!([{ "role": "user", "content": "Once" }]);
    let streams: Vec<_> = [
        ("/v1/completions", json!({ "prompt": "Once" }), "\n: ping\n\n", "data: {\"error\":{"),
        ("/v1/chat/completions", json!({ "messages": messages }), "\n: ping\n\n", "data: {\"error\":{"),
        ("/v1/responses", json!({ "input": "Once" }), "\n: ping\n\n", "event: response.failed\n"),
        (
            "/v1/messages",
            json!({ "messages": messages, "max_tokens": 9 }),
            "event: ping\ndata: {\"type\":\"ping\"}\n\n",
            "event: error\ndata: {\"type\":\"error\"",
        ),
        // It has no sign of life.
        ("/api/chat", json!({ "messages": messages }), "", "{\"error\":\""),
    ]
    .into_iter()
    .map(|(path, mut body, ping, error)| {
        (body["model"], body["stream"]) = ("dying".into(), true.into());
        (path, server.asked(path, &body), ping, error)
    })
    .collect();
    let line = "num_requests_waiting{model_name=\"dying\"} 5\n";
    server.eventually("all wait", "/metrics", |_, text| text.contains(line));
    std::thread::sleep(Duration::from_millis(500));
    server.models.release();
    for (path, stream, ping, error) in streams {
        let (status, text) = read(stream);
        let pings = if ping.is_empty() { 3 } else { text.matches(ping).count() };
        assert!(status == 200 && pings >= 3, "{path}: {pings} of {text}");
        assert_eq!(text.matches(error).count(), 1, "{path}: {text}");
        assert!(text.contains("engine has ended") || text.contains("driver has ended"), "{path}: {text}");
    }
}

/// From the first moment on.
#[test]
fn nothing_is_ready_before_the_first_model() {
    let server = Running::with(Some("slow"), |_| {});
    for _ in 0..20 {
        let (status, text) = server.get("/health/ready");
        assert!(status == 503 && text.contains("slow is being loaded"), "{text}");
    }
    assert_eq!(server.get("/health/live").0, 200);
    server.models.release();
    server.eventually("it is loaded", "/health/ready", |status, _| status == 200);
    // It stays for ever, however often it is opened.
    for _ in 0..2 {
        assert!(server.get("/api/ps").1.contains("\"expires_at\":\"9999"));
        assert_eq!(read(server.asked("/api/generate", &json!({ "model": "slow", "keep_alive": 0 }))).0, 200);
        server.eventually("it is closed", "/api/ps", |_, text| !text.contains("slow"));
        assert_eq!(read(server.ask("slow")).0, 200);
    }
}

/// The end does not wait for an engine that never ends.
#[test]
fn a_stuck_engine_does_not_hold_up_the_end() {
    let mut server = Running::start();
    let waiting = server.ask("stuck");
    server
        .eventually("it waits", "/metrics", |_, text| text.contains("num_requests_waiting{model_name=\"stuck\"} 1\n"));
    let begun = Instant::now();
    server.stop.store(true, Ordering::Relaxed);
    let all_ended = server.server.take().unwrap().join().unwrap().unwrap();
    assert!(!all_ended && begun.elapsed() < Duration::from_secs(15), "{all_ended} {:?}", begun.elapsed());
    drop(waiting);
}

/// Connections that are too many hear it, whatever they send.
#[test]
fn too_many_connections_are_turned_away() {
    let server = Running::with(None, |limits| {
        limits.connections = 2;
        limits.header_time = Duration::from_secs(60);
    });
    let open: Vec<TcpStream> = (0..2).map(|_| server.send("GET /health/live HTTP/1.1\r\nhost: loc")).collect();
    for round in 0..50 {
        let body = "a".repeat(round * 1000);
        let length = body.len();
        let mut stream = TcpStream::connect(server.address).unwrap();
        // What is unread when it closes must not take the answer with it.
        let request =
            format!("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let (status, text) = read(stream);
        assert!(status == 503 && text.contains("retry-after: 1\r\n"), "{text}");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{text}");
        assert_eq!(serde_json::from_str::<Value>(body).unwrap()["error"]["code"], "connections_full");
    }
    drop(open);
    let begun = Instant::now();
    loop {
        let (status, text) = server.get("/health/live");
        if status == 200 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{text}");
    }
}

/// While a model is opened, other requests are answered; those that want it wait, and it is opened once.
#[test]
fn opening_holds_nobody_else_up() {
    let server = Running::start();
    assert_eq!(read(server.ask("quick")).0, 200);
    let waiting: Vec<TcpStream> = (0..600).map(|_| server.ask("slow")).collect();
    server.eventually("it is being opened", "/health/live", |_, _| server.models.opened.load(Ordering::Relaxed) == 2);
    for _ in 0..5 {
        assert_eq!(read(server.ask("quick")).0, 200);
        assert_eq!(server.get("/health/ready").0, 200, "whoever asks for another model stops nobody");
    }
    assert_eq!(server.models.opened.load(Ordering::Relaxed), 2);
    server.models.release();
    let statuses: Vec<u16> = waiting.into_iter().map(|stream| read(stream).0).collect();
    // More than may wait are refused.
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert!(statuses.iter().filter(|status| **status == 200).count() > 200);
    assert_eq!(server.models.opened.load(Ordering::Relaxed), 2);
    assert_eq!(server.get("/health/ready").0, 200);
}

/// A model that cannot be opened is tried once for all who wait for it, and again later.
#[test]
fn what_cannot_be_opened_is_said_to_all() {
    let server = Running::start();
    let waiting: Vec<TcpStream> = (0..20).map(|_| server.ask("broken")).collect();
    for stream in waiting {
        let (status, text) = read(stream);
        assert!(status == 503 && text.contains("it is broken") && text.contains("retry-after"), "{text}");
    }
    let tried = server.models.opened.load(Ordering::Relaxed);
    // Whoever came later than the first had failed is none of those who waited.
    assert!((1..=2).contains(&tried), "{tried}");
    assert_eq!(read(server.ask("broken")).0, 503);
    assert_eq!(server.models.opened.load(Ordering::Relaxed), tried + 1);
    assert_eq!(read(server.ask("quick")).0, 200);
    assert_eq!(server.get("/health/ready").0, 200);
}

/// A download says how far it is; of the same model there is one.
#[test]
fn downloads_report_their_progress() {
    let server = Running::start();
    let pulling = server.asked("/api/pull", &json!({ "model": "quick" }));
    let begun = Instant::now();
    let refused = loop {
        let (status, text) = read(server.asked("/api/pull", &json!({ "model": "quick", "stream": false })));
        if status == 429 {
            break text;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{text}");
    };
    assert!(refused.contains("1 downloads go on"), "{refused}");
    server.models.release();
    let (_, text) = read(pulling);
    for words in
        ["pulling manifest", "\"digest\":\"0123456789abcdef\"", "pulling 0123456789ab\"", "\"status\":\"success\""]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (_, text) = read(server.asked("/api/pull", &json!({ "model": "broken" })));
    assert!(text.contains("{\"error\":") && text.contains("it is broken") && !text.contains("success"), "{text}");
}

/// A download of which nobody hears ends.
#[test]
fn downloads_end_with_their_clients() {
    let server = Running::start();
    server.models.release();
    for (round, stream) in [true, false, true, false].into_iter().enumerate() {
        let (asked, models) = (Instant::now(), &server.models);
        let wait = |of: &AtomicUsize, what| {
            while of.load(Ordering::Relaxed) <= round {
                assert!(asked.elapsed() < Duration::from_secs(10), "{round}, stream: {stream}: {what}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        // Refused at first, since the one before is about to end.
        let mut pulling = Vec::new();
        while models.begun.load(Ordering::Relaxed) <= round && pulling.len() < 50 {
            pulling.push(server.asked("/api/pull", &json!({ "model": "endless", "stream": stream })));
            std::thread::sleep(Duration::from_millis(20));
        }
        wait(&models.begun, "it has not begun");
        drop(pulling);
        wait(&models.ended, "it goes on");
    }
}

/// Whoever is slow loses the connection, whatever is slow about it: no place is taken for good.
#[test]
fn slow_clients_are_let_go() {
    let server = Running::start();
    let ends = |mut stream: TcpStream, least: u64, what: &str| {
        let begun = Instant::now();
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        let took = begun.elapsed();
        let expected = Duration::from_millis(least)..Duration::from_secs(10);
        assert!(expected.contains(&took), "{what}: {took:?}");
        String::from_utf8_lossy(&text).into_owned()
    };
    ends(server.send("GET /health/live HTTP/1.1\r\nhost: loc"), 1500, "headers");
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    let text = ends(server.send(head), 500, "body");
    assert!(text.starts_with("HTTP/1.1 408"), "{text}");
    // An answer that no buffer holds, of which nothing is read once it has begun.
    let mut stream = server.asked("/tokenize", &json!({ "content": "a b ".repeat(2 << 20) }));
    let mut text = vec![0];
    stream.read_exact(&mut text).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    let _ = stream.read_to_end(&mut text);
    let head = String::from_utf8_lossy(&text[..200]).into_owned();
    let length: usize = head.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap().parse().unwrap();
    assert!(text.len() < length, "all {length} bytes came");
    assert_eq!(server.get("/health/live").0, 200);
}

/// Where nobody more may wait, that is said before a prompt is read; what could never wait is a wrong request.
#[test]
fn refusals_read_no_prompts() {
    let server = Running::start();
    for (prompts, n, field) in [(128, 4, "prompt: 128 prompts"), (3, 100, "prompt: 3 prompts"), (1, 257, "n: ")] {
        let body = json!({ "model": "stuck", "prompt": vec!["Once"; prompts], "n": n, "max_tokens": 1 });
        let (status, text) = read(server.asked("/v1/completions", &body));
        assert!(status == 400 && text.contains(field), "{prompts} of {n}: {text}");
    }
    let waiting: Vec<TcpStream> = (0..2)
        .map(|_| {
            let body = json!({ "model": "stuck", "prompt": ["Once", "The"], "n": 64, "max_tokens": 1 });
            server.asked("/v1/completions", &body)
        })
        .collect();
    server.eventually("all wait", "/metrics", |_, text| {
        text.contains("num_requests_waiting{model_name=\"stuck\"} 256\n")
    });
    // Longer than a prompt may be, which shows when it is read.
    let long = "Once upon a time ".repeat(1000);
    let messages = json!([{ "role": "user", "content": long }]);
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": long })),
        ("/v1/chat/completions", json!({ "messages": messages })),
        ("/v1/responses", json!({ "input": long })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 1 })),
        ("/api/chat", json!({ "messages": messages })),
        ("/api/generate", json!({ "prompt": long, "raw": true })),
    ] {
        let ask = |model: &str| {
            let mut body = body.clone();
            body["model"] = model.into();
            read(server.asked(path, &body))
        };
        assert_eq!(ask("quick").0, 400, "{path}");
        let (status, text) = ask("stuck");
        assert!(status == 429 && text.contains("retry-after: "), "{path}: {text}");
    }
    drop(waiting);
}

/// A model that is to be closed after its last request is not opened twice when another one comes before.
#[test]
fn who_asks_before_the_end_keeps_a_model() {
    let server = Running::start();
    let unload = || {
        let (_, text) = read(server.asked("/api/generate", &json!({ "model": "stuck", "keep_alive": 0 })));
        assert!(text.contains("\"unload\""), "{text}");
    };
    let waiting = |n: u32| {
        let line = format!("num_requests_waiting{{model_name=\"stuck\"}} {n}\n");
        server.eventually("it waits", "/metrics", |_, text| text.contains(&line));
    };
    let first = server.ask("stuck");
    waiting(1);
    unload();
    let second = server.ask("stuck");
    waiting(2);
    server.models.release();
    assert_eq!([read(first).0, read(second).0], [200, 200]);
    assert_eq!(server.models.opened.load(Ordering::Relaxed), 1);
    assert!(server.get("/api/ps").1.contains("stuck"), "the second did not want it closed");
    unload();
    server.eventually("it is closed", "/api/ps", |_, text| !text.contains("stuck"));
}
