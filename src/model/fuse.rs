//! Fusion: one pass over a program that folds canonical ops into the forms that executors run.
//!
//! The patterns, in the order in which they are looked for:
//!
//! | canonical | fused | for |
//! |---|---|---|
//! | linear q, k, v of one x; rope q, k; kv_write | `Linear` of three parts with `Epi::RopeKv` | vectors |
//! | the same | `Linear` of three parts, then `RopeKv` | matrices |
//! | the same with norms of heads before the ropes | `Linear` of three parts, then `RopeKv` | both |
//! | linear gate, up of one x; act; mul | `Linear` of two parts with `Epi::Gated` | both |
//! | linear; act | `Epi::Act` | both |
//! | linear; add | `Epi::Add` | both |
//! | norm; only linears read it | `Pre::Norm` | vectors |
//!
//! The unfused program stays the oracle of the fused one.

use crate::model::program::{Node, Program, Rows, Value};
use crate::ops::{
    Epi, KvStorage, Linear, NormKind, NormSpec, Op, Phase, Pointwise, Pre, RopeKv, RopeKvSpec, RopeSpec, ValueId, View,
};

/// Whether an op over these rows runs as mat-vec: decode rows do, and in both phases the output rows (logits) and the rows
/// that stand for sequences. It follows from what a row is, never from how many there are.
pub fn as_vectors(phase: Phase, rows: Rows) -> bool {
    phase == Phase::Decode || rows != Rows::Step
}

/// What the fused forms of an executor can do.
#[derive(Clone, Copy, Debug)]
pub struct FuseFor {
    /// Keys and values are stored in whole heads only, so a linear cannot store them.
    whole_heads: bool,
    /// Which norms a linear can take over.
    folds: fn(&NormSpec) -> bool,
}

impl FuseFor {
    /// The CPU executor: everything.
    pub const CPU: Self = Self { whole_heads: false, folds: |_| true };

    /// A GPU executor whose cache is stored so: 8-bit pages take whole heads.
    pub fn gpu(storage: KvStorage) -> Self {
        Self { whole_heads: storage == KvStorage::Q8, folds: Linear::folds_on_gpu }
    }
}

/// The program that an executor runs for steps of a phase.
pub fn fuse(program: &Program, phase: Phase, executor: FuseFor) -> Program {
    let mut pass = Fuser { program: program.clone(), nodes: Vec::new(), phase, executor };
    pass.nodes = std::mem::take(&mut pass.program.nodes).into_iter().map(Some).collect();
    pass.qkv();
    pass.gated();
    pass.epilogues();
    pass.norms();
    pass.program.nodes = pass.nodes.into_iter().flatten().collect();
    pass.program
}

/// A linear whose result is made ready for attention.
struct Turned<'a> {
    nodes: Vec<usize>,
    linear: &'a Linear,
    norm: Option<NormSpec>,
    rope: Option<RopeSpec>,
}

/// The linears of q, k and v as one, and what follows them up to the cache.
struct Qkv {
    nodes: Vec<usize>,
    /// The last of the nodes.
    last: usize,
    /// Without an epilogue; `out` is the rotated q.
    linear: Linear,
    /// Of q and k.
    norms: [Option<NormSpec>; 2],
    spec: RopeKvSpec,
}

struct Fuser {
    program: Program,
    /// The nodes; those folded into another become none.
    nodes: Vec<Option<Node>>,
    phase: Phase,
    executor: FuseFor,
}

impl Fuser {
    fn op(&self, node: usize) -> Option<&Op> {
        self.nodes[node].as_ref().map(|n| &n.op)
    }

    /// The node that writes a value.
    fn producer(&self, value: ValueId) -> Option<usize> {
        (0..self.nodes.len()).find(|&i| self.op(i).is_some_and(|op| op.writes() == Some(value)))
    }

    /// The nodes that read a value; an entry twice if one reads it twice. A result of the program counts as a reader.
    fn readers(&self, value: ValueId) -> Vec<usize> {
        let mut readers = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some(node) = node {
                node.op.reads(&mut |v| {
                    if v == value {
                        readers.push(i);
                    }
                });
            }
        }
        for out in &self.program.outs {
            if out.value() == value {
                readers.push(usize::MAX);
            }
        }
        readers
    }

    /// The node that writes a value which exactly one other node reads.
    fn only_for_one(&self, value: ValueId) -> Option<usize> {
        (self.readers(value).len() == 1).then(|| self.producer(value)).flatten()
    }

    /// A linear that nothing has been folded into yet, read by one node.
    fn plain_linear(&self, value: ValueId) -> Option<(usize, &Linear)> {
        let node = self.only_for_one(value)?;
        match self.op(node)? {
            Op::Linear(linear) if linear.epi == Epi::None => Some((node, linear)),
            _ => None,
        }
    }

    /// A linear after an optional norm of heads and an optional rope: their nodes, the linear, the norm, the rotation.
    fn turned_linear(&self, value: ValueId, head_dim: u32) -> Option<Turned<'_>> {
        let mut nodes = vec![self.only_for_one(value)?];
        let (mut x, mut norm, mut rope) = (value, None, None);
        if let Op::Rope(op) = self.op(nodes[0])? {
            (x, rope) = (op.x, Some(op.spec));
            nodes.push(self.only_for_one(x)?);
        }
        if let Op::Norm(op) = self.op(*nodes.last()?)? {
            let of_heads = op.spec.n == head_dim && op.spec.kind == NormKind::Rms && op.spec.bias.is_none();
            if !of_heads || op.per_group {
                return None;
            }
            (x, norm) = (op.x, Some(op.spec));
            nodes.push(self.only_for_one(x)?);
        }
        let (_, linear) = self.plain_linear(x)?;
        Some(Turned { nodes, linear, norm, rope })
    }

    fn rows(&self, value: ValueId) -> Rows {
        self.program.value(value).rows
    }

    fn qkv(&mut self) {
        let mut i = 0;
        while i < self.nodes.len() {
            if let Some(Qkv { nodes, last, linear, norms: [q_norm, k_norm], spec }) = self.match_qkv(i) {
                let layer = self.nodes[last].as_ref().and_then(|n| n.layer);
                for n in nodes.into_iter().filter(|&n| n != last) {
                    self.nodes[n] = None;
                }
                // A norm needs whole heads. Rotated elements must fill groups of four pairs: the mat-vec kernel has four
                // elements at a time.
                let normed = q_norm.is_some() || k_norm.is_some();
                let by_vec4s = !normed && !self.executor.whole_heads && spec.rope.is_none_or(|r| r.dims % 8 == 0);
                if by_vec4s && as_vectors(self.phase, self.rows(linear.x)) {
                    let op = Op::Linear(Linear { epi: Epi::RopeKv(spec), ..linear });
                    self.nodes[last] = Some(Node { layer, op });
                } else {
                    let out = linear.out;
                    let name = self.program.value(out).name.clone() + " k v";
                    let value = Value { name, width: linear.n(), rows: self.rows(linear.x) };
                    self.program.values.push(value);
                    let qkv = ValueId(self.program.values.len() as u32 - 1);
                    self.nodes[last] = Some(Node { layer, op: Op::Linear(Linear { out: qkv, ..linear }) });
                    // Ids of nodes stay valid: the new node goes after `last`, whose successors are not visited yet.
                    let [q, k, v] = View::qkv(qkv, spec.heads, spec.kv_heads, spec.head_dim);
                    let op = Op::RopeKv(RopeKv { q, k, v, q_norm, k_norm, spec, out });
                    self.nodes.insert(last + 1, Some(Node { layer, op }));
                }
            }
            i += 1;
        }
    }

    /// At a `kv_write`: what folds with it.
    fn match_qkv(&self, node: usize) -> Option<Qkv> {
        let Op::KvWrite(write) = self.op(node)? else { return None };
        let q_value = self.nodes.iter().flatten().find_map(|n| match &n.op {
            Op::Attend(a) if a.kv == crate::ops::Kv::Cache(write.cache) => Some(a.q),
            _ => None,
        })?;
        let q = self.turned_linear(q_value, write.k_dim)?;
        let k = self.turned_linear(write.k, write.k_dim)?;
        let (v_node, v_linear) = self.plain_linear(write.v?)?;
        let linears = [q.linear, k.linear, v_linear];
        let one_x = linears.iter().all(|l| l.x == q.linear.x && l.pre == Pre::None);
        if !one_x || q.rope != k.rope || write.k_dim != write.v_dim || write.k_dim % 8 != 0 {
            return None;
        }
        let parts = linears.iter().flat_map(|l| l.parts.iter().copied()).collect();
        let linear = Linear { x: q.linear.x, k: q.linear.k, parts, pre: Pre::None, epi: Epi::None, out: q_value };
        let heads = q.linear.n() / write.k_dim;
        let (kv_heads, head_dim, cache) = (write.kv_heads, write.k_dim, write.cache);
        let spec = RopeKvSpec { heads, kv_heads, head_dim, rope: q.rope, cache };
        let norms = [q.norm, k.norm];
        let nodes: Vec<usize> = q.nodes.into_iter().chain(k.nodes).chain([v_node, node]).collect();
        let last = nodes.iter().copied().max()?;
        Some(Qkv { nodes, last, linear, norms, spec })
    }

    fn gated(&mut self) {
        for i in 0..self.nodes.len() {
            let found = (|| {
                let Op::Pointwise(Pointwise::Mul { a, b, out, .. }) = *self.op(i)? else { return None };
                let (act_node, act, gate_value, up_value) = [(a, b), (b, a)].into_iter().find_map(|(a, b)| {
                    let node = self.only_for_one(a)?;
                    match *self.op(node)? {
                        Op::Pointwise(Pointwise::Act { x, act, .. }) => Some((node, act, x, b)),
                        _ => None,
                    }
                })?;
                let (gate_node, gate) = self.plain_linear(gate_value)?;
                let (up_node, up) = self.plain_linear(up_value)?;
                let parts: Vec<_> = gate.parts.iter().chain(&up.parts).copied().collect();
                if gate.x != up.x || gate.n() != up.n() || parts.len() != 2 {
                    return None;
                }
                let linear = Linear { parts, epi: Epi::Gated(act), out, ..gate.clone() };
                Some(([act_node, gate_node, up_node], linear))
            })();
            if let Some((folded, linear)) = found {
                self.fold(&folded, i, linear);
            }
        }
    }

    fn epilogues(&mut self) {
        for i in 0..self.nodes.len() {
            let found = (|| match *self.op(i)? {
                Op::Pointwise(Pointwise::Act { x, act, out, .. }) => {
                    let (node, linear) = self.plain_linear(x)?;
                    Some((node, Linear { epi: Epi::Act(act), out, ..linear.clone() }))
                }
                Op::Pointwise(Pointwise::Add { a, b, out, .. }) if a != b => {
                    // The later of the two, so that both operands exist at the sum.
                    let found = [(a, b), (b, a)].into_iter().filter_map(|(linear, residual)| {
                        let (node, linear) = self.plain_linear(linear)?;
                        Some((node, Linear { epi: Epi::Add(residual), out, ..linear.clone() }))
                    });
                    found.max_by_key(|(node, _)| *node)
                }
                _ => None,
            })();
            if let Some((node, linear)) = found {
                self.fold(&[node], i, linear);
            }
        }
    }

    fn norms(&mut self) {
        for i in 0..self.nodes.len() {
            let Some(Op::Norm(norm)) = self.op(i) else { continue };
            let norm = norm.clone();
            let readers = self.readers(norm.out);
            let linear_reads = |&n: &usize| {
                let op = if n == usize::MAX { None } else { self.op(n) };
                matches!(op, Some(Op::Linear(l)) if l.x == norm.out && l.pre == Pre::None && l.epi != Epi::Add(norm.out))
            };
            if norm.groups == 1
                && (self.executor.folds)(&norm.spec)
                && as_vectors(self.phase, self.rows(norm.x))
                && !readers.is_empty()
                && readers.iter().all(linear_reads)
            {
                for n in readers {
                    if let Some(Node { op: Op::Linear(linear), .. }) = &mut self.nodes[n] {
                        linear.x = norm.x;
                        linear.pre = Pre::Norm(norm.spec);
                    }
                }
                self.nodes[i] = None;
            }
        }
    }

    /// Puts a fused linear in the place of node `at`, and takes the nodes that it replaces away.
    fn fold(&mut self, folded: &[usize], at: usize, linear: Linear) {
        for &n in folded {
            self.nodes[n] = None;
        }
        if let Some(node) = &mut self.nodes[at] {
            node.op = Op::Linear(linear);
        }
    }
}
