//! How a program is built: op by op, in the order of the forward pass.

use std::collections::HashMap;

use crate::model::program::{CacheSpec, Node, Out, Program, RopeTable, Rows, Runs, Value, VectorSpec, WeightSpec};
use crate::ops::{
    Act, Attend, CacheId, Combine, Concat, Conv, Decay, Delta, Embed, Epi, ExpertLinear, Gather, GroupId, HeadLinear,
    Index, Kv, KvWrite, Linear, Mask, Norm, NormSpec, Op, Part, Pointwise, Pool, Pooling, Pre, Rope, RopeId, RopeSpec,
    Route, RouteSpec, RowWise, Scan, Slice, ValueId, VectorId, WeightId,
};

/// How a file holds decays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredDecays {
    /// As they are: GGUF files.
    Plain,
    /// A decay is `-e^x` of the element x: safetensors folders.
    Logarithms,
}

/// The heads of queries and keys of [`Builder::delta`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHeads {
    /// How many; divides the value heads.
    pub count: u32,
    /// Which value heads share which key head: see [`Delta::tiled`].
    pub tiled: bool,
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

    /// The same with rows that are not contiguous.
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

    /// A vector (n) of decays.
    pub fn decays(&mut self, tensor: &str, n: u32, stored: StoredDecays) -> VectorId {
        let (tensor, runs, neg_exp) = (self.tensor(tensor), Runs::ONE, stored == StoredDecays::Logarithms);
        self.program.vectors.push(VectorSpec { tensor, start: 0, n, runs, add: 0.0, neg_exp });
        VectorId(self.program.vectors.len() as u32 - 1)
    }

    /// The same with elements that are not contiguous.
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
        let (width, rows) = self.shape(x);
        let out = self.value(name, width, rows);
        self.push(Op::Norm(Norm { x, spec, groups: width / spec.n, per_group: false, out }));
        out
    }

    /// The same, where each group has weights and biases of its own.
    pub fn norm_of_groups(&mut self, name: &str, x: ValueId, spec: NormSpec) -> ValueId {
        let out = self.norm(name, x, spec);
        if let Some(Op::Norm(norm)) = self.last() {
            norm.per_group = true;
        }
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

    /// A causal convolution of each column of x with its own row of `weight` (width of x, kernel_size).
    pub fn conv(&mut self, name: &str, x: ValueId, weight: WeightId, bias: Option<VectorId>) -> ValueId {
        let (n, rows) = self.shape(x);
        let kernel_size = self.program.weights[weight.index()].k;
        let state = self.state(Conv::state_len(n, kernel_size));
        let out = self.value(name, n, rows);
        self.push(Op::Conv(Conv { x, n, weight, kernel_size, bias, state, out }));
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

    /// The gated delta rule over value heads of `v_dim` elements; `beta` is how much of a value is learnt.
    pub fn delta(&mut self, [q, k, v, beta]: [ValueId; 4], keys: KeyHeads, v_dim: u32, decay: Decay) -> ValueId {
        let KeyHeads { count: key_heads, tiled } = keys;
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
    pub fn concat(&mut self, name: &str, a: ValueId, b: ValueId, heads: u32) -> ValueId {
        let ((a_width, rows), (b_width, _)) = (self.shape(a), self.shape(b));
        let out = self.value(name, a_width + b_width, rows);
        self.push(Op::Concat(Concat { a, b, heads, a_dim: a_width / heads, b_dim: b_width / heads, out }));
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

    /// The rows of x whose logits are requested.
    pub fn gather(&mut self, x: ValueId) -> ValueId {
        let (n, _) = self.shape(x);
        let out = self.value("gather", n, Rows::Outs);
        self.push(Op::Gather(Gather { x, n, out }));
        out
    }

    /// x, as long as `like`: see [`RowWise::Magnitude`].
    pub fn magnitude(&mut self, name: &str, x: ValueId, like: ValueId, floor: f32) -> ValueId {
        let (n, rows) = self.shape(x);
        let out = self.value(name, n, rows);
        self.push(Op::RowWise(RowWise::Magnitude { x, like, floor, n, out }));
        out
    }

    /// Each row of x less its mean and so many standard deviations, at least 0: see [`RowWise::Sparsify`].
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
