//! What tests of executors share: random programs with random weights, steps over shuffled pages, a distance.
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use wgslm::exec::{Limits, Outs, Phase, SeqStep, Token};
use wgslm::file::Bytes;
use wgslm::model::{Builder, KeyHeads, Out, Program, StoredDecays};
use wgslm::ops::{
    Act, CpuWeights, Decay, Divide, GroupScore, Groups, Index, Mask, Matrix, NormKind, NormSpec, Op, Pairing, RopeSpec,
    RouteSpec, SampleSpec, Score, ValueId, VectorId,
};
use wgslm::quant::BlockFormat;

/// SplitMix64 (Steele et al. 2014).
pub struct Rng(pub u64);

impl Rng {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }

    /// From -1 to 1.
    pub fn signed(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Nearly normal: a sum of four uniform numbers, of variance 1.
    pub fn normal(&mut self) -> f32 {
        let sum: f64 = (0..4).map(|_| (self.word() >> 11) as f64 / (1u64 << 53) as f64 - 0.5).sum();
        (sum * 3f64.sqrt()) as f32
    }

    pub fn normals(&mut self, n: usize, deviation: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * deviation).collect()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// `Σ (a - b)² / Σ b²`
pub fn nmse(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let error: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    error / b.iter().map(|b| b * b).sum::<f64>().max(1e-30)
}

/// A matrix in memory.
pub fn matrix(format: BlockFormat, n: u32, k: u32, weights: &[f32]) -> Matrix {
    let mut bytes = vec![0; format.row_bytes(u64::from(k)).unwrap() as usize * n as usize];
    format.encode(weights, &mut bytes).unwrap();
    Matrix::new(Arc::new(Bytes::new("random", bytes)), 0, format, n, k).unwrap()
}

/// Random weights for a program: matrices of rows that keep the size of x, the formats in turn (F32 where a row is not whole
/// blocks), vectors around 1 if they scale and around 0 else.
pub fn random_weights(program: &Program, formats: &[BlockFormat], rng: &mut Rng) -> Arc<CpuWeights> {
    let mut weights = CpuWeights::default();
    for (i, spec) in program.weights.iter().enumerate() {
        let wanted = formats[i % formats.len()];
        let fits = wanted.row_bytes(u64::from(spec.k)).is_ok();
        let format = if fits { wanted } else { BlockFormat::F32 };
        // 1.5: attention must be peaky, or a wrong rotation would hardly show.
        let deviation = if spec.tensor.starts_with("embed") { 1.0 } else { 1.5 / (spec.k as f32).sqrt() };
        let values = rng.normals(spec.n as usize * spec.k as usize, deviation);
        weights.matrices.push(matrix(format, spec.n, spec.k, &values));
    }
    for spec in &program.vectors {
        let centre = if spec.tensor.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let one = |x: f32| if spec.neg_exp { -x.exp() } else { centre + x + spec.add };
        weights.vectors.push((0..spec.n).map(|_| one(0.3 * rng.normal())).collect());
    }
    Arc::new(weights)
}

/// The shape of a random model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: u32,
    pub dim: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub hidden: u32,
    pub vocab: u32,
    pub context: u32,
    pub window: Option<u32>,
    pub pairing: Pairing,
    /// Heads of q and k are normalised before they are rotated.
    pub head_norms: bool,
}

impl Shape {
    pub const SMALL: Self = Self {
        layers: 2,
        dim: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        hidden: 160,
        vocab: 193,
        context: 256,
        window: None,
        pairing: Pairing::Neox,
        head_norms: false,
    };
}

/// RMS norms, rotary positions, grouped heads, SwiGLU, no biases.
pub fn llama(shape: Shape) -> Program {
    let Shape { layers, dim, heads, kv_heads, head_dim, hidden, vocab, context, window, pairing, head_norms } = shape;
    let mut b = Builder::new(vocab, context);
    let group = b.group();
    let divisors = (0..head_dim / 2).map(|i| 10_000f64.powf(-2.0 * f64::from(i) / f64::from(head_dim))).collect();
    let table = b.rope_table(divisors, 1.0);
    let rms = |weight| NormSpec { kind: NormKind::Rms, n: dim, weight: Some(weight), bias: None, eps: 1e-5 };
    let mut x = b.embed("embed.weight", Index::Token, vocab, dim, 1.0);
    for layer in 0..layers {
        b.layer(layer, format!("layer.{layer}."));
        let cache = b.pages(group, kv_heads, head_dim, head_dim, window);
        let weight = b.vector("attn_norm.weight", dim);
        let h = b.norm("attn_norm", x, rms(weight));
        let rope = RopeSpec { table, pairing, dims: head_dim };
        let [q, k, v] = [("q", heads), ("k", kv_heads), ("v", kv_heads)].map(|(name, heads)| {
            let w = b.weight(&format!("{name}.weight"), heads * head_dim, dim);
            b.linear(name, h, w, None)
        });
        let [q, k] = [("q", q), ("k", k)].map(|(name, x)| {
            if !head_norms {
                return x;
            }
            let weight = b.vector(&format!("{name}_norm.weight"), head_dim);
            b.norm(&format!("{name}_norm"), x, NormSpec { n: head_dim, ..rms(weight) })
        });
        let q = b.rope("q_rope", q, head_dim, rope);
        let k = b.rope("k_rope", k, head_dim, rope);
        b.kv_write(cache, k, v);
        let mask = window.map_or(Mask::Causal, Mask::Window);
        let a = b.attend(q, cache, mask, 1.0 / (head_dim as f32).sqrt());
        let w = b.weight("o.weight", dim, heads * head_dim);
        let o = b.linear("o", a, w, None);
        x = b.add("attn_residual", x, o);
        let weight = b.vector("ffn_norm.weight", dim);
        let h = b.norm("ffn_norm", x, rms(weight));
        let [gate, up] = ["gate", "up"].map(|name| {
            let w = b.weight(&format!("{name}.weight"), hidden, dim);
            b.linear(name, h, w, None)
        });
        let act = b.act("act", gate, Act::Silu);
        let h = b.mul("gated", act, up);
        let w = b.weight("down.weight", dim, hidden);
        let down = b.linear("down", h, w, None);
        x = b.add("ffn_residual", x, down);
    }
    b.end_layers();
    let picked = b.gather(x);
    let weight = b.vector("norm.weight", dim);
    let h = b.norm("norm", picked, rms(weight));
    let w = b.weight("embed.weight", vocab, dim);
    let logits = b.linear("logits", h, w, None);
    b.finish(vec![Out::Logits(logits)])
}

/// Layer norms, learned positions, biases everywhere, a two-layer network with GELU.
pub fn gpt2(shape: Shape) -> Program {
    let Shape { layers, dim, heads, hidden, vocab, context, .. } = shape;
    let head_dim = dim / heads;
    let mut b = Builder::new(vocab, context);
    let group = b.group();
    let norm = |b: &mut Builder, name: &str, x: ValueId| {
        let weight = b.vector(&format!("{name}norm.weight"), dim);
        let bias = b.vector(&format!("{name}norm.bias"), dim);
        let spec = NormSpec { kind: NormKind::Layer, n: dim, weight: Some(weight), bias: Some(bias), eps: 1e-5 };
        b.norm(&format!("{name}norm"), x, spec)
    };
    let linear = |b: &mut Builder, name: &str, x: ValueId, n: u32, k: u32| {
        let w = b.weight(&format!("{name}.weight"), n, k);
        let bias = b.vector(&format!("{name}.bias"), n);
        b.linear(name, x, w, Some(bias))
    };
    let tokens = b.embed("embed.weight", Index::Token, vocab, dim, 1.0);
    let positions = b.embed("embed_pos.weight", Index::Position(0), context, dim, 1.0);
    let mut x = b.add("embedded", tokens, positions);
    for layer in 0..layers {
        b.layer(layer, format!("layer.{layer}."));
        let cache = b.pages(group, heads, head_dim, head_dim, None);
        let h = norm(&mut b, "attn_", x);
        let [q, k, v] = [0, 1, 2].map(|part| {
            let w = b.weight_rows("qkv.weight", part * dim, dim, dim);
            let bias = b.vector_part("qkv.bias", part * dim, dim, 0.0);
            b.linear(["q", "k", "v"][part as usize], h, w, Some(bias))
        });
        b.kv_write(cache, k, v);
        let a = b.attend(q, cache, Mask::Causal, 1.0 / (head_dim as f32).sqrt());
        let o = linear(&mut b, "o", a, dim, dim);
        x = b.add("attn_residual", x, o);
        let h = norm(&mut b, "ffn_", x);
        let h = linear(&mut b, "up", h, hidden, dim);
        let h = b.act("act", h, Act::GeluErf);
        let down = linear(&mut b, "down", h, dim, hidden);
        x = b.add("ffn_residual", x, down);
    }
    b.end_layers();
    let picked = b.gather(x);
    let h = norm(&mut b, "", picked);
    let w = b.weight("embed.weight", vocab, dim);
    let logits = b.linear("logits", h, w, None);
    b.finish(vec![Out::Logits(logits)])
}

pub fn limits() -> Limits {
    Limits { rows: 96, seqs: 4, outs: 96, block: 16, blocks: 40, context: 256, in_flight: 2, checkpoints: 2 }
}

/// The pages of a sequence, taken from a shuffled pool, so that neighbours are nowhere near each other.
pub struct Pool(Vec<u32>);

impl Pool {
    pub fn new(limits: &Limits, rng: &mut Rng) -> Self {
        let mut blocks: Vec<u32> = (0..limits.blocks).collect();
        rng.shuffle(&mut blocks);
        Self(blocks)
    }

    pub fn table(&mut self, positions: u32, limits: &Limits) -> Vec<u32> {
        let keep = self.0.len() - positions.div_ceil(limits.block) as usize;
        self.0.split_off(keep)
    }
}

/// A part of a sequence whose logits are all read back.
pub fn rows<'a>(slot: u32, phase: Phase, tokens: &'a [Token], pos: u32, tables: &'a [&'a [u32]]) -> SeqStep<'a> {
    SeqStep { outs: Outs::All, read_logits: true, ..SeqStep::new(slot, phase, tokens, pos, tables) }
}

/// A token whose successor is sampled.
pub fn sampling<'a>(seq: SeqStep<'a>, sample: SampleSpec) -> SeqStep<'a> {
    SeqStep { outs: Outs::Last, sample: Some(sample), read_logits: false, ..seq }
}

pub fn host(tokens: &[u32]) -> Vec<Token> {
    tokens.iter().copied().map(Token::Host).collect()
}

/// The result of a future that never waits.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    }
}

/// A program of one op over random inputs.
#[derive(Clone)]
pub struct OneOp {
    pub program: Program,
    pub inputs: Vec<ValueId>,
    pub out: ValueId,
}

impl OneOp {
    /// `build` is given inputs of these widths and gives the result.
    pub fn new(widths: &[u32], build: impl FnOnce(&mut Builder, &[ValueId]) -> ValueId) -> Self {
        let mut b = Builder::new(64, 256);
        let inputs: Vec<_> = widths.iter().enumerate().map(|(i, &w)| b.input(&format!("input {i}"), w)).collect();
        let out = build(&mut b, &inputs);
        Self { program: b.finish(vec![Out::Hidden(out)]), inputs, out }
    }
}

/// The last op of a program under construction, as a variant of [`Op`].
pub fn last_op(b: &mut Builder) -> &mut Op {
    b.last().expect("an op was built")
}

/// Vectors named so that they lie around 1.
pub fn norm_weight(b: &mut Builder, n: u32) -> VectorId {
    b.vector("norm.weight", n)
}

fn decay(b: &mut Builder, x: ValueId, heads: u32, max: f32) -> Decay {
    Decay { x, bias: b.vector("dt.bias", heads), a: b.decays("a", heads, StoredDecays::Logarithms), min: 0.0, max }
}

/// A convolution, with its name.
pub fn conv(n: u32, kernel_size: u32) -> (String, OneOp) {
    let op = OneOp::new(&[n], |b, x| {
        let weight = b.weight("conv.weight", n, kernel_size);
        let bias = (n % 2 == 1).then(|| b.vector("conv.bias", n));
        b.conv("conv", x[0], weight, bias)
    });
    (format!("conv of {n} columns, {kernel_size} kernel_size"), op)
}

/// A scan, with its name.
pub fn scan(heads: u32, dim: u32, groups: u32, states: u32) -> (String, OneOp) {
    let op = OneOp::new(&[heads * dim, groups * states, groups * states, heads], |b, x| {
        let decay = decay(b, x[3], heads, if dim % 2 == 1 { 0.8 } else { f32::INFINITY });
        let skip = b.vector("d", heads);
        b.scan([x[0], x[1], x[2]], dim, groups, decay, skip)
    });
    (format!("scan of {heads} heads of {dim}, {groups} groups of {states} states"), op)
}

/// A delta rule, with its name. Keys are of length 1, as models have them.
pub fn delta(heads: u32, key_heads: u32, k_dim: u32, v_dim: u32, tiled: bool) -> (String, OneOp) {
    let keys = key_heads * k_dim;
    let op = OneOp::new(&[keys, keys, heads * v_dim, heads, heads], |b, x| {
        let spec = NormSpec { kind: NormKind::Rms, n: k_dim, weight: None, bias: None, eps: 1e-6 / k_dim as f32 };
        let k = b.norm("k", x[1], spec);
        let k = b.scale("k", k, 1.0 / (k_dim as f32).sqrt());
        let beta = b.act("beta", x[3], Act::Sigmoid);
        let decay = decay(b, x[4], heads, f32::INFINITY);
        b.delta([x[0], k, x[2], beta], KeyHeads { count: key_heads, tiled }, v_dim, decay)
    });
    (format!("delta of {heads} heads of {v_dim}, {key_heads} key heads of {k_dim}, tiled: {tiled}"), op)
}

/// Tokens through a convolution and a scan.
pub fn mamba() -> Program {
    let (heads, dim, states) = (4, 8, 16);
    let mut b = Builder::new(193, 256);
    let x = b.embed("embed.weight", Index::Token, 193, heads * dim, 1.0);
    let linear = |b: &mut Builder, name: &str, x: ValueId, n: u32| {
        let weight = b.weight(name, n, heads * dim);
        b.linear(name, x, weight, None)
    };
    let kernel_size = b.weight("conv.weight", heads * dim, 4);
    let x = b.conv("conv", x, kernel_size, None);
    let (to, out_of, step) =
        (linear(&mut b, "b", x, states), linear(&mut b, "c", x, states), linear(&mut b, "dt", x, heads));
    let decay = decay(&mut b, step, heads, f32::INFINITY);
    let skip = b.vector("d", heads);
    let x = b.scan([x, to, out_of], dim, 1, decay, skip);
    let x = b.gather(x);
    let logits = linear(&mut b, "embed.weight", x, 193);
    b.finish(vec![Out::Logits(logits)])
}

/// Recurrent ops over odd shapes.
pub fn recurrent() -> Vec<(String, OneOp)> {
    vec![
        conv(1, 2),
        conv(63, 4),
        conv(65, 3),
        conv(257, 1),
        scan(1, 1, 1, 1),
        scan(6, 8, 2, 10),
        scan(4, 65, 4, 63),
        scan(3, 64, 1, 128),
        delta(1, 1, 1, 1, false),
        delta(4, 2, 12, 10, false),
        delta(6, 2, 8, 12, true),
        delta(3, 3, 65, 63, false),
    ]
}

/// The plainest routing of `used` of `experts`.
pub fn plain(experts: u32, used: u32) -> RouteSpec {
    RouteSpec { experts, used, score: Score::Softmax, groups: None, divide: Divide::No, scale: 1.0 }
}

/// Every way to score, to choose by groups and to weigh.
pub fn route_specs() -> Vec<RouteSpec> {
    let mut all = Vec::new();
    for (experts, used) in [(1, 1), (5, 2), (8, 8), (63, 7), (256, 8)] {
        for score in [Score::Softmax, Score::Sigmoid, Score::SoftmaxOfChosen] {
            for divide in [Divide::No, Divide::SumPlus(1e-6), Divide::SumAtLeast(0.4)] {
                all.push(RouteSpec { score, divide, scale: 2.5, ..plain(experts, used) });
            }
        }
    }
    for (experts, count, kept, used) in [(8, 4, 2, 3), (8, 8, 3, 3), (8, 1, 1, 8), (256, 8, 4, 8), (6, 2, 1, 3)] {
        for score in [GroupScore::Best, GroupScore::TwoBest] {
            let groups = Some(Groups { count, kept, score });
            all.push(RouteSpec { groups, score: Score::Sigmoid, ..plain(experts, used) });
        }
    }
    all
}

/// A layer of experts: logits and rows in, every expert's two matrices, the weighted sum.
pub fn experts(b: &mut Builder, x: &[ValueId], spec: RouteSpec, [k, n, m]: [u32; 3], biased: bool) -> ValueId {
    let chosen = b.route("route", x[0], None, spec);
    let matrices = |b: &mut Builder, name: &str, n: u32, k: u32| -> Vec<_> {
        (0..spec.experts).map(|e| b.weight(&format!("{name}.{e}"), n, k)).collect()
    };
    let biases = |b: &mut Builder, name: &str, n: u32| -> Vec<_> {
        (0..if biased { spec.experts } else { 0 }).map(|e| b.vector(&format!("{name}.{e}.bias"), n)).collect()
    };
    let (w, bias) = (matrices(b, "up", n, k), biases(b, "up", n));
    let up = b.expert_linear("up", x[1], chosen, w, bias);
    let (w, bias) = (matrices(b, "down", m, n), biases(b, "down", m));
    let down = b.expert_linear("down", up, chosen, w, bias);
    b.combine("y", down, chosen, spec.used, spec.used)
}
