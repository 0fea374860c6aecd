//! Where bytes come from.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::{Error, Result};

/// A read in flight. Native sources are done at the first poll; a browser waits for its network.
#[cfg(not(target_arch = "wasm32"))]
pub type ReadFuture<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;
/// A read in flight. Native sources are done at the first poll; a browser waits for its network, on one thread.
#[cfg(target_arch = "wasm32")]
pub type ReadFuture<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Receives how much is done, and how much there is in all. Must be `Send`, since the work that reports to it may move
/// between threads; in a browser, where it does not, it need not.
#[cfg(not(target_arch = "wasm32"))]
pub type CountFn<'a> = dyn FnMut(u64, u64) + Send + 'a;
/// Receives how much is done, and how much there is in all.
#[cfg(target_arch = "wasm32")]
pub type CountFn<'a> = dyn FnMut(u64, u64) + 'a;

/// Random access to the bytes of one file.
pub trait ByteSource: Send + Sync {
    /// What messages call it: a path or an address.
    fn name(&self) -> &str;

    /// Its length in bytes. It may shrink while it is open: reads past the new end are errors.
    fn len(&self) -> u64;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` with the bytes from `offset` on, or fails.
    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ReadFuture<'a>;

    /// All bytes, if they lie in memory.
    fn mapped(&self) -> Option<&[u8]> {
        None
    }
}

/// A file whose bytes lie in memory: an embedded model, a download, a test.
pub struct Bytes {
    name: String,
    bytes: Held,
}

enum Held {
    Static(&'static [u8]),
    Shared(Arc<[u8]>),
}

impl Bytes {
    /// Bytes that are compiled in, or owned and moved in.
    pub fn new(name: impl Into<String>, bytes: impl Into<Cow<'static, [u8]>>) -> Self {
        let bytes = match bytes.into() {
            Cow::Borrowed(bytes) => Held::Static(bytes),
            Cow::Owned(bytes) => Held::Shared(bytes.into()),
        };
        Self { name: name.into(), bytes }
    }

    /// Bytes that others hold, too.
    pub fn shared(name: impl Into<String>, bytes: Arc<[u8]>) -> Self {
        Self { name: name.into(), bytes: Held::Shared(bytes) }
    }

    fn all(&self) -> &[u8] {
        match &self.bytes {
            Held::Static(bytes) => bytes,
            Held::Shared(bytes) => bytes,
        }
    }
}

impl ByteSource for Bytes {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.all().len() as u64
    }

    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ReadFuture<'a> {
        Box::pin(std::future::ready(copy_range(&self.name, self.all(), offset, out)))
    }

    fn mapped(&self) -> Option<&[u8]> {
        Some(self.all())
    }
}

/// Copies `out.len()` bytes from `offset` on out of `all`.
pub(super) fn copy_range(name: &str, all: &[u8], offset: u64, out: &mut [u8]) -> Result<()> {
    let range = usize::try_from(offset).ok().and_then(|start| Some(start..start.checked_add(out.len())?));
    let bytes = range.and_then(|range| all.get(range));
    let bytes =
        bytes.ok_or_else(|| Error::malformed(name, offset, format!("{} bytes are beyond its end", out.len())))?;
    out.copy_from_slice(bytes);
    Ok(())
}

/// A file that is read piece by piece, for `--no-mmap`: a file that shrinks under us is an error, not a crash.
#[cfg(not(target_arch = "wasm32"))]
pub struct PlainFile {
    name: String,
    len: u64,
    file: std::sync::Mutex<std::fs::File>,
}

#[cfg(not(target_arch = "wasm32"))]
impl PlainFile {
    /// Opens a regular file.
    pub fn open(path: &std::path::Path) -> Result<Self> {
        let (file, len) = open_regular(path)?;
        Ok(Self { name: path.display().to_string(), len, file: file.into() })
    }

    fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        // A panic elsewhere cannot leave the file in a bad state: every read seeks first.
        let mut file = self.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let done = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(out));
        done.map_err(|e| Error::io(&self.name, e))
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl ByteSource for PlainFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ReadFuture<'a> {
        Box::pin(std::future::ready(self.read_now(offset, out)))
    }
}

/// Opens a regular file and reports its length. A pipe or a device is refused before it can block.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn open_regular(path: &std::path::Path) -> Result<(std::fs::File, u64)> {
    let io = |e| Error::io(path.display().to_string(), e);
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(Error::argument(path.display().to_string(), "not a regular file"));
    }
    let file = std::fs::File::open(path).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    Ok((file, len))
}

/// What a header's parser makes of the first bytes of a file.
pub(super) enum Prefix<T> {
    /// The whole header was there.
    Done(T),
    /// At least this many bytes are needed; never more than the file has.
    More(u64),
}

/// Parses a header from the start of a source, reading pieces that double, since a browser fetches them one by one.
/// What is parsed is a copy, so another process that writes to a mapped file cannot change it between two looks.
pub(super) async fn parse_prefix<T>(source: &dyn ByteSource, parse: impl Fn(&[u8]) -> Result<Prefix<T>>) -> Result<T> {
    const FIRST: u64 = 256 << 10; // the header of a small model; a large vocabulary takes 5 to 10 MB
    let cut = || Error::malformed(source.name(), source.len(), "the header runs beyond the end of the file");
    let mut have = Vec::new();
    let mut wanted = FIRST;
    loop {
        let old = have.len();
        let new = usize::try_from(wanted.min(source.len())).map_err(|_| cut())?;
        have.resize(new, 0);
        source.read(old as u64, &mut have[old..]).await?;
        match parse(&have)? {
            Prefix::Done(header) => return Ok(header),
            Prefix::More(_) if new as u64 == source.len() => return Err(cut()),
            Prefix::More(least) => wanted = least.max(2 * new as u64),
        }
    }
}

/// The result of a future over files or memory, which is ready at the first poll.
pub(super) fn at_once<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => Err(Error::argument("source", "it waits; use the async form")),
    }
}
