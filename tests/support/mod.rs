//! What several test binaries use.
#![allow(dead_code, reason = "each test binary uses some of it")]

pub(crate) mod alloc;

use std::path::PathBuf;

/// The folder of shared test data, or a file in it.
pub(crate) fn shared(path: &str) -> PathBuf {
    let root = std::env::var_os("WGSLM_SHARED").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")));
    root.join("data").join(path)
}

/// The bytes of a shared file.
pub(crate) fn shared_bytes(path: &str) -> Vec<u8> {
    std::fs::read(shared(path)).unwrap_or_else(|e| panic!("{}: {e}", shared(path).display()))
}

/// A shared file of little-endian f32.
pub(crate) fn shared_f32(path: &str) -> Vec<f32> {
    shared_bytes(path).as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect()
}

/// A shared JSON file.
pub(crate) fn shared_json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&shared_bytes(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// SplitMix64: small, seeded, the same everywhere.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number from -1 to 1.
    pub(crate) fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// The path of a fetched model; none where it is missing, which CI does not allow.
pub(crate) fn fetched(file: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("WGSLM_TEST_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/wgslm-test-models")
    });
    let path = folder.join(file);
    if path.exists() {
        return Some(path);
    }
    let ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(!ci, "{}: fetch it with fetch_test_models.py", path.display());
    eprintln!("skipped: {} is not there; fetch_test_models.py fetches it", path.display());
    None
}

/// The bytes of a fetched model.
pub(crate) fn fetched_bytes(file: &str) -> Option<Vec<u8>> {
    fetched(file).map(|path| std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}
