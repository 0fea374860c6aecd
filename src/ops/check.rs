//! Checks an op's operands against each other, before anything is lowered or run.

use super::{
    Attend, Embed, Epi, ExpertLinear, HeadLinear, Kv, Linear, NormKind, NormSpec, Op, Pointwise, RopeSpec, Route,
    RowWise, ValueId, WeightId,
};
use crate::{Error, Result};

/// What an op is checked against: widths of values, shapes of weights.
pub(crate) struct Shapes<'a> {
    pub(crate) width: &'a dyn Fn(ValueId) -> u32,
    pub(crate) matrix: &'a dyn Fn(WeightId) -> (u32, u32),
    pub(crate) vector: &'a dyn Fn(super::VectorId) -> u32,
    pub(crate) pairs: &'a dyn Fn(super::RopeId) -> usize,
    /// Elements of a state.
    pub(crate) state: &'a dyn Fn(super::CacheId) -> u32,
}

/// Fails unless the two agree; says which op, what of it, and both numbers.
pub(super) fn same(op: &str, what: &str, is: u32, wanted: u32) -> Result<()> {
    if is == wanted {
        return Ok(());
    }
    Err(Error::argument(op, format!("{what} is {is} wide, but {wanted} are needed")))
}

pub(super) fn holds(op: &str, condition: bool, problem: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(Error::argument(op, problem())) }
}

impl Op {
    /// Checks the op's operands.
    pub(crate) fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        let width = |what: &str, v: ValueId, wanted: u32| same(name, what, (s.width)(v), wanted);
        match self {
            Self::Embed(Embed { table, n, dim, out, .. }) => {
                let (rows, k) = (s.matrix)(*table);
                same(name, "the table", k, *dim)?;
                holds(name, rows == *n && *n > 0, || format!("the table has {rows} rows, but {n} are needed"))?;
                width("out", *out, *dim)
            }
            Self::Norm(op) => {
                op.spec.check(name, if op.per_group { op.groups } else { 1 }, s)?;
                holds(name, op.spec.n > 0, || "groups are empty".to_owned())?;
                width("x", op.x, op.groups * op.spec.n)?;
                width("out", op.out, op.groups * op.spec.n)
            }
            Self::Linear(op) => op.check(s),
            Self::Rope(op) => {
                op.spec.check(name, op.head_dim, s)?;
                width("x", op.x, op.heads * op.head_dim)?;
                width("out", op.out, op.heads * op.head_dim)
            }
            Self::KvWrite(op) => {
                width("k", op.k, op.kv_heads * op.k_dim)?;
                match op.v {
                    Some(v) => width("v", v, op.kv_heads * op.v_dim),
                    None => holds(name, op.v_dim <= op.k_dim, || {
                        format!("values of {} within keys of {}", op.v_dim, op.k_dim)
                    }),
                }
            }
            Self::RopeKv(op) => {
                if let Some(rope) = &op.rope {
                    rope.check(name, op.head_dim, s)?;
                }
                for norm in [&op.q_norm, &op.k_norm].into_iter().flatten() {
                    norm.check(name, 1, s)?;
                    same(name, "a norm of heads", norm.n, op.head_dim)?;
                    holds(name, norm.kind == NormKind::Rms && norm.bias.is_none(), || {
                        "heads are normalised by the root of their mean square, without a bias".to_owned()
                    })?;
                }
                for (what, view, heads) in [("q", op.q, op.heads), ("k", op.k, op.kv_heads), ("v", op.v, op.kv_heads)] {
                    width(what, view.value, view.width)?;
                    let last = u64::from(view.at) + u64::from(heads) * u64::from(op.head_dim);
                    holds(name, last <= u64::from(view.width), || {
                        format!("{what} is elements {} to {last} of {}", view.at, view.width)
                    })?;
                }
                width("out", op.out, op.heads * op.head_dim)
            }
            Self::Attend(Attend { q, heads, kv_heads, k_dim, v_dim, kv, sinks, slopes, out, .. }) => {
                holds(name, *kv_heads > 0 && *heads > 0 && heads % kv_heads == 0, || {
                    format!("{heads} query heads are no multiple of {kv_heads} KV heads")
                })?;
                holds(name, *k_dim > 0 && *v_dim > 0, || format!("keys of {k_dim} elements, values of {v_dim}"))?;
                width("q", *q, heads * k_dim)?;
                width("out", *out, heads * v_dim)?;
                for (what, vector) in [("sinks", sinks), ("slopes", slopes)] {
                    if let Some(vector) = vector {
                        same(name, what, (s.vector)(*vector), *heads)?;
                    }
                }
                if let Kv::Packed { k, v } = *kv {
                    width("k", k, kv_heads * k_dim)?;
                    width("v", v, kv_heads * v_dim)?;
                }
                Ok(())
            }
            Self::Conv(op) => op.check(s),
            Self::Scan(op) => op.check(s),
            Self::Delta(op) => op.check(s),
            Self::Pointwise(op) => {
                let (Pointwise::Add { n, .. }
                | Pointwise::Mul { n, .. }
                | Pointwise::Act { n, .. }
                | Pointwise::Scale { n, .. }
                | Pointwise::Clamp { n, .. }) = op;
                let mut wrong = Ok(());
                let mut check = |v: ValueId| {
                    if wrong.is_ok() {
                        wrong = width("an operand", v, *n);
                    }
                };
                op.reads(&mut check);
                check(op.out());
                wrong
            }
            Self::Slice(op) => {
                width("x", op.x, op.heads * op.width)?;
                width("out", op.out, op.heads * op.n)?;
                holds(name, u64::from(op.start) + u64::from(op.n) <= u64::from(op.width), || {
                    format!("columns {} to {} of {}", op.start, u64::from(op.start) + u64::from(op.n), op.width)
                })
            }
            Self::Pick(op) => {
                width("x", op.x, op.n)?;
                width("out", op.out, op.n)
            }
            Self::RowWise(op) => {
                let mut wrong = width("out", op.out(), op.n());
                op.reads(&mut |v| wrong = std::mem::replace(&mut wrong, Ok(())).and_then(|()| width("x", v, op.n())));
                if let RowWise::Weigh { weight, weights, n, .. } = *op {
                    same(name, "its weight", (s.vector)(weight), weights)?;
                    holds(name, weights == n || weights == 1, || format!("{weights} weights for {n} elements"))?;
                }
                wrong
            }
            Self::Pool(op) => {
                width("x", op.x, op.n)?;
                width("out", op.out, op.n)
            }
            Self::Route(op) => op.check(s),
            Self::ExpertLinear(op) => op.check(s),
            Self::Combine(op) => {
                width("x", op.x, op.count * op.n)?;
                width("the value of the weights", op.weights, op.width)?;
                holds(name, u64::from(op.start) + u64::from(op.count) <= u64::from(op.width), || {
                    format!("weights {} to {} of {}", op.start, u64::from(op.start) + u64::from(op.count), op.width)
                })?;
                width("out", op.out, op.n)
            }
            Self::HeadLinear(op) => op.check(s),
            Self::Join(op) => {
                width("a", op.a, op.heads * op.a_dim)?;
                width("b", op.b, op.heads * op.b_dim)?;
                width("out", op.out, op.heads * (op.a_dim + op.b_dim))
            }
        }
    }
}

impl NormSpec {
    fn check(&self, op: &str, groups: u32, s: &Shapes<'_>) -> Result<()> {
        for vector in [self.weight, self.bias].into_iter().flatten() {
            same(op, "its weight or bias", (s.vector)(vector), groups * self.n)?;
        }
        Ok(())
    }
}

impl RopeSpec {
    fn check(&self, op: &str, head_dim: u32, s: &Shapes<'_>) -> Result<()> {
        let pairs = (s.pairs)(self.table);
        holds(op, self.dims.is_multiple_of(2) && self.dims <= head_dim && pairs == self.dims as usize / 2, || {
            format!("rotates {} of {head_dim} elements by a table of {pairs} angles", self.dims)
        })
    }
}

impl Linear {
    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = "linear";
        same(name, "x", (s.width)(self.x), self.k)?;
        for part in &self.parts {
            let (n, k) = (s.matrix)(part.weight);
            holds(name, (n, k) == (part.n, self.k), || {
                format!("w is ({n}, {k}), but ({}, {}) is needed", part.n, self.k)
            })?;
            if let Some(bias) = part.bias {
                same(name, "a bias", (s.vector)(bias), part.n)?;
            }
        }
        if let super::Pre::Norm(norm) = &self.pre {
            norm.check(name, 1, s)?;
            same(name, "the norm of x", norm.n, self.k)?;
        }
        let out = match &self.epi {
            Epi::Gated(_) => {
                let halves = self.parts.len() == 2 && self.parts[0].n == self.parts[1].n;
                holds(name, halves, || "a gated pair needs two parts of one size".to_owned())?;
                self.parts[0].n
            }
            Epi::RopeKv(op) => {
                let qkv = (op.heads + 2 * op.kv_heads) * op.head_dim;
                same(name, "q, k, v together", self.n(), qkv)?;
                op.heads * op.head_dim
            }
            Epi::Add(residual) => {
                same(name, "the residual", (s.width)(*residual), self.n())?;
                self.n()
            }
            Epi::None | Epi::Act(_) => self.n(),
        };
        same(name, "out", (s.width)(self.out), out)
    }
}

impl Route {
    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let (name, spec) = ("route", &self.spec);
        same(name, "x", (s.width)(self.x), spec.experts)?;
        same(name, "out", (s.width)(self.out), 2 * spec.used)?;
        if let Some(bias) = self.bias {
            same(name, "the bias", (s.vector)(bias), spec.experts)?;
        }
        // Their numbers must be exact as f32.
        let open = match spec.groups {
            None => spec.experts,
            Some(groups) => {
                let fits = groups.count > 0 && spec.experts.is_multiple_of(groups.count) && groups.kept <= groups.count;
                holds(name, fits, || {
                    format!("{} of {} groups of {} experts", groups.kept, groups.count, spec.experts)
                })?;
                spec.experts / groups.count * groups.kept
            }
        };
        holds(name, (1..=open).contains(&spec.used) && spec.experts < 1 << 24, || {
            format!("chooses {} of {open} experts", spec.used)
        })
    }
}

impl ExpertLinear {
    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = "expert_linear";
        same(name, "x", (s.width)(self.x), if self.own { self.used * self.k } else { self.k })?;
        same(name, "the value of the chosen", (s.width)(self.chosen), 2 * self.used)?;
        let biases = self.biases.is_empty() || self.biases.len() == self.experts.len();
        holds(name, !self.experts.is_empty() && biases, || {
            format!("{} experts with {} biases", self.experts.len(), self.biases.len())
        })?;
        matrices(name, &self.experts, (self.n, self.k), s)?;
        for &bias in &self.biases {
            same(name, "a bias", (s.vector)(bias), self.n)?;
        }
        same(name, "out", (s.width)(self.out), self.used * self.n)
    }
}

impl HeadLinear {
    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let (name, heads) = ("head_linear", self.matrices.len() as u32);
        same(name, "x", (s.width)(self.x), heads * self.k)?;
        matrices(name, &self.matrices, (self.n, self.k), s)?;
        same(name, "out", (s.width)(self.out), heads * self.n)
    }
}

/// All matrices have one shape.
fn matrices(op: &str, all: &[WeightId], shape: (u32, u32), s: &Shapes<'_>) -> Result<()> {
    let other = all.iter().map(|&id| (s.matrix)(id)).find(|found| *found != shape);
    holds(op, other.is_none(), || format!("a matrix is {other:?}, but {shape:?} is needed"))
}
