//! Submissions that are lost are noticed, and end the requests that were in them, and no others.

use std::time::Duration;

use pollster::block_on;

use super::{GpuExecutor, GpuOptions};
use crate::engine::{Engine, Event, Finish, Request};
use crate::exec::{CacheOp, Executor, Limits, Numerics, Outs, Phase, SeqStep, Step, Token};
use crate::file::ModelFile;
use crate::gpu::{Choice, Device};
use crate::model::Model;
use crate::ops::{GroupId, SampleSpec};
use crate::{Error, Result};

fn load(adapter: &str) -> (Model, GpuExecutor) {
    load_as(adapter, false)
}

fn load_as(adapter: &str, unfused: bool) -> (Model, GpuExecutor) {
    let choice = Choice { name: Some(adapter.to_owned()), ..Choice::default() };
    let device = block_on(Device::open(&choice)).unwrap_or_else(|e| panic!("{e}; scripts/test installs it"));
    assert!(device.caps().name.to_lowercase().contains(adapter), "{}", device.caps().name);
    let model = block_on(Model::open(ModelFile::from_bytes("tiny.gguf", crate::TINY).unwrap())).unwrap();
    let limits =
        Limits { rows: 256, seqs: 2, outs: 2, block: 16, blocks: 32, context: 256, in_flight: 8, checkpoints: 0 };
    let options = GpuOptions { numerics: Numerics::Exact, kv: None, limits, unfused, keep_values: false };
    let gpu = block_on(GpuExecutor::load(&device, &model.program, &model, options, &mut |_, _| {})).unwrap();
    (model, gpu)
}

/// A prompt or a decode row of slot 0 whose successor is sampled, to its end.
fn step(gpu: &mut GpuExecutor, phase: Phase, tokens: &[Token], pos: u32) -> Result<Option<u32>> {
    let table: Vec<u32> = (0..16).collect();
    let tables = [table.as_slice()];
    let sample = Some(SampleSpec::GREEDY);
    let seq = SeqStep { outs: Outs::Last, sample, ..SeqStep::new(0, phase, tokens, pos, &tables) };
    gpu.enqueue(&Step { seqs: &[seq] })?;
    let mut result = None;
    while result.is_none() {
        block_on(gpu.wait())?;
        gpu.poll(&mut |_, out| result = Some(out.map(|out| out.sampled[0].token)));
    }
    result.unwrap()
}

#[test]
fn gpu_lost_submissions_are_noticed() {
    for adapter in ["llvmpipe", "swiftshader"] {
        let (_, mut gpu) = load(adapter);
        let prompt = [1, 7, 9].map(Token::Host);
        for (i, lost) in [false, true, false, true, true, false].into_iter().enumerate() {
            for (phase, tokens) in [(Phase::Prefill, &prompt[..]), (Phase::Decode, &prompt[..1])] {
                gpu.cache(&[CacheOp::Zero { group: GroupId(0), block: 7 }]).unwrap();
                gpu.markers.lose = lost;
                let result = step(&mut gpu, phase, tokens, 0);
                match lost {
                    true => assert!(matches!(result, Err(Error::LostStep { .. })), "{adapter}, {i}: {result:?}"),
                    false => assert!(result.unwrap().is_some(), "{adapter}, {i}"),
                }
            }
        }
    }
}

/// The answers of requests that run one after another; the driver drops a submission before step `lost`.
fn answers(lost: Option<usize>) -> Vec<(Vec<u32>, Finish)> {
    let (model, gpu) = load("llvmpipe");
    let mut engine = Engine::new(gpu, &model.program);
    let mut steps = 0;
    let mut answers = Vec::new();
    for prompt in [[1, 7, 9], [1, 30, 2], [1, 7, 9]] {
        engine.submit(Request { max_tokens: Some(12), ..Request::new(prompt.to_vec()) }).unwrap();
        let (mut ids, mut end) = (Vec::new(), None);
        while engine.busy() {
            engine.executor_mut().markers.lose = lost == Some(steps);
            steps += 1;
            for event in block_on(engine.step()) {
                match event {
                    Event::Token { id, .. } => ids.push(id),
                    Event::Finished { reason, .. } => end = Some(reason),
                }
            }
        }
        answers.push((ids, end.unwrap()));
    }
    answers
}

#[test]
fn gpu_a_lost_step_ends_its_requests_alone() {
    let whole = answers(None);
    assert!(whole.iter().all(|(ids, end)| ids.len() == 12 && end.name() == "length"), "{whole:?}");
    let others = answers(Some(1));
    let (ids, end) = &others[0];
    assert!(matches!(end, Finish::Error(error) if matches!(**error, Error::LostStep { .. })), "{end:?}");
    assert!(ids.len() < 12 && whole[0].0.starts_with(ids), "{ids:?}");
    for (other, whole) in others[1..].iter().zip(&whole[1..]) {
        assert_eq!((&other.0, other.1.name()), (&whole.0, "length"));
    }
}

/// Seconds of a step, the least of a few.
fn measured(gpu: &mut GpuExecutor, phase: Phase, rows: u32, pos: u32) -> f64 {
    let tokens = vec![Token::Host(3); rows as usize];
    let time = |_| {
        let started = std::time::Instant::now();
        step(gpu, phase, &tokens, pos).unwrap();
        started.elapsed().as_secs_f64()
    };
    (0..4).map(time).fold(f64::MAX, f64::min)
}

/// Predicted times are within a factor of 3 of measured ones, for steps unlike those that calibration measured. A machine
/// that is busy now and then has five tries.
#[test]
fn gpu_steps_take_as_long_as_predicted() {
    let (_, mut gpu) = load("llvmpipe");
    assert_eq!(gpu.predicted(Phase::Prefill, 64, 0), None);
    gpu.set_budget(Duration::from_secs(9));
    let mut try_once = || {
        block_on(gpu.calibrate()).unwrap();
        let prompts = [(64, 0), (17, 64), (128, 0), (100, 120)].map(|(rows, pos)| (Phase::Prefill, rows, pos));
        let cases = prompts.into_iter().chain([1, 4, 8].map(|rows| (Phase::Decode, rows, 100)));
        let ratio = |(phase, rows, pos)| {
            let predicted = gpu.predicted(phase, rows, pos).unwrap().as_secs_f64();
            let measured = measured(&mut gpu, phase, rows, pos);
            println!("{phase:?}, {rows} rows from {pos}: predicted {predicted:.5} s, measured {measured:.5} s");
            predicted / measured
        };
        cases.map(ratio).collect::<Vec<_>>()
    };
    let close = |ratios: Vec<f64>| ratios.iter().all(|ratio| (0.33..3.0).contains(ratio));
    assert!((0..5).any(|_| close(try_once())));
}

/// A step that takes longer than a submission may is split, with the same results; its parts keep to the time, within a
/// factor of 3.
#[test]
fn gpu_long_steps_are_cut() {
    let (_, mut gpu) = load("llvmpipe");
    let tokens: Vec<_> = (0..64).map(|i| Token::Host(i * 7 % 100)).collect();
    let whole = step(&mut gpu, Phase::Prefill, &tokens, 0).unwrap();
    let submissions = gpu.submissions();
    step(&mut gpu, Phase::Prefill, &tokens, 0).unwrap();
    assert_eq!(gpu.submissions(), submissions + 1);
    gpu.set_budget(Duration::from_secs(9));
    block_on(gpu.calibrate()).unwrap();
    let predicted = gpu.predicted(Phase::Prefill, 64, 0).unwrap();
    gpu.set_budget(predicted / 6);
    let submissions = gpu.submissions();
    assert_eq!(step(&mut gpu, Phase::Prefill, &tokens, 0).unwrap(), whole);
    let parts = gpu.submissions() - submissions;
    assert!((5..=12).contains(&parts), "{parts} parts");
    // Each part has a completion marker: the first part is lost, the others run.
    gpu.markers.lose = true;
    assert!(matches!(step(&mut gpu, Phase::Prefill, &tokens, 0), Err(Error::LostStep { .. })));
    // The device's own clock, part by part.
    gpu.profile(true).unwrap();
    let longest = |gpu: &mut GpuExecutor| {
        step(gpu, Phase::Prefill, &tokens, 0).unwrap();
        let split_points = gpu.split_points().prefill;
        let times = block_on(gpu.timings(Phase::Prefill)).unwrap();
        let ends = split_points.iter().copied().chain([times.len()]);
        let mut from = 0;
        let part = |to| times[std::mem::replace(&mut from, to)..to].iter().map(|t| t.time.as_secs_f64()).sum();
        ends.map(part).fold(0f64, f64::max)
    };
    let longest = (0..4).map(|_| longest(&mut gpu)).fold(f64::MAX, f64::min);
    assert!(longest <= 3.0 * predicted.as_secs_f64() / 6.0, "{longest} s, predicted {predicted:?} / 6");
}

/// Where one op would take longer than a submission may, steps have fewer rows. A machine that is busy now and then has five
/// tries.
#[test]
fn gpu_long_ops_have_fewer_rows() {
    let few = |_| {
        let (_, mut gpu) = load("llvmpipe");
        let rows = gpu.limits().rows;
        gpu.set_budget(Duration::from_secs(9));
        block_on(gpu.calibrate()).unwrap();
        assert_eq!(gpu.limits().rows, rows);
        let predicted = gpu.predicted(Phase::Prefill, 64, 0).unwrap();
        gpu.set_budget(predicted / 100);
        block_on(gpu.calibrate()).unwrap();
        println!("{} of {rows} rows, {predicted:?} / 100", gpu.limits().rows);
        (16..rows).contains(&gpu.limits().rows)
    };
    assert!((0..5).any(few));
}

/// A step is split into as many parts as its time needs: in the end each node has its own.
#[test]
fn gpu_slow_steps_have_many_parts() {
    let (_, mut gpu) = load_as("llvmpipe", true);
    let tokens: Vec<_> = (0..64).map(|i| Token::Host(i * 7 % 100)).collect();
    let whole = step(&mut gpu, Phase::Prefill, &tokens, 0).unwrap();
    gpu.set_budget(Duration::from_secs(9));
    block_on(gpu.calibrate()).unwrap();
    gpu.set_budget(Duration::from_nanos(1));
    let submissions = gpu.submissions();
    assert_eq!(step(&mut gpu, Phase::Prefill, &tokens, 0).unwrap(), whole);
    let parts = gpu.submissions() - submissions;
    let dispatches = gpu.labels(Phase::Prefill).len() as u64;
    assert!((33..=dispatches).contains(&parts), "{parts} parts of {dispatches} dispatches");
}

/// The rows of both phases are in one submission only if both fit into its time.
#[test]
fn gpu_phases_share_the_time_of_a_submission() {
    let (_, mut gpu) = load("llvmpipe");
    gpu.set_budget(Duration::from_secs(9));
    block_on(gpu.calibrate()).unwrap();
    let tokens: Vec<_> = (0..32).map(|i| Token::Host(i * 7 % 100)).collect();
    let tables: [Vec<u32>; 2] = [(0..16).collect(), (16..32).collect()];
    let [prefill, decode] =
        [(Phase::Prefill, 32), (Phase::Decode, 1)].map(|(phase, rows)| gpu.predicted(phase, rows, 0).unwrap());
    let mut both = |budget: Duration| {
        gpu.set_budget(budget);
        let submissions = gpu.submissions();
        let [a, b] = tables.each_ref().map(|table| [table.as_slice()]);
        let sampled = |seq| SeqStep { outs: Outs::Last, sample: Some(SampleSpec::GREEDY), ..seq };
        let prefill = sampled(SeqStep::new(0, Phase::Prefill, &tokens, 0, &a));
        let decode = sampled(SeqStep::new(1, Phase::Decode, &tokens[..1], 0, &b));
        gpu.enqueue(&Step { seqs: &[prefill, decode] }).unwrap();
        let mut result = None;
        while result.is_none() {
            block_on(gpu.wait()).unwrap();
            gpu.poll(&mut |_, out| result = Some(out.unwrap().sampled.clone()));
        }
        (result.unwrap(), gpu.submissions() - submissions)
    };
    let (whole, one) = both(Duration::from_secs(9));
    let (split, two) = both(prefill.max(decode) + Duration::from_nanos(1));
    assert_eq!((one, two), (1, 2), "{prefill:?}, {decode:?}");
    assert_eq!(split, whole);
}
