//! What tests share: files to test with, random programs, the cases of kernels.

pub mod adapter;
pub mod alloc;
pub mod cases;
pub mod gguf;
pub mod gguf_vocab;
pub mod hostile;
pub mod modules;
pub mod npy;
pub mod programs;
pub mod singles;

pub use programs::Rng;

use std::env;
use std::path::{Path, PathBuf};

/// A fixture of the repository: a file or folder below `tests/data`.
pub fn data(path: &str) -> PathBuf {
    let ours = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../data")).join(path);
    match ours.exists() {
        true => ours,
        false => shared(path).unwrap_or(ours),
    }
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

/// A file or folder that `scripts/fetch-test-data` has fetched, below `WGSLM_TEST_DATA` (default: `wgslm-test-data` in
/// the user's cache).
pub fn fetched(path: &str) -> PathBuf {
    let cache = || env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cache")));
    let folder = env::var_os("WGSLM_TEST_DATA").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| cache().expect("a home folder").join("wgslm-test-data"));
    let models = env::var_os("WGSLM_TEST_MODELS").map(PathBuf::from);
    let models = models.unwrap_or_else(|| cache().expect("a home folder").join("wgslm-test-models"));
    let found = [folder.join(path), models.join(path)].into_iter().find(|path| path.exists()).or_else(|| shared(path));
    found.unwrap_or_else(|| panic!("{} is not there: scripts/fetch-test-data", folder.join(path).display()))
}

/// The bytes of a fetched file.
pub fn fetched_bytes(path: &str) -> Vec<u8> {
    bytes(&fetched(path))
}

/// A fetched file in JSON.
pub fn fetched_json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&fetched_bytes(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A file that can be neither made nor fetched, below `WGSLM_SHARED`; none where nobody has it.
pub fn shared(path: &str) -> Option<PathBuf> {
    let root = env::var_os("WGSLM_SHARED").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    Some(root.join("data").join(path)).filter(|path| path.exists())
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
