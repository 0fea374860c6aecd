//! Hyper-parameters of a model, whatever file they come from: one typed reader for `config.json` and GGUF metadata.
//!
//! An architecture asks for what it needs under the names that most `config.json` files use (see [`keys`]); the reader
//! checks ranges, names the key as the file spells it, and remembers what was asked for. What would change the
//! arithmetic and was not asked for is refused afterwards: no field is silently ignored.

pub(in crate::model) mod keys;
mod layers;
pub(in crate::model) mod rotary;
mod value;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::file::{self, Description, Metadata, ModelFile};
use crate::model::arch::Arch;
use crate::model::embedding::Task;
use crate::model::files::names::Names;
use crate::model::program::Program;
use crate::ops::Act;
use crate::{Error, Result};
pub(in crate::model) use layers::Heads;
use value::Value;

/// A JSON object.
type Json = serde_json::Map<String, serde_json::Value>;

/// The hyper-parameters of a model, by name.
pub(in crate::model) struct Config<'a> {
    /// The tensors beside them: sizes are checked against what is there.
    pub(in crate::model) names: Names<'a>,
    /// What the model is opened for.
    pub(in crate::model) task: Task,
    entries: BTreeMap<String, Entry>,
    /// What transformers has where a folder has nothing.
    defaults: BTreeMap<String, Value>,
    asked: RefCell<BTreeSet<String>>,
}

/// A hyper-parameter that a program follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What it is called here.
    pub key: String,
    /// What the file calls it, if the file has it; tables within tables with dots.
    pub source: Option<String>,
}

struct Entry {
    /// Its name in the file; none where the file has nothing and transformers has a default.
    source: Option<String>,
    value: Value,
}

/// What the configuration classes of transformers say where a folder says nothing, by architecture and in the form of
/// `config.json`. `tools/config_fuzz/defaults.py` writes it.
const DEFAULTS: &str = include_str!("defaults.json");
/// What is there for folders that have no rotary parameters at all.
const WITHOUT_ROPE: &str = "without rope_parameters.";

/// Whether a linear op has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) enum Bias {
    /// It has.
    Yes,
    /// It has none.
    No,
    /// If there is a tensor for it: GGUF files have no key that says so.
    IfPresent,
}

/// The largest size of any dimension but the vocabulary's, the most heads, and the largest size of what there are many of:
/// beyond any model, and small enough that what is multiplied (heads and their elements, layers' widths and small factors)
/// stays within 32 bits.
const MAX_DIM: u32 = 1 << 20;
const MAX_HEADS: u32 = 1 << 12;
const MAX_PART: u32 = 1 << 15;

impl<'a> Config<'a> {
    /// Reads the hyper-parameters of a file that holds a model of an architecture.
    pub(in crate::model) async fn read(file: &'a ModelFile, arch: &'static Arch, task: Task) -> Result<Self> {
        let names = Names { file, arch };
        let mut config =
            Self { names, task, entries: BTreeMap::new(), defaults: BTreeMap::new(), asked: RefCell::default() };
        match &file.description {
            Description::Gguf(meta) => {
                config.read_gguf(meta)?;
                config.read_factors(file).await?;
            }
            Description::Folder(_) => {
                let json = config_json(file)?;
                refuse_quantized(&json)?;
                config.read_folder(&json)?;
            }
        }
        Ok(config)
    }

    fn read_folder(&mut self, json: &Json) -> Result<()> {
        const ROPE: &str = "rope_parameters.";
        let mut flat = Vec::new();
        flatten("", json, &mut flat);
        // As in transformers, an older table of rotary parameters replaces a newer one.
        if json.get("rope_scaling").and_then(|table| table.as_object()).is_some_and(|table| !table.is_empty()) {
            flat.retain(|(source, _)| !source.starts_with(ROPE));
        }
        // Where kinds of layers have parameters of their own, transformers reads the new name of the type and no other.
        if self.key_of("rope_scaling.type").is_some_and(|key| key.contains(".full_attention."))
            && let Some(table) = json.get("rope_scaling").filter(|table| table.get("rope_type").is_none())
            && let Some(kind) = table.get("type").and_then(|kind| kind.as_str())
            && kind != "default"
        {
            let works = "the same name as rope_type works, which transformers reads in this model";
            return Err(Error::unsupported(format!("rope_scaling with type = {kind:?}"), works));
        }
        let table = |(source, value): &(String, Value)| {
            (source.starts_with(ROPE) || source.starts_with("rope_scaling.")) && *value != Value::Null
        };
        let rotates = flat.iter().any(table);
        // Older names of a parameter count where there is no newer one.
        flat.sort_by_key(|(source, _)| source.ends_with(".type"));
        let (stronger, flat): (Vec<_>, Vec<_>) =
            flat.into_iter().partition(|(source, _)| keys::STRONGER.contains(&source.as_str()));
        for (source, value) in flat {
            match self.key_of(&source) {
                // The usual name counts where a file has both.
                Some(key) => _ = self.entries.entry(key).or_insert(Entry { source: Some(source), value }),
                None => _ = self.entries.insert(source.clone(), Entry { source: Some(source), value }),
            }
        }
        for (source, value) in stronger {
            if let Some(key) = self.key_of(&source).filter(|_| value != Value::Null) {
                self.insert(&key, &source, value);
            }
        }
        let all: Json = file::json::parse("defaults.json", DEFAULTS)?;
        if let Some(serde_json::Value::Object(of_arch)) = all.get(self.names.arch.name()) {
            let mut flat = Vec::new();
            flatten("", of_arch, &mut flat);
            // All rotary parameters together come before single ones, also those that the file has by their older names.
            let (together, single): (Vec<_>, Vec<_>) =
                flat.into_iter().partition(|(name, _)| name.starts_with(WITHOUT_ROPE));
            for (name, value) in together.into_iter().filter(|_| !rotates) {
                let name = name.replacen(WITHOUT_ROPE, ROPE, 1);
                self.entries.remove(&self.key_of(&name).unwrap_or_else(|| name.clone()));
                self.default(&name, value);
            }
            for (name, value) in single {
                self.default(&name, value);
            }
        }
        Ok(())
    }

    /// What a name in a folder is called here, if it is another.
    fn key_of(&self, source: &str) -> Option<String> {
        // The numbers of layers have leading zeros in some files.
        if let Some(rest) = source.strip_prefix("per_layer_config.0")
            && rest.starts_with(|c: char| c.is_ascii_digit())
        {
            let number = rest.trim_start_matches('0');
            let zero = if number.starts_with(|c: char| c.is_ascii_digit()) { "" } else { "0" };
            return Some(format!("per_layer_config.{zero}{number}"));
        }
        keys::translate(self.names.arch.keys, source).or_else(|| keys::translate(keys::FOLDER, source))
    }

    fn default(&mut self, name: &str, value: Value) {
        let key = self.key_of(name).unwrap_or_else(|| name.to_owned());
        if key == "layer_types" {
            if self.entries.contains_key("hybrid_override_pattern") {
                return;
            }
            // Null is as if it were absent.
            self.entries.retain(|there, entry| *there != key || entry.value != Value::Null);
        }
        self.entries.entry(key.clone()).or_insert(Entry { source: None, value: value.clone() });
        self.defaults.entry(key).or_insert(value);
    }

    fn read_gguf(&mut self, meta: &Metadata) -> Result<()> {
        let prefix = meta.str("general.architecture")?;
        for (source, value) in meta.iter() {
            let name = source.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'));
            let key = name.and_then(|name| {
                keys::translate(self.names.arch.gguf_keys, name).or_else(|| keys::translate(keys::GGUF, name))
            });
            if let Some(key) = key {
                self.insert(&key, source, Value::from_gguf(value));
            }
        }
        // Files of models that have no head at all, which give vectors alone, say so.
        let headless = meta.get::<bool>(&format!("{prefix}.{}", keys::TIED))? == Some(false);
        let tied = self.names.file.find("output.weight").is_none() && !headless;
        self.insert(keys::TIED, "output.weight", Value::Bool(tied));
        if !self.entries.contains_key("vocab_size")
            && let Some(table) = self.names.find(self.names.arch.embedding)
        {
            self.insert("vocab_size", "rows of token_embd.weight", Value::Int(table.rows().into()));
        }
        Ok(())
    }

    /// Factors of the rotary frequencies are tensors of divisors in GGUF files: Llama 3's, and LongRoPE's two lists.
    async fn read_factors(&mut self, file: &ModelFile) -> Result<()> {
        const LONGEST: u64 = (MAX_HEADS / 2) as u64;
        for (tensor, key) in [
            ("rope_freqs.weight", "rope_parameters.freq_factors"),
            ("rope_factors_short.weight", "rope_parameters.short_factor"),
            ("rope_factors_long.weight", "rope_parameters.long_factor"),
        ] {
            if let Some(info) = file.find(tensor) {
                if info.len() > LONGEST {
                    return Err(Error::Model(format!("tensor {tensor} has {} elements; {LONGEST} fit", info.len())));
                }
                let factors = file.read_f32(info).await?;
                let factors = factors.into_iter().map(|f| Value::Float(f.into())).collect();
                self.insert(key, tensor, Value::List(factors));
            }
        }
        Ok(())
    }

    fn insert(&mut self, key: &str, source: &str, value: Value) {
        self.entries.insert(key.to_owned(), Entry { source: Some(source.to_owned()), value });
    }

    /// Whether the model comes from a GGUF file: some have their rows in another order.
    pub(in crate::model) fn is_gguf(&self) -> bool {
        self.names.file.gguf().is_some()
    }

    /// The rows of a matrix, if it is there.
    pub(in crate::model) fn rows(&self, tensor: &str) -> Option<u32> {
        self.names.find(tensor).and_then(|info| u32::try_from(info.rows()).ok())
    }

    /// The keys that were asked for so far.
    pub(in crate::model) fn asked(&self) -> Vec<Asked> {
        let source = |key: &String| self.entries.get(key).and_then(|entry| entry.source.clone());
        self.asked.borrow().iter().map(|key| Asked { key: key.clone(), source: source(key) }).collect()
    }

    /// Whether the matrix that makes the logits is missing, although the configuration does not say that it is the embedding
    /// table: models that were saved to give vectors.
    pub(in crate::model) fn lacks_head(&self, program: &Program) -> bool {
        program.head().is_some_and(|tensor| self.names.place(tensor).is_none())
    }

    /// What was asked for, differs from the default, and has no key in another file of the same model.
    pub(in crate::model) fn unsaid_in(&self, other: &Self) -> Vec<String> {
        let asked = self.asked.borrow();
        let unsaid = self.entries.iter().filter(|(key, entry)| {
            let neutral = keys::ARITHMETIC.iter().find(|(name, _)| name == key).map_or(&[][..], |(_, neutral)| neutral);
            // In other sizes they are there.
            const WITHIN: &[&str] = &["qk_nope_head_dim", "mamba_d_head"];
            asked.contains(*key)
                && !WITHIN.contains(&key.as_str())
                && entry.value != Value::Null
                && self.defaults.get(*key) != Some(&entry.value)
                && !neutral.iter().any(|n| entry.value.is(n))
                && !other.entries.contains_key(*key)
        });
        unsaid.filter_map(|(_, entry)| Some(format!("{} = {}", entry.source.as_ref()?, entry.value))).collect()
    }

    /// Refuses what would change the arithmetic and was not asked for, in a program with or without logits.
    pub(in crate::model) fn refuse_ignored(&self, logits: bool) -> Result<()> {
        let asked = self.asked.borrow();
        let there = self.entries.iter().filter(|(key, entry)| !asked.contains(*key) && entry.value != Value::Null);
        for (key, entry) in there {
            let Some(source) = &entry.source else { continue };
            // A table that no architecture reads counts as a whole, and so does what one does not read of it.
            let listed = |(name, _): &&(&str, &[&str])| {
                *name == key || key.strip_prefix(*name).is_some_and(|rest| rest.starts_with('.'))
            };
            let Some((name, neutral)) = keys::ARITHMETIC.iter().find(listed) else { continue };
            if !logits && keys::OF_LOGITS.contains(name) {
                continue;
            }
            let whole = name == key;
            if !(whole && neutral.iter().any(|n| entry.value.is(n))) {
                let what = format!("{source} = {} in a {} model", entry.value, self.names.arch.name());
                let works = neutral.first().filter(|_| whole);
                let works = works.map_or("it works where it is absent".into(), |n| format!("{n} works"));
                return Err(Error::unsupported(what, works));
            }
        }
        // Rotary parameters by kind of layer are one level deeper than those for all.
        let nested = |key: &&String| key.matches('.').count() > 1 && key.starts_with("rope_parameters.");
        if let Some(key) = self.entries.keys().filter(nested).find(|key| !asked.contains(*key)) {
            let what = format!("{key} in a {} model", self.names.arch.name());
            return Err(Error::unsupported(what, "one set of rotary parameters for all layers works"));
        }
        Ok(())
    }

    /// What the file has for a key; nothing if it is absent or null.
    fn get(&self, key: &str) -> Option<&Entry> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.entries.get(key).filter(|entry| entry.value != Value::Null)
    }

    /// The value of a key, whoever asks for it; none if it is absent or null.
    pub(in crate::model) fn value(&self, key: &str) -> Option<&Value> {
        self.entries.get(key).map(|entry| &entry.value).filter(|value| **value != Value::Null)
    }

    /// A key as the file would spell it.
    fn spelled(&self, key: &str) -> String {
        let arch = self.names.arch;
        if let Some(source) = self.entries.get(key).and_then(|entry| entry.source.as_ref()) {
            source.clone()
        } else if self.is_gguf() {
            let name = keys::original(arch.gguf_keys, key).or_else(|| keys::original(keys::GGUF, key));
            name.map_or(key.to_owned(), |name| format!("{}.{name}", arch.gguf.first().unwrap_or(&"")))
        } else {
            keys::original(arch.keys, key).unwrap_or(key).to_owned()
        }
    }

    /// A value that does not work, and what would.
    pub(in crate::model) fn wrong(&self, key: &str, works: &str) -> Error {
        Error::Model(match self.entries.get(key) {
            Some(entry) if entry.source.is_none() => {
                format!("{} is missing, which stands for {}; {works} works", self.spelled(key), entry.value)
            }
            Some(entry) if entry.value != Value::Null => {
                format!("{} is {}; {works} works", self.spelled(key), entry.value)
            }
            _ => format!("{} is missing; {works} works", self.spelled(key)),
        })
    }

    /// An integer that may be absent.
    pub(in crate::model) fn maybe_int(&self, key: &str, range: RangeInclusive<u32>) -> Result<Option<u32>> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        match entry.value {
            Value::Int(v) => u32::try_from(v).ok().filter(|v| range.contains(v)),
            _ => None,
        }
        .map(Some)
        .ok_or_else(|| self.wrong(key, &format!("an integer from {} to {}", range.start(), range.end())))
    }

    /// An integer that must be there.
    pub(in crate::model) fn int(&self, key: &str, range: RangeInclusive<u32>) -> Result<u32> {
        let works = format!("an integer from {} to {}", range.start(), range.end());
        self.maybe_int(key, range)?.ok_or_else(|| self.wrong(key, &works))
    }

    /// A dimension that must be there.
    pub(in crate::model) fn dim(&self, key: &str) -> Result<u32> {
        self.int(key, 1..=MAX_DIM)
    }

    /// The size of one of many: of a head, an expert, a state.
    pub(in crate::model) fn part(&self, key: &str) -> Result<u32> {
        self.int(key, 1..=MAX_PART)
    }

    /// The size of one of many, which may be absent.
    pub(in crate::model) fn maybe_part(&self, key: &str) -> Result<Option<u32>> {
        self.maybe_int(key, 1..=MAX_PART)
    }

    /// A dimension that may be absent.
    pub(in crate::model) fn maybe_dim(&self, key: &str) -> Result<Option<u32>> {
        self.maybe_int(key, 1..=MAX_DIM)
    }

    /// A finite number that may be absent.
    pub(in crate::model) fn maybe_float(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        match entry.value {
            Value::Int(v) => Some(v as f64),
            Value::Float(v) => Some(v),
            _ => None,
        }
        .filter(|v| range.contains(v))
        .map(Some)
        .ok_or_else(|| self.wrong(key, &format!("a number from {:?} to {:?}", range.start(), range.end())))
    }

    /// A finite number that must be there.
    pub(in crate::model) fn float(&self, key: &str, range: RangeInclusive<f64>) -> Result<f64> {
        let works = format!("a number from {:?} to {:?}", range.start(), range.end());
        self.maybe_float(key, range)?.ok_or_else(|| self.wrong(key, &works))
    }

    /// What a norm adds to the mean square or the variance.
    pub(in crate::model) fn eps(&self, key: &str) -> Result<f32> {
        Ok(self.float(key, 0.0..=1.0)? as f32)
    }

    /// A list of positive numbers that may be absent.
    pub(in crate::model) fn maybe_floats(&self, key: &str) -> Result<Option<Vec<f64>>> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        let number = |value: &Value| match *value {
            Value::Int(v) => Some(v as f64),
            Value::Float(v) => Some(v),
            _ => None,
        };
        match &entry.value {
            Value::List(list) => {
                list.iter().map(|v| number(v).filter(|v| *v > 0.0 && v.is_finite())).collect::<Option<Vec<_>>>()
            }
            _ => None,
        }
        .map(Some)
        .ok_or_else(|| self.wrong(key, "a list of positive numbers"))
    }

    /// Whether there is any key that begins so.
    pub(in crate::model) fn has_any(&self, prefix: &str) -> bool {
        self.entries.iter().any(|(key, entry)| key.starts_with(prefix) && entry.value != Value::Null)
    }

    /// Whether there is a table of this name; it may be empty.
    pub(in crate::model) fn has_table(&self, name: &str) -> bool {
        self.entries.contains_key(name) || self.has_any(&format!("{name}."))
    }

    /// An integer for each layer: a list, or one for all.
    pub(in crate::model) fn per_layer(&self, key: &str, layers: u32, range: RangeInclusive<u32>) -> Result<Vec<u32>> {
        let Some(Entry { value: Value::List(list), .. }) = self.get(key) else {
            return Ok(vec![self.int(key, range)?; layers as usize]);
        };
        let number = |v: &Value| match v {
            Value::Int(v) => u32::try_from(*v).ok().filter(|v| range.contains(v)),
            _ => None,
        };
        let list = list.iter().map(number).collect::<Option<Vec<_>>>().filter(|list| list.len() == layers as usize);
        let works = format!("an integer from {} to {}, or one for each layer,", range.start(), range.end());
        list.ok_or_else(|| self.wrong(key, &works))
    }

    /// A number of any kind for each layer, if there is a list.
    pub(in crate::model) fn maybe_numbers(&self, key: &str, layers: u32) -> Result<Option<Vec<f64>>> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        let number = |value: &Value| match *value {
            Value::Int(v) => Some(v as f64),
            Value::Float(v) => Some(v),
            _ => None,
        };
        match &entry.value {
            Value::List(list) if list.len() == layers as usize => list.iter().map(number).collect::<Option<Vec<_>>>(),
            _ => None,
        }
        .map(Some)
        .ok_or_else(|| self.wrong(key, &format!("a list of {layers} numbers")))
    }

    /// Yes or no for each layer, as numbers or as flags, if there is a list.
    pub(in crate::model) fn maybe_flags(&self, key: &str, layers: u32) -> Result<Option<Vec<bool>>> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        let flag = |v: &Value| match v {
            Value::Bool(v) => Some(*v),
            Value::Int(v) => Some(*v != 0),
            _ => None,
        };
        match &entry.value {
            Value::List(list) if list.len() == layers as usize => list.iter().map(flag).collect::<Option<Vec<_>>>(),
            _ => None,
        }
        .map(Some)
        .ok_or_else(|| self.wrong(key, &format!("a list of {layers} flags")))
    }

    /// A list of integers; none where there is none.
    pub(in crate::model) fn ints(&self, key: &str) -> Result<Vec<u32>> {
        let int = |v: &Value| if let Value::Int(v) = v { u32::try_from(*v).ok() } else { None };
        match self.get(key).map(|entry| &entry.value) {
            None => Ok(Vec::new()),
            Some(Value::List(list)) => {
                let ints: Option<Vec<u32>> = list.iter().map(int).collect();
                ints.ok_or_else(|| self.wrong(key, "a list of integers"))
            }
            Some(_) => Err(self.wrong(key, "a list of integers")),
        }
    }

    /// A factor that is 1 where nothing is said.
    pub(in crate::model) fn factor(&self, key: &str) -> Result<f32> {
        Ok(self.maybe_float(key, 1e-9..=1e9)?.unwrap_or(1.0) as f32)
    }

    /// A soft cap; 0 means none.
    pub(in crate::model) fn softcap(&self, key: &str) -> Result<f32> {
        Ok(self.maybe_float(key, 0.0..=1e9)?.unwrap_or(0.0) as f32)
    }

    /// Yes or no.
    pub(in crate::model) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key).map(|entry| &entry.value) {
            None => Ok(default),
            Some(Value::Bool(v)) => Ok(*v),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    /// A word.
    pub(in crate::model) fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    /// An activation function, by the names that `config.json` files use.
    pub(in crate::model) fn activation(&self, key: &str, default: Act) -> Result<Act> {
        Ok(match self.text(key)? {
            None => default,
            Some("silu" | "swish") => Act::Silu,
            Some("gelu") => Act::GeluErf,
            Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Act::GeluTanh,
            Some("relu") => Act::Relu,
            Some("relu2") => Act::Relu2,
            Some(_) => return Err(self.wrong(key, "silu, gelu, gelu_new, gelu_pytorch_tanh, relu or relu2")),
        })
    }

    /// Whether some linear ops have biases: a flag in `config.json`, presence in GGUF files.
    pub(in crate::model) fn bias(&self, key: &str, default: bool) -> Result<Bias> {
        let flag = self.flag(key, default)?;
        Ok(match (self.is_gguf(), flag) {
            (true, _) => Bias::IfPresent,
            (false, true) => Bias::Yes,
            (false, false) => Bias::No,
        })
    }

    /// The size of the vocabulary: the rows of the embedding table.
    pub(in crate::model) fn vocab(&self) -> Result<u32> {
        let vocab = self.int("vocab_size", 1..=1 << 24)?;
        match self.names.find(self.names.arch.embedding) {
            Some(table) if table.rows() != u64::from(vocab) => {
                let works = format!("{}, the rows of tensor {} (shape {:?}),", table.rows(), table.name, table.shape);
                Err(self.wrong("vocab_size", &works))
            }
            _ => Ok(vocab),
        }
    }

    /// The positions that the model was made for.
    pub(in crate::model) fn context(&self) -> Result<u32> {
        self.int("max_position_embeddings", 1..=1 << 30)
    }

    /// A list of integers that may be absent.
    pub(in crate::model) fn maybe_ints(&self, key: &str, range: RangeInclusive<u32>) -> Result<Option<Vec<u32>>> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        let number = |value: &Value| match *value {
            Value::Int(v) => u32::try_from(v).ok().filter(|v| range.contains(v)),
            _ => None,
        };
        match &entry.value {
            Value::List(list) => list.iter().map(number).collect::<Option<Vec<_>>>(),
            _ => None,
        }
        .map(Some)
        .ok_or_else(|| self.wrong(key, &format!("a list of integers from {} to {}", range.start(), range.end())))
    }

    /// A list of N factors; ones if it is absent.
    pub(in crate::model) fn factors<const N: usize>(&self, key: &str) -> Result<[f32; N]> {
        let Some(list) = self.maybe_floats(key)? else { return Ok([1.0; N]) };
        let list: Vec<f32> = list.into_iter().map(|factor| factor as f32).collect();
        list.try_into().map_err(|_| self.wrong(key, &format!("a list of {N} factors")))
    }

    /// A least and a largest number, which may be infinite.
    pub(in crate::model) fn bounds(&self, key: &str, default: [f32; 2]) -> Result<[f32; 2]> {
        let number = |value: &Value| match *value {
            Value::Int(v) => Some(v as f32),
            Value::Float(v) => Some(v as f32),
            _ => None,
        };
        let bounds = match self.get(key).map(|entry| &entry.value) {
            None => return Ok(default),
            Some(Value::List(list)) => list.iter().map(number).collect::<Option<Vec<_>>>(),
            Some(_) => None,
        };
        match bounds.as_deref() {
            Some(&[least, largest]) if least <= largest => Ok([least, largest]),
            _ => Err(self.wrong(key, "a list of two numbers, the smaller first,")),
        }
    }

    /// The number of token types: the rows of their table.
    pub(in crate::model) fn types(&self, table: &str) -> Result<u32> {
        match (self.maybe_dim("type_vocab_size")?, self.rows(table)) {
            (Some(types), _) | (None, Some(types)) => Ok(types),
            (None, None) => Err(self.wrong("type_vocab_size", "an integer")),
        }
    }

    /// Fails if the attention of an encoder is configured to be causal.
    pub(in crate::model) fn needs_bidirectional(&self) -> Result<()> {
        if self.flag("is_causal", false)? { Err(self.wrong("is_causal", "false")) } else { Ok(()) }
    }

    /// Notes that these keys have no effect in this model.
    pub(in crate::model) fn without_effect(&self, keys: &[&str]) {
        self.asked.borrow_mut().extend(keys.iter().map(|key| (*key).to_owned()));
    }
}

/// `config.json` of a folder. What a model of several parts says of its language model stands in `text_config`.
pub(in crate::model) fn config_json(file: &ModelFile) -> Result<serde_json::Map<String, serde_json::Value>> {
    const NAME: &str = "config.json";
    let missing = || Error::Model(format!("{NAME} is missing beside {}", file.name()));
    let mut json: serde_json::Map<_, _> = file::json::parse(NAME, &infinite(file.text(NAME).ok_or_else(missing)?))?;
    if let Some(serde_json::Value::Object(text)) = json.remove("text_config") {
        // The head belongs to the whole model.
        let tied = json.get(keys::TIED).filter(|tied| !tied.is_null()).cloned();
        json.extend(text);
        json.extend(tied.map(|tied| (keys::TIED.to_owned(), tied)));
    }
    Ok(json)
}

/// Refuses a folder whose weights are quantized in a way of transformers, before a tensor is missing for it.
fn refuse_quantized(json: &Json) -> Result<()> {
    let said = |value: &serde_json::Value| match value {
        serde_json::Value::Object(table) => !table.is_empty(),
        value => !value.is_null(),
    };
    let mut there = keys::QUANTIZED.iter().filter_map(|key| Some((key, json.get(*key)?)));
    let Some((key, value)) = there.find(|(_, value)| said(value)) else { return Ok(()) };
    let what = match value.get("quant_method").and_then(|method| method.as_str()) {
        Some(method) => format!("{key} with quant_method = {method:?}"),
        None => (*key).to_owned(),
    };
    Err(Error::unsupported(what, "a GGUF file of the model works, and a folder with weights that are not quantized"))
}

/// Python writes an infinite number as `Infinity`, which is not JSON: here it becomes a table, as newer files have it.
pub(in crate::model) fn infinite(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Every second part lies within quotes; a quote after a backslash does not end one.
    let mut quoted = false;
    for part in text.split_inclusive('"') {
        out.push_str(&if quoted { part.to_owned() } else { part.replace("Infinity", r#"{"__float__": "Infinity"}"#) });
        let escaped = part
            .strip_suffix('"')
            .is_none_or(|rest| quoted && (rest.len() - rest.trim_end_matches('\\').len()) % 2 == 1);
        quoted ^= !escaped;
    }
    out
}

/// `{"a": {"b": 1}}` as `a.b = 1`. Recursion ends: the parser limits nesting.
fn flatten(prefix: &str, map: &Json, out: &mut Vec<(String, Value)>) {
    for (name, value) in map {
        let name = format!("{prefix}{name}");
        match value {
            // That it is there may count.
            serde_json::Value::Object(inner) if inner.is_empty() => out.push((name, Value::Null)),
            serde_json::Value::Object(inner) => flatten(&format!("{name}."), inner, out),
            value => out.push((name, Value::from_json(value))),
        }
    }
}
