//! A model as data: canonical ops over named values, the weights they use, the caches they keep.

use std::collections::HashMap;
use std::fmt::Write as _;

pub use crate::ops::Rows;
use crate::ops::check::Shapes;
use crate::ops::lower::no_kernel;
use crate::ops::{
    Act, Attend, CacheId, Combine, Conv, Decay, Delta, Embed, Epi, ExpertLinear, GroupId, HeadLinear, Index, Join, Kv,
    KvStorage, KvWrite, Linear, Mask, Norm, NormSpec, Op, Part, Pick, Pointwise, Pool, Pooling, Pre, Rope, RopeId,
    RopeSpec, Route, RouteSpec, RowWise, Scan, Slice, ValueId, VectorId, WeightId,
};
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
/// and v head by head are cut into such runs.
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

    /// How far behind the first row the row number `row` lies.
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
    /// How they follow each other.
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
    /// How they follow each other.
    pub runs: Runs,
    /// Added to each element at load (Gemma's norms hold `weight - 1` in safetensors files).
    pub add: f32,
    /// Each element x stands for `-e^x` (the decays of recurrent layers in safetensors files).
    pub neg_exp: bool,
}

/// Rotary angles: position p turns pair i by `p * divisors[i]`; cosine and sine are multiplied by a factor.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// One a pair of rotated elements, in f64 so that every device is given the same angles.
    pub divisors: Vec<f64>,
    /// YaRN's and LongRoPE's attention factor; else 1.
    pub factor: f32,
    /// LongRoPE: in contexts of more than so many positions, these are the divisors. Keys are kept rotated, so the context that
    /// an executor is made for decides, not the length that a sequence has reached.
    pub long: Option<(u32, Vec<f64>)>,
    /// Llama 4: queries at position p are multiplied by `1 + beta * ln(1 + floor(p / span))`; (beta, span).
    pub growth: Option<(f32, u32)>,
}

impl Default for RopeTable {
    fn default() -> Self {
        Self { divisors: Vec::new(), factor: 1.0, long: None, growth: None }
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
        let growth = |(beta, span): (f32, u32)| 1.0 + f64::from(beta) * f64::from(pos / span.max(1)).ln_1p();
        f64::from(self.factor) * self.growth.map_or(1.0, growth)
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
        /// Positions that are still needed behind the last one; none means all.
        window: Option<u32>,
    },
    /// What a recurrent layer remembers of a sequence: so many f32, whatever the sequence's length. It lies in the sequence's
    /// slot and is written in place; a sequence that begins, at position 0, begins from zeros.
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
    /// (rows, dim): the input of the head, before the rows are picked.
    Hidden(ValueId),
    /// (seqs, dim): a vector for each sequence, its embedding.
    Pooled(ValueId),
    /// (seqs, 1): how well the two texts of each sequence fit together.
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

    /// Whether a sequence must come in one step: its rows see all others, or all of them are pooled.
    pub fn whole(&self) -> bool {
        let packed = |node: &Node| matches!(node.op, Op::Attend(Attend { kv: Kv::Packed { .. }, .. }));
        self.pooled().is_some() || self.nodes.iter().any(packed)
    }

    /// The positions that the layers of a group see, if none of them sees all.
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

    /// Fails, by name, if no kernel does one of the ops, or stores keys and values so: what a GPU executor says before it loads a
    /// weight.
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

/// Builds a program op by op, in the order of the forward pass.
///
/// Every method that makes a value names it after what made it; `layer` sets the prefix of weight names and the layer of nodes.
#[derive(Debug, Default)]
pub struct Builder {
    program: Program,
    layer: Option<u32>,
    prefix: String,
    transposed: bool,
    weights: HashMap<WeightSpec, WeightId>,
}

impl Builder {
    /// An empty program for a vocabulary and a context length.
    pub fn new(vocab: u32, context: u32) -> Self {
        Self { program: Program { vocab, context, ..Program::default() }, ..Self::default() }
    }

    /// Matrices that follow are stored as (k, n) in the file.
    pub fn transposed(&mut self, transposed: bool) {
        self.transposed = transposed;
    }

    /// Starts a layer: nodes that follow belong to it, and weight names are relative to `prefix`.
    pub fn layer(&mut self, layer: u32, prefix: String) {
        self.layer = Some(layer);
        self.prefix = prefix;
    }

    /// Ends the layers: what follows belongs to none, and weight names are absolute.
    pub fn end_layers(&mut self) {
        self.layer = None;
        self.prefix.clear();
    }

    /// The whole name of a tensor of this layer.
    pub fn tensor(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn value(&mut self, name: &str, width: u32, rows: Rows) -> ValueId {
        let name = match self.layer {
            Some(layer) => format!("layer {layer} {name}"),
            None => name.to_owned(),
        };
        self.program.values.push(Value { name, width, rows });
        ValueId(self.program.values.len() as u32 - 1)
    }

    fn push(&mut self, op: Op) {
        self.program.nodes.push(Node { layer: self.layer, op });
    }

    /// Columns and rows of a value, for the next op's operands.
    fn shape(&self, v: ValueId) -> (u32, Rows) {
        let value = self.program.value(v);
        (value.width, value.rows)
    }

    /// Columns of a value.
    pub fn width(&self, v: ValueId) -> u32 {
        self.program.value(v).width
    }

    /// Rows `start..start + n` of a tensor of `k` columns, as a matrix of its own. The same rows give the same id.
    pub fn weight_rows(&mut self, tensor: &str, start: u32, n: u32, k: u32) -> WeightId {
        self.weight_runs(tensor, start, n, Runs::ONE, k)
    }

    /// The same with rows that do not all follow each other.
    pub fn weight_runs(&mut self, tensor: &str, start: u32, n: u32, runs: Runs, k: u32) -> WeightId {
        let transposed = self.transposed.then_some(0);
        self.weight_of(WeightSpec { tensor: self.tensor(tensor), start, n, runs, k, transposed })
    }

    /// A matrix (n, k) whose transpose is rows `start..start + k` of a tensor of `n` columns.
    pub fn weight_transposed(&mut self, tensor: &str, start: u32, n: u32, k: u32) -> WeightId {
        let (tensor, runs) = (self.tensor(tensor), Runs::ONE);
        self.weight_of(WeightSpec { tensor, start: 0, n, runs, k, transposed: Some(start) })
    }

    fn weight_of(&mut self, spec: WeightSpec) -> WeightId {
        let next = WeightId(self.program.weights.len() as u32);
        let id = *self.weights.entry(spec.clone()).or_insert(next);
        if id == next {
            self.program.weights.push(spec);
        }
        id
    }

    /// A matrix (n, k).
    pub fn weight(&mut self, tensor: &str, n: u32, k: u32) -> WeightId {
        self.weight_rows(tensor, 0, n, k)
    }

    /// Elements `start..start + n` of a vector, plus `add`.
    pub fn vector_part(&mut self, tensor: &str, start: u32, n: u32, add: f32) -> VectorId {
        self.vector_runs(tensor, start, n, Runs::ONE, add)
    }

    /// A vector (n) of decays: `-e^x` of each element if the file holds their logarithms, else as they are.
    pub fn decays(&mut self, tensor: &str, n: u32, logarithms: bool) -> VectorId {
        let (tensor, runs) = (self.tensor(tensor), Runs::ONE);
        self.program.vectors.push(VectorSpec { tensor, start: 0, n, runs, add: 0.0, neg_exp: logarithms });
        VectorId(self.program.vectors.len() as u32 - 1)
    }

    /// The same with elements that do not all follow each other.
    pub fn vector_runs(&mut self, tensor: &str, start: u32, n: u32, runs: Runs, add: f32) -> VectorId {
        let spec = VectorSpec { tensor: self.tensor(tensor), start, n, runs, add, neg_exp: false };
        self.program.vectors.push(spec);
        VectorId(self.program.vectors.len() as u32 - 1)
    }

    /// A vector (n).
    pub fn vector(&mut self, tensor: &str, n: u32) -> VectorId {
        self.vector_part(tensor, 0, n, 0.0)
    }

    /// A table of rotary divisors.
    pub fn rope_table(&mut self, divisors: Vec<f64>, factor: f32) -> RopeId {
        self.rope_table_of(RopeTable { divisors, factor, ..RopeTable::default() })
    }

    /// Any table of rotary angles. The same table gives the same id.
    pub fn rope_table_of(&mut self, table: RopeTable) -> RopeId {
        let ropes = &mut self.program.ropes;
        let at = ropes.iter().position(|r| *r == table).unwrap_or_else(|| {
            ropes.push(table);
            ropes.len() - 1
        });
        RopeId(at as u32)
    }

    /// A group of caches that share a block table.
    pub fn group(&mut self) -> GroupId {
        self.program.groups += 1;
        GroupId(self.program.groups - 1)
    }

    /// A cache of this layer.
    pub fn pages(&mut self, group: GroupId, kv_heads: u32, k_dim: u32, v_dim: u32, window: Option<u32>) -> CacheId {
        self.cache(CacheSpec::Pages { group, kv_heads, k_dim, v_dim, v_in_k: false, window })
    }

    /// Any cache.
    pub fn cache(&mut self, spec: CacheSpec) -> CacheId {
        self.program.caches.push(spec);
        CacheId(self.program.caches.len() as u32 - 1)
    }

    /// A state of this layer.
    fn state(&mut self, len: u32) -> CacheId {
        self.cache(CacheSpec::State { len })
    }

    /// Heads and sizes of a cache of pages.
    fn page_shape(&self, cache: CacheId) -> [u32; 3] {
        match self.program.caches[cache.index()] {
            CacheSpec::Pages { kv_heads, k_dim, v_dim, .. } => [kv_heads, k_dim, v_dim],
            CacheSpec::State { .. } => [0; 3], // no op that uses pages passes its check
        }
    }

    /// Rows of a table (n, dim), looked up by token or position.
    pub fn embed(&mut self, tensor: &str, index: Index, n: u32, dim: u32, scale: f32) -> ValueId {
        let transposed = std::mem::take(&mut self.transposed);
        let table = self.weight(tensor, n, dim);
        self.transposed = transposed;
        let out = self.value("embed", dim, Rows::Step);
        self.push(Op::Embed(Embed { table, index, n, dim, scale, out }));
        out
    }

    /// A norm over groups of `spec.n` elements.
    pub fn norm(&mut self, name: &str, x: ValueId, spec: NormSpec) -> ValueId {
        self.norm_of_groups(name, x, spec, false)
    }

    /// The same; `per_group`: each group has its own part of weight and bias.
    pub fn norm_of_groups(&mut self, name: &str, x: ValueId, spec: NormSpec, per_group: bool) -> ValueId {
        let (width, rows) = self.shape(x);
        let out = self.value(name, width, rows);
        self.push(Op::Norm(Norm { x, spec, groups: width / spec.n, per_group, out }));
        out
    }

    /// `W x + b` with a matrix (n, width of x).
    pub fn linear(&mut self, name: &str, x: ValueId, weight: WeightId, bias: Option<VectorId>) -> ValueId {
        let (k, rows) = self.shape(x);
        let n = self.program.weights[weight.index()].n;
        let out = self.value(name, n, rows);
        let parts = vec![Part { weight, n, bias }];
        self.push(Op::Linear(Linear { x, k, parts, pre: Pre::None, epi: Epi::None, out }));
        out
    }

    /// Rotates the heads of x.
    pub fn rope(&mut self, name: &str, x: ValueId, head_dim: u32, spec: RopeSpec) -> ValueId {
        let (width, rows) = self.shape(x);
        let out = self.value(name, width, rows);
        self.push(Op::Rope(Rope { x, heads: width / head_dim, head_dim, spec, out }));
        out
    }

    /// Stores k and v at their rows' positions; k alone where values lie within keys.
    pub fn kv_write(&mut self, cache: CacheId, k: ValueId, v: impl Into<Option<ValueId>>) {
        let [kv_heads, k_dim, v_dim] = self.page_shape(cache);
        let v = v.into();
        self.push(Op::KvWrite(KvWrite { k, v, cache, kv_heads, k_dim, v_dim }));
    }

    /// Attention over a cache, without soft-cap or sinks; the result can be changed through [`Builder::last`].
    pub fn attend(&mut self, q: ValueId, cache: CacheId, mask: Mask, scale: f32) -> ValueId {
        self.attend_over(q, Kv::Cache(cache), self.page_shape(cache), mask, scale)
    }

    /// The same over the keys and values of this step's rows, in heads of a size: nothing is kept.
    pub fn attend_packed(&mut self, [q, k, v]: [ValueId; 3], head_dim: u32, mask: Mask, scale: f32) -> ValueId {
        let dims = [self.width(k) / head_dim, head_dim, head_dim];
        self.attend_over(q, Kv::Packed { k, v }, dims, mask, scale)
    }

    fn attend_over(&mut self, q: ValueId, kv: Kv, dims: [u32; 3], mask: Mask, scale: f32) -> ValueId {
        let [kv_heads, k_dim, v_dim] = dims;
        let (width, rows) = self.shape(q);
        let heads = width / k_dim.max(1);
        let out = self.value("attend", heads * v_dim, rows);
        self.push(Op::Attend(Attend {
            q,
            heads,
            kv_heads,
            k_dim,
            v_dim,
            kv,
            mask,
            scale,
            softcap: 0.0,
            sinks: None,
            slopes: None,
            out,
        }));
        out
    }

    /// A causal convolution of each column of x with its own row of `weight` (width of x, taps).
    pub fn conv(&mut self, name: &str, x: ValueId, weight: WeightId, bias: Option<VectorId>) -> ValueId {
        let (n, rows) = self.shape(x);
        let taps = self.program.weights[weight.index()].k;
        let state = self.state(Conv::state_len(n, taps));
        let out = self.value(name, n, rows);
        self.push(Op::Conv(Conv { x, n, weight, taps, bias, state, out }));
        out
    }

    /// The selective scan of Mamba-2 over heads of `dim` elements, with inputs `b` and outputs `c` of `groups` groups.
    pub fn scan(&mut self, [x, b, c]: [ValueId; 3], dim: u32, groups: u32, decay: Decay, skip: VectorId) -> ValueId {
        let ((width, rows), states) = (self.shape(x), self.width(b) / groups);
        let heads = width / dim;
        let state = self.state(Scan::state_len(heads, dim, states));
        let out = self.value("scan", width, rows);
        self.push(Op::Scan(Scan { x, b, c, heads, dim, groups, states, decay, skip, state, out }));
        out
    }

    /// The gated delta rule over value heads of `v_dim` elements, with `key_heads` heads of queries and keys; `beta` is how much
    /// of a value is learnt.
    pub fn delta(
        &mut self,
        [q, k, v, beta]: [ValueId; 4],
        key_heads: u32,
        v_dim: u32,
        decay: Decay,
        tiled: bool,
    ) -> ValueId {
        let ((width, rows), k_dim) = (self.shape(v), self.width(k) / key_heads);
        let heads = width / v_dim;
        let state = self.state(Delta::state_len(heads, k_dim, v_dim));
        let out = self.value("delta", width, rows);
        self.push(Op::Delta(Delta { q, k, v, beta, heads, key_heads, k_dim, v_dim, tiled, decay, state, out }));
        out
    }

    /// The op that was built last, to set what few models need.
    pub fn last(&mut self) -> Option<&mut Op> {
        self.program.nodes.last_mut().map(|n| &mut n.op)
    }

    /// `a + b`
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        let (n, rows) = self.shape(a);
        let out = self.value(name, n, rows);
        self.push(Op::Pointwise(Pointwise::Add { a, b, n, out }));
        out
    }

    /// `a * b`
    pub fn mul(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        let (n, rows) = self.shape(a);
        let out = self.value(name, n, rows);
        self.push(Op::Pointwise(Pointwise::Mul { a, b, n, out }));
        out
    }

    /// `act(x)`
    pub fn act(&mut self, name: &str, x: ValueId, act: Act) -> ValueId {
        let (n, rows) = self.shape(x);
        let out = self.value(name, n, rows);
        self.push(Op::Pointwise(Pointwise::Act { x, act, n, out }));
        out
    }

    /// `by * x`
    pub fn scale(&mut self, name: &str, x: ValueId, by: f32) -> ValueId {
        let (n, rows) = self.shape(x);
        let out = self.value(name, n, rows);
        self.push(Op::Pointwise(Pointwise::Scale { x, by, n, out }));
        out
    }

    /// `max(low, min(x, high))`
    pub fn clamp(&mut self, name: &str, x: ValueId, low: f32, high: f32) -> ValueId {
        let (n, rows) = self.shape(x);
        let out = self.value(name, n, rows);
        self.push(Op::Pointwise(Pointwise::Clamp { x, low, high, n, out }));
        out
    }

    /// Columns `start..start + n` of x.
    pub fn slice(&mut self, name: &str, x: ValueId, start: u32, n: u32) -> ValueId {
        self.slice_heads(name, x, 1, start, n)
    }

    /// Columns `start..start + n` of each of `heads` equal parts of x.
    pub fn slice_heads(&mut self, name: &str, x: ValueId, heads: u32, start: u32, n: u32) -> ValueId {
        let (width, rows) = self.shape(x);
        let out = self.value(name, heads * n, rows);
        self.push(Op::Slice(Slice { x, heads, width: width / heads, start, n, out }));
        out
    }

    /// The heads of a, each followed by that of b.
    pub fn join(&mut self, name: &str, a: ValueId, b: ValueId, heads: u32) -> ValueId {
        let ((a_width, rows), (b_width, _)) = (self.shape(a), self.shape(b));
        let out = self.value(name, a_width + b_width, rows);
        self.push(Op::Join(Join { a, b, heads, a_dim: a_width / heads, b_dim: b_width / heads, out }));
        out
    }

    /// Chooses experts by the logits x: their numbers, then their weights.
    pub fn route(&mut self, name: &str, x: ValueId, bias: Option<VectorId>, spec: RouteSpec) -> ValueId {
        let (_, rows) = self.shape(x);
        let out = self.value(name, 2 * spec.used, rows);
        self.push(Op::Route(Route { x, bias, spec, out }));
        out
    }

    /// x times the matrices of the chosen experts, side by side; x is a row for all of them, or one for each.
    pub fn expert_linear(
        &mut self,
        name: &str,
        x: ValueId,
        chosen: ValueId,
        experts: Vec<WeightId>,
        biases: Vec<VectorId>,
    ) -> ValueId {
        let ((width, rows), used) = (self.shape(x), self.width(chosen) / 2);
        let shape = experts.first().map(|e| &self.program.weights[e.index()]);
        let (n, k) = shape.map_or((0, width), |spec| (spec.n, spec.k));
        let out = self.value(name, used * n, rows);
        let own = width != k;
        self.push(Op::ExpertLinear(ExpertLinear { x, own, chosen, experts, biases, used, n, k, out }));
        out
    }

    /// The sum of `count` equal parts of x, times columns `start..start + count` of `weights`.
    pub fn combine(&mut self, name: &str, x: ValueId, weights: ValueId, start: u32, count: u32) -> ValueId {
        let ((x_width, rows), width) = (self.shape(x), self.width(weights));
        let n = x_width / count;
        let out = self.value(name, n, rows);
        self.push(Op::Combine(Combine { x, weights, width, start, count, n, out }));
        out
    }

    /// The heads of x, each times a matrix of its own.
    pub fn head_linear(&mut self, name: &str, x: ValueId, matrices: Vec<WeightId>) -> ValueId {
        let (width, rows) = self.shape(x);
        let shape = matrices.first().map(|m| &self.program.weights[m.index()]);
        let (n, k) = shape.map_or((0, width), |spec| (spec.n, spec.k));
        let out = self.value(name, matrices.len() as u32 * n, rows);
        self.push(Op::HeadLinear(HeadLinear { x, matrices, n, k, out }));
        out
    }

    /// The rows of x whose logits somebody asked for.
    pub fn pick(&mut self, x: ValueId) -> ValueId {
        let (n, _) = self.shape(x);
        let out = self.value("pick", n, Rows::Outs);
        self.push(Op::Pick(Pick { x, n, out }));
        out
    }

    /// x, as long as `like`: see [`RowWise::Magnitude`].
    pub fn magnitude(&mut self, name: &str, x: ValueId, like: ValueId, floor: f32) -> ValueId {
        let (n, rows) = self.shape(x);
        let out = self.value(name, n, rows);
        self.push(Op::RowWise(RowWise::Magnitude { x, like, floor, n, out }));
        out
    }

    /// What stands out of each row of x by so many deviations: see [`RowWise::Sparsify`].
    pub fn sparsify(&mut self, name: &str, x: ValueId, by: f32) -> ValueId {
        let (n, rows) = self.shape(x);
        let out = self.value(name, n, rows);
        self.push(Op::RowWise(RowWise::Sparsify { x, by, n, out }));
        out
    }

    /// `weight * x`, element by element, or all of a row by one.
    pub fn weigh(&mut self, name: &str, x: ValueId, weight: VectorId) -> ValueId {
        let (n, rows) = self.shape(x);
        let weights = self.program.vectors[weight.index()].n;
        let out = self.value(name, n, rows);
        self.push(Op::RowWise(RowWise::Weigh { x, weight, weights, n, out }));
        out
    }

    /// One row for all rows of a sequence.
    pub fn pool(&mut self, x: ValueId, pooling: Pooling) -> ValueId {
        let (n, _) = self.shape(x);
        let out = self.value("pool", n, Rows::Seqs);
        self.push(Op::Pool(Pool { x, pooling, n, out }));
        out
    }

    /// Declares a result and ends.
    pub fn finish(mut self, outs: Vec<Out>) -> Program {
        self.program.outs = outs;
        self.program
    }

    /// A value made by the caller of a program that is not a model's: an input, set by hand (kernel tests, benches).
    pub fn input(&mut self, name: &str, width: u32) -> ValueId {
        self.value(name, width, Rows::Step)
    }

    /// Any op, for programs that are not a model's (kernel tests, benches).
    pub fn op(&mut self, op: Op) {
        self.push(op);
    }
}
