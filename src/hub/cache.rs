//! The cache that Hugging Face's own tools use, too: `models--ORG--REPO/{refs,blobs,snapshots}`.
//!
//! A blob is called by its hash, a snapshot holds links to blobs by the names that files have in the repository, and a ref says
//! which snapshot a branch was last seen at. Where the system has no symbolic links, the snapshot holds the file itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::reference::{is_part, is_safe_path};
use crate::{Error, Result};

/// A folder of repositories.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    pub(super) folder: PathBuf,
    /// Whether links are made where the system has them.
    pub(super) links: bool,
}

/// A repository's folder.
#[derive(Clone, Debug)]
pub(super) struct RepoFolder {
    pub(super) path: PathBuf,
    links: bool,
}

/// A revision of a repository that is in the cache.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) commit: String,
    pub(super) path: PathBuf,
    /// Branches and tags that were last seen at it.
    pub(super) refs: Vec<String>,
}

pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    move |error| {
        match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Limit {
            what: path.display().to_string(),
            needed: "more space than there is".to_owned(),
            available: "no more on this disk".to_owned(),
            instead: "wgslm list and wgslm rm make space, or HF_HUB_CACHE names a folder elsewhere; what was downloaded is kept"
                .to_owned(),
        },
        _ => Error::io(path.display().to_string(), error),
    }
    }
}

impl Cache {
    pub(super) fn repo(&self, repo: &str) -> RepoFolder {
        RepoFolder { path: self.folder.join(folder_name(repo)), links: self.links }
    }

    /// The file that who downloads a blob holds locked; the place is that of Python's tools.
    pub(super) fn lock(&self, repo: &str, hash: &str) -> PathBuf {
        self.folder.join(".locks").join(folder_name(repo)).join(format!("{hash}.lock"))
    }

    /// All repositories of models.
    pub(super) fn repos(&self) -> Result<Vec<String>> {
        let mut found: Vec<String> = entries(&self.folder)?
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (org, repo) = name.strip_prefix("models--")?.split_once("--")?;
                (is_part(org) && is_part(repo) && entry.path().is_dir()).then(|| format!("{org}/{repo}"))
            })
            .collect();
        found.sort();
        Ok(found)
    }
}

fn folder_name(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

/// The entries of a folder; none if it is not there.
fn entries(folder: &Path) -> Result<impl Iterator<Item = fs::DirEntry> + use<>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => Some(entries),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error(folder)(error)),
    };
    Ok(entries.into_iter().flatten().filter_map(|entry| entry.ok()))
}

/// A commit, as it names folders: hexadecimal digits.
pub(super) fn is_hash(text: &str) -> bool {
    (8..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

impl RepoFolder {
    pub(super) fn blob(&self, hash: &str) -> PathBuf {
        self.path.join("blobs").join(hash)
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
    }

    /// The commit that a branch or tag was last seen at, or the commit itself.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        let text = fs::read_to_string(self.path.join("refs").join(revision)).ok();
        let known = text.map(|text| text.trim().to_owned()).filter(|commit| is_hash(commit));
        known.or_else(|| (is_hash(revision) && self.snapshot(revision).is_dir()).then(|| revision.to_owned()))
    }

    /// Notes which commit a revision is at.
    pub(super) fn set_ref(&self, revision: &str, commit: &str) -> Result<()> {
        if revision == commit {
            return Ok(());
        }
        let path = self.path.join("refs").join(revision);
        if fs::read_to_string(&path).is_ok_and(|old| old.trim() == commit) {
            return Ok(());
        }
        make_folder(path.parent().unwrap_or(&path))?;
        // Beside the folder of refs: what a crash leaves there is no ref. Others write theirs at the same time.
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let new = self.path.join(format!("ref-{}-{number}.new", std::process::id()));
        fs::write(&new, commit).and_then(|()| fs::rename(&new, &path)).map_err(io_error(&path))
    }

    /// Every snapshot, with what points to it.
    pub(super) fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let mut refs = Vec::new();
        let folder = self.path.join("refs");
        walk(&folder, &mut |name, path| {
            if let Ok(commit) = fs::read_to_string(path) {
                refs.push((name.to_owned(), commit.trim().to_owned()));
            }
        });
        let mut found: Vec<Snapshot> = entries(&self.path.join("snapshots"))?
            .filter_map(|entry| {
                let commit = entry.file_name().into_string().ok().filter(|name| is_hash(name))?;
                let mut own: Vec<_> =
                    refs.iter().filter(|(_, at)| *at == commit).map(|(name, _)| name.clone()).collect();
                own.sort_by_key(|name| (name != super::reference::MAIN, name.clone()));
                Some(Snapshot { path: entry.path(), commit, refs: own })
            })
            .collect();
        found.sort_by_key(|snapshot| {
            (snapshot.refs.is_empty(), snapshot.refs.first() != Some(&"main".to_owned()), snapshot.commit.clone())
        });
        Ok(found)
    }

    /// Gives a blob its name in a snapshot. Without links, the blob itself goes there, so that nothing is stored twice.
    pub(super) fn link(&self, hash: &str, commit: &str, name: &str) -> Result<()> {
        let at = self.snapshot(commit).join(name);
        let blob = self.blob(hash);
        make_folder(at.parent().unwrap_or(&at))?;
        if fs::symlink_metadata(&at).is_ok() {
            fs::remove_file(&at).map_err(io_error(&at))?;
        }
        let up = "../".repeat(2 + name.matches('/').count());
        if self.links && symlink(Path::new(&format!("{up}blobs/{hash}")), &at).is_ok() {
            return Ok(());
        }
        fs::rename(&blob, &at).or_else(|_| fs::copy(&blob, &at).map(drop)).map_err(io_error(&at))
    }

    /// Removes the whole repository; gives the bytes that it had.
    pub(super) fn remove(&self) -> Result<u64> {
        let bytes = size(&self.path);
        fs::remove_dir_all(&self.path).map_err(io_error(&self.path))?;
        Ok(bytes)
    }

    /// Removes files of all snapshots by their names, and blobs that nothing names any more; gives the bytes that they had.
    pub(super) fn remove_files(&self, names: &[String]) -> Result<u64> {
        let before = size(&self.path);
        for snapshot in self.snapshots()? {
            for name in names.iter().filter(|name| is_safe_path(name)) {
                let path = snapshot.path.join(name);
                if fs::symlink_metadata(&path).is_ok() {
                    fs::remove_file(&path).map_err(io_error(&path))?;
                }
                // Folders that are empty now: rmdir refuses others.
                let _ = path.parent().filter(|folder| *folder != snapshot.path).map(fs::remove_dir);
            }
        }
        let mut used = Vec::new();
        for snapshot in self.snapshots()? {
            walk(&snapshot.path, &mut |_, path| used.extend(fs::canonicalize(path)));
        }
        for entry in entries(&self.path.join("blobs"))? {
            let path = entry.path();
            let unused = fs::canonicalize(&path).is_ok_and(|real| !used.contains(&real));
            // What is being downloaded is somebody's.
            if unused && path.extension().is_none() {
                fs::remove_file(&path).map_err(io_error(&path))?;
            }
        }
        Ok(before.saturating_sub(size(&self.path)))
    }
}

pub(super) fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(io_error(path))
}

#[cfg(unix)]
fn symlink(to: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

/// Windows allows links to developers and administrators alone.
#[cfg(windows)]
fn symlink(to: &Path, at: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(to, at)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// All files below a folder, by their paths from it with slashes. Links to folders are not followed.
pub(super) fn walk(folder: &Path, found: &mut dyn FnMut(&str, &Path)) {
    /// Deeper than any repository's, and than what could be meant.
    const DEPTH: usize = 8;
    fn below(folder: &Path, prefix: &str, depth: usize, found: &mut dyn FnMut(&str, &Path)) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        let mut entries: Vec<_> = entries.filter_map(|entry| entry.ok()).collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let name = format!("{prefix}{name}");
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth > 0 => below(&entry.path(), &format!("{name}/"), depth - 1, found),
                Ok(kind) if !kind.is_dir() => found(&name, &entry.path()),
                _ => {}
            }
        }
    }
    below(folder, "", DEPTH, found);
}

/// Bytes of all files below a folder, links not followed.
pub(super) fn size(folder: &Path) -> u64 {
    let mut bytes = 0u64;
    walk(folder, &mut |_, path| {
        bytes =
            bytes.saturating_add(fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).map_or(0, |m| m.len()));
    });
    bytes
}

/// Bytes that are free for this user on the disk of a folder, or of the nearest one above it that is there.
pub fn free_space(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    free_of(there)
}

#[cfg(unix)]
#[allow(clippy::unnecessary_cast, clippy::useless_conversion, reason = "their widths are the system's")]
fn free_of(folder: &Path) -> Option<u64> {
    let stat = nix::sys::statvfs::statvfs(folder).ok()?;
    u64::from(stat.blocks_available()).checked_mul(stat.fragment_size() as u64)
}

#[cfg(not(unix))]
fn free_of(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that differ after their last dot alone are written at the same time, again and again.
    #[test]
    fn refs_are_written_side_by_side() {
        let folder = std::env::temp_dir().join(format!("wgslm-refs-{}", std::process::id()));
        let repo = RepoFolder { path: folder.clone(), links: false };
        std::thread::scope(|scope| {
            for (name, digit) in [("v1.0", "a"), ("v1.1", "b"), ("v1", "c"), ("v1.0", "d")] {
                let repo = &repo;
                scope.spawn(move || {
                    for i in 0..50 {
                        let commit = format!("{}{i:02}", digit.repeat(38));
                        repo.set_ref(name, &commit).unwrap();
                        assert!(repo.commit(name).is_some_and(|read| name == "v1.0" || read == commit), "{name}");
                    }
                });
            }
        });
        let mut left = Vec::new();
        walk(&folder, &mut |name, _| left.push(name.to_owned()));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(left, ["refs/v1", "refs/v1.0", "refs/v1.1"]);
    }
}
