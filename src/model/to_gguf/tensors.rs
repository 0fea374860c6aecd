//! The tensors of the GGUF file: their names, their dimensions, and where their rows come from.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Converted;
use super::same::{Change, Changes};
use crate::file::{ByteSource, Bytes, Description, Metadata, ModelFile, TensorInfo, TensorType, Value};
use crate::model::config::Config;
use crate::model::files::names::Names;
use crate::model::program::{Program, Runs, VectorSpec, WeightSpec};
use crate::ops::{Op, VectorId, WeightId};
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// Some rows of a tensor.
#[derive(Clone, Debug)]
pub(super) struct TensorRows {
    /// The first of them in the tensor.
    start: u32,
    pub(super) what: What,
    pub(super) change: Change,
}

/// Where the rows of a part come from.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// Some rows of a matrix; all, where they are permuted.
    Matrix(WeightId, Range<u32>),
    /// Some elements of a vector, and what must be taken from each.
    Vector(VectorId, Range<u32>, f32),
    Computed(Vec<f32>),
    /// Zeros, of the tensor's dimensions.
    Zeros(Vec<u64>),
}

impl TensorRows {
    /// A tensor of its own.
    pub(super) fn computed(elements: Vec<f32>) -> Self {
        Self { start: 0, what: What::Computed(elements), change: Change::NONE }
    }

    fn rows(&self) -> u64 {
        match &self.what {
            What::Matrix(_, rows) | What::Vector(_, rows, _) => rows.len() as u64,
            What::Computed(elements) => elements.len() as u64,
            What::Zeros(shape) => shape.first().copied().unwrap_or(0),
        }
    }
}

/// The file as far as a program depends on it: metadata, and tensors of which only `rope_freqs` can be read.
pub(super) fn virtual_file(
    config: &Config<'_>,
    program: &Program,
    metadata: &[(String, Value)],
    factors: &[(&'static str, Vec<f32>)],
) -> Result<ModelFile> {
    let mut meta = Metadata::default();
    for (key, value) in metadata {
        meta.insert(key.clone(), value.clone());
    }
    let ty = TensorType::Block(BlockFormat::F32);
    let mut bytes = Vec::new();
    let mut tensors = BTreeMap::new();
    for (name, factors) in factors {
        let (offset, shape) = (bytes.len() as u64, vec![factors.len() as u64]);
        bytes.extend(factors.iter().flat_map(|f| f.to_le_bytes()));
        let length = bytes.len() as u64 - offset;
        let info = TensorInfo { name: (*name).to_owned(), ty, shape, file: 0, offset, bytes: length };
        tensors.insert((*name).to_owned(), info);
    }
    let source: Box<dyn ByteSource> = Box::new(Bytes::new(config.names.file.name(), bytes));
    let empty = ModelFile::new(Description::Gguf(meta.clone()), Vec::new(), Vec::new())?;
    let names = Names { file: &empty, arch: config.names.arch };
    let used = program.weights.iter().map(|w| &w.tensor).chain(program.vectors.iter().map(|v| &v.tensor));
    for tensor in used {
        if let Some(info) = config.names.find(tensor) {
            for name in apart(names.spelled(tensor)) {
                let shape = info.shape.clone();
                let info = TensorInfo { name: name.clone(), ty, shape, file: 0, offset: 0, bytes: 0 };
                tensors.entry(name).or_insert(info);
            }
        }
    }
    ModelFile::new(Description::Gguf(meta), tensors.into_values().collect(), vec![source])
}

/// What becomes of a tensor: llama.cpp wants the two kinds of matrices of latent attention apart.
fn apart(name: String) -> Vec<String> {
    match name.strip_suffix("attn_kv_b.weight") {
        Some(layer) => ["k", "v"].map(|kind| format!("{layer}attn_{kind}_b.weight")).into(),
        None => vec![name],
    }
}

/// The tensors that the program built from the GGUF file looks for, and where their rows come from.
pub(super) fn tensors(target: &Config<'_>, [folder, gguf]: [&Program; 2], changes: &Changes) -> Result<Vec<Converted>> {
    let mut all = Tensors::default();
    for (i, spec) in (0..).zip(&gguf.weights) {
        let (id, change) = (WeightId(i), changes.of_weight(WeightId(i)));
        let (name, expert) = target.names.translated(&spec.tensor);
        let part = |start, rows| TensorRows { start: expert * spec.n + start, what: What::Matrix(id, rows), change };
        all.add(&name, spec, change.rows.is_some(), Some(spec.k.into()), part)?;
    }
    for (i, (from, to)) in (0..).zip(folder.vectors.iter().zip(&gguf.vectors)) {
        let (id, change) = (VectorId(i), changes.of_vector(VectorId(i)));
        let (name, expert) = target.names.translated(&to.tensor);
        debug_assert_eq!(from.n, to.n, "the programs' operations are the same");
        let part =
            |start, rows| TensorRows { start: expert * to.n + start, what: What::Vector(id, rows, to.add), change };
        all.add(&name, to, change.rows.is_some(), None, part)?;
    }
    let mamba_groups = folder.nodes.iter().find_map(|node| match &node.op {
        Op::Scan(scan) => Some(scan.groups),
        _ => None,
    });
    let mut tensors = Vec::new();
    for (name, mut parts, k) in all.list {
        parts.sort_by_key(|part| part.start);
        parts.dedup_by_key(|part| part.start);
        let mut rows = 0;
        for part in &parts {
            if u64::from(part.start) != rows {
                return Err(Error::Model(format!("tensor {name} would have a gap at row {rows}")));
            }
            rows += part.rows();
        }
        let shape = shape(&name, rows, k, parts.len() as u64, mamba_groups);
        tensors.push(Converted { name, shape, parts });
    }
    if LOADED.contains(&target.names.arch.name()) {
        tensors.extend(unused(gguf, &tensors));
    }
    Ok(tensors)
}

/// Parts of tensors, by the tensors' names, in the order in which they were named first.
#[derive(Default)]
struct Tensors {
    list: Vec<(String, Vec<TensorRows>, Option<u64>)>,
    places: BTreeMap<String, usize>,
}

/// Rows of a tensor, or elements: the first, how many, and their runs.
trait Rows {
    fn rows(&self) -> (u32, u32, Runs);
}

impl Rows for WeightSpec {
    fn rows(&self) -> (u32, u32, Runs) {
        (self.start, self.n, self.runs)
    }
}

impl Rows for VectorSpec {
    fn rows(&self) -> (u32, u32, Runs) {
        (self.start, self.n, self.runs)
    }
}

impl Tensors {
    /// Adds a weight run by run; `part` makes a part from its start in the tensor and its rows of the weight. A weight whose
    /// rows are permuted (`moves`) must be contiguous.
    fn add(
        &mut self,
        name: &str,
        spec: &impl Rows,
        moves: bool,
        k: Option<u64>,
        part: impl Fn(u32, Range<u32>) -> TensorRows,
    ) -> Result<()> {
        let (start, n, runs) = spec.rows();
        let run = runs.run.min(n).max(1);
        if moves && run < n {
            return Err(Error::Model(format!("the rows of {name} would have another order")));
        }
        let at = *self.places.entry(name.to_owned()).or_insert(self.list.len());
        if at == self.list.len() {
            self.list.push((name.to_owned(), Vec::new(), k));
        }
        for first in (0..n).step_by(run as usize) {
            let offset = start + runs.offset(first) as u32;
            self.list[at].1.push(part(offset, first..n.min(first + run)));
        }
        Ok(())
    }
}

/// The architectures whose matrices of keys and values llama.cpp loads even in layers that use an earlier layer's cache.
const LOADED: [&str; 1] = ["gemma3n_text"];

/// Matrices of keys and values for layers that have none: zeros, which nothing reads.
fn unused(program: &Program, tensors: &[Converted]) -> Vec<Converted> {
    let mut all = Vec::new();
    for layer in 0..program.layers() {
        for name in ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] {
            let of = |layer: u32| format!("blk.{layer}.{name}");
            let first = tensors.iter().find(|t| t.name == of(0));
            if let (Some(first), None) = (first, tensors.iter().find(|t| t.name == of(layer))) {
                let part = TensorRows { start: 0, what: What::Zeros(first.shape.clone()), change: Change::NONE };
                all.push(Converted { name: of(layer), shape: first.shape.clone(), parts: vec![part] });
            }
        }
    }
    all
}

/// Dimensions as llama.cpp expects them: stacks of matrices, one an expert or a head, have three.
///
/// `mamba_groups`: of heads, in a model with Mamba-2 layers; their decays and norms have two dimensions.
fn shape(name: &str, rows: u64, k: Option<u64>, parts: u64, mamba_groups: Option<u32>) -> Vec<u64> {
    const STACKS: [&str; 5] =
        ["_exps.weight", "attn_k_b.weight", "attn_v_b.weight", "altup_proj.weight", "altup_unembd_proj.weight"];
    match k {
        Some(k) if STACKS.iter().any(|end| name.ends_with(end)) => vec![parts, rows / parts, k],
        Some(k) => vec![rows, k],
        None if name.ends_with("_exps.bias") => vec![parts, rows / parts],
        None if mamba_groups.is_some() && (name.ends_with("ssm_a") || name.ends_with("ssm_d")) => vec![rows, 1],
        None if name.ends_with("ssm_norm.weight") => match mamba_groups.map(u64::from) {
            Some(groups) if groups > 0 => vec![groups, rows / groups],
            _ => vec![rows],
        },
        None => vec![rows],
    }
}
