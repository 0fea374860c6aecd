//! The file of self-test results, so that only the first start on a device pays for the test.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::term;
use crate::exec::SelfTestResults;

/// The file of this user, if there is a place for one: `wgslm/devices.tsv` in the cache folder.
pub(super) fn path() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let home = || folder("HOME").map(|home| home.join(".cache"));
    Some(folder("XDG_CACHE_HOME").or_else(|| folder("LOCALAPPDATA")).or_else(home)?.join("wgslm").join("devices.tsv"))
}

/// More than all devices of a machine have.
const MAX_BYTES: u64 = 1 << 20;

/// The stored results. What cannot be read, is longer than results are, or is no file (a pipe would wait for ever) counts as
/// empty.
pub(super) fn known() -> Arc<SelfTestResults> {
    let file = |path: &PathBuf| fs::metadata(path).is_ok_and(|there| there.is_file() && there.len() <= MAX_BYTES);
    let text = path().filter(file).and_then(|path| fs::read(path).ok()).unwrap_or_default();
    Arc::new(SelfTestResults::parse(&String::from_utf8_lossy(&text)))
}

/// Runs `work`, which may test devices; stores the results and reports the faults. Where nothing can be stored, the test runs
/// again next time.
pub(super) fn keeping<T>(work: impl FnOnce(Arc<SelfTestResults>) -> T) -> T {
    let self_test_results = known();
    let before = self_test_results.text();
    let result = work(Arc::clone(&self_test_results));
    self_test_results.faults().iter().for_each(|fault| term::note(fault));
    let after = self_test_results.text();
    if let Some(path) = path().filter(|_| after != before) {
        let _ = replace(&path, &after);
    }
    result
}

/// Replaces a small file, whole or not at all.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let new = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&new, text)?;
    fs::rename(&new, path)
}
