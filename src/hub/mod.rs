//! Models by name: from Hugging Face's hub, from any address, and from the cache that both are kept in.
//!
//! A [`Reference`] says which model; [`Hub::find`] looks whether it is here, and [`Hub::download`] fetches it. Nothing that a server
//! says is trusted: paths stay below the cache, sizes are compared with the disk before anything is written, and a file gets
//! its name when its hash is the one that the hub's commit has. An interrupted download goes on where it broke off.
//!
//! ```no_run
//! use wgslm::hub::{Hub, Reference};
//!
//! # fn main() -> wgslm::Result<()> {
//! let hub = Hub::from_env()?;
//! let reference = Reference::parse("Qwen/Qwen3-0.6B-GGUF:Q8_0", hub.endpoint())?.expect("a reference");
//! let model = match hub.find(&reference)? {
//!     Some(model) => model,
//!     None => hub.download(&hub.plan(&reference)?, &mut |_| Ok(()))?,
//! };
//! println!("{}", model.path.display());
//! # Ok(())
//! # }
//! ```

mod cache;
mod choose;
mod client;
mod download;
mod reference;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

pub use cache::free_space;
pub use choose::{Choice, PREFERRED, choose, quant};
pub use client::{Patience, Token};
pub use download::Hash;
pub use reference::{Reference, RepoRef, UrlRef, Which};

use crate::{Error, Result};
use cache::{Cache, io_error, is_hash, make_folder};
use client::{Client, network};
use download::{Lock, Wanted, download, hex};
use reference::{encoded, is_safe_path};

const ENDPOINT: &str = "https://huggingface.co";
/// More files than any model has; a longer list is refused.
const MAX_FILES: usize = 100_000;
/// Bytes of a file that no header gives more of: an exabyte.
const MAX_SIZE: u64 = 1 << 60;

/// A hub, and the cache on this machine.
#[derive(Clone, Debug)]
pub struct Hub {
    endpoint: String,
    token: Option<Token>,
    offline: bool,
    cache: Cache,
    /// Where files of other addresses are kept.
    urls: PathBuf,
    patience: Patience,
}

/// A model that is on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// What opens it: a GGUF file, or a folder.
    pub path: PathBuf,
    /// What it is called by.
    pub name: String,
    /// Its quantisation, as the file's name has it.
    pub quant: Option<String>,
}

/// What a download would bring.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What was asked for.
    pub reference: Reference,
    /// The commit that its branch is at; empty for an address.
    pub commit: String,
    /// The files.
    pub files: Vec<RemoteFile>,
    /// Which of them opens the model; none: their folder.
    pub model: Option<usize>,
    /// Its quantisation, as the file's name has it.
    pub quant: Option<String>,
    /// Other quantisations that are there.
    pub others: Vec<String>,
}

/// A file of a repository.
#[derive(Clone, Debug)]
pub struct RemoteFile {
    /// Its path in the repository.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// What it is checked by.
    pub hash: Hash,
    /// Its address.
    pub url: String,
    /// What its server calls this version of it.
    validator: Option<String>,
    /// Bytes of it that are here.
    pub have: u64,
}

/// What happens during a download.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Another process downloads this file; it is waited for.
    Waiting(&'a str),
    /// Bytes that are here, of all files of the model, and all.
    Bytes(u64, u64),
}

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct Cached {
    /// What it is called by: `ORG/REPO:QUANT`, or an address.
    pub name: String,
    /// What opens it.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// When it came.
    pub modified: Option<SystemTime>,
    /// The commit that it is of; empty for an address.
    pub commit: String,
}

impl Plan {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |all, file| all.saturating_add(file.size))
    }

    /// Bytes that are not here yet.
    pub fn missing(&self) -> u64 {
        self.files.iter().fold(0, |all, file| all.saturating_add(file.size.saturating_sub(file.have)))
    }

    /// What the model is called by from then on.
    pub fn name(&self) -> String {
        match &self.reference {
            Reference::Url(_) => self.reference.to_string(),
            Reference::Repo(repo) => named(repo, self.quant.as_deref()),
        }
    }
}

/// The name of a repository's model: with the quantisation that was chosen.
fn named(repo: &RepoRef, quant: Option<&str>) -> String {
    let mut repo = repo.clone();
    if let (Which::Usual, Some(quant)) = (&repo.which, quant) {
        repo.which = Which::Quant(quant.to_owned());
    }
    repo.to_string()
}

/// The hub's answer about a repository.
#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    blob_id: Option<String>,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Hub {
    /// A hub and a cache as the environment has them: `HF_ENDPOINT`, `HF_TOKEN` or a token's file, `HF_HUB_CACHE`, `HF_HOME`,
    /// `XDG_CACHE_HOME`, `HF_HUB_OFFLINE`.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(&|name| std::env::var_os(name))
    }

    /// [`Hub::from_env`] with another environment.
    pub fn from_vars(var: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let text = |name: &str| var(name).and_then(|value| value.into_string().ok());
        let on = |name: &str| {
            text(name)
                .is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.trim().to_ascii_lowercase().as_str()))
        };
        let home = || var("HOME").or_else(|| var("USERPROFILE")).map(PathBuf::from);
        // Python's tools know the home folder by a tilde, too.
        let path = |name: &str| {
            let path = PathBuf::from(var(name)?);
            match path.strip_prefix("~") {
                Ok(below) => Some(home()?.join(below)),
                Err(_) => Some(path),
            }
        };
        let user = path("XDG_CACHE_HOME").or_else(|| home().map(|home| home.join(".cache")));
        let hf = path("HF_HOME").or_else(|| user.as_ref().map(|user| user.join("huggingface")));
        let hub = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let folder = hub.or_else(|| hf.as_ref().map(|hf| hf.join("hub"))).ok_or_else(|| {
            Error::argument("cache", "neither HF_HUB_CACHE, HF_HOME nor HOME says where models are kept")
        })?;
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned()).trim_end_matches('/').to_owned();
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            return Err(Error::argument("HF_ENDPOINT", format!("{endpoint:?}; an address works, as in {ENDPOINT}")));
        }
        let token = || {
            let given = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN"));
            let stored = || {
                let file = path("HF_TOKEN_PATH").or_else(|| hf.as_ref().map(|hf| hf.join("token")))?;
                let small = fs::metadata(&file).is_ok_and(|there| there.is_file() && there.len() <= 4096);
                small.then(|| fs::read_to_string(file).ok())?
            };
            given.or_else(stored).and_then(|token| Token::new(&token))
        };
        Ok(Self {
            endpoint,
            token: if on("HF_HUB_DISABLE_IMPLICIT_TOKEN") { None } else { token() },
            offline: on("HF_HUB_OFFLINE") || on("TRANSFORMERS_OFFLINE"),
            urls: user.unwrap_or_else(|| folder.clone()).join("wgslm").join("urls"),
            cache: Cache { folder, links: true },
            patience: Patience::default(),
        })
    }

    /// This hub, which opens no connection.
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline |= offline;
        self
    }

    /// This hub with another patience.
    pub fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// This hub with or without symbolic links in its cache, as on systems that have none.
    pub fn links(mut self, links: bool) -> Self {
        self.cache.links = links;
        self
    }

    /// The hub's address.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The folder of the cache.
    pub fn folder(&self) -> &Path {
        &self.cache.folder
    }

    /// Whether it opens no connection.
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// Whether there is a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether the hub answers; a connection is opened.
    pub fn reach(&self) -> Result<()> {
        let client = self.client("the hub")?;
        let url = format!("{}/api/models?limit=1", self.endpoint);
        client.json::<serde_json::Value>(&url).map(drop)
    }

    /// A connection; refused where none may be opened.
    fn client(&self, what: &str) -> Result<Client> {
        if self.offline {
            return Err(Error::NotFound {
                what: format!("{what} is not in the cache"),
                instead: "without --offline and HF_HUB_OFFLINE it is downloaded".to_owned(),
            });
        }
        Ok(Client::new(&self.endpoint, self.token.clone(), self.patience))
    }

    /// The model, if it is in the cache whole. No connection is opened.
    pub fn find(&self, reference: &Reference) -> Result<Option<Local>> {
        let repo = match reference {
            Reference::Url(url) => {
                let path = self.url_folder(url).join(&url.name);
                let all = part_urls(url).iter().all(|part| self.url_folder(url).join(&part.name).is_file());
                let quant = quant(url.name.trim_end_matches(".gguf"));
                return Ok(all.then(|| Local { path, name: reference.to_string(), quant }));
            }
            Reference::Repo(repo) => repo,
        };
        let folder = self.cache.repo(&repo.repo);
        let Some(commit) = folder.commit(&repo.revision) else { return Ok(None) };
        let snapshot = folder.snapshot(&commit);
        let (paths, _) = files_of(&snapshot);
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        match choose(repo, &paths) {
            Ok(choice) if choice.model.is_none() && !all_shards(&snapshot) => Ok(None),
            Ok(choice) => {
                let path = choice.model.map_or_else(|| snapshot.clone(), |model| snapshot.join(paths[model]));
                Ok(Some(Local { path, name: named(repo, choice.quant.as_deref()), quant: choice.quant }))
            }
            // Of what is here; the hub may have it. An ambiguous name is ambiguous there, too.
            Err(Error::Argument { name, problem }) => Err(Error::Argument { name, problem }),
            Err(_) => Ok(None),
        }
    }

    /// The model in the cache that a word is the name of: a repository without its ORG, with or without `:QUANT`.
    pub fn named(&self, word: &str) -> Result<Option<Reference>> {
        let (name, quant) = word.split_once(':').map_or((word, None), |(name, quant)| (name, Some(quant)));
        if !reference::is_part(name) {
            return Ok(None);
        }
        let repos = self.cache.repos()?;
        let fits = |repo: &&String| repo.split_once('/').is_some_and(|(_, own)| own.eq_ignore_ascii_case(name));
        let found: Vec<_> = repos.iter().filter(fits).collect();
        match found[..] {
            [] => Ok(None),
            [repo] => {
                let quant = quant.map_or(String::new(), |quant| format!(":{quant}"));
                Reference::parse(&format!("{repo}{quant}"), &self.endpoint)
            }
            _ => {
                let all: Vec<_> = found.iter().map(|repo| repo.as_str()).collect();
                Err(Error::argument(word, format!("several models in the cache have this name: {}", all.join(", "))))
            }
        }
    }

    /// What a download would bring, by asking the hub. Nothing is written.
    pub fn plan(&self, reference: &Reference) -> Result<Plan> {
        match reference {
            Reference::Repo(repo) => self.plan_repo(repo),
            Reference::Url(url) => self.plan_url(url),
        }
    }

    fn plan_repo(&self, repo: &RepoRef) -> Result<Plan> {
        let client = self.client(&repo.to_string())?;
        let (name, revision) = (&repo.repo, &repo.revision);
        let url = format!(
            "{}/api/models/{name}/revision/{}?blobs=true",
            self.endpoint,
            encoded(revision).replace('/', "%2F")
        );
        let info: Info = client.json(&url)?.into_body();
        let wrong = |problem: String| network(&url, &problem);
        if !is_hash(&info.sha) {
            return Err(wrong("it names no commit".to_owned()));
        }
        if info.siblings.len() > MAX_FILES {
            return Err(wrong(format!("it lists {} files; at most {MAX_FILES} work", info.siblings.len())));
        }
        // What could not be kept is not seen: it is no model's, or somebody's trap.
        let siblings: Vec<_> = info.siblings.into_iter().filter(|file| is_safe_path(&file.rfilename)).collect();
        let paths: Vec<&str> = siblings.iter().map(|file| file.rfilename.as_str()).collect();
        let choice = choose(repo, &paths)?;
        let folder = self.cache.repo(name);
        let snapshot = folder.snapshot(&info.sha);
        let file = |&at: &usize| {
            let file = &siblings[at];
            let hash = match (&file.lfs, &file.blob_id) {
                (Some(lfs), _) if lfs.sha256.len() == 64 && is_hash(&lfs.sha256) => {
                    Hash::Sha256(lfs.sha256.to_ascii_lowercase())
                }
                (None, Some(id)) if id.len() == 40 && is_hash(id) => Hash::Git(id.to_ascii_lowercase()),
                _ => return Err(wrong(format!("it gives no hash of {}", file.rfilename))),
            };
            let size = file.lfs.as_ref().map(|lfs| lfs.size).or(file.size).filter(|size| *size < MAX_SIZE);
            let size = size.ok_or_else(|| wrong(format!("it gives no size of {}", file.rfilename)))?;
            let have = have(
                &[
                    &snapshot.join(&file.rfilename),
                    &folder.blob(hash.digits().unwrap_or_default()),
                    &incomplete(&folder.blob(hash.digits().unwrap_or_default())),
                ],
                size,
            );
            let url = format!("{}/{name}/resolve/{}/{}", self.endpoint, info.sha, encoded(&file.rfilename));
            Ok(RemoteFile { path: file.rfilename.clone(), size, hash, url, validator: None, have })
        };
        let files = choice.files.iter().map(file).collect::<Result<Vec<_>>>()?;
        let model = choice.model.and_then(|model| choice.files.iter().position(|file| *file == model));
        let reference = Reference::Repo(repo.clone());
        Ok(Plan { reference, commit: info.sha, files, model, quant: choice.quant, others: choice.others })
    }

    fn plan_url(&self, url: &UrlRef) -> Result<Plan> {
        let client = self.client(&reference::bare(&url.url))?;
        let folder = self.url_folder(url);
        let mut files = Vec::new();
        for part in part_urls(url) {
            let response = client.get(&part.url, 0, None)?;
            if !response.status().is_success() {
                return Err(client.refused(&part.url, &response));
            }
            let said = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
            let size = download::content_length(response.headers()).filter(|size| *size < MAX_SIZE);
            let size = size.ok_or_else(|| network(&part.url, "it does not say how long the file is"))?;
            // A weak one says nothing of bytes.
            let strong = said("etag").filter(|tag| tag.starts_with('"'));
            let validator = strong.or_else(|| said("last-modified")).map(str::to_owned);
            let linked = said("x-linked-etag").or(strong).map(|tag| tag.trim_matches('"').to_ascii_lowercase());
            let hash = linked.filter(|tag| tag.len() == 64 && is_hash(tag)).map_or(Hash::None, Hash::Sha256);
            let path = folder.join(&part.name);
            // A beginning of another version is of no use.
            let same = validator.is_some() && fs::read_to_string(version(&path)).ok() == validator;
            let beginning = incomplete(&path);
            let have = if same { have(&[&path, &beginning], size) } else { have(&[&path], size) };
            files.push(RemoteFile { path: part.name, size, hash, url: part.url, validator, have });
        }
        let model = files.iter().position(|file| file.path == url.name);
        let quant = quant(url.name.trim_end_matches(".gguf"));
        Ok(Plan {
            reference: Reference::Url(url.clone()),
            commit: String::new(),
            files,
            model,
            quant,
            others: Vec::new(),
        })
    }

    /// Downloads what a plan says, as far as it is not here; gives the model. An error of `progress` ends it and is returned;
    /// what is there by then is kept, and the next download goes on from it.
    pub fn download(&self, plan: &Plan, progress: &mut dyn FnMut(Progress<'_>) -> Result<()>) -> Result<Local> {
        let name = plan.name();
        if self.offline && plan.missing() > 0 {
            self.client(&name)?;
        }
        let client = Client::new(&self.endpoint, self.token.clone(), self.patience);
        self.check_space(plan)?;
        let all = plan.bytes();
        let mut before = 0;
        for file in &plan.files {
            // None: another process has the file.
            let mut report = |have: Option<u64>| match have {
                Some(have) => progress(Progress::Bytes(before + have, all)),
                None => progress(Progress::Waiting(&file.path)),
            };
            match &plan.reference {
                Reference::Repo(repo) => self.fetch(&client, repo, &plan.commit, file, &mut report)?,
                Reference::Url(url) => self.fetch_url(&client, url, file, &mut report)?,
            }
            before += file.size;
            progress(Progress::Bytes(before, all))?;
        }
        let folder = match &plan.reference {
            Reference::Url(url) => self.url_folder(url),
            Reference::Repo(repo) => {
                let folder = self.cache.repo(&repo.repo);
                folder.set_ref(&repo.revision, &plan.commit)?;
                folder.snapshot(&plan.commit)
            }
        };
        let path =
            plan.model.and_then(|model| plan.files.get(model)).map_or(folder.clone(), |file| folder.join(&file.path));
        Ok(Local { path, name, quant: plan.quant.clone() })
    }

    /// Whether the disk has space for what is missing.
    fn check_space(&self, plan: &Plan) -> Result<()> {
        let folder = match &plan.reference {
            Reference::Repo(_) => &self.cache.folder,
            Reference::Url(_) => &self.urls,
        };
        let missing = plan.missing();
        match free_space(folder) {
            Some(free) if free < missing => Err(Error::Limit {
                what: format!("{} in {}", plan.name(), folder.display()),
                needed: format!("{missing} bytes more"),
                available: format!("{free} free on this disk"),
                instead: "wgslm list and wgslm rm make space, or HF_HUB_CACHE names a folder elsewhere".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// One file of a repository into its snapshot.
    fn fetch(
        &self,
        client: &Client,
        repo: &RepoRef,
        commit: &str,
        file: &RemoteFile,
        report: &mut dyn FnMut(Option<u64>) -> Result<()>,
    ) -> Result<()> {
        let folder = self.cache.repo(&repo.repo);
        let digits = file.hash.digits().unwrap_or_default();
        let (at, blob) = (folder.snapshot(commit).join(&file.path), folder.blob(digits));
        let is_there = |path: &Path| fs::metadata(path).is_ok_and(|there| there.is_file() && there.len() == file.size);
        if is_there(&at) {
            return Ok(());
        }
        // Who waits here finds it done afterwards.
        let _lock = Lock::take(&self.cache.lock(&repo.repo, digits), &mut || report(None))?;
        if is_there(&at) {
            return Ok(());
        }
        if !is_there(&blob) {
            let part = incomplete(&blob);
            let wanted = Wanted { url: &file.url, size: file.size, hash: &file.hash, validator: None };
            download(client, &wanted, &part, &mut |have| report(Some(have)))?;
            fs::rename(&part, &blob).map_err(io_error(&blob))?;
        }
        folder.link(digits, commit, &file.path)
    }

    /// One file of an address.
    fn fetch_url(
        &self,
        client: &Client,
        url: &UrlRef,
        file: &RemoteFile,
        report: &mut dyn FnMut(Option<u64>) -> Result<()>,
    ) -> Result<()> {
        let folder = self.url_folder(url);
        let path = folder.join(&file.path);
        let _lock = Lock::take(&folder.join(format!("{}.lock", file.path)), &mut || report(None))?;
        let there = fs::metadata(&path).is_ok_and(|there| there.len() == file.size);
        if there && fs::read_to_string(version(&path)).ok() == file.validator {
            return Ok(());
        }
        fs::write(folder.join("url"), reference::bare(&url.url)).map_err(io_error(&folder))?;
        let part = incomplete(&path);
        if fs::read_to_string(version(&path)).ok() != file.validator {
            if part.exists() {
                fs::remove_file(&part).map_err(io_error(&part))?;
            }
            let version = version(&path);
            match &file.validator {
                Some(text) => fs::write(&version, text).map_err(io_error(&version))?,
                None => drop(fs::remove_file(&version)),
            }
        }
        let wanted = Wanted { url: &file.url, size: file.size, hash: &file.hash, validator: file.validator.as_deref() };
        download(client, &wanted, &part, &mut |have| report(Some(have)))?;
        fs::rename(&part, &path).map_err(io_error(&path))
    }

    /// The folder of an address: addresses may be long, and hold what a name cannot.
    fn url_folder(&self, url: &UrlRef) -> PathBuf {
        // Parts of one model share it.
        let first = part_urls(url).into_iter().next().map_or_else(|| url.url.clone(), |part| part.url);
        let digest = ring::digest::digest(&ring::digest::SHA256, first.as_bytes());
        self.urls.join(hex(&digest.as_ref()[..16]))
    }

    /// Every model in the cache.
    pub fn list(&self) -> Result<Vec<Cached>> {
        let mut found = Vec::new();
        for repo in self.cache.repos()? {
            let folder = self.cache.repo(&repo);
            let mut seen: Vec<PathBuf> = Vec::new();
            for snapshot in folder.snapshots()? {
                let (paths, complete) = files_of(&snapshot.path);
                let texts: Vec<&str> = paths.iter().map(String::as_str).collect();
                let revision = snapshot.refs.first().cloned().unwrap_or_else(|| snapshot.commit.clone());
                for choice in all_choices(&repo, &revision, &texts) {
                    let files = choice.1.files.iter().map(|&file| snapshot.path.join(texts[file]));
                    let real: Vec<PathBuf> = files.filter_map(|file| fs::canonicalize(file).ok()).collect();
                    let model = choice.1.model;
                    if model.is_none() && !all_shards(&snapshot.path) || !complete {
                        continue;
                    }
                    // An older snapshot of the same bytes is no model of its own.
                    if real.iter().all(|file| seen.contains(file)) {
                        continue;
                    }
                    let metadata: Vec<_> = real.iter().filter_map(|file| fs::metadata(file).ok()).collect();
                    seen.extend(real);
                    found.push(Cached {
                        name: choice.0,
                        path: model.map_or_else(|| snapshot.path.clone(), |model| snapshot.path.join(texts[model])),
                        bytes: metadata.iter().fold(0, |all, file| all.saturating_add(file.len())),
                        modified: metadata.iter().filter_map(|file| file.modified().ok()).max(),
                        commit: snapshot.commit.clone(),
                    });
                }
            }
        }
        let folders = fs::read_dir(&self.urls).into_iter().flatten().filter_map(|entry| entry.ok());
        for folder in folders.map(|entry| entry.path()) {
            let Ok(name) = fs::read_to_string(folder.join("url")) else { continue };
            let Ok(Some(reference @ Reference::Url(_))) = Reference::parse(name.trim(), &self.endpoint) else {
                continue;
            };
            let (paths, _) = files_of(&folder);
            let Reference::Url(url) = &reference else { continue };
            let wanted = part_urls(url);
            if wanted.iter().all(|part| paths.contains(&part.name)) {
                let at = folder.join(&url.name);
                let modified = fs::metadata(&at).and_then(|there| there.modified()).ok();
                let bytes =
                    wanted.iter().filter_map(|part| fs::metadata(folder.join(&part.name)).ok()).map(|m| m.len()).sum();
                found.push(Cached { name: reference.to_string(), path: at, bytes, modified, commit: String::new() });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// What [`Hub::remove`] would remove: the models, and the bytes of everything that is kept for them.
    pub fn removable(&self, reference: &Reference) -> Result<Vec<Cached>> {
        let missing = || Error::NotFound {
            what: format!("{reference} is not in the cache"),
            instead: "wgslm list shows what is there".to_owned(),
        };
        let all = self.list()?;
        let found: Vec<Cached> = match reference {
            Reference::Url(_) => all.into_iter().filter(|cached| cached.name == reference.to_string()).collect(),
            Reference::Repo(repo) => {
                let of_repo = |cached: &Cached| {
                    let parsed = Reference::parse(&cached.name, &self.endpoint);
                    matches!(parsed, Ok(Some(Reference::Repo(own))) if own.repo == repo.repo)
                };
                let mine: Vec<_> = all.into_iter().filter(of_repo).collect();
                match &repo.which {
                    Which::Usual => mine,
                    _ => {
                        let local = self.find(reference)?.ok_or_else(missing)?;
                        mine.into_iter().filter(|cached| cached.path == local.path).collect()
                    }
                }
            }
        };
        let is_there = match reference {
            Reference::Repo(repo) => repo.which == Which::Usual && self.cache.repo(&repo.repo).path.is_dir(),
            Reference::Url(url) => self.url_folder(url).is_dir(),
        };
        if found.is_empty() && !is_there { Err(missing()) } else { Ok(found) }
    }

    /// Removes a model, or with `ORG/REPO` all of a repository; gives the bytes that are free now.
    pub fn remove(&self, reference: &Reference) -> Result<u64> {
        let models = self.removable(reference)?;
        match reference {
            Reference::Url(url) => {
                let folder = self.url_folder(url);
                let bytes = cache::size(&folder);
                fs::remove_dir_all(&folder).map_err(io_error(&folder))?;
                Ok(bytes)
            }
            Reference::Repo(repo) => {
                let folder = self.cache.repo(&repo.repo);
                let others = self.removable(&Reference::Repo(RepoRef { which: Which::Usual, ..repo.clone() }))?;
                if repo.which == Which::Usual || others.len() <= models.len() {
                    return folder.remove();
                }
                let mut names = Vec::new();
                for model in &models {
                    let snapshot = folder.snapshot(&model.commit);
                    let (paths, _) = files_of(&snapshot);
                    let texts: Vec<&str> = paths.iter().map(String::as_str).collect();
                    let choice = choose(repo, &texts)?;
                    names.extend(choice.files.iter().map(|&file| texts[file].to_owned()));
                }
                folder.remove_files(&names)
            }
        }
    }
}

/// The paths of a folder's files that are there, and whether no link leads nowhere.
fn files_of(folder: &Path) -> (Vec<String>, bool) {
    let (mut paths, mut complete) = (Vec::new(), true);
    cache::walk(folder, &mut |name, path| match path.is_file() {
        true => paths.push(name.to_owned()),
        false => complete = false,
    });
    (paths, complete)
}

/// Every model among the files of a snapshot, by name.
fn all_choices(repo: &str, revision: &str, paths: &[&str]) -> Vec<(String, Choice)> {
    let of = |which| RepoRef { repo: repo.to_owned(), revision: revision.to_owned(), which };
    let mut found: Vec<(String, Choice)> = Vec::new();
    for path in paths.iter().filter(|path| path.to_ascii_lowercase().ends_with(".gguf")) {
        let by_file = of(Which::File((*path).to_owned()));
        let Ok(choice) = choose(&by_file, paths) else { continue };
        if found.iter().any(|(_, other)| other.files == choice.files) {
            continue;
        }
        // By its quantisation or its name, if that means this file; else by its path.
        let stem = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".gguf");
        let short = choice.quant.iter().map(String::as_str).chain([stem]).map(|word| of(Which::Quant(word.to_owned())));
        let means_it = |name: &RepoRef| {
            let read = Reference::parse(&name.to_string(), "");
            read.is_ok_and(|read| read == Some(Reference::Repo(name.clone())))
                && choose(name, paths).is_ok_and(|other| other.files == choice.files)
        };
        let name = short.into_iter().find(means_it);
        found.push((name.unwrap_or(by_file).to_string(), choice));
    }
    if found.is_empty() {
        let usual = of(Which::Usual);
        found.extend(choose(&usual, paths).ok().map(|choice| (usual.to_string(), choice)));
    }
    found
}

/// Whether every shard that a folder's index names is there.
fn all_shards(folder: &Path) -> bool {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    if folder.join("model.safetensors").is_file() {
        return true;
    }
    let index = folder.join("model.safetensors.index.json");
    let small = fs::metadata(&index).is_ok_and(|there| there.len() < 256 << 20);
    let text = if small { fs::read(&index).ok() } else { None };
    let index: Option<Index> = text.and_then(|text| serde_json::from_slice(&text).ok());
    index
        .is_some_and(|index| index.weight_map.values().all(|shard| is_safe_path(shard) && folder.join(shard).is_file()))
}

/// The addresses of all parts of the model that an address names a part of.
fn part_urls(url: &UrlRef) -> Vec<UrlRef> {
    let Some((name, _, parts)) = url.name.strip_suffix(".gguf").and_then(choose::split) else {
        return vec![url.clone()];
    };
    /// More than any model has; a name with more is the name of one file.
    const MOST: u32 = 1000;
    let query = url.url.find('?').unwrap_or(url.url.len());
    let folder = url.url[..query].rfind('/').map_or(0, |at| at + 1);
    if parts > MOST {
        return vec![url.clone()];
    }
    let part = |part: u32| {
        let name = format!("{name}-{part:05}-of-{parts:05}.gguf");
        UrlRef { url: format!("{}{}{}", &url.url[..folder], encoded(&name), &url.url[query..]), name }
    };
    (1..=parts).map(part).collect()
}

/// Where the beginning of a file is kept until it is whole.
fn incomplete(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".incomplete");
    name.into()
}

/// Where it is kept which version of an address's file this is.
fn version(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".version");
    name.into()
}

/// Bytes that are here: of the first of these files that is.
fn have(places: &[&Path], size: u64) -> u64 {
    let len = |path: &&Path| fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|there| there.len());
    places.iter().find_map(len).filter(|len| *len <= size).unwrap_or(0)
}

/// Makes the folder of the cache, to see whether it can be written.
pub fn is_writable(folder: &Path) -> bool {
    let probe = folder.join(format!(".wgslm-{}", std::process::id()));
    let written = make_folder(folder).is_ok() && fs::write(&probe, b"").is_ok();
    let _ = fs::remove_file(&probe);
    written
}
