//! What is asked of every kernel, natively and in a browser: programs of one op over odd shapes and small models, against the f64
//! oracle.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use std::ops::Range;
use std::sync::Arc;
use wgslm::exec::{
    CpuExecutor, CpuOptions, Drawn, Executor, GpuExecutor, GpuOptions, Limits, Numerics, Oracle, Outs, Role, SeqStep,
    Step, StepOut, Token,
};

use wgslm::gpu::Device;
use wgslm::model::Out;
use wgslm::model::Program;
use wgslm::ops::{
    Act, CpuWeights, Index, KvStorage, LOGPROBS, Logprob, NormKind, NormSpec, Pairing, Penalties, Pooling, RopeSpec,
    SampleLists, SampleSpec,
};
use wgslm::quant::BlockFormat::{self, BF16, F16, F32, Q4_1, Q8_0};

use super::programs::{self, *};
use super::singles::{self, Alone};
use attend_cases::AttendCase;
use cache_cases::CacheCase;

#[path = "attend_cases.rs"]
pub mod attend_cases;
#[path = "cache_cases.rs"]
pub mod cache_cases;

/// NMSE of f32 arithmetic against f64: element by element, and where sums are long.
pub const EXACT: f64 = 1e-10;
/// Of attention, whose exponentials differ between drivers.
const ATTEND: f64 = 1e-9;
/// Of several ops behind each other whose sums are long.
const LONG: f64 = 1e-9;
/// NMSE with an f16 cache: of attention alone, and of a model.
const HALF: f64 = 1e-6;
const HALF_MODEL: f64 = 1e-5;
/// With one of 8 bits.
const EIGHT_BIT_MODEL: f64 = 1e-3;

/// Something to compute, and how far from the oracle it may be.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    /// The formats of its matrices, in turn.
    pub formats: Vec<BlockFormat>,
    pub numerics: Numerics,
    /// Runs the ops as they are, none fused.
    pub unfused: bool,
    /// What replaces the device's table of tuning.
    pub tuning: &'static str,
    /// The largest NMSE; of draws, the share of tokens that differ.
    pub bound: f64,
    work: Work,
}

/// Some rows of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The sequence, and its slot: 0 or 1.
    pub seq: usize,
    pub pos: usize,
    pub rows: usize,
}

#[derive(Clone)]
enum Work {
    /// One op over random rows.
    Op { op: OneOp, role: Role, rows: usize, deviation: f32 },
    /// Attention over what sequences have kept.
    Attend(AttendCase),
    /// One recurrent op over parts of two sequences, in steps that have one role each.
    Parts { op: OneOp, steps: Vec<(Role, Vec<Part>)> },
    /// Attention as a single op.
    AttendTo(CacheCase),
    /// Prompts and generated rows of two sequences; the first prompt has `rows` rows.
    Model { program: Program, rows: usize, kv: KvStorage },
    /// Tokens that are drawn on the device and never seen by the host before they are fed back.
    Draws { program: Program, sample: SampleSpec },
    /// Tokens drawn from logits that the host gives, in such a vocabulary.
    Picks { vocab: u32, deviation: f32 },
    /// A single op on buffers of the caller's.
    Alone(Alone),
}

impl Case {
    /// Its distance from the oracle on a device, and the shader modules that it ran.
    pub async fn distance(&self, device: &Device) -> (f64, Vec<String>) {
        let device = &device.tuned(self.tuning).unwrap();
        match &self.work {
            Work::Op { op, role, rows, deviation } => self.op(device, op, *role, *rows, *deviation).await,
            Work::AttendTo(case) => case.distance(device).await,
            Work::Attend(case) => {
                let (got, wanted, modules) = case.outputs(device, self.numerics).await;
                (nmse(&got, &wanted), modules)
            }
            Work::Parts { op, steps } => {
                let (results, modules) = self.parts(device, op, steps).await;
                let (got, wanted) = results.concat().into_iter().unzip::<f32, f64, Vec<_>, Vec<_>>();
                (nmse(&got, &wanted), modules)
            }
            Work::Model { program, rows, .. } => self.model(device, program, *rows).await,
            Work::Draws { program, sample } => self.draws(device, program, *sample).await,
            Work::Picks { vocab, deviation } => picks(device, *vocab, *deviation).await,
            Work::Alone(alone) => alone.distance(device).await,
        }
    }

    async fn gpu(&self, device: &Device, program: &Program, weights: &CpuWeights, keep_values: bool) -> GpuExecutor {
        let kv = if let Work::Model { kv, .. } = self.work { kv } else { self.numerics.kv() };
        let limits = self.limits();
        let options = GpuOptions { unfused: self.unfused, keep_values, kv: Some(kv), limits, ..options(self.numerics) };
        let gpu = GpuExecutor::load(device, program, weights, options, &mut |_, _| {}).await.unwrap();
        gpu.fill_cache(0x7fc0_7e00); // NaN as f32, and as two f16
        gpu
    }

    /// As usual, but for steps of very many rows.
    fn limits(&self) -> Limits {
        match self.work {
            Work::Op { rows, .. } if rows > limits().rows as usize => {
                Limits { rows: rows as u32, context: rows as u32, ..limits() }
            }
            _ => limits(),
        }
    }

    async fn op(&self, device: &Device, op: &OneOp, role: Role, rows: usize, deviation: f32) -> (f64, Vec<String>) {
        let mut rng = Rng(rows as u64 + 1);
        let weights = random_weights(&op.program, &self.formats, &mut rng);
        let mut gpu = self.gpu(device, &op.program, &weights, true).await;
        let mut oracle = Oracle::new(&op.program, weights, self.limits());
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
        // Of the second text of two; some are past the table.
        let types: Vec<u32> = (0..rows as u32).map(|i| i % 3).collect();
        let seq = |slot: u32, span: std::ops::Range<usize>, table| SeqStep {
            types: &types[span.clone()],
            outs: Outs::Last,
            read_logits: false,
            ..programs::rows(slot, role, &tokens[span], 0, table)
        };
        let mut seqs = vec![seq(0, 0..first, &tables[0])];
        if rows > first {
            seqs.push(seq(1, first..rows, &tables[1]));
        }
        run(&mut gpu, &seqs).await;
        oracle.step(&Step { seqs: &seqs }).unwrap();
        let wanted = oracle.value(op.out).concat();
        let width = op.program.value(op.out).width as usize;
        let got = gpu.value(role, op.out, (wanted.len() / width) as u32).await.unwrap();
        (nmse(&got, &wanted), gpu.modules())
    }

    /// The result of each part, step by step, and the oracle's.
    async fn parts(
        &self,
        device: &Device,
        op: &OneOp,
        steps: &[(Role, Vec<Part>)],
    ) -> (Vec<Vec<(f32, f64)>>, Vec<String>) {
        let mut rng = Rng(5);
        let weights = random_weights(&op.program, &self.formats, &mut rng);
        let mut gpu = self.gpu(device, &op.program, &weights, true).await;
        let mut oracle = Oracle::new(&op.program, weights, limits());
        let inputs: Vec<[Vec<f32>; 2]> = op
            .inputs
            .iter()
            .map(|&id| {
                let width = op.program.value(id).width as usize;
                [(); 2].map(|()| rng.normals(POSITIONS * width, 1.0))
            })
            .collect();
        let mut results = Vec::new();
        for (role, parts) in steps {
            for (&id, values) in op.inputs.iter().zip(&inputs) {
                let width = op.program.value(id).width as usize;
                let of = |part: &Part| &values[part.seq][part.pos * width..(part.pos + part.rows) * width];
                let values = parts.iter().map(of).collect::<Vec<_>>().concat();
                gpu.set_value(*role, id, &values);
                let wide = values.chunks(width).map(|row| row.iter().copied().map(f64::from).collect());
                oracle.set_value(id, wide.collect());
            }
            let tokens = host(&[0; POSITIONS]);
            let seq = |part: &Part| SeqStep {
                outs: Outs::Last,
                read_logits: false,
                ..rows(part.seq as u32, *role, &tokens[..part.rows], part.pos as u32, &[])
            };
            let seqs: Vec<_> = parts.iter().map(seq).collect();
            run(&mut gpu, &seqs).await;
            oracle.step(&Step { seqs: &seqs }).unwrap();
            let wanted = oracle.value(op.out);
            let got = gpu.value(*role, op.out, wanted.len() as u32).await.unwrap();
            let mut both = got.into_iter().zip(wanted.concat());
            let width = op.program.value(op.out).width as usize;
            results.extend(parts.iter().map(|part| both.by_ref().take(part.rows * width).collect::<Vec<_>>()));
        }
        (results, gpu.modules())
    }

    /// The bits of a sequence's results, whatever the parts that they came in.
    pub async fn bits_of(&self, device: &Device, seq: usize) -> Vec<u32> {
        let Work::Parts { op, steps } = &self.work else { panic!("{} has no parts", self.name) };
        let (results, _) = self.parts(device, op, steps).await;
        let parts = steps.iter().flat_map(|(_, parts)| parts).zip(results).filter(|(part, _)| part.seq == seq);
        parts.flat_map(|(_, result)| result.into_iter().map(|(y, _)| y.to_bits())).collect()
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

/// A row of logits and what is drawn from it.
pub struct Pick {
    pub spec: SampleSpec,
    pub bias: Vec<(u32, f32)>,
    pub allowed: Option<Vec<u32>>,
    pub logits: Vec<f32>,
}

/// A program whose logits are its input.
pub fn given_logits(vocab: u32) -> OneOp {
    let mut op = OneOp::new(&[vocab], |b, x| b.pick(x[0]));
    op.program.outs = vec![Out::Logits(op.out)];
    op.program.vocab = vocab;
    op
}

/// With room for so many draws at once.
pub fn pick_limits(draws: u32) -> Limits {
    Limits { rows: draws, seqs: draws, outs: draws, checkpoints: 0, context: 1 << 20, ..limits() }
}

/// The tokens of a step that draws from every row at a position.
pub async fn pick(
    executor: &mut impl Executor,
    picks: &[Pick],
    pos: u32,
    seen: &[Vec<[u32; 2]>],
    pending: u32,
) -> Vec<Option<u32>> {
    pick_and_tell(executor, picks, pos, seen, pending, &|_| None).await.0
}

/// The same with probabilities: of how many tokens, by row.
async fn pick_and_tell(
    executor: &mut impl Executor,
    picks: &[Pick],
    pos: u32,
    seen: &[Vec<[u32; 2]>],
    pending: u32,
    logprobs: &dyn Fn(usize) -> Option<u32>,
) -> (Vec<Option<u32>>, Vec<Vec<Logprob>>) {
    let lists = |i: usize| SampleLists {
        counts: seen.get(i).map_or(&[], Vec::as_slice),
        pending,
        bias: &picks[i].bias,
        allowed: picks[i].allowed.as_deref(),
        logprobs: logprobs(i),
        ..SampleLists::default()
    };
    let seq = |(i, pick): (usize, &Pick)| SeqStep {
        lists: lists(i),
        ..drawing(rows(i as u32, Role::Generated, &[Token::Host(0)], pos - 1, &[]), pick.spec)
    };
    let seqs: Vec<_> = picks.iter().enumerate().map(seq).collect();
    executor.enqueue(&Step { seqs: &seqs }).unwrap();
    executor.wait().await.unwrap();
    let (mut tokens, mut told) = (Vec::new(), Vec::new());
    let mut take = |out: &StepOut| {
        tokens.extend(out.drawn.iter().map(|d| d.token));
        told.extend_from_slice(&out.logprobs);
    };
    while executor.poll(&mut |_, out| take(out.unwrap())) == 0 {
        executor.wait().await.unwrap();
    }
    (tokens, told)
}

/// Whether probabilities are the same but for rounding.
fn same_logprobs(a: &[Vec<Logprob>], b: &[Vec<Logprob>]) -> bool {
    let same = |(a, b): (&Logprob, &Logprob)| a.token == b.token && (a.logprob - b.logprob).abs() < 1e-4;
    let row = |(a, b): (&Vec<Logprob>, &Vec<Logprob>)| a.len() == b.len() && a.iter().zip(b).all(same);
    a.len() == b.len() && a.iter().zip(b).all(row)
}

/// Every kind of draw, all in one dispatch: filters alone and together, penalties, biases, maps, ties, rows without a token.
fn all_picks(vocab: u32, deviation: f32) -> Vec<Pick> {
    let base = SampleSpec { temperature: 0.8, seed: 0x1234_5678_9abc, ..SampleSpec::GREEDY };
    let penalties = Penalties { repeat: 1.3, presence: 0.2, frequency: 0.15 };
    let specs = [
        SampleSpec::GREEDY,
        base,
        SampleSpec { top_k: 40, ..base },
        SampleSpec { top_p: 0.9, ..base },
        SampleSpec { min_p: 0.1, ..base },
        SampleSpec { top_k: 40, top_p: 0.95, min_p: 0.05, ..base },
        SampleSpec { top_k: 1, ..base },
        SampleSpec { top_k: 300, top_p: 0.999, temperature: 3.0, ..base },
        SampleSpec { top_p: 0.00001, ..base },
        SampleSpec { top_p: 0.99, temperature: 0.01, ..base },
        SampleSpec { temperature: 0.0, penalties, ..base },
        SampleSpec { top_k: 50, top_p: 0.97, penalties, ..base },
        SampleSpec { penalties, ..base },
        SampleSpec { top_k: 2, temperature: 1e-30, ..base },
    ];
    let mut rng = Rng(u64::from(vocab) + 17);
    let mut picks = Vec::new();
    for (i, spec) in specs.into_iter().enumerate() {
        let mut logits = rng.normals(vocab as usize, deviation);
        match i % 4 {
            // Ties, some of them across the cut; zeros of both signs; all the same.
            1 => logits.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0 + 3.0),
            2 => logits.iter_mut().for_each(|x| *x = (x.min(-0.0)).round()),
            3 if i == 7 => logits.fill(1.5),
            _ => {}
        }
        let token = |i: usize| (i as u32 * 7919) % vocab;
        let mut bias: Vec<_> =
            (0..if i % 3 == 0 { 9.min(vocab as usize) } else { 0 }).map(|j| (token(j), j as f32 - 3.0)).collect();
        bias.sort_by_key(|(token, _)| *token);
        bias.dedup_by_key(|(token, _)| *token);
        let allowed = (i % 5 == 2).then(|| (0..vocab.div_ceil(32)).map(|_| rng.word() as u32 | 1).collect());
        picks.push(Pick { spec, bias, allowed, logits });
    }
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut logits = rng.normals(vocab as usize, deviation);
        let at = rng.below(vocab as usize);
        logits[at] = broken;
        let spec = if broken.is_nan() { base } else { SampleSpec { top_k: 5, top_p: 0.5, ..base } };
        picks.push(Pick { spec, bias: vec![], allowed: None, logits });
    }
    for top_k in [0, 7] {
        let nothing = Some(vec![0; vocab.div_ceil(32) as usize]);
        let logits = rng.normals(vocab as usize, deviation);
        picks.push(Pick { spec: SampleSpec { top_k, ..base }, bias: vec![], allowed: nothing, logits });
    }
    picks
}

/// The share of tokens that a device draws otherwise than the CPU, over some positions. Penalties see the tokens drawn before, the last
/// three of which the host is not supposed to know.
async fn picks(device: &Device, vocab: u32, deviation: f32) -> (f64, Vec<String>) {
    let op = given_logits(vocab);
    let picks = all_picks(vocab, deviation);
    let limits = pick_limits(picks.len() as u32);
    let mut gpu = GpuExecutor::load(
        device,
        &op.program,
        &CpuWeights::default(),
        GpuOptions { limits, keep_values: true, ..options(Numerics::Exact) },
        &mut |_, _| {},
    )
    .await
    .unwrap();
    let cpu = CpuOptions { threads: Some(1), keep_values: true, ..CpuOptions::new(limits) };
    let mut cpu = CpuExecutor::new(&op.program, Arc::default(), cpu).unwrap();
    let logits: Vec<f32> = picks.iter().flat_map(|pick| pick.logits.iter().copied()).collect();
    gpu.set_value(Role::Generated, op.inputs[0], &logits);
    cpu.set_value(op.inputs[0], &logits).unwrap();
    let mut history: Vec<Vec<u32>> = vec![Vec::new(); picks.len()];
    let (mut different, mut all) = (0, 0);
    for step in 0..8 {
        let pending = 3.min(step);
        let counts = |tokens: &Vec<u32>| {
            let mut known = tokens[..tokens.len() - pending].to_vec();
            known.sort_unstable();
            known.chunk_by(|a, b| a == b).map(|same| [same[0], same.len() as u32]).collect()
        };
        let seen: Vec<Vec<[u32; 2]>> = history.iter().map(counts).collect();
        let pos = 14 + step as u32;
        // Of none, of the drawn one alone, of a few, of as many as there may be.
        let logprobs = |i| if step == 5 { [None, Some(0), Some(3), Some(LOGPROBS)][i % 4] } else { None };
        let (wanted, told) = pick_and_tell(&mut cpu, &picks, pos, &seen, pending as u32, &logprobs).await;
        let (got, got_told) = pick_and_tell(&mut gpu, &picks, pos, &seen, pending as u32, &logprobs).await;
        assert!(same_logprobs(&told, &got_told), "{told:?} {got_told:?}");
        different += got.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        all += wanted.len();
        assert!(wanted[wanted.len() - 5..].iter().all(Option::is_none), "{wanted:?}");
        assert!(wanted[..wanted.len() - 5].iter().all(Option::is_some), "{wanted:?}");
        history.iter_mut().zip(&wanted).for_each(|(history, token)| history.push(token.unwrap_or(0)));
    }
    (different as f64 / all as f64, gpu.modules())
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
    GpuOptions { numerics, kv: None, limits: limits(), unfused: false, keep_values: false }
}

/// An op as prompt and as generated rows, in such numbers.
fn ops(what: &str, op: &OneOp, format: BlockFormat, rows: &[usize], deviation: f32, bound: f64) -> Vec<Case> {
    let case = |role, rows| Case {
        name: format!("{what}, {role:?}, {rows} rows"),
        formats: vec![format],
        numerics: Numerics::Exact,
        unfused: true,
        tuning: "",
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

/// Rows and columns of W: below, at and above the tiles of the kernels; the long ones thin, to be short.
const SHAPES: [(u32, u32); 7] = [(1, 14_336), (7, 4128), (33, 1056), (64, 544), (65, 288), (200, 96), (513, 32)];

/// Matrix times matrix in whole numbers: each format of whole numbers, rows of W and columns and rows of x pair by pair, with every
/// epilogue. The bound is that of activations in eight bits.
pub fn dots() -> Vec<Case> {
    products("matmul = dot", |format| format.has_ints(), 0..7, 5e-4)
}

/// The same in f16 by cooperative matrices: every format in one shape, in others in another turn.
pub fn cooperative(turn: usize) -> Vec<Case> {
    products("matmul = cooperative", |_| true, turn..turn + 1, 1e-6)
}

/// Whatever the table or a file says of a format, products are right: threads, rows of W and rows of x pair by pair.
pub fn tunings() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, lanes) in [4, 16, 32, 64, 256].into_iter().enumerate() {
        for (j, fours) in [1, 2, 4].into_iter().enumerate() {
            let format = BlockFormat::ALL[(3 * i + j) % BlockFormat::ALL.len()];
            let of = |name: &str, number| format!("{name}.{} = {number}\n", format.info().name);
            let batch = [1, 2, 4][(i + j) % 3];
            let tuning = [of("lanes", lanes), of("fours", fours), of("fours_batch", batch)].concat().leak();
            let op = OneOp::new(&[768], |b, x| {
                let w = b.weight("w", 65, 768);
                b.linear("y", x[0], w, None)
            });
            let what = format!("linear {format:?}, lanes {lanes}, fours {fours}, fours_batch {batch}");
            let rows = ops(&what, &op, format, &[1, 7], 1.0, EXACT);
            let generated = |case: &Case| matches!(case.work, Work::Op { role: Role::Generated, .. });
            cases.extend(rows.into_iter().filter(generated).map(|case| Case { tuning, ..case }));
        }
    }
    cases
}

/// Products of formats, each in several of the shapes.
fn products(tuning: &'static str, has: fn(&BlockFormat) -> bool, shapes: Range<usize>, bound: f64) -> Vec<Case> {
    const ROWS: [usize; 7] = [1, 7, 33, 64, 65, 200, 513];
    let mut cases = Vec::new();
    for (f, format) in BlockFormat::ALL.iter().copied().filter(has).enumerate() {
        for i in shapes.clone().map(|i| i + f * shapes.len() % 7) {
            let (n, k) = SHAPES[i % 7];
            // Of floats, there may be any number.
            let weights = format.info().weights as u32;
            let k = if weights == 1 { k - 5 } else { k.next_multiple_of(weights) };
            // A single element may be as near to 0 as it likes.
            let rows = if n == 1 { ROWS[(i + f) % 7].max(7) } else { ROWS[(i + f) % 7] };
            // One of each format: compiling takes longer than computing.
            let epilogue = (f + shapes.start) % 4;
            let inputs = if epilogue == 1 { &[k, n][..] } else { &[k] };
            let op = OneOp::new(inputs, |b, x| {
                let w = b.weight("w", n, k);
                let bias = (n % 2 == 1).then(|| b.vector("b", n));
                let y = b.linear("y", x[0], w, bias);
                match epilogue {
                    0 => y,
                    1 => b.add("sum", x[1], y),
                    2 => b.act("act", y, Act::GeluTanh),
                    _ => {
                        let act = b.act("act", y, Act::Silu);
                        let w = b.weight("up", n, k);
                        let bias = (n % 2 == 1).then(|| b.vector("up_b", n));
                        let up = b.linear("up", x[0], w, bias);
                        b.mul("gated", act, up)
                    }
                }
            });
            cases.push(Case {
                name: format!("{tuning}, ({n}, {k}) {format:?}, {rows} rows, epilogue {epilogue}"),
                formats: vec![format],
                numerics: Numerics::Fast,
                unfused: false,
                tuning,
                bound,
                work: Work::Op { op, role: Role::Prompt, rows, deviation: 1.0 },
            });
        }
    }
    cases
}

/// Each format's decoder alone, and in the kernels of W x for few rows and for many.
pub fn formats() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, &format) in BlockFormat::ALL.iter().enumerate() {
        for k in [format.info().weights as u32 * 3, 512] {
            let op = OneOp::new(&[], |b, _| b.embed("table", Index::Token, 60, k, 1.0));
            cases.extend(ops(&format!("embed {format:?} of {k}"), &op, format, &[9], 1.0, 1e-12));
        }
        // Three of the shapes each, so that any two of a format, rows of W, columns and rows of x meet in some case.
        for (shift, rows) in [(0, [1, 8]), (2, [2, 7]), (3, [5, 65])] {
            let (n, k) = SHAPES[(i + shift) % SHAPES.len()];
            let k = k.next_multiple_of(format.info().weights as u32);
            let op = OneOp::new(&[k], |b, x| {
                let w = b.weight("w", n, k);
                b.linear("y", x[0], w, None)
            });
            cases.extend(ops(&format!("linear ({n}, {k}) {format:?}"), &op, format, &rows, 1.0, EXACT));
        }
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
        ("embed of types", OneOp::new(&[], |b, _| b.embed("table", Index::Type, 2, 96, 1.0))),
        ("embed of positions", OneOp::new(&[], |b, _| b.embed("table", Index::Position(2), 60, 63, 1.0))),
    ] {
        for format in [F32, F16, Q8_0, Q4_1] {
            cases.extend(ops(&format!("{what} {format:?}"), &op, format, &[9], 1.0, 0.0));
        }
    }
    cases
}

pub fn route() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, spec) in route_specs().into_iter().enumerate() {
        let op = OneOp::new(&[spec.experts], |b, x| {
            let bias = (i % 2 == 1).then(|| b.vector("bias", spec.experts));
            b.route("y", x[0], bias, spec)
        });
        cases.extend(ops(&format!("route {i}, {spec:?}"), &op, F32, &[37], 2.0, EXACT));
    }
    cases
}

pub fn expert_layers() -> Vec<Case> {
    let mut cases = Vec::new();
    for (count, used, shape, formats) in [
        (1, 1, [1, 1, 1], &[F32][..]),
        (3, 2, [65, 63, 5], &[F32, F16]),
        (17, 4, [64, 96, 33], &[Q8_0, F16, Q4_1]),
        (5, 5, [64, 70, 64], &[BF16]),
        (40, 8, [256, 32, 96], &[Q4_1]),
    ] {
        let biased = count != 17;
        let op = OneOp::new(&[count, shape[0]], |b, x| experts(b, x, plain(count, used), shape, biased));
        for mut case in
            ops(&format!("{used} of {count} experts, {shape:?} {formats:?}"), &op, F32, &[1, 9, 63], 1.0, LONG)
        {
            case.formats = formats.to_vec();
            cases.push(case);
        }
    }
    cases
}

/// Each format's decoder in the kernels of many matrices.
pub fn expert_formats() -> Vec<Case> {
    let mut cases = Vec::new();
    for &format in BlockFormat::ALL {
        let op = OneOp::new(&[3, 256], |b, x| {
            let chosen = b.route("route", x[0], None, plain(3, 2));
            let w = (0..3).map(|e| b.weight(&format!("w.{e}"), 10, 256)).collect();
            b.expert_linear("y", x[1], chosen, w, Vec::new())
        });
        cases.extend(ops(&format!("expert_linear {format:?}"), &op, format, &[7], 1.0, EXACT));
    }
    cases
}

/// Heads that have a matrix each, are joined, and combined.
pub fn heads() -> Vec<Case> {
    let mut cases = Vec::new();
    for (heads, n, k) in [(1, 1, 1), (3, 65, 63), (5, 32, 64), (16, 7, 96)] {
        let op = OneOp::new(&[heads * k], |b, x| {
            let matrices = (0..heads).map(|h| b.weight(&format!("w.{h}"), n, k)).collect();
            b.head_linear("y", x[0], matrices)
        });
        let format = if k.is_multiple_of(32) { Q8_0 } else { F32 };
        cases.extend(ops(&format!("head_linear {heads} x ({n}, {k})"), &op, format, &[1, 63], 1.0, EXACT));
        let op = OneOp::new(&[heads * n, heads * k], |b, x| b.join("y", x[0], x[1], heads));
        cases.extend(ops(&format!("join {heads} x {n} + {k}"), &op, F32, &[7], 1.0, 0.0));
        let op = OneOp::new(&[heads * n, 5], |b, x| b.combine("y", x[0], x[1], 2, 1));
        cases.extend(ops(&format!("combine {heads} x {n}"), &op, F32, &[7], 1.0, EXACT));
    }
    cases
}

/// Ops on whole rows, and one row for all of a sequence.
pub fn row_wise() -> Vec<Case> {
    let mut cases = Vec::new();
    for n in [1, 63, 257] {
        let mut each = |what: &str, op: &OneOp, bound| {
            cases.extend(ops(&format!("{what} of {n}"), op, F32, &[7], 3.0, bound));
        };
        let magnitude = |floor| OneOp::new(&[n, n], move |b, x| b.magnitude("y", x[0], x[1], floor));
        each("magnitude", &magnitude(1e-5), EXACT);
        each("magnitude, by the floor", &magnitude(100.0), EXACT);
        each("sparsify", &OneOp::new(&[n], |b, x| b.sparsify("y", x[0], 0.7)), EXACT);
        for weights in [n, 1] {
            let op = OneOp::new(&[n], |b, x| {
                let weight = b.vector("w", weights);
                b.weigh("y", x[0], weight)
            });
            each(&format!("weigh by {weights}"), &op, EXACT);
        }
        for (pooling, bound) in [(Pooling::Mean, EXACT), (Pooling::Cls, 0.0), (Pooling::Last, 0.0)] {
            each(&format!("pool {pooling:?}"), &OneOp::new(&[n], |b, x| b.pool(x[0], pooling)), bound);
        }
    }
    cases
}

/// Positions of a sequence of a recurrent op.
const POSITIONS: usize = 60;

/// One sequence by chunks of `chunk` rows, and from the third step on, with another, all in the same role.
fn chunks(role: Role, chunk: usize, company: bool) -> Vec<(Role, Vec<Part>)> {
    let part = |seq, step: usize| Part { seq, pos: step * chunk, rows: chunk.min(POSITIONS - step * chunk) };
    let step = |i: usize| {
        let mut parts = vec![part(0, i)];
        if company && i >= 2 {
            parts.insert(i % 2, part(1, i - 2));
        }
        (role, parts)
    };
    (0..POSITIONS.div_ceil(chunk)).map(step).collect()
}

fn recurrent_case((name, op): &(String, OneOp), format: BlockFormat, steps: Vec<(Role, Vec<Part>)>) -> Case {
    Case {
        name: format!("{name}, {format:?}, {} steps", steps.len()),
        formats: vec![format],
        numerics: Numerics::Exact,
        unfused: true,
        tuning: "",
        bound: EXACT,
        work: Work::Parts { op: op.clone(), steps },
    }
}

/// Recurrent ops: a second sequence joins late, roles change in the middle of a tile, a sequence begins again in its slot.
pub fn recurrences() -> Vec<Case> {
    let mut cases = Vec::new();
    let (prompt, generated) = (Role::Prompt, Role::Generated);
    for op in &recurrent() {
        let at = |seq, pos, rows| Part { seq, pos, rows };
        let steps = vec![
            (prompt, vec![at(0, 0, 21)]),
            (generated, vec![at(0, 21, 1)]),
            (prompt, vec![at(1, 0, 5), at(0, 22, 17)]),
            (generated, vec![at(0, 39, 2), at(1, 5, 1)]),
            (prompt, vec![at(1, 6, 30)]),
            (prompt, vec![at(0, 0, 19), at(1, 36, 3)]),
        ];
        cases.push(recurrent_case(op, F32, steps));
    }
    cases
}

/// The same sequence cut in every way, as prompt and as generated rows, alone and in company: the same bits of each role.
pub fn recurrent_cuts(op: &(String, OneOp), role: Role) -> Vec<Case> {
    let cuts = [(60, false), (1, false), (3, true), (16, true), (7, false)];
    cuts.into_iter().map(|(chunk, company)| recurrent_case(op, F32, chunks(role, chunk, company))).collect()
}

/// Each format's decoder in the convolution.
pub fn conv_formats() -> Vec<Case> {
    let of = |&format: &BlockFormat| {
        let op = conv(5, (format.info().weights as u32).max(4));
        recurrent_case(&op, format, chunks(Role::Prompt, 30, true))
    };
    BlockFormat::ALL.iter().map(of).collect()
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
                    tuning: "",
                    bound,
                    work: Work::Attend(case.clone()),
                });
            }
        }
    }
    cases
}

/// Attention over caches of every layout and storage type, by every kernel.
pub fn attend_caches() -> Vec<Case> {
    let case = |case: CacheCase| Case {
        name: format!("{case:?}"),
        formats: Vec::new(),
        numerics: Numerics::Exact,
        unfused: true,
        tuning: "",
        bound: ATTEND,
        work: Work::AttendTo(case),
    };
    cache_cases::caches().into_iter().map(case).collect()
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
        // Its other forms have cases of their own, and not the rounding of f16 alone.
        tuning: "matmul = registers",
        bound: if numerics == Numerics::Exact { EXACT } else { HALF_MODEL },
        work: Work::Model { program: program.clone(), rows, kv: numerics.kv() },
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
        ("qwen3", llama(Shape { head_norms: true, ..shape }), &[Q8_0, F32]),
    ] {
        for (numerics, unfused) in [(Numerics::Exact, false), (Numerics::Exact, true), (Numerics::Fast, false)] {
            cases.push(model(what, &program, formats, numerics, unfused, 70));
        }
    }
    // Keys and values in 8 bits, written by each kernel that can: by itself, behind a rotation, behind norms of heads.
    let normed = llama(Shape { head_norms: true, ..shape });
    for (program, unfused) in [(llama(odd), true), (llama(odd), false), (normed, false)] {
        let mut case = model("8-bit pages", &program, &[F32], Numerics::Exact, unfused, 70);
        case.bound = EIGHT_BIT_MODEL;
        if let Work::Model { kv, .. } = &mut case.work {
            *kv = KvStorage::Q8;
        }
        cases.push(case);
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
        tuning: "",
        bound: 0.0,
        work: Work::Draws { program: llama(Shape::SMALL), sample },
    };
    [SampleSpec::GREEDY, SampleSpec { temperature: 0.8, seed: 99, ..SampleSpec::GREEDY }].map(case).into()
}

/// Draws of every kind in small and large vocabularies; logits far apart and close together.
pub fn all_draws() -> Vec<Case> {
    let case = |(vocab, deviation)| Case {
        name: format!("draws in a vocabulary of {vocab}, deviation {deviation}"),
        formats: Vec::new(),
        numerics: Numerics::Exact,
        unfused: false,
        tuning: "",
        bound: 0.0,
        work: Work::Picks { vocab, deviation },
    };
    [(1, 1.0), (33, 3.0), (512, 3.0), (49_152, 4.0), (152_064, 0.5), (262_144, 3.0)].map(case).into()
}

/// Angles at positions near and far: the worst, as a share of what is allowed.
pub fn angles() -> Vec<Case> {
    alone(singles::angles())
}

fn alone(cases: Vec<Alone>) -> Vec<Case> {
    let case = |alone: Alone| Case {
        name: format!("{alone:?}"),
        formats: Vec::new(),
        numerics: Numerics::Exact,
        unfused: true,
        tuning: "",
        bound: alone.bound(),
        work: Work::Alone(alone),
    };
    cases.into_iter().map(case).collect()
}

/// Rotations on buffers of the caller's.
pub fn rotations() -> Vec<Case> {
    alone(singles::rotations())
}

/// KV writes in every layout and storage type, with and without norms and rotation.
pub fn writes() -> Vec<Case> {
    alone(singles::writes())
}

/// Replication of heads, copies of blocks.
pub fn copies() -> Vec<Case> {
    alone(singles::copies())
}

/// Products of matrices in buffers of the caller's.
pub fn single_products() -> Vec<Case> {
    alone(singles::products())
}

pub fn softmaxes() -> Vec<Case> {
    alone(singles::softmaxes())
}

/// What a browser runs, which takes a third of a second for an op: every fused model, and ops in steps that meet each shape, role
/// and number of rows somewhere.
pub fn for_browsers() -> Vec<Case> {
    let each = |cases: Vec<Case>, step| cases.into_iter().step_by(step);
    let ops = each(linear(), 5)
        .chain(each(formats(), 3))
        .chain(each(dots(), 7))
        .chain(each(norm(), 1))
        .chain(each(pointwise(), 5));
    let ops = ops.chain(each(rope(), 1)).chain(each(moves(), 3)).chain(each(attend(), 7));
    let ops = ops.chain(attend_caches().into_iter().enumerate().filter(|(i, _)| *i < 21 || i % 3 == 0).map(|c| c.1));
    let ops =
        ops.chain(each(route(), 9)).chain(each(expert_layers(), 3)).chain(each(heads(), 2)).chain(each(row_wise(), 3));
    let ops = ops.chain(each(expert_formats(), 1)).chain(each(recurrences(), 2)).chain(each(conv_formats(), 1));
    let singles = each(rotations(), 5).chain(each(writes(), 2)).chain(each(copies(), 1)).chain(each(softmaxes(), 2));
    let singles = singles.chain(angles()).chain(each(single_products(), 3));
    let models = models().into_iter().filter(|case| !case.unfused);
    let draws = draws().into_iter().chain(all_draws().into_iter().take(4));
    ops.chain(singles).chain(models).chain(model_formats()).chain(draws).collect()
}
