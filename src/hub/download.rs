//! Downloading one file: resumed where it broke off, hashed while it comes, and given its name only when its hash is right.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use ring::digest::{Algorithm, Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use ureq::http::{HeaderMap, header};

use super::cache::{io_error, make_folder};
use super::client::{Client, io_words, network};
use crate::{Error, Result};

/// How a file is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256 of its bytes, in hexadecimal digits: what large files are called by.
    Sha256(String),
    /// git's name of a blob, by SHA-1: small files.
    Git(String),
    /// Nothing to check it by but its size.
    None,
}

impl Hash {
    /// Its digits.
    pub fn digits(&self) -> Option<&str> {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => Some(digits),
            Self::None => None,
        }
    }
}

/// A file as the server should give it.
pub(super) struct Wanted<'a> {
    pub(super) url: &'a str,
    pub(super) size: u64,
    pub(super) hash: &'a Hash,
    /// What the server calls this version, where there is no hash.
    pub(super) validator: Option<&'a str>,
}

/// Holds a lock file, which one process at a time can.
pub(super) struct Lock(#[allow(dead_code, reason = "it is unlocked when it is closed")] File);

impl Lock {
    /// Waits until nobody else holds it; `waiting` is called if that is not at once.
    pub(super) fn take(path: &Path, waiting: &mut dyn FnMut() -> Result<()>) -> Result<Self> {
        make_folder(path.parent().unwrap_or(path))?;
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(io_error(path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting()?;
                file.lock().map_err(io_error(path))?;
            }
            // Some network file systems have no locks; then two downloads may cost twice, but each checks what it gets.
            Err(TryLockError::Error(_)) => {}
        }
        Ok(Self(file))
    }
}

/// Gets how many bytes of a file are there. Its error ends the download; the next one goes on from there.
pub(super) type Report<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// Downloads a file to `path`, which may hold its beginning.
pub(super) fn download(client: &Client, wanted: &Wanted<'_>, path: &Path, report: &mut Report<'_>) -> Result<()> {
    let mut resumed = false;
    loop {
        let mut download = Download::open(client, wanted, path)?;
        resumed |= download.have > 0;
        download.complete(report)?;
        match download.check() {
            Ok(()) => return Ok(()),
            Err(error) => {
                fs::remove_file(path).map_err(io_error(path))?;
                report(0)?;
                // Its beginning may have been another file's, or damaged on the disk: once more, from the start.
                if !std::mem::take(&mut resumed) {
                    return Err(error);
                }
            }
        }
    }
}

struct Download<'a> {
    client: &'a Client,
    wanted: &'a Wanted<'a>,
    path: &'a Path,
    file: File,
    /// Bytes that are in the file.
    have: u64,
    hasher: Hasher,
}

/// Why a transfer ended early.
enum Broken {
    /// Another try may help.
    Connection(Error),
    /// It would not.
    Final(Error),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        match error {
            Error::Network { .. } => Self::Connection(error),
            other => Self::Final(other),
        }
    }
}

impl<'a> Download<'a> {
    fn open(client: &'a Client, wanted: &'a Wanted<'a>, path: &'a Path) -> Result<Self> {
        make_folder(path.parent().unwrap_or(path))?;
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(io_error(path))?;
        let mut have = file.metadata().map_err(io_error(path))?.len();
        // What has no hash cannot be known to be the same file's beginning, unless the server says so.
        if have > wanted.size || wanted.hash == &Hash::None && wanted.validator.is_none() {
            file.set_len(0).map_err(io_error(path))?;
            have = 0;
        }
        let hasher = Hasher::new(wanted, path, have);
        Ok(Self { client, wanted, path, file, have, hasher })
    }

    /// Asks until everything is there.
    fn complete(&mut self, report: &mut Report<'_>) -> Result<()> {
        let mut tries = 1;
        report(self.have)?;
        while self.have < self.wanted.size {
            let before = self.have;
            match self.transfer(report) {
                Ok(()) => {}
                Err(Broken::Final(error)) => return Err(error),
                Err(Broken::Connection(error)) => {
                    tries = if self.have > before { 1 } else { tries + 1 };
                    if tries > self.client.patience.tries {
                        return Err(with_advice(error, self.wanted, self.have));
                    }
                    std::thread::sleep(self.client.pause(tries));
                }
            }
        }
        Ok(())
    }

    /// One request, as far as it goes.
    fn transfer(&mut self, report: &mut Report<'_>) -> Result<(), Broken> {
        let url = self.wanted.url;
        let response = self.client.get(url, self.have, self.wanted.validator)?;
        let status = response.status().as_u16();
        match status {
            206 => {
                let range = content_range(response.headers());
                if range != Some((self.have, self.wanted.size)) {
                    let problem =
                        format!("it answers with other bytes than those from {} of {}", self.have, self.wanted.size);
                    return Err(Broken::Final(network(url, &problem)));
                }
            }
            200 => {
                self.start_again()?;
                let length = content_length(response.headers());
                if let Some(length) = length.filter(|length| *length != self.wanted.size) {
                    let problem = format!("it has {length} bytes, and should have {}", self.wanted.size);
                    return Err(Broken::Final(Error::malformed(name(url), None, problem)));
                }
            }
            // Whatever the beginning was of, it is not this file's.
            416 => {
                self.start_again()?;
                return Err(Broken::Connection(network(url, "it does not give the rest of the file (416)")));
            }
            status if self.client.is_transient(status) => {
                return Err(Broken::Connection(network(url, &format!("it answers {status}"))));
            }
            _ => return Err(Broken::Final(self.client.refused(url, &response))),
        }
        let mut body = response.into_body().into_reader();
        loop {
            let mut buffer = self.hasher.buffer();
            let n = body
                .read(&mut buffer)
                .map_err(|error| Broken::Connection(network(url, &io_words(&error, self.client.patience.stall))))?;
            if n == 0 {
                break;
            }
            if self.have + n as u64 > self.wanted.size {
                let problem = format!("it goes on after the {} bytes that it should have", self.wanted.size);
                return Err(Broken::Final(Error::malformed(name(url), self.wanted.size, problem)));
            }
            self.file.write_all(&buffer[..n]).map_err(|error| Broken::Final(io_error(self.path)(error)))?;
            self.have += n as u64;
            self.hasher.push(buffer, n);
            report(self.have).map_err(Broken::Final)?;
        }
        if self.have < self.wanted.size {
            return Err(Broken::Connection(network(url, "the connection broke off")));
        }
        Ok(())
    }

    fn start_again(&mut self) -> Result<()> {
        if self.have > 0 {
            self.file.set_len(0).map_err(io_error(self.path))?;
            self.have = 0;
            self.hasher = Hasher::new(self.wanted, self.path, 0);
        }
        Ok(())
    }

    /// Compares the hash.
    fn check(self) -> Result<()> {
        let is = self.hasher.finish()?;
        match (self.wanted.hash.digits(), is) {
            (Some(wanted), Some(is)) if !wanted.eq_ignore_ascii_case(&is) => Err(Error::malformed(
                name(self.wanted.url),
                None,
                format!(
                    "its hash is {is} and should be {wanted}: it was changed or damaged on the way, and is not kept"
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// A network's error, and that what was downloaded is not lost.
fn with_advice(error: Error, wanted: &Wanted<'_>, have: u64) -> Error {
    match error {
        Error::Network { address, problem } if have > 0 => Error::Network {
            address,
            problem: format!(
                "{problem}; {have} of {} bytes are kept, and the same command goes on from there",
                wanted.size
            ),
        },
        other => other,
    }
}

/// The file's name in an address.
fn name(url: &str) -> String {
    super::reference::bare(url).rsplit('/').next().unwrap_or(url).to_owned()
}

pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The first byte, and the file's length, of `bytes 5-9/10`.
pub(super) fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let text = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, all) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (from, _) = range.split_once('-')?;
    Some((from.parse().ok()?, all.parse().ok()?))
}

/// Hashes on a thread of its own, so that the network need not wait for it.
struct Hasher(Option<Running>);

struct Running {
    full: SyncSender<(Vec<u8>, usize)>,
    empty: Receiver<Vec<u8>>,
    thread: JoinHandle<Result<String>>,
}

/// Bytes that are read at a time, and buffers that may wait.
const BUFFER: usize = 512 << 10;
const BUFFERS: usize = 8;

impl Hasher {
    /// Hashes what `path` holds already, then what is pushed.
    fn new(wanted: &Wanted<'_>, path: &Path, have: u64) -> Self {
        let algorithm: &'static Algorithm = match wanted.hash {
            Hash::Sha256(_) => &SHA256,
            Hash::Git(_) => &SHA1_FOR_LEGACY_USE_ONLY,
            Hash::None => return Self(None),
        };
        let begin = match wanted.hash {
            Hash::Git(_) => format!("blob {}\0", wanted.size),
            _ => String::new(),
        };
        let (full, fulls) = sync_channel::<(Vec<u8>, usize)>(BUFFERS);
        let (emptied, empty) = sync_channel(BUFFERS);
        let path = path.to_owned();
        let thread = std::thread::spawn(move || {
            let mut context = Context::new(algorithm);
            context.update(begin.as_bytes());
            hash_file(&mut context, &path, have)?;
            for (buffer, n) in fulls {
                context.update(&buffer[..n]);
                // Full only if nobody reads any more.
                let _ = emptied.try_send(buffer);
            }
            Ok(hex(context.finish().as_ref()))
        });
        Self(Some(Running { full, empty, thread }))
    }

    fn buffer(&self) -> Vec<u8> {
        let used = self.0.as_ref().and_then(|running| running.empty.try_recv().ok());
        used.unwrap_or_else(|| vec![0; BUFFER])
    }

    fn push(&self, buffer: Vec<u8>, n: usize) {
        if let Some(running) = &self.0 {
            // Fails only if the thread has failed, which `finish` reports.
            let _ = running.full.send((buffer, n));
        }
    }

    fn finish(self) -> Result<Option<String>> {
        let Some(Running { full, thread, .. }) = self.0 else { return Ok(None) };
        drop(full);
        match thread.join() {
            Ok(digits) => digits.map(Some),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Hashes the first bytes of a file.
fn hash_file(context: &mut Context, path: &PathBuf, len: u64) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let mut file = File::open(path).map_err(io_error(path))?.take(len);
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer).map_err(io_error(path))? {
            0 => return Ok(()),
            n => context.update(&buffer[..n]),
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
