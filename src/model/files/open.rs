//! A model, opened: everything that follows from its files before a weight is read.

use std::borrow::Cow;

use crate::file::{self, CountFn, Description, ModelFile, Value};
use crate::model::arch::Arch;
use crate::model::config::{Asked, Config, infinite};
use crate::model::embedding::{Embedding, Task};
use crate::model::files::names::Names;
use crate::model::files::quantize::Quantized;
use crate::model::files::source::{Tensor, WeightSource as _};
use crate::model::files::weights::{self, Located, MatrixAt};
use crate::model::program::Program;
use crate::ops::{CpuWeights, Matrix};
use crate::{Error, Result};

/// A model's files, its program, and where the program's weights lie in the files.
pub struct Model {
    /// The files.
    pub file: ModelFile,
    /// The architecture, as `model_type` names it.
    pub arch: &'static str,
    /// What people call the model.
    pub name: String,
    /// The forward pass.
    pub program: Program,
    /// Where its weights are.
    pub located: Located,
    /// Tokens with a meaning for generation, as the model's configuration has them.
    pub specials: Specials,
    /// How the model's makers would sample from it.
    pub sampling: SamplingDefaults,
    /// The chat template, in Jinja, if the model has one.
    pub chat_template: Option<String>,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// The hyper-parameters that the program follows, by name.
    pub keys: Vec<Asked>,
    pub(in crate::model) quantized: Option<Quantized>,
}

/// Tokens with a meaning for generation; all are within the vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Specials {
    /// Starts a text.
    pub bos: Option<u32>,
    /// Any of them ends a text.
    pub eos: Vec<u32>,
}

/// What a model's files recommend for sampling: `generation_config.json`, or `general.sampling.*` in GGUF files. What they do
/// not say in numbers is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// The temperature.
    pub temperature: Option<f32>,
    /// Top-k; 0: all.
    pub top_k: Option<u32>,
    /// Top-p.
    pub top_p: Option<f32>,
    /// Min-p.
    pub min_p: Option<f32>,
    /// The repetition penalty; 1: none.
    pub repeat_penalty: Option<f32>,
    /// How many of the last tokens penalties look at.
    pub last_n: Option<u32>,
}

/// Every architecture that can be opened, by the names that `model_type` has for it.
pub fn architectures() -> impl Iterator<Item = &'static [&'static str]> {
    Arch::all().iter().map(|arch| arch.model_types)
}

/// What a model is opened from: a path, bytes in memory, files that are open, or a model that is understood already.
///
/// Functions that open models take `impl Into<ModelSource>`, so any of these works as it is.
pub enum ModelSource {
    /// A GGUF file (of a split one, any part), or a folder of safetensors files.
    #[cfg(not(target_arch = "wasm32"))]
    Path(std::path::PathBuf),
    /// The bytes of a GGUF file: one that is compiled in, or was downloaded.
    Bytes(Cow<'static, [u8]>),
    /// Files that are open.
    File(ModelFile),
    /// A model: one that is to be [quantised](Model::quantize) while it is loaded, for example.
    Model(Box<Model>),
}

impl ModelSource {
    /// The model's files.
    pub fn file(self) -> Result<ModelFile> {
        match self {
            #[cfg(not(target_arch = "wasm32"))]
            Self::Path(path) => ModelFile::open(&path),
            Self::Bytes(bytes) => ModelFile::from_bytes("model in memory", bytes),
            Self::File(file) => Ok(file),
            Self::Model(model) if model.quantized().is_none() => Ok(model.file),
            Self::Model(model) => {
                let problem = "it is quantised while it is loaded, which is for answers alone; its file works";
                Err(Error::argument(model.name, problem))
            }
        }
    }

    /// The model, understood.
    pub async fn model(self) -> Result<Model> {
        match self {
            Self::Model(model) => Ok(*model),
            other => Model::open(other.file()?).await,
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl From<&str> for ModelSource {
    fn from(path: &str) -> Self {
        Self::Path(path.into())
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl From<String> for ModelSource {
    fn from(path: String) -> Self {
        Self::Path(path.into())
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl From<&std::path::Path> for ModelSource {
    fn from(path: &std::path::Path) -> Self {
        Self::Path(path.into())
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl From<std::path::PathBuf> for ModelSource {
    fn from(path: std::path::PathBuf) -> Self {
        Self::Path(path)
    }
}

impl From<&'static [u8]> for ModelSource {
    fn from(bytes: &'static [u8]) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl<const N: usize> From<&'static [u8; N]> for ModelSource {
    fn from(bytes: &'static [u8; N]) -> Self {
        Self::Bytes(bytes.as_slice().into())
    }
}

impl From<Vec<u8>> for ModelSource {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl From<ModelFile> for ModelSource {
    fn from(file: ModelFile) -> Self {
        Self::File(file)
    }
}

impl From<Model> for ModelSource {
    fn from(model: Model) -> Self {
        Self::Model(Box::new(model))
    }
}

impl Model {
    /// Understands a model's files: finds its architecture, builds its program, finds and checks the weights.
    ///
    /// No weight is read, and nothing is allocated that its header does not account for. Fails, by name, on what the
    /// engine cannot run and on what would change the arithmetic unseen.
    pub async fn open(file: ModelFile) -> Result<Self> {
        Self::open_for(file, Task::Own).await
    }

    /// [`Model::open`], or for vectors if the model has no head: those that are saved without one.
    pub async fn open_whole(file: ModelFile) -> Result<Self> {
        let arch = Arch::of(&file)?;
        let config = Config::read(&file, arch, Task::Own).await?;
        let program = (arch.build)(&config)?;
        let headless = config.lacks_head(&program);
        Self::open_for(file, if headless { Task::Embed(Embedding::default()) } else { Task::Own }).await
    }

    /// [`Model::open`] for a task: any model can give vectors.
    pub async fn open_for(file: ModelFile, task: Task) -> Result<Self> {
        let arch = Arch::of(&file)?;
        let config = Config::read(&file, arch, task).await?;
        let program = (arch.build)(&config)?;
        program.check(&[])?;
        config.refuse_ignored(program.logits().is_some())?;
        let located = weights::locate(&program, config.names)?;
        let keys = config.asked();
        let specials = specials(&file, program.vocab)?;
        let parameters = file.tensors().iter().map(|t| t.len()).fold(0, u64::saturating_add);
        let (name, sampling, chat_template) = (name(&file), sampling(&file), chat_template(&file)?);
        let arch = arch.name();
        let quantized = None;
        Ok(Self { arch, name, program, located, specials, sampling, chat_template, parameters, keys, quantized, file })
    }
}

impl Model {
    /// The program's weights for a CPU executor, where they lie in the file if that is in memory. `progress` receives bytes
    /// done and bytes in all.
    pub async fn cpu_weights(&self, progress: &mut CountFn<'_>) -> Result<CpuWeights> {
        let Located { weights, vectors } = &self.located;
        let (mut done, all) = (0, weights.iter().map(MatrixAt::size).sum());
        // A page has 4 GB at most, and its files come over a network: what cannot be held is refused before it is fetched.
        #[cfg(target_arch = "wasm32")]
        crate::cpu::reserve("the weights", all)?;
        let mut matrices: Vec<Option<Matrix>> = weights.iter().map(|_| None).collect();
        let mut vectors = vec![Vec::new(); vectors.len()];
        for tensor in self.in_order(matrices.len(), vectors.len()) {
            match tensor {
                Tensor::Vector(id) => vectors[id.index()] = self.vector(id).await?,
                Tensor::Matrix(id) => {
                    matrices[id.index()] = Some(match &self.quantized {
                        Some(quantized) => self.quantized_matrix(quantized, id).await?,
                        None => self.located.cpu_matrix(&self.file, id).await?,
                    });
                    done += weights[id.index()].size();
                    progress(done, all);
                }
            }
        }
        Ok(CpuWeights { matrices: matrices.into_iter().flatten().collect(), vectors })
    }
}

impl Model {
    /// What GGUF files call a tensor that the program names.
    pub(in crate::model) fn gguf_name(&self, tensor: &str) -> String {
        match Arch::of(&self.file) {
            Ok(arch) => Names { file: &self.file, arch }.translated(tensor).0,
            Err(_) => tensor.to_owned(),
        }
    }
}

fn name(file: &ModelFile) -> String {
    let given = file.gguf().and_then(|meta| meta.get::<&str>("general.name").ok()?);
    let mut path = file.name().rsplit(['/', '\\']);
    let last = path.next().unwrap_or_default();
    let from_path = match &file.description {
        Description::Gguf(_) => last.strip_suffix(".gguf").unwrap_or(last),
        Description::Folder(_) => path.next().unwrap_or(last),
    };
    given.unwrap_or(from_path).to_owned()
}

fn specials(file: &ModelFile, vocab: u32) -> Result<Specials> {
    let in_vocab = |key: &str, id: i64| {
        let fits = u32::try_from(id).ok().filter(|&id| id < vocab);
        fits.ok_or_else(|| Error::Model(format!("{key} is token {id}, out of range: the vocabulary has {vocab}")))
    };
    let mut specials = Specials::default();
    match &file.description {
        Description::Gguf(meta) => {
            if let Some(tokens) = meta.get::<&file::Strings>("tokenizer.ggml.tokens")?
                && tokens.len() as u64 != u64::from(vocab)
            {
                let problem = format!("tokenizer.ggml.tokens has {} tokens, the vocabulary {vocab}", tokens.len());
                return Err(Error::Model(problem));
            }
            let id = |key: &str| meta.get::<u32>(key)?.map(|id| in_vocab(key, id.into())).transpose();
            specials.bos = id("tokenizer.ggml.bos_token_id")?;
            for key in ["eos", "eot", "eom"] {
                specials.eos.extend(id(&format!("tokenizer.ggml.{key}_token_id"))?);
            }
        }
        Description::Folder(_) => {
            // generation_config.json has the last word: chat models add the end of a turn there.
            for name in ["generation_config.json", "config.json"] {
                let Some(text) = file.text(name) else { continue };
                let json: serde_json::Map<String, serde_json::Value> = file::json::parse(name, &infinite(text))?;
                let ids = |key: &str| match json.get(key) {
                    None | Some(serde_json::Value::Null) => Ok(Vec::new()),
                    Some(serde_json::Value::Array(ids)) => ids.iter().map(|id| special(key, id)).collect(),
                    Some(id) => special(key, id).map(|id| vec![id]),
                };
                let ids = |key: &str| ids(key)?.into_iter().map(|id| in_vocab(key, id)).collect::<Result<Vec<_>>>();
                let (bos, eos) = (ids("bos_token_id")?, ids("eos_token_id")?);
                specials.bos = specials.bos.or(bos.first().copied());
                if specials.eos.is_empty() {
                    specials.eos = eos;
                }
            }
        }
    }
    specials.eos.dedup();
    Ok(specials)
}

fn sampling(file: &ModelFile) -> SamplingDefaults {
    let json = file.text("generation_config.json").and_then(|text| {
        let json: serde_json::Value = file::json::parse("generation_config.json", &infinite(text)).ok()?;
        Some(json)
    });
    let number = |json_key: &str, gguf_key: &str| match file.gguf() {
        None => json.as_ref()?.get(json_key)?.as_f64(),
        Some(meta) => match meta.value(&format!("general.sampling.{gguf_key}"))? {
            Value::F32(x) => Some(f64::from(*x)),
            Value::F64(x) => Some(*x),
            Value::U32(n) => Some(f64::from(*n)),
            Value::I32(n) => Some(f64::from(*n)),
            _ => None,
        },
    };
    let real = |json_key, gguf_key| number(json_key, gguf_key).map(|x| x as f32).filter(|x| x.is_finite());
    // A saturating cast.
    let count = |json_key, gguf_key| number(json_key, gguf_key).filter(|n| *n >= 0.0).map(|n| n as u32);
    SamplingDefaults {
        temperature: real("temperature", "temp"),
        top_k: count("top_k", "top_k"),
        top_p: real("top_p", "top_p"),
        min_p: real("min_p", "min_p"),
        repeat_penalty: real("repetition_penalty", "penalty_repeat"),
        last_n: count("", "penalty_last_n"),
    }
}

fn special(key: &str, id: &serde_json::Value) -> Result<i64> {
    id.as_i64().ok_or_else(|| Error::Model(format!("{key} is {id}; a token id or a list of them works")))
}

fn chat_template(file: &ModelFile) -> Result<Option<String>> {
    if let Some(meta) = file.gguf() {
        return Ok(meta.get::<&str>("tokenizer.chat_template")?.map(str::to_owned));
    }
    if let Some(template) = file.text("chat_template.jinja") {
        return Ok(Some(template.to_owned()));
    }
    for name in ["chat_template.json", "tokenizer_config.json"] {
        let Some(text) = file.text(name) else { continue };
        let json: serde_json::Map<String, serde_json::Value> = file::json::parse(name, text)?;
        let template = match json.get("chat_template") {
            Some(serde_json::Value::String(template)) => Some(template.as_str()),
            // Several, by name.
            Some(serde_json::Value::Array(all)) => {
                let is_default = |t: &&serde_json::Value| t.get("name").and_then(|n| n.as_str()) == Some("default");
                all.iter().find(is_default).or(all.first()).and_then(|t| t.get("template")?.as_str())
            }
            _ => None,
        };
        if let Some(template) = template {
            return Ok(Some(template.to_owned()));
        }
    }
    Ok(None)
}
