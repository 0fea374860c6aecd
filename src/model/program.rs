//! A model as data: canonical ops over named values, the weights they use, the caches they keep.

use std::fmt::Write as _;

pub use crate::ops::Rows;
use crate::ops::check::Shapes;
use crate::ops::lower::no_kernel;
use crate::ops::{Attend, GroupId, Kv, KvStorage, Op, ValueId};
use crate::{Error, Result};

/// A model's forward pass, and all that it needs to know of its surroundings.
///
/// An architecture builds it unfused; `fuse` turns it into what an executor runs. Nodes are in an order in which they can run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Every intermediate result.
    pub values: Vec<Value>,
    /// Every matrix, `(n, k)`.
    pub weights: Vec<WeightSpec>,
    /// Every vector.
    pub vectors: Vec<VectorSpec>,
    /// Tables of rotary divisors.
    pub ropes: Vec<RopeTable>,
    /// What layers keep between steps.
    pub caches: Vec<CacheSpec>,
    /// How many block tables the caches need.
    pub groups: u32,
    /// The operations.
    pub nodes: Vec<Node>,
    /// What a step gives back.
    pub outs: Vec<Out>,
    /// Rows of the embedding table, and columns of the logits.
    pub vocab: u32,
    /// Positions that the model was made for.
    pub context: u32,
}

/// One operation and the layer that it belongs to, for the profiler and for `verify`.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The layer, from 0; none for the embedding and the head.
    pub layer: Option<u32>,
    /// The operation.
    pub op: Op,
}

/// An intermediate result: a matrix of f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// `blk.3.attn_q`, say: what `verify` prints.
    pub name: String,
    /// Columns.
    pub width: u32,
    /// What its rows stand for.
    pub rows: Rows,
}

/// Runs of rows (or elements) of a tensor: after each `run` of them, `skip` belong to something else. Tensors that hold q, k
/// and v head by head are split into such runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Runs {
    /// Rows in a run.
    pub run: u32,
    /// Rows between two runs.
    pub skip: u32,
}

impl Runs {
    /// One run, however long.
    pub const ONE: Self = Self { run: u32::MAX, skip: 0 };

    /// How far after the first row the row number `row` lies.
    pub fn offset(&self, row: u32) -> u64 {
        u64::from(row) + u64::from(row / self.run.max(1)) * u64::from(self.skip)
    }
}

/// A matrix of weights: where its rows lie in the model's tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightSpec {
    /// The tensor, by its name in safetensors folders; GGUF names come from the architecture's list.
    pub tensor: String,
    /// The first of its rows (columns, if it is stored transposed) that belong to this matrix: fused tensors hold several.
    pub start: u32,
    /// Rows.
    pub n: u32,
    /// Which rows these are: see [`Runs`].
    pub runs: Runs,
    /// Columns.
    pub k: u32,
    /// Stored as (k, n), from this row of the tensor on: GPT-2's safetensors files, and matrices that are used both ways.
    pub transposed: Option<u32>,
}

/// A vector of weights: where it lies in the model's tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorSpec {
    /// The tensor, by its name in safetensors folders.
    pub tensor: String,
    /// The first element that belongs to this vector.
    pub start: u32,
    /// Elements.
    pub n: u32,
    /// Which elements these are: see [`Runs`].
    pub runs: Runs,
    /// Added to each element at load (Gemma's norms hold `weight - 1` in safetensors files).
    pub add: f32,
    /// Each element x stands for `-e^x` (the decays of recurrent layers in safetensors files).
    pub neg_exp: bool,
}

/// Rotary angles: position p rotates pair i by `p * divisors[i]`; cosine and sine are multiplied by a factor.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// One a pair of rotated elements, in f64 so that every device is given the same angles.
    pub divisors: Vec<f64>,
    /// YaRN's and LongRoPE's attention factor; else 1.
    pub factor: f32,
    /// LongRoPE: the divisors in contexts of more than so many positions. Keys are cached rotated, so the executor's context
    /// decides, not the current length of a sequence.
    pub long: Option<(u32, Vec<f64>)>,
    /// Attention temperature scaling (Llama 4): queries at position p are multiplied by
    /// `1 + beta * ln(1 + floor(p / span))`; (beta, span).
    pub temperature_scaling: Option<(f32, u32)>,
}

impl Default for RopeTable {
    fn default() -> Self {
        Self { divisors: Vec::new(), factor: 1.0, long: None, temperature_scaling: None }
    }
}

impl RopeTable {
    /// Radians a position of each pair, where sequences may have so many positions.
    pub fn divisors(&self, context: u32) -> &[f64] {
        match &self.long {
            Some((beyond, long)) if context > *beyond => long,
            _ => &self.divisors,
        }
    }

    /// What cosine and sine are multiplied by at a position.
    pub fn factor(&self, pos: u32) -> f64 {
        let temperature_scaling =
            |(beta, span): (f32, u32)| 1.0 + f64::from(beta) * f64::from(pos / span.max(1)).ln_1p();
        f64::from(self.factor) * self.temperature_scaling.map_or(1.0, temperature_scaling)
    }
}

/// What a layer keeps between steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSpec {
    /// Keys and values of each position, in pages of the group's block table.
    Pages {
        /// Caches of one group keep the same span and share a block table.
        group: GroupId,
        /// Heads.
        kv_heads: u32,
        /// Elements of a key.
        k_dim: u32,
        /// Elements of a value.
        v_dim: u32,
        /// A value is the first elements of its key and not stored beside it: multi-head latent attention.
        v_in_k: bool,
        /// The sliding window: how many of the last positions are still needed; none means all.
        window: Option<u32>,
    },
    /// The state of a recurrent layer for a sequence: so many f32, whatever the sequence's length. It lies in the sequence's
    /// slot and is updated in place; at position 0 it begins as zeros.
    State {
        /// Elements.
        len: u32,
    },
}

/// What a step gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out {
    /// (outs, vocab)
    Logits(ValueId),
    /// (rows, dim): the input of the head, before the output rows are gathered.
    Hidden(ValueId),
    /// (seqs, dim): a vector for each sequence, its embedding.
    Pooled(ValueId),
    /// (seqs, 1): the reranker's score of each sequence's pair of texts.
    Score(ValueId),
}

impl Out {
    /// The value.
    pub fn value(self) -> ValueId {
        let (Self::Logits(value) | Self::Hidden(value) | Self::Pooled(value) | Self::Score(value)) = self;
        value
    }
}

impl Program {
    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The value that holds the logits, if the program has a head.
    pub fn logits(&self) -> Option<ValueId> {
        self.outs.iter().find_map(|o| match o {
            Out::Logits(v) => Some(*v),
            Out::Hidden(_) | Out::Pooled(_) | Out::Score(_) => None,
        })
    }

    /// The tensor of the matrix that makes the logits.
    pub(in crate::model) fn head(&self) -> Option<&str> {
        self.logits()?;
        let weight = self.nodes.iter().rev().find_map(|node| match &node.op {
            Op::Linear(linear) => linear.parts.first().map(|part| part.weight),
            _ => None,
        })?;
        Some(&self.weights[weight.index()].tensor)
    }

    /// Bytes of the states of all recurrent layers, for one sequence.
    pub fn state_bytes(&self) -> u64 {
        let len = |cache: &CacheSpec| match cache {
            CacheSpec::State { len } => u64::from(*len) * 4,
            CacheSpec::Pages { .. } => 0,
        };
        self.caches.iter().map(len).sum()
    }

    /// The value that holds a vector or a score for each sequence, if the program pools.
    pub fn pooled(&self) -> Option<ValueId> {
        self.outs.iter().find_map(|o| match o {
            Out::Pooled(v) | Out::Score(v) => Some(*v),
            Out::Logits(_) | Out::Hidden(_) => None,
        })
    }

    /// Whether it gives scores of pairs of texts.
    pub fn scores(&self) -> bool {
        self.outs.iter().any(|out| matches!(out, Out::Score(_)))
    }

    /// Whether a sequence must come in one step: attention is bidirectional, or all rows are pooled.
    pub fn needs_full_sequence(&self) -> bool {
        let packed = |node: &Node| matches!(node.op, Op::Attend(Attend { kv: Kv::Packed { .. }, .. }));
        self.pooled().is_some() || self.nodes.iter().any(packed)
    }

    /// The longest window of the layers of a group, if all of them have one.
    pub fn window(&self, group: GroupId) -> Option<u32> {
        let windows = self.caches.iter().filter_map(|cache| match cache {
            CacheSpec::Pages { group: of, window, .. } if *of == group => Some(window.unwrap_or(u32::MAX)),
            _ => None,
        });
        windows.max().filter(|window| *window < u32::MAX)
    }

    /// The same of each group.
    pub fn windows(&self) -> Vec<Option<u32>> {
        (0..self.groups).map(|group| self.window(GroupId(group))).collect()
    }

    /// Layers that have at least one node.
    pub fn layers(&self) -> u32 {
        self.nodes.iter().filter_map(|n| n.layer).max().map_or(0, |l| l + 1)
    }

    /// Checks every op's operands, and that values are read only after they are written (`inputs` are set by hand).
    pub fn check(&self, inputs: &[ValueId]) -> Result<()> {
        let shapes = Shapes {
            width: &|v| self.value(v).width,
            matrix: &|w| (self.weights[w.index()].n, self.weights[w.index()].k),
            vector: &|v| self.vectors[v.index()].n,
            pairs: &|r| self.ropes[r.index()].divisors.len(),
            state: &|c| match self.caches.get(c.index()) {
                Some(CacheSpec::State { len }) => *len,
                _ => 0,
            },
        };
        let mut written = vec![false; self.values.len()];
        inputs.iter().for_each(|v| written[v.index()] = true);
        for node in &self.nodes {
            node.op.check(&shapes)?;
            let mut unwritten = None;
            node.op.reads(&mut |v| unwritten = unwritten.or((!written[v.index()]).then_some(v)));
            if let Some(v) = unwritten {
                let problem = format!("reads {} before anything has written it", self.value(v).name);
                return Err(Error::argument(node.op.name(), problem));
            }
            if let Some(v) = node.op.writes() {
                written[v.index()] = true;
            }
        }
        Ok(())
    }

    /// Fails, by name, if there is no kernel for one of the ops, or for this type of KV cache. GPU executors check this before
    /// they load a weight.
    pub fn on_gpu(&self, kv: KvStorage) -> Result<()> {
        let latent = |cache: &CacheSpec| matches!(cache, CacheSpec::Pages { v_in_k: true, .. });
        if kv == KvStorage::Q8 && self.caches.iter().any(latent) {
            return Err(no_kernel("an 8-bit cache with values within keys (latent attention)"));
        }
        self.nodes.iter().try_for_each(|node| node.op.on_gpu())
    }

    /// The nodes as lines of text, one each: what they read and write.
    pub fn listing(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            let layer = node.layer.map_or_else(|| "-".to_owned(), |l| l.to_string());
            let out = node.op.writes().map_or("", |v| &self.value(v).name);
            let mut reads = Vec::new();
            node.op.reads(&mut |v| reads.push(self.value(v).name.as_str()));
            let _ = writeln!(text, "{layer:>3} {:9} {out} <- {}", node.op.name(), reads.join(", "));
        }
        text
    }
}
