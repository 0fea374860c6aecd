//! Runs a family of kernels, and samples, beside the host.

use std::sync::Arc;

use super::family::{ATTENTION, CONTEXT, Family, MATMUL, MATVEC, VOCAB};
use crate::exec::{
    CacheOp, CpuExecutor, CpuOptions, Executor, GpuExecutor, GpuOptions, Limits, Numerics, Oracle, Outs, Phase,
    SeqStep, Step, StepOut, Token,
};
use crate::file::Bytes;
use crate::gpu::{Caps, Device, Matmul, Matvec};
use crate::model::{Builder, Out, Program};
use crate::ops::sample::LOGPROBS;
use crate::ops::{
    Attend, CpuWeights, GroupId, Index, Kv, KvStorage, Logprob, Matrix, Op, Penalties, PerPhase, SampleLists,
    SampleSpec,
};
use crate::quant::BlockFormat;
use crate::{Error, Result};

const LIMITS: Limits =
    Limits { rows: 320, seqs: 16, outs: 32, block: 16, blocks: 32, context: CONTEXT, in_flight: 2, checkpoints: 1 };

/// Largest NMSE of a value in f32.
const EXACT: f64 = 1e-9;

/// Numbers of a known stream, evenly between -1 and 1.
struct Stream(u32);

impl Stream {
    fn take(&mut self, n: usize, size: f32) -> Vec<f32> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.0 >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..n).map(|_| next() * size).collect()
    }
}

fn matrix(format: BlockFormat, n: u32, k: u32, values: &[f32]) -> Result<Matrix> {
    let mut bytes = vec![0; format.row_bytes(u64::from(k))? as usize * n as usize];
    format.encode(values, &mut bytes)?;
    Matrix::new(Arc::new(Bytes::new("self-test", bytes)), 0, format, n, k)
}

/// Weights that keep the size of x and make attention peaky; F32 where rows are not whole blocks.
fn weights(program: &Program, format: BlockFormat) -> Result<Arc<CpuWeights>> {
    let mut stream = Stream(7);
    let mut weights = CpuWeights::default();
    for spec in &program.weights {
        let size = if spec.tensor.starts_with("embed") { 1.0 } else { 2.5 / (spec.k as f32).sqrt() };
        let values = stream.take(spec.n as usize * spec.k as usize, size);
        let fits = format.row_bytes(u64::from(spec.k)).is_ok();
        weights.matrices.push(matrix(if fits { format } else { BlockFormat::F32 }, spec.n, spec.k, &values)?);
    }
    for spec in &program.vectors {
        let centre = if spec.tensor.ends_with("norm.weight") { 1.0 } else { spec.add };
        let one = |x: f32| if spec.neg_exp { -x.exp() } else { centre + x };
        weights.vectors.push(stream.take(spec.n as usize, 0.5).into_iter().map(one).collect());
    }
    Ok(Arc::new(weights))
}

/// Prefill and decode rows of two sequences over pages in disorder, one of which moves to another slot and block in
/// between; then a row whose token the device sampled. Fails with the first op that is wrong. Returns the shader modules
/// that ran.
///
/// Matmul, matvec and attention of prompts use the usual variant.
pub(super) async fn family(
    device: &Device,
    family: &Family,
    format: BlockFormat,
    numerics: Numerics,
    kv: KvStorage,
) -> Result<Vec<String>> {
    let device = device.with_matmul(|_, _| Matmul::Registers).with_matvec(Matvec::Registers);
    compare(&device, family, format, numerics, kv, PerPhase::by(|_| EXACT)).await
}

/// Largest NMSE after two products in sequence with activations in int8.
const INT8: f64 = 1e-3;

/// The same for a program of matmuls alone, in the given variant, to which the device is tuned.
pub(super) async fn matmul(device: &Device, format: BlockFormat, form: Matmul) -> Result<Vec<String>> {
    // Largest NMSE after two matmuls in sequence.
    let bound = match form {
        Matmul::Registers => EXACT,
        Matmul::Dot => INT8,
        Matmul::F16 | Matmul::Cooperative => 1e-5, // in f16
    };
    let (device, bounds) = (device.with_matvec(Matvec::Registers), PerPhase { prefill: bound, decode: EXACT });
    compare(&device, &MATMUL, format, Numerics::Fast, KvStorage::F16, bounds).await
}

/// The same for a program of matvecs, with x in int8, however few its columns.
pub(super) async fn matvec(device: &Device, format: BlockFormat) -> Result<Vec<String>> {
    let device = device.with_matmul(|_, _| Matmul::Registers).with_matvec(Matvec::Dot).tuned("dot_k = 32")?;
    compare(&device, &MATVEC, format, Numerics::Fast, KvStorage::F16, PerPhase { prefill: EXACT, decode: INT8 }).await
}

/// The same for attention alone, by cooperative matrices.
pub(super) async fn attention(device: &Device, kv: KvStorage) -> Result<Vec<String>> {
    // In f16; int8 keys and values are the same in both variants.
    let bounds = PerPhase { prefill: 1e-4, decode: EXACT };
    compare(device, &ATTENTION, BlockFormat::F32, Numerics::Fast, kv, bounds).await
}

/// `bounds`: the largest NMSE of values that depend on no cache.
async fn compare(
    device: &Device,
    family: &Family,
    format: BlockFormat,
    numerics: Numerics,
    kv: KvStorage,
    bounds: PerPhase<f64>,
) -> Result<Vec<String>> {
    let program = (family.program)();
    let weights = weights(&program, format)?;
    let options = GpuOptions { numerics, kv: Some(kv), limits: LIMITS, unfused: false, keep_values: true };
    let gpu = GpuExecutor::load(device, &program, &*weights, options, &mut |_, _| {}).await?;
    gpu.fill_cache(0x7fc0_7e00); // NaN, in f32 and in f16
    let programs = PerPhase::by(|phase| gpu.program(phase).clone());
    let oracle = Oracle::of_phases(programs, weights, LIMITS);
    let mut both = Both { gpu, oracle, family, format, kv, bounds };

    let n = family.rows;
    let tokens: Vec<_> = (0..n as u32 + 4).map(|i| Token::Host((i * 37 + 5) % VOCAB)).collect();
    // 11 and 32 have no common divisor: neighbours are far apart, and the two sequences share no block.
    let blocks: Vec<u32> = (0..LIMITS.blocks).map(|i| i * 11 % LIMITS.blocks).collect();
    let (long, short) = blocks.split_at(24);
    let tables = [vec![long; program.groups as usize], vec![short; program.groups as usize]];
    fn seq<'a>(slot: u32, phase: Phase, pos: usize, tokens: &'a [Token], tables: &'a [&'a [u32]]) -> SeqStep<'a> {
        SeqStep { outs: Outs::Last, ..SeqStep::new(slot, phase, tokens, pos as u32, tables) }
    }
    let [prefill, decode] = [Phase::Prefill, Phase::Decode];
    let seqs = [seq(0, prefill, 0, &tokens[..n], &tables[0]), seq(1, prefill, 0, &tokens[7..12], &tables[1])];
    both.step(&seqs, &seqs).await?;
    if !program.needs_full_sequence() {
        // Few rows have kernel variants of their own.
        let few = [seq(1, prefill, 5, &tokens[12..15], &tables[1])];
        both.step(&few, &few).await?;
        if n > 64 {
            // A short prompt has smaller tiles than a long one.
            let short = [seq(1, prefill, 5, &tokens[12..52], &tables[1])];
            both.step(&short, &short).await?;
        }
        // A block of the first sequence becomes one of the second's that it does not need, and its states go to slot 2, both
        // through the checkpoint; what was there is gone.
        let (checkpoint, last) = (LIMITS.seqs, short[short.len() - 1]);
        let mut ops = vec![
            CacheOp::CopyState { from: 0, to: checkpoint },
            CacheOp::CopyState { from: 1, to: 0 },
            CacheOp::CopyState { from: checkpoint, to: 2 },
        ];
        for group in (0..program.groups).map(GroupId) {
            let (from, to) = (long[0], last);
            ops.extend([CacheOp::Copy { group, from, to }, CacheOp::Zero { group, block: from }]);
        }
        both.gpu.cache(&ops)?;
        both.oracle.cache(&ops);
        let mut moved = long.to_vec();
        moved[0] = last;
        let moved = vec![moved.as_slice(); program.groups as usize];

        let sample = program.logits().map(|_| SampleSpec::GREEDY);
        let first = SeqStep { sample, ..seq(2, decode, n, &tokens[n..n + 1], &moved) };
        let seqs = [first, seq(1, decode, 8, &tokens[15..18], &tables[1])];
        let sampled = both.step(&seqs, &seqs).await?.first().copied().flatten();
        let (known, fed) = ([Token::Host(sampled.unwrap_or(0))], [Token::Sampled]);
        let fed = if sampled.is_some() { fed } else { known };
        let next = |token| [seq(2, decode, n + 1, token, &moved)];
        both.step(&next(&fed), &next(&known)).await?;
    }
    Ok(both.gpu.modules())
}

/// A device beside the oracle.
struct Both<'a> {
    gpu: GpuExecutor,
    oracle: Oracle,
    family: &'a Family,
    format: BlockFormat,
    kv: KvStorage,
    bounds: PerPhase<f64>,
}

impl Both<'_> {
    /// Runs a step, given separately to device and oracle, and compares every value that its program wrote. Returns the
    /// samples.
    async fn step(&mut self, of_gpu: &[SeqStep<'_>], of_oracle: &[SeqStep<'_>]) -> Result<Vec<Option<u32>>> {
        // The largest NMSE of a value that depends on a cache.
        let after = match self.kv {
            KvStorage::F32 => EXACT,
            KvStorage::F16 => 1e-5,
            KvStorage::Q8 => 1e-3,
        };
        let phase = of_gpu[0].phase;
        self.gpu.plan(phase, &mut |_, _| {}).await?;
        let (sampled, _) = finish(&mut self.gpu, &Step { seqs: of_gpu }).await?;
        self.oracle.step(&Step { seqs: of_oracle })?;
        let mut bound = self.bounds[phase];
        for (i, node) in self.gpu.program(phase).nodes.iter().enumerate() {
            let Some(value) = node.op.writes() else { continue };
            if matches!(node.op, Op::Attend(Attend { kv: Kv::Cache(_), .. })) {
                bound = after.max(self.bounds[phase]);
            }
            let wanted = self.oracle.value(value);
            let got = self.gpu.value(phase, value, wanted.len() as u32).await?;
            let distance = nmse(&got, wanted.iter().flatten());
            if distance > bound || distance.is_nan() {
                let name = &self.gpu.program(phase).value(value).name;
                let rows = if phase == Phase::Prefill { "prefill" } else { "decode" };
                let (family, format) = (self.family.name, self.format.info().name);
                let problem = format!(
                    "{name} of {rows} rows ({family}, {format}) is off by an NMSE of {distance:.0e}, {bound:.0e} is rounding"
                );
                return Err(miscomputed(self.gpu.caps(), self.gpu.kernels(phase, i).join(" + "), problem));
            }
        }
        Ok(sampled)
    }
}

/// `Σ (a - b)² / Σ b²`
fn nmse<'a>(got: &[f32], wanted: impl Iterator<Item = &'a f64>) -> f64 {
    let (mut error, mut power) = (0.0, 0.0);
    for (a, b) in got.iter().zip(wanted) {
        error += (f64::from(*a) - b).powi(2);
        power += b * b;
    }
    error / f64::max(power, 1e-30)
}

fn miscomputed(caps: &Caps, kernel: String, problem: String) -> Error {
    let device = format!("{} ({}, {})", caps.name, caps.backend, caps.driver);
    let instead =
        if cfg!(target_arch = "wasm32") { "another browser or driver" } else { "another driver or --device cpu" };
    Error::Miscomputed { device, kernel, problem, instead: format!("{instead} works") }
}

/// The tokens of a step's samples, and the probabilities that they report.
type Samples = (Vec<Option<u32>>, Vec<Vec<Logprob>>);

/// Runs a step to its end; gives its samples.
async fn finish(executor: &mut impl Executor, step: &Step<'_>) -> Result<Samples> {
    executor.enqueue(step)?;
    let mut result = None;
    while result.is_none() {
        executor.wait().await?;
        let samples = |out: &StepOut| (out.sampled.iter().map(|d| d.token).collect(), out.logprobs.clone());
        executor.poll(&mut |_, out| result = Some(out.map(samples)));
    }
    result.unwrap_or_else(|| Ok(Samples::default()))
}

/// Whether two lists of probabilities have the same tokens, and the same values but for rounding.
fn same(a: &[Logprob], b: &[Logprob]) -> bool {
    const ROUNDING: f32 = 1e-3;
    let near = |(a, b): (&Logprob, &Logprob)| a.token == b.token && (a.logprob - b.logprob).abs() <= ROUNDING;
    a.len() == b.len() && a.iter().zip(b).all(near)
}

/// Samples with every filter, penalties, biases, maps, probabilities and stops, from rows of a table; a row with NaN among them.
/// Gives the shader modules that ran.
pub(super) async fn samples(device: &Device) -> Result<Vec<String>> {
    const WIDE: u32 = 5000;
    const ROWS: u32 = 8;
    let mut b = Builder::new(WIDE, CONTEXT);
    let x = b.embed("table.weight", Index::Token, ROWS, WIDE, 1.0);
    let logits = b.gather(x);
    let program = b.finish(vec![Out::Logits(logits)]);
    let mut values = Stream(3).take((ROWS * WIDE) as usize, 6.0);
    // Ties and zeros in one row, nothing above zero in the next, NaN in the last.
    let (ties, rest) = values[WIDE as usize..].split_at_mut(WIDE as usize);
    ties.iter_mut().for_each(|x| *x = x.round());
    rest[..WIDE as usize].iter_mut().for_each(|x| *x -= 12.0);
    values[(ROWS * WIDE) as usize - 9] = f32::NAN;
    let table = matrix(BlockFormat::F32, ROWS, WIDE, &values)?;
    let weights = Arc::new(CpuWeights { matrices: vec![table], vectors: Vec::new() });
    let options =
        GpuOptions { numerics: Numerics::Exact, kv: None, limits: LIMITS, unfused: false, keep_values: false };
    let mut gpu = GpuExecutor::load(device, &program, &*weights, options, &mut |_, _| {}).await?;
    gpu.plan(Phase::Decode, &mut |_, _| {}).await?;
    let options = CpuOptions { threads: Some(1), numerics: Numerics::Exact, ..CpuOptions::new(LIMITS) };
    let mut cpu = CpuExecutor::new(&program, weights, options)?;

    let base = SampleSpec { temperature: 0.9, seed: 0x5eed_0000_0001, ..SampleSpec::GREEDY };
    let penalties = Penalties { repeat: 1.5, presence: 1.0, frequency: 2.0 };
    let specs = [
        SampleSpec::GREEDY,
        base,
        SampleSpec { top_k: 40, ..base },
        SampleSpec { top_p: 0.7, ..base },
        SampleSpec { min_p: 0.3, ..base },
        SampleSpec { top_k: 200, top_p: 0.6, min_p: 0.01, ..base },
        SampleSpec { temperature: 0.0, penalties, ..base },
        SampleSpec { top_k: 9, penalties, ..base },
    ];
    let allowed: Vec<u32> = (0..WIDE.div_ceil(32)).map(|word| 0x5a5a_a5a5 ^ word).collect();
    let bias: Vec<(u32, f32)> = (0..40u32).map(|i| (i * 113, 5.0 + i as f32 * 0.1)).collect();
    let counts: Vec<[u32; 2]> = (0..40u32).map(|i| [i * 113, 1 + i % 3]).collect();
    let mut stops = [[WIDE - 1; 2]; 16];
    for step in 0..8 {
        // Other rows in each step, few with a bias; then the same again and again, most with one.
        let turn = if step < 4 { step } else { 0 };
        let biased = |i: usize| if step < 4 { i % 3 == 1 } else { !i.is_multiple_of(4) };
        let tokens: Vec<_> = (0..16).map(|i| [Token::Host((i + turn) % ROWS)]).collect();
        let seq = |i: usize| SeqStep {
            outs: Outs::Last,
            sample: Some(specs[i % specs.len()]),
            lists: SampleLists {
                // Without a list, penalties see only what was sampled here.
                counts: if i < 8 { &counts } else { &[] },
                pending: step,
                bias: if biased(i) { &bias } else { &[] },
                allowed: (i > 8).then_some(allowed.as_slice()),
                stops: &stops[i],
                logprobs: [None, Some(0), Some(3), Some(LOGPROBS)][(i + step as usize) % 4],
            },
            ..SeqStep::new(i as u32, Phase::Decode, &tokens[i], step, &[])
        };
        let seqs: Vec<_> = (0..16).map(seq).collect();
        let (got, reported) = finish(&mut gpu, &Step { seqs: &seqs }).await?;
        let (wanted, known) = finish(&mut cpu, &Step { seqs: &seqs }).await?;
        let fault = |kernel: &str, problem| Err(miscomputed(device.caps(), kernel.to_owned(), problem));
        if let Some(at) = got.iter().zip(&wanted).position(|(a, b)| a != b) {
            let (got, wanted, spec) = (got[at], wanted[at], specs[at % specs.len()]);
            return fault("sample", format!("samples {got:?} instead of {wanted:?} with {spec:?}"));
        }
        if let Some((got, wanted)) = reported.iter().zip(&known).find(|(a, b)| !same(a, b)) {
            return fault("sample_logprobs", format!("reports {got:?} instead of {wanted:?}"));
        }
        // What some of them sampled now ends their texts; others go on, those with penalties among them.
        if step == 4 {
            let ends = stops.iter_mut().zip(&wanted).take(6).step_by(2);
            ends.for_each(|(stops, token)| stops[1] = token.unwrap_or(WIDE - 1));
        }
    }
    Ok(gpu.modules())
}
