//! A model as its files have it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::metadata::Metadata;
use super::source::{ByteSource, Bytes, at_once, parse_prefix};
use super::tensor::TensorInfo;
use super::{gguf, quoted, safetensors};
use crate::cpu::zeros;
use crate::{Error, Result};

/// The small text files of a safetensors folder, by name: `config.json`, `tokenizer.json`, ...
pub type Texts = BTreeMap<String, String>;

/// What a model's files say besides its tensors.
#[derive(Debug)]
pub enum Description {
    /// A GGUF file's metadata.
    Gguf(Metadata),
    /// A safetensors folder's text files, as they are.
    Folder(Texts),
}

/// An opened model: its description, its tensors, and where their bytes are.
pub struct ModelFile {
    /// What it says about itself.
    pub description: Description,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    sources: Vec<Arc<dyn ByteSource>>,
}

impl ModelFile {
    /// Opens a GGUF file, or all parts of a split one in their order.
    pub async fn open_gguf(sources: Vec<Box<dyn ByteSource>>) -> Result<Self> {
        let mut headers = Vec::new();
        for (file, source) in sources.iter().enumerate() {
            let parse = |bytes: &[u8]| gguf::parse(source.name(), file, source.len(), bytes);
            headers.push(parse_prefix(source.as_ref(), parse).await?);
        }
        check_parts(&headers, &sources)?;
        let tensors = headers.iter_mut().flat_map(|header| std::mem::take(&mut header.tensors)).collect();
        let meta = headers.into_iter().next().map(|header| header.meta);
        let meta = meta.ok_or_else(|| Error::argument("sources", "a model has at least one file"))?;
        Self::new(Description::Gguf(meta), tensors, sources)
    }

    /// Opens a GGUF file that lies in memory, an embedded one for example. `name` is what messages call it.
    pub fn from_bytes(name: impl Into<String>, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        at_once(Self::open_gguf(vec![Box::new(Bytes::new(name, bytes))]))
    }

    /// Opens the parts of a safetensors model, with the text files that lie beside it.
    pub async fn open_safetensors(texts: Texts, sources: Vec<Box<dyn ByteSource>>) -> Result<Self> {
        let mut tensors = Vec::new();
        for (file, source) in sources.iter().enumerate() {
            let parse = |bytes: &[u8]| safetensors::parse(source.name(), file, source.len(), bytes);
            tensors.extend(parse_prefix(source.as_ref(), parse).await?);
        }
        Self::new(Description::Folder(texts), tensors, sources)
    }

    /// Adds the safetensors file of a module that comes after the model itself; its tensors' names begin with `MODULE/`.
    pub async fn with_module(mut self, module: &str, source: Box<dyn ByteSource>) -> Result<Self> {
        let file = self.sources.len();
        let parse = |bytes: &[u8]| safetensors::parse(source.name(), file, source.len(), bytes);
        for mut tensor in parse_prefix(source.as_ref(), parse).await? {
            tensor.name = format!("{module}/{}", tensor.name);
            if self.by_name.insert(tensor.name.clone(), self.tensors.len()).is_some() {
                let problem = format!("duplicate tensor {}", quoted(&tensor.name));
                return Err(Error::malformed(source.name(), None, problem));
            }
            self.tensors.push(tensor);
        }
        self.sources.push(Arc::from(source));
        Ok(self)
    }

    /// A model that no file holds: `tensors` lie in `sources`, which need to answer only for what is read.
    pub(crate) fn new(
        description: Description,
        tensors: Vec<TensorInfo>,
        sources: Vec<Box<dyn ByteSource>>,
    ) -> Result<Self> {
        let mut by_name = HashMap::new();
        for (i, tensor) in tensors.iter().enumerate() {
            if by_name.insert(tensor.name.clone(), i).is_some() {
                let file = sources.get(tensor.file).map_or("", |source| source.name());
                return Err(Error::malformed(file, None, format!("duplicate tensor {}", quoted(&tensor.name))));
            }
        }
        let sources = sources.into_iter().map(Arc::from).collect();
        Ok(Self { description, tensors, by_name, sources })
    }

    /// What messages call the model: the name of its first file.
    pub fn name(&self) -> &str {
        self.sources.first().map_or("", |source| source.name())
    }

    /// The metadata, of a GGUF model.
    pub fn gguf(&self) -> Option<&Metadata> {
        match &self.description {
            Description::Gguf(meta) => Some(meta),
            Description::Folder(_) => None,
        }
    }

    /// A text file of a safetensors folder, if it is there.
    pub fn text(&self, name: &str) -> Option<&str> {
        match &self.description {
            Description::Gguf(_) => None,
            Description::Folder(texts) => texts.get(name).map(String::as_str),
        }
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).and_then(|&i| self.tensors.get(i))
    }

    /// The tensor of this name. The error names the most similar tensors.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo> {
        self.find(name).ok_or_else(|| {
            let mut near: Vec<_> = self.tensors.iter().map(|t| (alike(&t.name, name), &t.name)).collect();
            near.sort_by_key(|(alike, _)| std::cmp::Reverse(*alike));
            let near: Vec<_> = near.into_iter().take(3).map(|(_, name)| quoted(name)).collect();
            let near = if near.is_empty() { "there are none".into() } else { format!("there are {}", near.join(", ")) };
            Error::Model(format!("tensor {name} is missing in {}; {near}", self.name()))
        })
    }

    /// Reads the bytes `range`, counted from the tensor's start, into `out`.
    pub async fn read(&self, tensor: &TensorInfo, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        if range.start > range.end || range.end > tensor.bytes || range.end - range.start != out.len() as u64 {
            let problem = format!("bytes {range:?} of {} into {} bytes", tensor.bytes, out.len());
            return Err(Error::argument(quoted(&tensor.name), problem));
        }
        self.source(tensor)?.read(tensor.offset + range.start, out).await
    }

    /// The tensor's bytes, if the file lies in memory.
    pub fn mapped(&self, tensor: &TensorInfo) -> Option<&[u8]> {
        let all = self.source(tensor).ok()?.mapped()?;
        let start = usize::try_from(tensor.offset).ok()?;
        all.get(start..start.checked_add(usize::try_from(tensor.bytes).ok()?)?)
    }

    /// All of a tensor's numbers, decoded: for norms, biases and tests.
    pub async fn read_f32(&self, tensor: &TensorInfo) -> Result<Vec<f32>> {
        let format = tensor.format()?;
        let too_large = || Error::argument(quoted(&tensor.name), "too large to decode whole");
        // Both sizes follow from bytes that are in the file: at most 7 numbers a byte.
        let mut bytes = zeros(&tensor.name, usize::try_from(tensor.bytes).map_err(|_| too_large())?)?;
        self.read(tensor, 0..tensor.bytes, &mut bytes).await?;
        let mut out = zeros(&tensor.name, usize::try_from(tensor.len()).map_err(|_| too_large())?)?;
        format.decode(&bytes, &mut out)?;
        Ok(out)
    }

    /// The file that holds a tensor, for those who keep reading it after the model is gone.
    pub fn source(&self, tensor: &TensorInfo) -> Result<&Arc<dyn ByteSource>> {
        self.sources
            .get(tensor.file)
            .ok_or_else(|| Error::argument(quoted(&tensor.name), "it belongs to another model"))
    }
}

/// The parts of a split GGUF must be all there and in order: `split.no`, `split.count`, `split.tensors.count`.
fn check_parts(headers: &[gguf::Header], sources: &[Box<dyn ByteSource>]) -> Result<()> {
    for (i, (header, source)) in headers.iter().zip(sources).enumerate() {
        let bad = |problem| Err(Error::malformed(source.name(), None, problem));
        let count = header.meta.get::<u32>("split.count")?.unwrap_or(1).max(1);
        let no = header.meta.get::<u32>("split.no")?.unwrap_or(0);
        if count as usize != headers.len() {
            return bad(format!("split.count is {count}, but {} files are there", headers.len()));
        }
        if no as usize != i {
            return bad(format!("split.no is {no}, but it stands at place {i}"));
        }
    }
    let tensors: usize = headers.iter().map(|header| header.tensors.len()).sum();
    if let Some(first) = headers.first()
        && let Some(stated) = first.meta.get::<u32>("split.tensors.count")?
        && stated as usize != tensors
    {
        let name = sources.first().map_or("", |source| source.name());
        let problem = format!("split.tensors.count is {stated}, but the files hold {tensors} tensors");
        return Err(Error::malformed(name, None, problem));
    }
    Ok(())
}

/// How many bytes two names share at their start and at their end.
fn alike(a: &str, b: &str) -> usize {
    let same = |(x, y): &(u8, u8)| x == y;
    let start = a.bytes().zip(b.bytes()).take_while(same).count();
    let end = a.bytes().rev().zip(b.bytes().rev()).take_while(same).count();
    start + end
}
