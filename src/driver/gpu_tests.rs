//! What goes wrong on a GPU, and what becomes of the answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::engine::{Engine, Finish, Request};
use crate::exec::{GpuExecutor, Numerics, Options};
use crate::gpu::{Choice, Device};
use crate::model::{Model, ModelSource};
use crate::text::Tokenizer;
use crate::{Result, TINY};

fn open() -> Device {
    let choice = Choice { name: Some("llvmpipe".to_owned()), ..Choice::default() };
    block_on(Device::open(&choice)).unwrap_or_else(|e| panic!("{e}; scripts/test installs it"))
}

async fn load(device: Device, model: &Model) -> Result<GpuExecutor> {
    let options =
        Options { context: 256, seqs: 2, numerics: Numerics::Exact, self_test_results: None, ..Options::default() };
    GpuExecutor::open(&device, model, &options, &mut |_| {}).await
}

/// The tokens of an answer, and how it ended.
type Ended = (Vec<u32>, Option<Finish>);

/// Two answers that are given at once, something done to the device before each turn of the driver.
fn answers(mut before: impl FnMut(&Device, usize)) -> (Vec<Ended>, Metrics) {
    let model = Arc::new(block_on(ModelSource::from(TINY).model()).unwrap());
    let tokenizer = Arc::new(Tokenizer::of(&model.file).unwrap());
    let device = open();
    let engine = Engine::new(block_on(load(device.clone(), &model)).unwrap(), &model.program);
    let (driver, handle) = Driver::new(engine, tokenizer, ServeOptions::default());
    let (lost, held) = (device.clone(), device.allocated());
    let mut driver = driver.reopen_with(Box::new(move || {
        // A device that still answers has freed its memory by now.
        let gone = lost.faults.gone.load(Ordering::Relaxed);
        assert!(gone || lost.allocated() < held / 4, "{} of {held} bytes are held", lost.allocated());
        let model = Arc::clone(&model);
        Box::pin(async move { load(open(), &model).await })
    }));
    let ask =
        |prompt: [u32; 3]| handle.generate(Request { max_tokens: Some(16), ..Request::new(prompt.to_vec()) }).unwrap();
    let mut asked = [ask([1, 7, 9]), ask([1, 30, 2])].map(|generation| (generation, Vec::new(), None));
    for turn in 0..1000 {
        before(&device, turn);
        if block_on(driver.turn()) == Next::Idle {
            break;
        }
    }
    for (generation, ids, end) in &mut asked {
        while let Some(event) = generation.try_next() {
            match event {
                GenerationEvent::Token { id, .. } => ids.push(id),
                GenerationEvent::Finished { reason, .. } => *end = Some(reason),
            }
        }
    }
    (asked.into_iter().map(|(_, ids, end)| (ids, end)).collect(), handle.metrics())
}

/// A driver of the system that reports a loss makes wgpu panic; what nothing caught leaves something out. Both are a lost device,
/// and answers go on.
#[test]
fn gpu_faults_of_a_device_cost_no_answer() {
    let (expected, metrics) = answers(|_, _| {});
    assert!(expected.iter().all(|(ids, end)| ids.len() == 16 && end.as_ref().unwrap().name() == "length"));
    assert_eq!(metrics.devices_lost, 0);
    let gone = |device: &Device| device.faults.gone.store(true, Ordering::Relaxed);
    for fault in [&gone as &dyn Fn(&Device), &Device::blunder] {
        for at in [0, 1, 3] {
            let (answers, metrics) = answers(|device, turn| {
                if turn == at {
                    fault(device)
                }
            });
            for ((ids, end), (whole, _)) in answers.iter().zip(&expected) {
                assert_eq!(ids, whole, "in turn {at}: {end:?}");
            }
            assert_eq!(metrics.devices_lost, 1, "in turn {at}");
        }
    }
}

/// Memory that cannot be had for a step costs the newest request in it.
#[test]
fn gpu_memory_that_is_missing_costs_one_request() {
    let (expected, _) = answers(|_, _| {});
    let less = |device: &Device, turn| device.faults.no_memory.store(u32::from(turn == 0), Ordering::Relaxed);
    let (answers, metrics) = answers(less);
    assert_eq!(answers[0].0, expected[0].0);
    assert!(matches!(&answers[1].1, Some(Finish::Error(error)) if error.code() == "limit"), "{:?}", answers[1]);
    assert_eq!((metrics.devices_lost, metrics.finished_error), (0, 1));
}
