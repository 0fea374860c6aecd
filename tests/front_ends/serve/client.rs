//! A server that was started for a test, and a client that sees each byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// `wgslm serve`, until the test is over.
pub(super) struct Server {
    pub(super) child: Child,
    pub(super) address: String,
}

impl Server {
    /// The embedded model.
    pub(super) fn start(args: &[&str]) -> Self {
        Self::with(args, &[])
    }

    pub(super) fn with(args: &[&str], vars: &[(&str, &str)]) -> Self {
        let mut command = command(args);
        command.envs(vars.iter().copied());
        Self::spawned(command)
    }

    /// A command that ends up as one.
    pub(super) fn spawned(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("the server has ended").unwrap();
            if let Some((_, rest)) = line.split_once("http://") {
                break rest.split(';').next().unwrap().to_owned();
            }
        };
        // Whoever writes to a pipe that nobody reads is ended.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    /// A request with all its headers but Host and the length.
    pub(super) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        let mut stream = self.connect();
        stream.write_all(self.request(method, path, headers, body).as_bytes()).unwrap();
        Response::read(stream)
    }

    pub(super) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
        let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            request += &format!("host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if method == "POST" && !headers.iter().any(|(name, _)| *name == "content-length") {
            request += &format!("content-length: {}\r\n", body.len());
        }
        request + "\r\n" + body
    }

    pub(super) fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], "")
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, &[("content-type", "application/json")], &body.to_string())
    }

    /// The value of a metric.
    pub(super) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with(&format!("vllm:{name}{{")));
        let line = line.unwrap_or_else(|| panic!("{name} is missing in {text}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    /// Waits until nothing runs or waits.
    pub(super) fn idle(&self) {
        let begun = Instant::now();
        while self.metric("num_requests_running") + self.metric("num_requests_waiting") > 0.0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "requests are left");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wgslm"));
    command.arg("serve").args(args);
    if !args.contains(&"--threads") {
        command.args(["--threads", "1"]);
    }
    if !args.contains(&"--device") {
        command.args(["--device", "cpu"]);
    }
    if !args.contains(&"--port") {
        command.args(["--port", "0"]);
    }
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).env_remove("HF_HOME").env_remove("HF_HUB_CACHE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A response, with its chunks put together.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Response {
    pub(super) fn read(mut stream: TcpStream) -> Self {
        let mut all = Vec::new();
        // A server that has said what is wrong may close before it has read all.
        let _ = stream.read_to_end(&mut all);
        Self::parse(&all)
    }

    pub(super) fn parse(all: &[u8]) -> Self {
        let end = all.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no response: {:?}", String::from_utf8_lossy(all)));
        let head = std::str::from_utf8(&all[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        let headers: Vec<_> = lines.map(|line| header(line).unwrap()).collect();
        let rest = &all[end + 4..];
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let body = if chunked { unchunked(rest) } else { rest.to_vec() };
        Self { status, headers, body }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The object of a response that succeeded.
    pub(super) fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }

    /// What is wrong, in OpenAI's words.
    pub(super) fn error(&self) -> Value {
        let mut value: Value = serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()));
        value["error"].take()
    }

    /// The data of all events; each is checked byte for byte.
    pub(super) fn events(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{}", self.text());
        let text = self.text();
        assert!(text.ends_with("\n\n") && !text.contains('\r') && !text.contains("\n\n\n"), "{text:?}");
        let mut events = Vec::new();
        for event in text.trim_end_matches('\n').split("\n\n") {
            if event.starts_with(": ") {
                continue;
            }
            let (name, data) = match event.split_once('\n') {
                Some((name, data)) => (name.strip_prefix("event: "), data),
                None => (None, event),
            };
            let data = data.strip_prefix("data: ").unwrap_or_else(|| panic!("{event:?}"));
            assert!(!data.contains('\n'), "{event:?}");
            if let Some(name) = name {
                let value: Value = serde_json::from_str(data).unwrap();
                assert_eq!(value["type"], name, "{event}");
            }
            events.push(data.to_owned());
        }
        events
    }

    /// The events as objects, without the mark of the end.
    pub(super) fn objects(&self) -> Vec<Value> {
        let events = self.events();
        let objects = events.iter().filter(|data| *data != "[DONE]");
        objects.map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
        if size == 0 {
            break;
        }
    }
    body
}
