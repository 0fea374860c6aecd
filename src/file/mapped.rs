//! A file mapped into memory: the one `unsafe` line of `file`.
#![allow(unsafe_code, reason = "mapping a file is unsafe: another process may change it")]

use std::path::Path;

use memmap2::Mmap;

use super::source::{ByteSource, Bytes, ReadFuture, copy_range, open_regular};
use crate::{Error, Result};

/// A file whose pages the system reads when they are touched and drops when memory is short.
///
/// If another process *shortens* the file meanwhile, the system stops us (SIGBUS); where that can happen, open it
/// with [`PlainFile`](super::PlainFile). If another process changes its bytes, weights change: numbers, never
/// addresses, since headers are copied before they are parsed.
pub struct MappedFile {
    name: String,
    map: Mmap,
}

impl MappedFile {
    /// Maps a regular file.
    pub fn open(path: &Path) -> Result<Box<dyn ByteSource>> {
        let name = path.display().to_string();
        let (file, len) = open_regular(path)?;
        if len == 0 {
            return Ok(Box::new(Bytes::new(name, &[] as &[u8]))); // nothing to map
        }
        // SAFETY: the map is read-only, and nothing is assumed of bytes beyond what each use checks; see above for
        // what another process can do.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(&name, e))?;
        // Pages of 2 MiB where the file is not in memory yet and its file system has them: floats are then read up to 7 % faster.
        // Elsewhere more is read ahead, at most.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Box::new(Self { name, map }))
    }
}

impl ByteSource for MappedFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.map.len() as u64
    }

    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ReadFuture<'a> {
        Box::pin(std::future::ready(copy_range(&self.name, &self.map, offset, out)))
    }

    fn mapped(&self) -> Option<&[u8]> {
        Some(&self.map)
    }
}
