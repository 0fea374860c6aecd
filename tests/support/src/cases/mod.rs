//! The cases of every kernel, natively and in a browser: programs of one op over odd shapes and small models, against the f64
//! oracle.
use std::ops::Range;
use std::sync::Arc;
use wgslm::exec::{
    CpuExecutor, CpuOptions, Executor, GpuExecutor, GpuOptions, Limits, Numerics, Oracle, Outs, Phase, Sampled,
    SeqStep, Step, StepOut, Token,
};
use wgslm::gpu::Device;
use wgslm::model::Out;
use wgslm::model::Program;
use wgslm::ops::{
    Act, CpuWeights, Index, KvStorage, LOGPROBS, Logprob, NormKind, NormSpec, Pairing, Penalties, Pooling, RopeSpec,
    Rows, SampleLists, SampleSpec,
};
use wgslm::quant::BlockFormat::{self, BF16, F16, F32, Q4_0, Q4_1, Q8_0};

use crate::programs::{self, *};
use crate::singles::{self, Alone};
use attend::AttendCase;
use cache::CacheCase;

pub mod attend;
mod by_kernel;
pub mod cache;
mod lists;
mod samples;
mod shares;

pub use by_kernel::of_kernel;
pub use lists::*;
pub use samples::*;

/// NMSE of f32 arithmetic against f64: element by element, and where sums are long.
pub const EXACT: f64 = 1e-10;
/// Of attention, whose exponentials differ between drivers.
const ATTEND: f64 = 1e-9;
/// Of several ops after each other whose sums are long.
const LONG: f64 = 1e-9;
/// NMSE with an f16 cache: of attention alone, and of a model.
const HALF: f64 = 1e-6;
const HALF_MODEL: f64 = 1e-5;
/// NMSE with an 8-bit cache.
const INT8_MODEL: f64 = 1e-3;

/// The value where nothing may be written, and how many rows of it follow the last one.
const CANARY: f32 = -77_777.0;
const AFTER: u32 = 5;

/// The row of inputs that is extreme, and what is element `j` of input `i` in it.
const EXTREME: usize = 1;
fn extreme_number(i: usize, j: usize) -> f32 {
    [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38][(i + j) % 5]
}

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
    /// The largest NMSE; of samples and answers, the share that differs.
    pub bound: f64,
    work: Work,
}

/// Some rows of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct SeqChunk {
    /// The sequence, and its slot: 0 or 1.
    pub seq: usize,
    pub pos: usize,
    pub rows: usize,
}

#[derive(Clone)]
enum Work {
    /// One op over random rows; extreme: one of them is NaN, infinities and huge numbers.
    Op { op: OneOp, phase: Phase, rows: usize, deviation: f32, extreme: bool },
    /// Attention over what sequences have kept.
    Attend(AttendCase),
    /// One recurrent op over parts of two sequences, in steps that have one phase each.
    Recurrent { op: OneOp, steps: Vec<(Phase, Vec<SeqChunk>)> },
    /// Attention as a single op.
    AttendTo(CacheCase),
    /// Prompts and decode rows of two sequences; the first prompt has `rows` rows.
    Model { program: Program, rows: usize, kv: KvStorage },
    /// Tokens that are sampled on the device and never seen by the host before they are fed back.
    Samples { program: Program, sample: SampleSpec },
    /// Requests that share what they have in common.
    Shares { program: Program },
    /// Tokens sampled from logits that the host gives, in such a vocabulary.
    Picks { vocab: u32, deviation: f32 },
    /// A single op on buffers of the caller's.
    Alone(Alone),
}

impl Case {
    /// Its distance from the oracle on a device, and the shader modules that it ran.
    pub async fn distance(&self, device: &Device) -> (f64, Vec<String>) {
        let device = &device.tuned(self.tuning).unwrap();
        match &self.work {
            Work::Op { op, phase, rows, deviation, extreme } => {
                self.op(device, op, *phase, *rows, *deviation, *extreme).await
            }
            Work::AttendTo(case) => case.distance(device).await,
            Work::Attend(case) => {
                let (got, wanted, modules) = case.outputs(device, self.numerics).await;
                (nmse(&got, &wanted), modules)
            }
            Work::Recurrent { op, steps } => {
                let (results, modules) = self.parts(device, op, steps).await;
                let (got, wanted) = results.concat().into_iter().unzip::<f32, f64, Vec<_>, Vec<_>>();
                (nmse(&got, &wanted), modules)
            }
            Work::Model { program, rows, .. } => self.model(device, program, *rows).await,
            Work::Samples { program, sample } => self.samples(device, program, *sample).await,
            Work::Shares { program } => {
                let weights = random_weights(program, &self.formats, &mut Rng(17));
                shares::different(self.gpu(device, program, &weights, false).await, program).await
            }
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
        match &self.work {
            Work::Op { rows, .. } => {
                let (rows, usual) = (*rows as u32, limits());
                Limits { rows: usual.rows.max(rows + AFTER), context: usual.context.max(rows), ..usual }
            }
            Work::Recurrent { steps, .. } => {
                let rows = steps.iter().map(|(_, parts)| parts.iter().map(|part| part.rows as u32).sum());
                Limits { rows: rows.max().unwrap_or(0).max(limits().rows), ..limits() }
            }
            Work::Shares { .. } => Limits { checkpoints: 8, ..limits() },
            _ => limits(),
        }
    }

    async fn op(
        &self,
        device: &Device,
        op: &OneOp,
        phase: Phase,
        rows: usize,
        deviation: f32,
        extreme: bool,
    ) -> (f64, Vec<String>) {
        let mut rng = Rng(rows as u64 + 1);
        let weights = random_weights(&op.program, &self.formats, &mut rng);
        let mut gpu = self.gpu(device, &op.program, &weights, true).await;
        let mut oracle = Oracle::new(&op.program, weights, self.limits());
        let result = op.program.value(op.out);
        let rows_of_value = match result.rows {
            Rows::Step => self.limits().rows,
            Rows::Outs => self.limits().outs,
            Rows::Seqs => self.limits().seqs,
        };
        // Before the inputs, one of which may be the result.
        gpu.set_value(phase, op.out, &vec![CANARY; (rows_of_value * result.width) as usize]);
        for (i, &id) in op.inputs.iter().enumerate() {
            let width = op.program.value(id).width as usize;
            let mut values = rng.normals(rows * width, deviation);
            if extreme {
                let row = values[EXTREME * width..].iter_mut().take(width);
                row.enumerate().for_each(|(j, x)| *x = extreme_number(i, j));
            }
            gpu.set_value(phase, id, &values);
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
            ..programs::rows(slot, phase, &tokens[span], 0, table)
        };
        let mut seqs = vec![seq(0, 0..first, &tables[0])];
        if rows > first {
            seqs.push(seq(1, first..rows, &tables[1]));
        }
        run(&mut gpu, &seqs).await;
        oracle.step(&Step { seqs: &seqs }).unwrap();
        let mut wanted = oracle.value(op.out).concat();
        let mut got = gpu.value(phase, op.out, rows_of_value).await.unwrap();
        let rest = got.split_off(wanted.len());
        assert!(got.iter().all(|x| *x != CANARY), "{}: an element was not written", self.name);
        assert!(rest.iter().all(|x| *x == CANARY), "{}: a row past the last was written", self.name);
        if extreme {
            // It must not show in other rows. In its own, what is not finite must not become so, and NaN stays NaN.
            let own = EXTREME * result.width as usize..(EXTREME + 1) * result.width as usize;
            let row = got.drain(own.clone()).zip(wanted.drain(own));
            for (j, (got, wanted)) in row.enumerate() {
                let nan = (0..op.inputs.len()).any(|i| extreme_number(i, j).is_nan());
                let kept = wanted.is_finite() || if nan { got.is_nan() } else { !got.is_finite() };
                assert!(kept, "{}: element {j} of the extreme row is {got}, not {wanted}", self.name);
            }
        }
        (nmse(&got, &wanted), gpu.modules())
    }

    /// The result of each part, step by step, and the oracle's.
    async fn parts(
        &self,
        device: &Device,
        op: &OneOp,
        steps: &[(Phase, Vec<SeqChunk>)],
    ) -> (Vec<Vec<(f32, f64)>>, Vec<String>) {
        let mut rng = Rng(5);
        let weights = random_weights(&op.program, &self.formats, &mut rng);
        let mut gpu = self.gpu(device, &op.program, &weights, true).await;
        let mut oracle = Oracle::new(&op.program, weights, self.limits());
        let inputs: Vec<[Vec<f32>; 2]> = op
            .inputs
            .iter()
            .map(|&id| {
                let width = op.program.value(id).width as usize;
                [(); 2].map(|()| rng.normals(POSITIONS * width, 1.0))
            })
            .collect();
        let mut results = Vec::new();
        for (phase, parts) in steps {
            for (&id, values) in op.inputs.iter().zip(&inputs) {
                let width = op.program.value(id).width as usize;
                let of = |part: &SeqChunk| &values[part.seq][part.pos * width..(part.pos + part.rows) * width];
                let values = parts.iter().map(of).collect::<Vec<_>>().concat();
                gpu.set_value(*phase, id, &values);
                let wide = values.chunks(width).map(|row| row.iter().copied().map(f64::from).collect());
                oracle.set_value(id, wide.collect());
            }
            let tokens = host(&[0; POSITIONS]);
            let seq = |part: &SeqChunk| SeqStep {
                outs: Outs::Last,
                read_logits: false,
                ..rows(part.seq as u32, *phase, &tokens[..part.rows], part.pos as u32, &[])
            };
            let seqs: Vec<_> = parts.iter().map(seq).collect();
            run(&mut gpu, &seqs).await;
            oracle.step(&Step { seqs: &seqs }).unwrap();
            let wanted = oracle.value(op.out);
            let got = gpu.value(*phase, op.out, wanted.len() as u32).await.unwrap();
            let mut both = got.into_iter().zip(wanted.concat());
            let width = op.program.value(op.out).width as usize;
            results.extend(parts.iter().map(|part| both.by_ref().take(part.rows * width).collect::<Vec<_>>()));
        }
        (results, gpu.modules())
    }

    /// The bits of a sequence's results, whatever the parts that they came in.
    pub async fn bits_of(&self, device: &Device, seq: usize) -> Vec<u32> {
        let Work::Recurrent { op, steps } = &self.work else { panic!("{} has no recurrent op", self.name) };
        let (results, _) = self.parts(device, op, steps).await;
        let parts = steps.iter().flat_map(|(_, parts)| parts).zip(results).filter(|(part, _)| part.seq == seq);
        parts.flat_map(|(_, result)| result.into_iter().map(|(y, _)| y.to_bits())).collect()
    }

    /// Over shuffled pages full of NaN: a prompt, a second sequence that joins late, then both generate in one step. Every logit.
    async fn model(&self, device: &Device, program: &Program, n: usize) -> (f64, Vec<String>) {
        let mut rng = Rng(100);
        let weights = random_weights(program, &self.formats, &mut rng);
        let mut gpu = self.gpu(device, program, &weights, false).await;
        let worst = from_oracle(&mut gpu, program, weights, n, &mut rng).await;
        assert!(gpu.counts(Phase::Decode).1 <= 8, "storage bindings");
        (worst, gpu.modules())
    }

    /// The distance from the oracle of a whole model on the processor, and how far it may be; none of other cases.
    pub async fn on_processor(&self) -> Option<(f64, f64)> {
        /// With activations and pages of 8 and 16 bits.
        const FAST: f64 = 1e-3;
        let Work::Model { program, rows, kv } = &self.work else { return None };
        let mut rng = Rng(100);
        let weights = random_weights(program, &self.formats, &mut rng);
        let options =
            CpuOptions { numerics: self.numerics, kv: Some(*kv), fuse: !self.unfused, ..CpuOptions::new(limits()) };
        let mut cpu = CpuExecutor::new(program, weights.clone(), options).unwrap();
        cpu.fill_caches(f32::NAN);
        let distance = from_oracle(&mut cpu, program, weights, *rows, &mut rng).await;
        Some((distance, if self.numerics == Numerics::Exact { self.bound } else { FAST }))
    }

    /// Two steps in flight, the token never seen by the host; as the CPU samples them.
    async fn samples(&self, device: &Device, program: &Program, sample: SampleSpec) -> (f64, Vec<String>) {
        let weights = random_weights(program, &self.formats, &mut Rng(11));
        let mut gpu = self.gpu(device, program, &weights, false).await;
        let got = sampled(&mut gpu, sample).await;
        let cpu = CpuOptions { threads: Some(1), numerics: self.numerics, ..CpuOptions::new(limits()) };
        let wanted = sampled(&mut CpuExecutor::new(program, weights, cpu).unwrap(), sample).await;
        assert_eq!((got.len(), wanted.len()), (21, 21));
        let different = got.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        (different as f64 / wanted.len() as f64, gpu.modules())
    }
}

/// Runs a prompt over shuffled pages, a second sequence that joins late, then both in one step; the largest NMSE of their logits.
async fn from_oracle(
    executor: &mut impl Executor,
    program: &Program,
    weights: Arc<CpuWeights>,
    n: usize,
    rng: &mut Rng,
) -> f64 {
    let mut oracle = Oracle::new(program, weights, limits());
    let mut pool = Pool::new(&limits(), rng);
    let tables = [pool.table(200, &limits()), pool.table(200, &limits())];
    let [a, b] = tables.each_ref().map(|table| [table.as_slice()]);
    let tokens: Vec<_> = (0..90).map(|_| Token::Host(rng.below(program.vocab as usize) as u32)).collect();
    let (decode, prefill) = (Phase::Decode, Phase::Prefill);
    let m = n / 2;
    let [at, next] = [n as u32, m as u32];
    let steps: &[&[SeqStep<'_>]] = &[
        &[rows(0, prefill, &tokens[..n], 0, &a)],
        &[rows(0, decode, &tokens[n..n + 1], at, &a), rows(1, prefill, &tokens[10..10 + m], 0, &b)],
        &[rows(0, decode, &tokens[n + 1..n + 2], at + 1, &a), rows(1, decode, &tokens[10 + m..11 + m], next, &b)],
        &[rows(0, decode, &tokens[n + 2..n + 14], at + 2, &a), rows(1, prefill, &tokens[11 + m..27 + m], next + 1, &b)],
    ];
    let mut worst = 0f64;
    for seqs in steps {
        let (logits, _) = run(executor, seqs).await;
        let distance = nmse(&logits, &oracle.step(&Step { seqs }).unwrap().concat());
        worst = if distance > worst || distance.is_nan() { distance } else { worst };
    }
    worst
}

/// The tokens of a sequence of 21, each fed back on the device.
async fn sampled(executor: &mut impl Executor, sample: SampleSpec) -> Vec<Option<u32>> {
    let table: Vec<u32> = (0..16).rev().collect();
    let tables = [table.as_slice()];
    let prompt = host(&[3, 1, 4, 1, 5]);
    let mut tokens = Vec::new();
    executor.enqueue(&Step { seqs: &[sampling(rows(2, Phase::Prefill, &prompt, 0, &tables), sample)] }).unwrap();
    for pos in 5..25 {
        let next = [sampling(rows(2, Phase::Decode, &[Token::Sampled], pos, &tables), sample)];
        executor.enqueue(&Step { seqs: &next }).unwrap();
        executor.wait().await.unwrap();
        executor.poll(&mut |_, out| tokens.extend(out.unwrap().sampled.iter().map(|d| d.token)));
    }
    executor.wait().await.unwrap();
    executor.poll(&mut |_, out| tokens.extend(out.unwrap().sampled.iter().map(|d| d.token)));
    tokens
}

/// Runs a step to its end; gives its logits and samples.
pub async fn run(executor: &mut impl Executor, seqs: &[SeqStep<'_>]) -> (Vec<f32>, Vec<Sampled>) {
    executor.enqueue(&Step { seqs }).unwrap();
    let mut result = None;
    while result.is_none() {
        executor.wait().await.unwrap();
        executor.poll(&mut |_, out| {
            let out = out.unwrap();
            result = Some((out.logits.clone(), out.sampled.clone()));
        });
    }
    result.unwrap()
}

pub fn options(numerics: Numerics) -> GpuOptions {
    GpuOptions { numerics, kv: None, limits: limits(), unfused: false, keep_values: false }
}
