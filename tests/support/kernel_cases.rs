//! What is asked of every kernel, natively and in a browser: programs of one op over odd shapes and small models, against the f64
//! oracle.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use wgslm::exec::{
    CpuExecutor, CpuOptions, Drawn, Executor, GpuExecutor, GpuOptions, Numerics, Oracle, Outs, Role, SeqStep, Step,
    Token,
};
use wgslm::gpu::Device;
use wgslm::model::Program;
use wgslm::ops::{Act, CpuWeights, Index, NormKind, NormSpec, Pairing, RopeSpec, SampleSpec};
use wgslm::quant::BlockFormat::{self, BF16, F16, F32, Q4_1, Q8_0};

use super::programs::{self, *};
use attend_cases::AttendCase;

#[path = "attend_cases.rs"]
pub mod attend_cases;

/// NMSE of f32 arithmetic against f64: element by element, and where sums are long.
pub const EXACT: f64 = 1e-10;
/// Of attention, whose exponentials differ between drivers.
const ATTEND: f64 = 1e-9;
/// NMSE with an f16 cache: of attention alone, and of a model.
const HALF: f64 = 1e-6;
const HALF_MODEL: f64 = 1e-5;

/// Something to compute, and how far from the oracle it may be.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    /// The formats of its matrices, in turn.
    pub formats: Vec<BlockFormat>,
    pub numerics: Numerics,
    /// Runs the ops as they are, none fused.
    pub unfused: bool,
    /// The largest NMSE; of draws, the share of tokens that differ.
    pub bound: f64,
    work: Work,
}

#[derive(Clone)]
enum Work {
    /// One op over random rows.
    Op { op: OneOp, role: Role, rows: usize, deviation: f32 },
    /// Attention over what sequences have kept.
    Attend(AttendCase),
    /// Prompts and generated rows of two sequences; the first prompt has `rows` rows.
    Model { program: Program, rows: usize },
    /// Tokens that are drawn on the device and never seen by the host before they are fed back.
    Draws { program: Program, sample: SampleSpec },
}

impl Case {
    /// Its distance from the oracle on a device, and the shader modules that it ran.
    pub async fn distance(&self, device: &Device) -> (f64, Vec<String>) {
        match &self.work {
            Work::Op { op, role, rows, deviation } => self.op(device, op, *role, *rows, *deviation).await,
            Work::Attend(case) => {
                let (got, wanted, modules) = case.outputs(device, self.numerics).await;
                (nmse(&got, &wanted), modules)
            }
            Work::Model { program, rows } => self.model(device, program, *rows).await,
            Work::Draws { program, sample } => self.draws(device, program, *sample).await,
        }
    }

    async fn gpu(&self, device: &Device, program: &Program, weights: &CpuWeights, keep_values: bool) -> GpuExecutor {
        let options = GpuOptions { unfused: self.unfused, keep_values, ..options(self.numerics) };
        let gpu = GpuExecutor::load(device, program, weights, options, &mut |_, _| {}).await.unwrap();
        gpu.fill_cache(0x7fc0_7e00); // NaN as f32, and as two f16
        gpu
    }

    async fn op(&self, device: &Device, op: &OneOp, role: Role, rows: usize, deviation: f32) -> (f64, Vec<String>) {
        let mut rng = Rng(rows as u64 + 1);
        let weights = random_weights(&op.program, &self.formats, &mut rng);
        let mut gpu = self.gpu(device, &op.program, &weights, true).await;
        let mut oracle = Oracle::new(&op.program, weights, limits());
        for &id in &op.inputs {
            let width = op.program.value(id).width as usize;
            let values = rng.normals(rows * width, deviation);
            gpu.set_value(role, id, &values);
            oracle
                .set_value(id, values.chunks(width).map(|row| row.iter().copied().map(f64::from).collect()).collect());
        }
        let first = rows.div_ceil(3);
        let tokens: Vec<_> = (0..rows).map(|_| Token::Host(rng.below(64) as u32)).collect();
        let mut pool = Pool::new(&limits(), &mut rng);
        let tables = [pool.table(256, &limits()), pool.table(256, &limits())];
        let tables: Vec<Vec<&[u32]>> = tables.iter().map(|t| vec![t.as_slice(); op.program.groups as usize]).collect();
        let seq = |slot: u32, tokens, table| SeqStep {
            outs: Outs::Last,
            read_logits: false,
            ..programs::rows(slot, role, tokens, 0, table)
        };
        let mut seqs = vec![seq(0, &tokens[..first], &tables[0])];
        if rows > first {
            seqs.push(seq(1, &tokens[first..], &tables[1]));
        }
        run(&mut gpu, &seqs).await;
        oracle.step(&Step { seqs: &seqs }).unwrap();
        let wanted = oracle.value(op.out).concat();
        let width = op.program.value(op.out).width as usize;
        let got = gpu.value(role, op.out, (wanted.len() / width) as u32).await.unwrap();
        (nmse(&got, &wanted), gpu.modules())
    }

    /// Over shuffled pages full of NaN: a prompt, a second sequence that joins late, then both generate in one step. Every logit.
    async fn model(&self, device: &Device, program: &Program, n: usize) -> (f64, Vec<String>) {
        let mut rng = Rng(100);
        let weights = random_weights(program, &self.formats, &mut rng);
        let mut gpu = self.gpu(device, program, &weights, false).await;
        let mut oracle = Oracle::new(program, weights, limits());
        let mut pool = Pool::new(&limits(), &mut rng);
        let tables = [pool.table(200, &limits()), pool.table(200, &limits())];
        let [a, b] = tables.each_ref().map(|table| [table.as_slice()]);
        let tokens: Vec<_> = (0..90).map(|_| Token::Host(rng.below(program.vocab as usize) as u32)).collect();
        let (generated, prompt) = (Role::Generated, Role::Prompt);
        let m = n / 2;
        let [at, next] = [n as u32, m as u32];
        let steps: &[&[SeqStep<'_>]] = &[
            &[rows(0, prompt, &tokens[..n], 0, &a)],
            &[rows(0, generated, &tokens[n..n + 1], at, &a), rows(1, prompt, &tokens[10..10 + m], 0, &b)],
            &[
                rows(0, generated, &tokens[n + 1..n + 2], at + 1, &a),
                rows(1, generated, &tokens[10 + m..11 + m], next, &b),
            ],
            &[
                rows(0, generated, &tokens[n + 2..n + 14], at + 2, &a),
                rows(1, prompt, &tokens[11 + m..27 + m], next + 1, &b),
            ],
        ];
        let mut worst = 0f64;
        for seqs in steps {
            let (logits, _) = run(&mut gpu, seqs).await;
            let distance = nmse(&logits, &oracle.step(&Step { seqs }).unwrap().concat());
            worst = if distance > worst || distance.is_nan() { distance } else { worst };
        }
        assert!(gpu.counts(generated).1 <= 8, "storage bindings");
        (worst, gpu.modules())
    }

    /// Two steps under way, the token never seen by the host; as the CPU draws them.
    async fn draws(&self, device: &Device, program: &Program, sample: SampleSpec) -> (f64, Vec<String>) {
        let weights = random_weights(program, &self.formats, &mut Rng(11));
        let mut gpu = self.gpu(device, program, &weights, false).await;
        let got = drawn(&mut gpu, sample).await;
        let cpu = CpuOptions { threads: Some(1), numerics: self.numerics, ..CpuOptions::new(limits()) };
        let wanted = drawn(&mut CpuExecutor::new(program, weights, cpu).unwrap(), sample).await;
        assert_eq!((got.len(), wanted.len()), (21, 21));
        let different = got.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        (different as f64 / wanted.len() as f64, gpu.modules())
    }
}

/// The tokens of a sequence of 21, each fed back on the device.
async fn drawn(executor: &mut impl Executor, sample: SampleSpec) -> Vec<Option<u32>> {
    let table: Vec<u32> = (0..16).rev().collect();
    let tables = [table.as_slice()];
    let prompt = host(&[3, 1, 4, 1, 5]);
    let mut tokens = Vec::new();
    executor.enqueue(&Step { seqs: &[drawing(rows(2, Role::Prompt, &prompt, 0, &tables), sample)] }).unwrap();
    for pos in 5..25 {
        let next = [drawing(rows(2, Role::Generated, &[Token::Drawn], pos, &tables), sample)];
        executor.enqueue(&Step { seqs: &next }).unwrap();
        executor.wait().await.unwrap();
        executor.poll(&mut |_, out| tokens.extend(out.unwrap().drawn.iter().map(|d| d.token)));
    }
    executor.wait().await.unwrap();
    executor.poll(&mut |_, out| tokens.extend(out.unwrap().drawn.iter().map(|d| d.token)));
    tokens
}

/// Runs a step to its end; gives its logits and draws.
pub async fn run(gpu: &mut GpuExecutor, seqs: &[SeqStep<'_>]) -> (Vec<f32>, Vec<Drawn>) {
    gpu.enqueue(&Step { seqs }).unwrap();
    let mut result = None;
    while result.is_none() {
        gpu.wait().await.unwrap();
        gpu.poll(&mut |_, out| {
            let out = out.unwrap();
            result = Some((out.logits.clone(), out.drawn.clone()));
        });
    }
    result.unwrap()
}

pub fn options(numerics: Numerics) -> GpuOptions {
    GpuOptions { numerics, limits: limits(), unfused: false, keep_values: false }
}

/// An op as prompt and as generated rows, in such numbers.
fn ops(what: &str, op: &OneOp, format: BlockFormat, rows: &[usize], deviation: f32, bound: f64) -> Vec<Case> {
    let case = |role, rows| Case {
        name: format!("{what}, {role:?}, {rows} rows"),
        formats: vec![format],
        numerics: Numerics::Exact,
        unfused: true,
        bound,
        work: Work::Op { op: op.clone(), role, rows, deviation },
    };
    Role::ALL.into_iter().flat_map(|role| rows.iter().map(move |&rows| (role, rows))).map(|(r, n)| case(r, n)).collect()
}

pub fn linear() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, k, formats) in [
        (1, 1, &[F32][..]),
        (63, 65, &[F32, F16, BF16]),
        (65, 257, &[F32]),
        (257, 63, &[F16]),
        (33, 32, &[Q8_0, Q4_1]),
        (5, 1024, &[Q8_0, Q4_1, BF16]),
        (130, 288, &[Q8_0, Q4_1]),
    ] {
        for &format in formats {
            let op = OneOp::new(&[k], |b, x| {
                let w = b.weight("w", n, k);
                let bias = b.vector("b", n);
                b.linear("y", x[0], w, (n % 2 == 1).then_some(bias))
            });
            cases.extend(ops(&format!("linear ({n}, {k}) {format:?}"), &op, format, &[1, 9, 63], 1.0, EXACT));
        }
    }
    cases
}

/// Each format's decoder alone, and in the kernels of W x for few rows and for many.
pub fn formats() -> Vec<Case> {
    let mut cases = Vec::new();
    for &format in BlockFormat::ALL {
        for k in [format.info().weights as u32 * 3, 512] {
            let op = OneOp::new(&[], |b, _| b.embed("table", Index::Token, 60, k, 1.0));
            cases.extend(ops(&format!("embed {format:?} of {k}"), &op, format, &[9], 1.0, 1e-12));
        }
        let op = OneOp::new(&[768], |b, x| {
            let w = b.weight("w", 33, 768);
            b.linear("y", x[0], w, None)
        });
        cases.extend(ops(&format!("linear (33, 768) {format:?}"), &op, format, &[1, 9], 1.0, EXACT));
    }
    cases
}

pub fn norm() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [NormKind::Rms, NormKind::Layer] {
        for (n, groups) in [(1, 1), (63, 1), (65, 3), (257, 2)] {
            let op = OneOp::new(&[n * groups], |b, x| {
                let weight = Some(norm_weight(b, n));
                let bias = (n % 2 == 1).then(|| b.vector("bias", n));
                b.norm("y", x[0], NormSpec { kind, n, weight, bias, eps: 1e-5 })
            });
            cases.extend(ops(&format!("{kind:?} norm of {groups} groups of {n}"), &op, F32, &[7], 3.0, EXACT));
        }
    }
    cases
}

pub fn pointwise() -> Vec<Case> {
    let mut cases = Vec::new();
    for n in [1, 65, 257] {
        for act in [Act::Silu, Act::GeluErf, Act::GeluTanh, Act::Relu, Act::Relu2, Act::Tanh] {
            for deviation in [0.1, 1.0, 10.0] {
                let op = OneOp::new(&[n], |b, x| b.act("y", x[0], act));
                let what = format!("{act:?} of {n}, deviation {deviation}");
                cases.extend(ops(&what, &op, F32, &[5], deviation, EXACT));
            }
        }
        for (what, op) in [
            ("add", OneOp::new(&[n, n], |b, x| b.add("y", x[0], x[1]))),
            ("mul", OneOp::new(&[n, n], |b, x| b.mul("y", x[0], x[1]))),
            ("scale", OneOp::new(&[n], |b, x| b.scale("y", x[0], 0.37))),
        ] {
            cases.extend(ops(&format!("{what} of {n}"), &op, F32, &[5], 1.0, EXACT));
        }
    }
    cases
}

pub fn rope() -> Vec<Case> {
    let mut cases = Vec::new();
    for pairing in [Pairing::Interleaved, Pairing::Neox] {
        for (heads, head_dim, dims) in [(1, 2, 2), (3, 64, 64), (2, 65, 32), (5, 16, 6)] {
            let op = OneOp::new(&[heads * head_dim], |b, x| {
                let divisors = (0..dims / 2).map(|i| 0.7f64.powi(i as i32)).collect();
                let table = b.rope_table(divisors, 1.25);
                b.rope("y", x[0], head_dim, RopeSpec { table, pairing, dims })
            });
            let what = format!("{pairing:?} rope {heads} x {head_dim}, {dims} rotated");
            cases.extend(ops(&what, &op, F32, &[63], 1.0, EXACT));
        }
    }
    cases
}

/// Ops that move numbers, and change none.
pub fn moves() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, op) in [
        ("slice", OneOp::new(&[65], |b, x| b.slice("y", x[0], 7, 33))),
        ("pick", OneOp::new(&[65], |b, x| b.pick(x[0]))),
        // Some ids are clamped.
        ("embed of tokens", OneOp::new(&[], |b, _| b.embed("table", Index::Token, 60, 96, 1.0))),
        ("embed of positions", OneOp::new(&[], |b, _| b.embed("table", Index::Position(2), 60, 63, 1.0))),
    ] {
        for format in [F32, F16, Q8_0, Q4_1] {
            cases.extend(ops(&format!("{what} {format:?}"), &op, format, &[9], 1.0, 0.0));
        }
    }
    cases
}

/// Attention, in f32 and f16 by turns: each case with one of them, the cases of long contexts with both.
pub fn attend() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, case) in attend_cases::cases().into_iter().enumerate() {
        for (numerics, bound) in [(Numerics::Exact, ATTEND), (Numerics::Fast, HALF)] {
            let long = case.seqs.iter().any(|s| s.0 > 600);
            if long || (i % 2 == 0) == (numerics == Numerics::Exact) {
                cases.push(Case {
                    name: format!("{case:?}, {numerics:?}"),
                    formats: vec![F32],
                    numerics,
                    unfused: true,
                    bound,
                    work: Work::Attend(case.clone()),
                });
            }
        }
    }
    cases
}

fn model(
    what: &str,
    program: &Program,
    formats: &[BlockFormat],
    numerics: Numerics,
    unfused: bool,
    rows: usize,
) -> Case {
    Case {
        name: format!("{what} {formats:?}, {numerics:?}{}", if unfused { ", unfused" } else { "" }),
        formats: formats.to_vec(),
        numerics,
        unfused,
        bound: if numerics == Numerics::Exact { EXACT } else { HALF_MODEL },
        work: Work::Model { program: program.clone(), rows },
    }
}

/// Whole models, fused and unfused.
pub fn models() -> Vec<Case> {
    let shape = Shape::SMALL;
    let odd = Shape { dim: 96, heads: 3, kv_heads: 1, head_dim: 40, hidden: 257, window: Some(20), ..shape };
    let mut cases = Vec::new();
    for (what, program, formats) in [
        ("llama", llama(shape), &[F32][..]),
        ("llama, interleaved", llama(Shape { pairing: Pairing::Interleaved, ..shape }), &[Q8_0, F16]),
        ("llama, odd and windowed", llama(odd), &[Q4_1, BF16, F32]),
        ("gpt2", gpt2(shape), &[F32, Q8_0]),
    ] {
        for (numerics, unfused) in [(Numerics::Exact, false), (Numerics::Exact, true), (Numerics::Fast, false)] {
            cases.push(model(what, &program, formats, numerics, unfused, 70));
        }
    }
    cases
}

/// A layer of each format: every decoder in every kernel that reads weights.
pub fn model_formats() -> Vec<Case> {
    let mut cases = Vec::new();
    for &format in BlockFormat::ALL {
        let dim = (format.info().weights as u32).max(64);
        let program = llama(Shape { layers: 1, dim, hidden: dim, ..Shape::SMALL });
        cases.extend([Numerics::Exact, Numerics::Fast].map(|n| model("a layer of", &program, &[format], n, false, 9)));
    }
    cases
}

pub fn draws() -> Vec<Case> {
    let case = |sample: SampleSpec| Case {
        name: format!("draws at temperature {}", sample.temperature),
        formats: vec![Q8_0],
        numerics: Numerics::Exact,
        unfused: false,
        bound: 0.0,
        work: Work::Draws { program: llama(Shape::SMALL), sample },
    };
    [SampleSpec::GREEDY, SampleSpec { temperature: 0.8, seed: 99 }].map(case).into()
}

/// What a browser runs, which takes a third of a second for an op: every fused model, and ops in steps that meet each shape, role
/// and number of rows somewhere.
pub fn for_browsers() -> Vec<Case> {
    let each = |cases: Vec<Case>, step| cases.into_iter().step_by(step);
    let ops = each(linear(), 5).chain(each(formats(), 3)).chain(each(norm(), 1)).chain(each(pointwise(), 5));
    let ops = ops.chain(each(rope(), 1)).chain(each(moves(), 3)).chain(each(attend(), 7));
    let models = models().into_iter().filter(|case| !case.unfused);
    ops.chain(models).chain(model_formats()).chain(draws()).collect()
}
