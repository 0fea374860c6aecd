//! A program run in f64, op by op as their formulas say, over one whole sequence: no cache, no pages, no fusion.
//! It shows that an architecture's program is right before any executor runs it, and has every value to look at.

use wgslm::model::{Model, Program};
use wgslm::ops::*;

/// All values of a run, one row a token (and one an output, which are all rows).
pub(crate) struct Run {
    values: Vec<Vec<f64>>,
    rows: usize,
}

impl Run {
    /// The rows of a value.
    pub(crate) fn value(&self, id: ValueId) -> &[f64] {
        &self.values[id.index()]
    }

    /// The logits, (rows, vocabulary).
    pub(crate) fn logits(&self, program: &Program) -> &[f64] {
        self.value(program.logits().unwrap())
    }
}

/// A program's weights in f64.
pub(crate) struct Weights {
    matrices: Vec<Vec<f64>>,
    vectors: Vec<Vec<f64>>,
}

impl Weights {
    pub(crate) fn of(model: &Model) -> Self {
        let Model { file, located, program, .. } = model;
        let matrix = |id: u32| {
            let at = &located.weights[id as usize];
            let bytes = pollster::block_on(located.read_matrix(file, WeightId(id))).unwrap();
            let mut f32s = vec![0.0; (at.n * at.k) as usize];
            at.format.decode(&bytes, &mut f32s).unwrap();
            f32s.into_iter().map(f64::from).collect()
        };
        let vector = |id: u32| {
            let f32s = pollster::block_on(located.read_vector(file, VectorId(id))).unwrap();
            f32s.into_iter().map(f64::from).collect()
        };
        Self {
            matrices: (0..program.weights.len() as u32).map(matrix).collect(),
            vectors: (0..program.vectors.len() as u32).map(vector).collect(),
        }
    }

    fn vector(&self, id: Option<VectorId>, n: u32, default: f64) -> Vec<f64> {
        id.map_or_else(|| vec![default; n as usize], |id| self.vectors[id.index()].clone())
    }
}

/// Runs a program, as its architecture built it, on the tokens of one sequence.
pub(crate) fn run(program: &Program, weights: &Weights, ids: &[u32]) -> Run {
    let mut run = Run { values: vec![Vec::new(); program.values.len()], rows: ids.len() };
    let mut caches = vec![(ValueId(0), ValueId(0)); program.caches.len()];
    for node in &program.nodes {
        if let Op::KvWrite(op) = &node.op {
            caches[op.cache.index()] = (op.k, op.v);
            continue;
        }
        let out = node.op.writes().unwrap();
        let width = program.value(out).width as usize;
        let mut result = vec![0.0; run.rows * width];
        for (row, y) in result.chunks_mut(width).enumerate() {
            run.op(program, weights, &caches, &node.op, ids, row, y);
        }
        run.values[out.index()] = result;
    }
    run
}

impl Run {
    fn row(&self, program: &Program, id: ValueId, row: usize) -> &[f64] {
        let width = program.value(id).width as usize;
        &self.values[id.index()][row * width..(row + 1) * width]
    }

    #[allow(clippy::too_many_arguments, reason = "one row of one op, with all that it may look at")]
    fn op(
        &self,
        program: &Program,
        weights: &Weights,
        caches: &[(ValueId, ValueId)],
        op: &Op,
        ids: &[u32],
        row: usize,
        y: &mut [f64],
    ) {
        let x = |id: ValueId| self.row(program, id, row);
        match op {
            Op::Embed(op) => {
                let index = match op.index {
                    Index::Token => ids[row] as usize,
                    Index::Position(first) => row + first as usize,
                };
                let table = &weights.matrices[op.table.index()][index * op.dim as usize..];
                y.iter_mut().zip(table).for_each(|(y, t)| *y = f64::from(op.scale) * t);
            }
            Op::Norm(op) => {
                let n = op.spec.n as usize;
                let weight = weights.vector(op.spec.weight, op.spec.n, 1.0);
                let bias = weights.vector(op.spec.bias, op.spec.n, 0.0);
                for (x, y) in x(op.x).chunks(n).zip(y.chunks_mut(n)) {
                    let mean = match op.spec.kind {
                        NormKind::Rms => 0.0,
                        NormKind::Layer => x.iter().sum::<f64>() / n as f64,
                    };
                    let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
                    for i in 0..n {
                        y[i] = weight[i] * (x[i] - mean) / (var + f64::from(op.spec.eps)).sqrt() + bias[i];
                    }
                }
            }
            Op::Linear(op) => {
                let Part { weight, n, bias } = op.parts[0];
                let bias = weights.vector(bias, n, 0.0);
                let matrix = weights.matrices[weight.index()].chunks(op.k as usize);
                for ((y, w), b) in y.iter_mut().zip(matrix).zip(bias) {
                    *y = dot(w, x(op.x)) + b;
                }
            }
            Op::Rope(op) => {
                let table = &program.ropes[op.spec.table.index()];
                let (dim, pairs) = (op.head_dim as usize, op.spec.dims as usize / 2);
                y.copy_from_slice(x(op.x));
                for head in y.chunks_mut(dim) {
                    for i in 0..pairs {
                        let (a, b) = match op.spec.pairing {
                            Pairing::Interleaved => (2 * i, 2 * i + 1),
                            Pairing::Neox => (i, i + pairs),
                        };
                        let (sin, cos) = (row as f64 * table.divisors[i]).sin_cos();
                        let (p, q) = (head[a] * f64::from(table.factor), head[b] * f64::from(table.factor));
                        (head[a], head[b]) = (p * cos - q * sin, p * sin + q * cos);
                    }
                }
            }
            Op::Attend(op) => {
                let (k, v) = match op.kv {
                    Kv::Cache(cache) => caches[cache.index()],
                    Kv::Packed { k, v } => (k, v),
                };
                let (kd, vd) = (op.k_dim as usize, op.v_dim as usize);
                let seen = match op.mask {
                    Mask::Causal => 0..row + 1,
                    Mask::Window(n) => (row + 1).saturating_sub(n as usize)..row + 1,
                    Mask::Full => 0..self.rows,
                };
                for head in 0..op.heads as usize {
                    let kv = head / (op.heads / op.kv_heads) as usize;
                    let q = &x(op.q)[head * kd..(head + 1) * kd];
                    let score = |t| f64::from(op.scale) * dot(q, &self.row(program, k, t)[kv * kd..(kv + 1) * kd]);
                    let scores: Vec<f64> = seen.clone().map(score).collect();
                    let max = scores.iter().copied().fold(f64::MIN, f64::max);
                    let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                    for (t, s) in seen.clone().zip(scores) {
                        let v = &self.row(program, v, t)[kv * vd..(kv + 1) * vd];
                        let p = (s - max).exp() / total;
                        y[head * vd..(head + 1) * vd].iter_mut().zip(v).for_each(|(y, v)| *y += p * v);
                    }
                }
            }
            Op::Pointwise(op) => {
                for (i, y) in y.iter_mut().enumerate() {
                    *y = match *op {
                        Pointwise::Add { a, b, .. } => x(a)[i] + x(b)[i],
                        Pointwise::Mul { a, b, .. } => x(a)[i] * x(b)[i],
                        Pointwise::Scale { x: a, by, .. } => f64::from(by) * x(a)[i],
                        Pointwise::Act { x: a, act: f, .. } => act(f, x(a)[i]),
                    }
                }
            }
            Op::Slice(op) => y.copy_from_slice(&x(op.x)[op.start as usize..(op.start + op.n) as usize]),
            Op::Pick(op) => y.copy_from_slice(x(op.x)),
            Op::KvWrite(_) | Op::RopeKv(_) => panic!("{} is not for here", op.name()),
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn act(act: Act, x: f64) -> f64 {
    match act {
        Act::Silu => x / (1.0 + (-x).exp()),
        Act::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Act::GeluTanh => 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        Act::Relu => x.max(0.0),
        Act::Relu2 => x.max(0.0).powi(2),
    }
}

/// The error function, by its Taylor series near 0 and by the continued fraction of its complement beyond.
fn erf(x: f64) -> f64 {
    let z = x.abs();
    let y = if z < 2.5 {
        let mut term = z;
        let mut sum = z;
        for n in 1..60 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let fraction = (1..60).rev().fold(0.0, |f, n| f64::from(n) / 2.0 / (z + f));
        1.0 - (-z * z).exp() / std::f64::consts::PI.sqrt() / (z + fraction)
    };
    y.copysign(x)
}

#[test]
fn the_error_function_is_right() {
    for (x, y) in
        [(0.1, 0.1124629160182849), (1.0, 0.8427007929497149), (2.6, 0.9997639655834707), (-3.0, -0.9999779095030014)]
    {
        assert!((erf(x) - y).abs() < 1e-13, "erf({x}) = {}", erf(x));
    }
}
