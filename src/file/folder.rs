//! Opening a model by its path.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::mapped::MappedFile;
use super::model_file::{ModelFile, Texts};
use super::source::{ByteSource, PlainFile, at_once, open_regular};
use super::{json, modules, quoted};
use crate::{Error, Result};

/// How a file's bytes are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Mapped into memory.
    #[default]
    Mapped,
    /// Read piece by piece: slower, and safe where another process may shorten the file.
    Read,
}

/// The text files of a model folder that are of use.
pub(crate) const FOLDER_TEXTS: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    modules::LIST,
    "sentence_bert_config.json",
];
/// A longer text file is refused: the largest known tokenizer.json has 34 MB.
const MAX_TEXT: u64 = 256 << 20;
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl ModelFile {
    /// Opens a GGUF file (any part of a split one: `NAME-00001-of-00003.gguf`), a safetensors folder, the `.safetensors` or
    /// `.safetensors.index.json` file in one, or a folder that holds one GGUF model.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_as(path, Access::default())
    }

    /// [`ModelFile::open`] with a choice of how bytes are reached.
    pub fn open_as(path: &Path, access: Access) -> Result<Self> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            let inside = [INDEX, SINGLE].map(|name| path.join(name)).into_iter().find(|file| file.exists());
            let inside = match inside {
                Some(inside) => inside,
                None => only_gguf(path)?,
            };
            return Self::open_as(&inside, access);
        }
        if name.ends_with(".safetensors.index.json") {
            let index = Index::read(path)?;
            let shards: Vec<PathBuf> = index.shards.iter().map(|shard| path.with_file_name(shard)).collect();
            let model = Self::open_folder(path, &shards, access).map_err(of_a_shard)?;
            index.check(&model)?;
            return Ok(model);
        }
        if name.ends_with(".safetensors") {
            return Self::open_folder(path, &[path.to_owned()], access);
        }
        at_once(Self::open_gguf(sources(&parts(path, &name), access)?))
    }

    /// The parts of a safetensors model, what lies beside `path`, and the modules that come after the model.
    fn open_folder(path: &Path, parts: &[PathBuf], access: Access) -> Result<Self> {
        let mut texts = texts(path)?;
        let weights = modules::read(path, &mut texts)?;
        let mut model = at_once(Self::open_safetensors(texts, sources(parts, access)?))?;
        for (module, file) in weights {
            for source in sources(&[file], access)? {
                model = at_once(model.with_module(&module, source))?;
            }
        }
        Ok(model)
    }
}

/// The GGUF model of a folder that holds no other: a file, or the first part of a split one.
fn only_gguf(folder: &Path) -> Result<PathBuf> {
    let shown = folder.display().to_string();
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io(&shown, e))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // What goes with a model that sees is no model by itself.
    let is_model = |name: &String| name.ends_with(".gguf") && !name.to_ascii_lowercase().contains("mmproj");
    let mut models: Vec<String> = names.filter(is_model).collect();
    models.sort();
    // Of a split model, the first part stands for all.
    models.retain(|name| parts(Path::new(name), name).first().is_none_or(|first| first == Path::new(name)));
    match &models[..] {
        [model] => Ok(folder.join(model)),
        [] => {
            let problem = format!("the folder holds neither {SINGLE} nor {INDEX} nor a GGUF file");
            Err(Error::argument(shown, problem))
        }
        several => {
            /// Names that are read.
            const NAMED: usize = 8;
            let more = several.len().checked_sub(NAMED).filter(|more| *more > 0);
            let more = more.map_or(String::new(), |more| format!(" and {more} more"));
            let named = several.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
            let problem = format!("the folder holds several models; one by its own path works: {named}{more}");
            Err(Error::argument(shown, problem))
        }
    }
}

fn sources(paths: &[PathBuf], access: Access) -> Result<Vec<Box<dyn ByteSource>>> {
    let open = |path: &PathBuf| match access {
        Access::Mapped => MappedFile::open(path),
        Access::Read => PlainFile::open(path).map(|file| Box::new(file) as Box<dyn ByteSource>),
    };
    paths.iter().map(open).collect()
}

/// All parts of the split GGUF that `path` belongs to, by the pattern `-00001-of-00003.gguf`; else just `path`.
pub(crate) fn parts(path: &Path, name: &str) -> Vec<PathBuf> {
    let split = name.strip_suffix(".gguf").and_then(|stem| {
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (stem, no) = rest.rsplit_once('-')?;
        let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
        (digits(no) && digits(count)).then(|| Some((stem, count.parse::<u32>().ok()?)))?
    });
    match split {
        Some((stem, count)) if count > 0 => {
            (1..=count).map(|no| path.with_file_name(format!("{stem}-{no:05}-of-{count:05}.gguf"))).collect()
        }
        _ => vec![path.to_owned()],
    }
}

/// The text files beside `path` that are there.
fn texts(path: &Path) -> Result<Texts> {
    let mut texts = Texts::new();
    for name in FOLDER_TEXTS {
        let file = path.with_file_name(name);
        if file.exists() {
            texts.insert(name.into(), read_text(&file)?);
        }
    }
    Ok(texts)
}

/// A whole text file.
pub(super) fn read_text(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let (file, len) = open_regular(path)?;
    if len > MAX_TEXT {
        return Err(Error::malformed(name, None, format!("{len} bytes; a text file may have {MAX_TEXT}")));
    }
    let mut bytes = Vec::new();
    // No further than the limit, even if the file grows meanwhile.
    file.take(MAX_TEXT).read_to_end(&mut bytes).map_err(|e| Error::io(&name, e))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to() as u64;
        Error::malformed(name, at, "not UTF-8, so neither JSON nor text")
    })
}

/// `model.safetensors.index.json`: which shard holds which tensor.
struct Index {
    name: String,
    weight_map: BTreeMap<String, String>,
    /// The shards' file names, each once; a tensor's `file` counts them in this order.
    shards: Vec<String>,
}

impl Index {
    fn read(path: &Path) -> Result<Self> {
        #[derive(serde::Deserialize)]
        struct Form {
            weight_map: BTreeMap<String, String>,
        }
        let name = path.display().to_string();
        let Form { weight_map } = json::parse(&name, &read_text(path)?)?;
        let mut shards: Vec<String> = weight_map.values().cloned().collect();
        shards.sort_unstable();
        shards.dedup();
        for shard in &shards {
            if !is_plain_name(shard) {
                let problem = format!("shard {} is a path, not the name of a file in this folder", quoted(shard));
                return Err(Error::malformed(&name, None, problem));
            }
            if !path.with_file_name(shard).exists() {
                return Err(Error::malformed(&name, None, format!("shard {} not found", quoted(shard))));
            }
        }
        Ok(Self { name, weight_map, shards })
    }

    /// Every tensor must be in the shard that the index names.
    fn check(&self, model: &ModelFile) -> Result<()> {
        for (tensor, shard) in &self.weight_map {
            let found = model.find(tensor).and_then(|t| self.shards.get(t.file));
            if found != Some(shard) {
                let problem = format!("tensor {} is not in its shard {}", quoted(tensor), quoted(shard));
                return Err(Error::malformed(&self.name, None, problem));
            }
        }
        Ok(())
    }
}

/// A malformed file, called a shard.
fn of_a_shard(e: Error) -> Error {
    match e {
        Error::Malformed { what, offset, problem } => Error::malformed(format!("shard {what}"), offset, problem),
        other => other,
    }
}

/// Whether a name means a file of the same folder on every system: no separators, no `..`, no drive letters.
pub(super) fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}
