//! What people call a model: `ORG/REPO:QUANT`, an address, a name that the cache knows.

use std::fmt;

use crate::{Error, Result};

/// A model's files on a hub, or one file at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A repository, and which of its files.
    Repo(RepoRef),
    /// A GGUF file anywhere on the web.
    Url(UrlRef),
}

/// A repository, and which of its files: `ORG/REPO[@REVISION][:QUANT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoRef {
    /// `ORG/REPO`.
    pub repo: String,
    /// A branch, a tag or a commit.
    pub revision: String,
    /// Which of the GGUF files.
    pub which: Which,
}

/// Which of a repository's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The usual one: see [`choose`](super::choose).
    Usual,
    /// The one of this quantisation, as its name has it: `Q4_K_M`.
    Quant(String),
    /// The one at this path.
    File(String),
}

/// A GGUF file at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlRef {
    /// The address, without a fragment.
    pub url: String,
    /// The last part of its path: `model.gguf`.
    pub name: String,
}

/// The hosts whose addresses are those of repositories, whatever the endpoint is.
const HOSTS: [&str; 4] = ["huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co"];
/// The branch of a repository whose revision is not named.
pub(super) const MAIN: &str = "main";
/// The hub's own limit on `ORG/REPO`, generously.
const MAX_NAME: usize = 200;

impl Reference {
    /// Reads a reference; none if the text is not one. `endpoint` is the hub's address, of which files have addresses, too.
    /// Fails on what is meant as a reference and cannot be one.
    pub fn parse(text: &str, endpoint: &str) -> Result<Option<Self>> {
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) || text.len() > 4096 {
            return Ok(None);
        }
        let lower = text.to_ascii_lowercase();
        if let Some(rest) = strip_scheme(text, &lower, "hf://") {
            return repo(rest).map(|repo| Some(Self::Repo(repo)));
        }
        let scheme = ["https://", "http://"].into_iter().find(|scheme| lower.starts_with(scheme));
        let bare = &text[scheme.map_or(0, str::len)..];
        let below = |text: &'_ str, host: &str| -> Option<usize> {
            let start = text.get(..host.len()).filter(|start| start.eq_ignore_ascii_case(host))?;
            text[start.len()..].starts_with('/').then_some(start.len() + 1)
        };
        let own = below(text, endpoint.trim_end_matches('/')).map(|at| &text[at..]);
        let known = || HOSTS.iter().find_map(|host| below(bare, host)).map(|at| &bare[at..]);
        if let Some(rest) = own.or_else(known) {
            return repo(rest).map(|repo| Some(Self::Repo(repo)));
        }
        if scheme.is_some() {
            return url(text).map(|url| Some(Self::Url(url)));
        }
        // ORG/REPO: one slash before the colon, and no part that a path would begin with.
        let (name, _) = text.split_once([':', '@']).unwrap_or((text, ""));
        match name.split_once('/') {
            Some((org, repo_name)) if is_part(org) && is_part(repo_name) => Ok(Some(Self::Repo(repo(text)?))),
            _ => Ok(None),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repo(repo) => repo.fmt(f),
            Self::Url(url) => f.write_str(&bare(&url.url)),
        }
    }
}

impl fmt::Display for RepoRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Which::File(file) = &self.which {
            return write!(f, "hf.co/{}/blob/{}/{file}", self.repo, self.revision);
        }
        f.write_str(&self.repo)?;
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        match &self.which {
            Which::Quant(quant) => write!(f, ":{quant}"),
            Which::Usual | Which::File(_) => Ok(()),
        }
    }
}

fn strip_scheme<'a>(text: &'a str, lower: &str, scheme: &str) -> Option<&'a str> {
    lower.starts_with(scheme).then(|| &text[scheme.len()..])
}

/// A repository by what follows the host: `ORG/REPO[@REV][:QUANT]`, `ORG/REPO/tree/REV`, `ORG/REPO/{resolve,blob,raw}/REV/FILE`,
/// `ORG/REPO/FILE.gguf`.
fn repo(text: &str) -> Result<RepoRef> {
    let text = text.split(['?', '#']).next().unwrap_or(text).trim_end_matches('/');
    let text = text.strip_prefix("models/").unwrap_or(text);
    let wrong = |problem: &str| {
        Error::argument(text, format!("{problem}; ORG/REPO, ORG/REPO:QUANT and the address of a file work"))
    };
    let mut parts = text.splitn(3, '/');
    let org = parts.next().unwrap_or_default();
    let last = parts.next().ok_or_else(|| wrong("there is no repository"))?;
    let rest = parts.next();
    let (last, quant) = match last.split_once(':') {
        Some((name, quant)) => (name, Some(quant)),
        None => (last, None),
    };
    let (name, revision) = match last.split_once('@') {
        Some((name, revision)) => (name, Some(revision)),
        None => (last, None),
    };
    if !is_part(org) || !is_part(name) || org.len() + name.len() > MAX_NAME {
        return Err(wrong("that is no name of a repository"));
    }
    let mut found = RepoRef {
        repo: format!("{org}/{name}"),
        revision: revision.unwrap_or(MAIN).to_owned(),
        which: quant.map_or(Which::Usual, |quant| Which::Quant(quant.to_owned())),
    };
    if let Some(rest) = rest {
        if quant.is_some() {
            return Err(wrong("a file's path cannot follow a quantisation"));
        }
        let file = match rest.split_once('/') {
            Some(("tree", revision)) => {
                found.revision = revision.to_owned();
                None
            }
            Some(("resolve" | "blob" | "raw", at)) => {
                let (revision, file) = at.split_once('/').ok_or_else(|| wrong("the address names no file"))?;
                found.revision = revision.to_owned();
                Some(file)
            }
            _ => Some(rest),
        };
        if let Some(file) = file {
            let file = decoded(file).ok_or_else(|| wrong("the address is not UTF-8"))?;
            if !is_safe_path(&file) {
                return Err(wrong("that is no path of a file in a repository"));
            }
            if !file.to_ascii_lowercase().ends_with(".gguf") {
                return Err(wrong("of single files, only those that end with .gguf work"));
            }
            found.which = Which::File(file);
        }
    }
    if !is_revision(&found.revision) {
        return Err(wrong("that is no revision"));
    }
    if let Which::Quant(quant) = &found.which {
        // ollama's word for what is taken without one.
        if quant.eq_ignore_ascii_case("latest") {
            found.which = Which::Usual;
        } else if quant.is_empty() || !quant.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
            return Err(wrong("after the colon stands a quantisation, as in Q4_K_M"));
        }
    }
    Ok(found)
}

/// A GGUF file at an address.
fn url(text: &str) -> Result<UrlRef> {
    let url = text.split('#').next().unwrap_or(text);
    let wrong = |problem: &str| Error::argument(bare(url), problem);
    let (_, after) = url.split_once("://").ok_or_else(|| wrong("it is no address"))?;
    let (authority, path) = after.split_once('/').ok_or_else(|| wrong("the address names no file"))?;
    if authority.is_empty() || authority.contains('@') {
        return Err(wrong("an address has a host, and no user's name or password"));
    }
    let path = path.split('?').next().unwrap_or(path);
    let name = path.rsplit('/').next().and_then(decoded).unwrap_or_default();
    if !name.to_ascii_lowercase().ends_with(".gguf") || !is_safe_path(&name) || name.contains('/') {
        return Err(wrong("of addresses, only those of files that end with .gguf work"));
    }
    Ok(UrlRef { url: url.to_owned(), name })
}

/// An address without what may be secret: its query.
pub(super) fn bare(url: &str) -> String {
    let plain = url.split(['?', '#']).next().unwrap_or(url);
    match plain.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
            let host = authority.rsplit('@').next().unwrap_or(authority);
            path.map_or_else(|| format!("{scheme}://{host}"), |path| format!("{scheme}://{host}/{path}"))
        }
        None => plain.to_owned(),
    }
}

/// Whether it may be ORG or REPO: what the hub allows, and nothing that a folder of the cache could not be called.
pub(super) fn is_part(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    !part.contains("--")
        && !part.contains("..")
        && part.chars().all(allowed)
        && ends(part.chars().next())
        && ends(part.chars().next_back())
        && part.len() <= 96
}

/// Whether it may be a branch, a tag or a commit, and a path below `refs`: `main`, `refs/pr/1`.
fn is_revision(revision: &str) -> bool {
    is_safe_path(revision) && !revision.contains([':', '?', '#', '%'])
}

/// Whether a path leads to a file below the folder that it is joined to, on every system.
pub(super) fn is_safe_path(path: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty() && part != "." && part != ".." && !part.ends_with(['.', ' ']) && part.len() <= 255
    };
    path.len() <= 1024
        && path.split('/').all(plain)
        && !path.chars().any(|c| c.is_control() || matches!(c, '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|'))
}

/// `%20` as a space, and so on; none if the result is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = |c: &u8| (*c as char).to_digit(16);
        match (first, tail) {
            (b'%', [a, b, after @ ..]) if hex(a).is_some() && hex(b).is_some() => {
                bytes.push((hex(a)? * 16 + hex(b)?) as u8);
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// A path as an address has it.
pub(super) fn encoded(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => out.push(byte as char),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUB: &str = "https://huggingface.co";

    fn parsed(text: &str) -> Option<Reference> {
        Reference::parse(text, HUB).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn repositories_have_many_spellings() {
        let of = |revision: &str, which| {
            Some(Reference::Repo(RepoRef { repo: "o-r_g/Re.po-1".into(), revision: revision.into(), which }))
        };
        let q4 = || Which::Quant("Q4_K_M".into());
        let file = || Which::File("a b/x.gguf".into());
        for (text, expected) in [
            ("o-r_g/Re.po-1", of("main", Which::Usual)),
            ("o-r_g/Re.po-1:latest", of("main", Which::Usual)),
            ("o-r_g/Re.po-1:Q4_K_M", of("main", q4())),
            ("o-r_g/Re.po-1@v1:Q4_K_M", of("v1", q4())),
            ("hf.co/o-r_g/Re.po-1:Q4_K_M", of("main", q4())),
            ("HF.co/o-r_g/Re.po-1:Q4_K_M", of("main", q4())),
            ("huggingface.co/o-r_g/Re.po-1", of("main", Which::Usual)),
            ("https://huggingface.co/o-r_g/Re.po-1", of("main", Which::Usual)),
            ("https://huggingface.co/o-r_g/Re.po-1/", of("main", Which::Usual)),
            ("https://hf.co/o-r_g/Re.po-1/tree/v1", of("v1", Which::Usual)),
            ("https://hf.co/o-r_g/Re.po-1/tree/refs/pr/7", of("refs/pr/7", Which::Usual)),
            ("hf://o-r_g/Re.po-1/a%20b/x.gguf", of("main", file())),
            ("https://huggingface.co/o-r_g/Re.po-1/resolve/main/a%20b/x.gguf?download=true", of("main", file())),
            ("https://huggingface.co/o-r_g/Re.po-1/blob/v1/a%20b/x.gguf", of("v1", file())),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
        let mirror =
            Reference::parse("http://127.0.0.1:8/o-r_g/Re.po-1/resolve/main/a%20b/x.gguf", "http://127.0.0.1:8/");
        assert_eq!(mirror.unwrap(), of("main", file()));
    }

    #[test]
    fn addresses_of_files_are_references() {
        let Some(Reference::Url(url)) = parsed("https://example.org/m/model%20x.gguf?key=1#top") else { panic!() };
        assert_eq!(
            (url.name.as_str(), url.url.as_str()),
            ("model x.gguf", "https://example.org/m/model%20x.gguf?key=1")
        );
        assert_eq!(Reference::Url(url).to_string(), "https://example.org/m/model%20x.gguf", "keys are not shown");
    }

    #[test]
    fn texts_and_paths_are_not_references() {
        for text in [
            "",
            "Hello",
            "Once upon a time",
            "either / or",
            "./org/repo",
            "/a/b",
            "../x/y",
            "a/b/c",
            "a/",
            "/b",
            "~/m",
            "model.gguf",
            "llama3.2",
            "llama3.2:1b",
            "a/b c",
            "C:\\a/b",
            "-a/b",
            "a/b.",
            "a--b/c",
            "a\u{1b}/b",
            "w/o?",
            "a/b,",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_one_is_refused() {
        for text in [
            "hf.co/x",
            "https://huggingface.co/a",
            "hf.co/../..",
            "hf.co/a/b/../../x.gguf",
            "hf.co/a/b/c\\d.gguf",
            "hf.co/a/b/resolve/main",
            "hf.co/a/b/blob/main/x.bin",
            "a/b:",
            "a/b:Q4 K",
            "a/b:x/y",
            "a/b@:Q4_0",
            "https://example.org",
            "https://example.org/x.bin",
            "https://me:secret@example.org/x.gguf",
            "hf.co/a/b/%2e%2e/x.gguf",
            "https://example.org/%2e%2e%2fx.gguf",
        ] {
            let text = text.replace(' ', "+");
            let error = Reference::parse(&text, HUB).expect_err(&text).to_string();
            assert!(
                error.contains("work") || error.contains("an address has a host") || error.contains("names no file"),
                "{error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn paths_stay_below_their_folder() {
        for path in ["a", "a/b.gguf", "a b/ö.gguf", ".hidden"] {
            assert!(is_safe_path(path), "{path}");
            assert_eq!(decoded(&encoded(path)).as_deref(), Some(path));
        }
        for path in ["", "/a", "a/", "a//b", "..", "a/../b", "a/.", "C:/x", "a\\b", "a\0", "a\n", "con ", "a.", "a|b"] {
            assert!(!is_safe_path(path), "{path:?}");
        }
        assert!(!is_safe_path(&"a".repeat(256)) && !is_safe_path(&"a/".repeat(600)));
    }
}
