//! A hub on this machine, which can fail in every way that a real one can.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What goes wrong with a file's bytes. Offsets are those in the file.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The connection ends there.
    Cut(u64),
    /// Nothing more comes from there on.
    Hang(u64),
    /// The headers announce so many bytes, and so many come.
    Length(u64),
    /// A byte is another one.
    Flip(u64),
    /// The whole file, whatever was asked for.
    NoRange,
    /// Other bytes than were asked for.
    WrongRange,
    /// More bytes than there are, without a length.
    Endless,
    /// Another address.
    Redirect(String),
    /// An error, with the hub's own code.
    Status(u16, &'static str),
}

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

#[derive(Default)]
struct State {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// For the next requests of files, one each; those that stay are for all.
    faults: Mutex<Vec<Fault>>,
    always: Mutex<Option<Fault>>,
    /// The answer about repositories, where it is not made of the files.
    info: Mutex<Option<(u16, &'static str, String)>>,
    seen: Mutex<Vec<Seen>>,
    /// Bytes of files that were sent.
    sent: AtomicU64,
    connections: AtomicU64,
}

#[derive(Clone)]
pub(crate) struct FakeHub {
    pub(crate) address: String,
    state: Arc<State>,
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

pub(crate) fn git_hash(bytes: &[u8]) -> String {
    hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat()).as_ref())
}

/// Whether a file is one that the hub keeps by its SHA-256.
pub(crate) fn is_large(path: &str) -> bool {
    path.ends_with(".gguf") || path.ends_with(".safetensors")
}

impl FakeHub {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        *state.files.lock().unwrap() = files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.to_vec())).collect();
        let this = Self { address, state };
        let hub = this.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                hub.state.connections.fetch_add(1, SeqCst);
                let hub = hub.clone();
                std::thread::spawn(move || hub.serve(stream));
            }
        });
        this
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.state.faults.lock().unwrap().push(fault);
    }

    pub(crate) fn always(&self, fault: Option<Fault>) {
        *self.state.always.lock().unwrap() = fault;
    }

    pub(crate) fn info(&self, status: u16, code: &'static str, json: impl Into<String>) {
        *self.state.info.lock().unwrap() = Some((status, code, json.into()));
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// Bytes of files that were sent since the last call.
    pub(crate) fn sent(&self) -> u64 {
        self.state.sent.swap(0, SeqCst)
    }

    pub(crate) fn connections(&self) -> u64 {
        self.state.connections.load(SeqCst)
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some(request) = read_request(&mut reader) {
            if request.method == "CONNECT" {
                // A proxy that leads here.
                self.state.seen.lock().unwrap().push(request);
                if stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").is_err() {
                    return;
                }
                continue;
            }
            self.state.seen.lock().unwrap().push(request.clone());
            let path = request.path.split('?').next().unwrap_or_default().to_owned();
            let done = match path.strip_prefix("/api/models/") {
                Some(rest) => self.about(&mut stream, rest),
                None => self.file(&mut stream, &path, &request),
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// What the hub knows of a repository.
    fn about(&self, stream: &mut TcpStream, _rest: &str) -> std::io::Result<()> {
        if let Some((status, code, json)) = self.state.info.lock().unwrap().clone() {
            return answer(stream, status, &[("x-error-code", code)], json.as_bytes());
        }
        let files = self.state.files.lock().unwrap();
        let siblings: Vec<_> = files
            .iter()
            .map(|(path, bytes)| {
                let mut file = serde_json::json!({ "rfilename": path, "size": bytes.len(), "blobId": git_hash(bytes) });
                if is_large(path) {
                    file["lfs"] =
                        serde_json::json!({ "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134 });
                }
                file
            })
            .collect();
        let json = serde_json::json!({ "id": "org/repo", "sha": COMMIT, "siblings": siblings }).to_string();
        answer(stream, 200, &[], json.as_bytes())
    }

    /// A file, from the byte on that was asked for.
    fn file(&self, stream: &mut TcpStream, path: &str, request: &Seen) -> std::io::Result<()> {
        let fault = {
            let mut faults = self.state.faults.lock().unwrap();
            let next = if faults.is_empty() { None } else { Some(faults.remove(0)) };
            next.or_else(|| self.state.always.lock().unwrap().clone())
        };
        match &fault {
            Some(Fault::Redirect(to)) => {
                let tag = ("x-linked-etag", "\"not-a-hash\"");
                return answer(stream, 302, &[("location", to), tag], b"");
            }
            Some(Fault::Status(status, code)) => return answer(stream, *status, &[("x-error-code", code)], b"refused"),
            _ => {}
        }
        let below = |revision: &str| path.split_once(&format!("/resolve/{revision}/")).map(|(_, name)| name);
        let name = below(COMMIT).or_else(|| below("main")).unwrap_or(path.trim_start_matches('/'));
        let name = name.trim_start_matches("cdn/").replace("%20", " ");
        let Some(mut bytes) = self.state.files.lock().unwrap().get(&name).cloned() else {
            return answer(stream, 404, &[("x-error-code", "EntryNotFound")], b"");
        };
        let all = bytes.len() as u64;
        let asked =
            request.headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        // As servers do: a version that is another one is sent whole.
        let tag = format!("\"{}\"", &sha256(&bytes)[..16]);
        let same = request.headers.get("if-range").is_none_or(|known| *known == tag);
        if request.method == "HEAD" {
            // As Python asks before it downloads.
            let (hash, len) = (format!("\"{}\"", sha256(&bytes)), all.to_string());
            let head = format!(
                "HTTP/1.1 200 OK\r\nx-repo-commit: {COMMIT}\r\netag: {hash}\r\nx-linked-etag: {hash}\r\n\
                 x-linked-size: {len}\r\ncontent-length: {len}\r\n\r\n"
            );
            return stream.write_all(head.as_bytes());
        }
        let mut from: u64 = if same { asked.unwrap_or(0) } else { 0 };
        let mut end = all;
        let mut announced = None;
        match fault {
            Some(Fault::Cut(at)) | Some(Fault::Hang(at)) => end = at.clamp(from, all),
            Some(Fault::Length(n)) => (end, announced) = (n.min(all).max(from), Some(n.saturating_sub(from))),
            Some(Fault::Flip(at)) => bytes[at as usize] ^= 1,
            Some(Fault::NoRange) => from = 0,
            Some(Fault::WrongRange) => {}
            Some(Fault::Endless) => bytes.extend_from_slice(&[7; 4096]),
            _ => {}
        }
        let mut head = String::new();
        let wrong = matches!(fault, Some(Fault::WrongRange));
        match (asked.is_some() && from > 0) || wrong {
            true if from >= all && !wrong => return answer(stream, 416, &[], b""),
            true => {
                let said = if wrong { from + 1 } else { from };
                head += &format!("HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {said}-{}/{all}\r\n", all - 1);
            }
            false => head += "HTTP/1.1 200 OK\r\n",
        }
        head += &format!("etag: {tag}\r\naccept-ranges: bytes\r\n");
        if matches!(fault, Some(Fault::Endless)) {
            end = bytes.len() as u64;
            head += "connection: close\r\n\r\n";
        } else {
            head += &format!("content-length: {}\r\n\r\n", announced.unwrap_or(all - from));
        }
        stream.write_all(head.as_bytes())?;
        for piece in bytes[from as usize..end as usize].chunks(16 << 10) {
            // Before it is sent: who has it may ask at once.
            self.state.sent.fetch_add(piece.len() as u64, SeqCst);
            stream.write_all(piece)?;
        }
        stream.flush()?;
        match fault {
            Some(Fault::Hang(_)) => {
                // Until the client has gone.
                stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                let mut byte = [0];
                let _ = std::io::Read::read(stream, &mut byte);
                Err(std::io::ErrorKind::Other.into())
            }
            Some(Fault::Cut(_) | Fault::Length(_) | Fault::Endless) => Err(std::io::ErrorKind::Other.into()),
            _ => Ok(()),
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => drop(headers.insert(name.to_ascii_lowercase(), value.to_owned())),
            None => return Some(Seen { method, path, headers }),
        }
    }
}

fn answer(stream: &mut TcpStream, status: u16, headers: &[(&str, &str)], body: &[u8]) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all((head + "\r\n").as_bytes())?;
    stream.write_all(body)
}
