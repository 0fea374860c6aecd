//! Submissions that are lost are noticed, and end the requests that were in them, and no others.

use pollster::block_on;

use super::{GpuExecutor, GpuOptions};
use crate::engine::{Engine, Event, Finish, Request};
use crate::exec::{CacheOp, Executor, Limits, Numerics, Outs, Role, SeqStep, Step, Token};
use crate::file::ModelFile;
use crate::gpu::{Choice, Device};
use crate::model::Model;
use crate::ops::{GroupId, SampleLists, SampleSpec};
use crate::{Error, Result};

fn load(adapter: &str) -> (Model, GpuExecutor) {
    let choice = Choice { name: Some(adapter.to_owned()), ..Choice::default() };
    let device = block_on(Device::open(&choice)).unwrap_or_else(|e| panic!("{e}; scripts/test installs it"));
    assert!(device.caps().name.to_lowercase().contains(adapter), "{}", device.caps().name);
    let model = block_on(Model::open(ModelFile::from_bytes("tiny.gguf", crate::TINY).unwrap())).unwrap();
    let limits =
        Limits { rows: 64, seqs: 2, outs: 2, block: 16, blocks: 32, context: 256, in_flight: 8, checkpoints: 0 };
    let options = GpuOptions { numerics: Numerics::Exact, kv: None, limits, unfused: false, keep_values: false };
    let gpu = block_on(GpuExecutor::load(&device, &model.program, &model, options, &mut |_, _| {})).unwrap();
    (model, gpu)
}

/// A prompt or a generated row of slot 0 whose successor is drawn, to its end.
fn step(gpu: &mut GpuExecutor, role: Role, tokens: &[Token], pos: u32) -> Result<Option<u32>> {
    let table: Vec<u32> = (0..8).collect();
    let tables = [table.as_slice()];
    let (sample, lists) = (Some(SampleSpec::GREEDY), SampleLists::default());
    let seq = SeqStep {
        slot: 0,
        role,
        tokens,
        types: &[],
        pos,
        tables: &tables,
        outs: Outs::Last,
        sample,
        lists,
        read_logits: false,
    };
    gpu.enqueue(&Step { seqs: &[seq] })?;
    let mut result = None;
    while result.is_none() {
        block_on(gpu.wait())?;
        gpu.poll(&mut |_, out| result = Some(out.map(|out| out.drawn[0].token)));
    }
    result.unwrap()
}

#[test]
fn gpu_lost_submissions_are_noticed() {
    for adapter in ["llvmpipe", "swiftshader"] {
        let (_, mut gpu) = load(adapter);
        let prompt = [1, 7, 9].map(Token::Host);
        for (i, lost) in [false, true, false, true, true, false].into_iter().enumerate() {
            for (role, tokens) in [(Role::Prompt, &prompt[..]), (Role::Generated, &prompt[..1])] {
                gpu.cache(&[CacheOp::Zero { group: GroupId(0), block: 7 }]).unwrap();
                gpu.stamps.lose = lost;
                let result = step(&mut gpu, role, tokens, 0);
                match lost {
                    true => assert!(matches!(result, Err(Error::LostStep { .. })), "{adapter}, {i}: {result:?}"),
                    false => assert!(result.unwrap().is_some(), "{adapter}, {i}"),
                }
            }
        }
    }
}

/// The answers of requests that run one behind the other; before step `lost`, the driver drops a submission.
fn answers(lost: Option<usize>) -> Vec<(Vec<u32>, Finish)> {
    let (model, gpu) = load("llvmpipe");
    let mut engine = Engine::new(gpu, &model.program);
    let mut steps = 0;
    let mut answers = Vec::new();
    for prompt in [[1, 7, 9], [1, 30, 2], [1, 7, 9]] {
        engine.submit(Request { max_tokens: Some(12), ..Request::new(prompt.to_vec()) }).unwrap();
        let (mut ids, mut end) = (Vec::new(), None);
        while engine.busy() {
            engine.executor_mut().stamps.lose = lost == Some(steps);
            steps += 1;
            for event in block_on(engine.step()).unwrap() {
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
