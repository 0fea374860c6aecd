//! What tests share: files to test with, random programs, the cases of kernels.

pub mod adapter;
pub mod alloc;
pub mod cases;
#[cfg(not(target_arch = "wasm32"))] // they wait for files, which a browser must not
pub mod fuzz;
pub mod gguf;
pub mod gguf_vocab;
pub mod hostile;
pub mod int8;
pub mod modules;
pub mod npy;
pub mod programs;
pub mod singles;

pub use programs::Rng;

use std::env;
use std::path::{Path, PathBuf};

/// A fixture of the repository: a file or folder below `tests/data`.
pub fn data(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../data")).join(path)
}

/// The bytes of a fixture.
pub fn data_bytes(path: &str) -> Vec<u8> {
    bytes(&data(path))
}

/// A fixture of little-endian f32.
pub fn data_f32(path: &str) -> Vec<f32> {
    data_bytes(path).as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect()
}

/// A fixture in JSON.
pub fn data_json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&data_bytes(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A file or folder that `scripts/fetch-test-data` fetches.
pub fn fetched(path: &str) -> PathBuf {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = || set("XDG_CACHE_HOME").unwrap_or_else(|| env::home_dir().expect("a home folder").join(".cache"));
    let path = set("WGSLM_TEST_DATA").unwrap_or_else(|| caches().join("wgslm-test-data")).join(path);
    assert!(path.exists(), "{} is not there; run scripts/fetch-test-data", path.display());
    path
}

/// The bytes of a fetched file.
pub fn fetched_bytes(path: &str) -> Vec<u8> {
    bytes(&fetched(path))
}

/// A fetched file in JSON.
pub fn fetched_json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&fetched_bytes(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A file or folder that can be neither made nor fetched, below `WGSLM_SHARED`; none where that is not set.
pub fn shared(path: &str) -> Option<PathBuf> {
    let root = env::var_os("WGSLM_SHARED").filter(|value| !value.is_empty())?;
    let path = Path::new(&root).join("data").join(path);
    assert!(path.exists(), "WGSLM_SHARED is set, and {} is not there", path.display());
    Some(path)
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
