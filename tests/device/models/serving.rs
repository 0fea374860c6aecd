//! The serving loop on real executors: what some callers do costs no other a token.

use std::collections::BTreeMap;
use std::sync::Arc;

use wgslm::driver::{Driver, Generation, GenerationEvent, ServeOptions};
use wgslm::engine::{Engine, Finish, Request};
use wgslm::exec::{Limits, Numerics};
use wgslm::file::ModelFile;
use wgslm::model::Model;
use wgslm::sample::Sampling;
use wgslm::text::{Special, Tokenizer};

use super::runner::Device;
use wgslm_test::programs::Rng;

const LIMITS: Limits =
    Limits { rows: 32, seqs: 4, outs: 4, block: 16, blocks: 24, context: 128, in_flight: 2, checkpoints: 0 };

fn read(generation: &mut Generation, ids: &mut Vec<u32>) -> Option<Finish> {
    while let Some(event) = generation.try_next() {
        match event {
            GenerationEvent::Token { id, .. } => ids.push(id),
            GenerationEvent::Finished { reason, .. } => return Some(reason),
        }
    }
    None
}

/// Callers let go at random moments, while they wait, while their prompt is read, in the middle of an answer: their slots and
/// blocks are free after a step, and those beside them get the tokens that they get alone.
pub(crate) fn who_lets_go_costs_nobody<D: Device>() {
    let model = pollster::block_on(Model::open(ModelFile::from_bytes("tiny.gguf", wgslm::TINY).unwrap())).unwrap();
    let tokenizer = Arc::new(Tokenizer::of(&model.file).unwrap());
    let prompt = tokenizer.encode("Once upon a time, there was a", Special::Plain).unwrap();
    let request = |kind: usize| {
        // Some share their beginning, some do not; some are longer than a step.
        let repeated = prompt.iter().copied().cycle().skip(kind % 3).take(6 + 9 * kind).collect();
        let sampling = Sampling { temperature: 0.8, seed: kind as u64, ..Sampling::GREEDY };
        Request { sampling, max_tokens: Some(10), exact: true, ..Request::new(repeated) }
    };
    const KINDS: usize = 8;
    let start = || {
        let mut executor = D::load(&model, Numerics::Exact, LIMITS).unwrap();
        D::poison(&mut executor);
        let options = ServeOptions { queue_requests: 16, ..ServeOptions::default() };
        Driver::new(Engine::new(executor, &model.program), Arc::clone(&tokenizer), options)
    };
    let (mut driver, handle) = start();
    let expected: Vec<Vec<u32>> = (0..KINDS)
        .map(|kind| {
            let (mut generation, mut ids) = (handle.generate(request(kind)).unwrap(), Vec::new());
            while read(&mut generation, &mut ids).is_none() {
                pollster::block_on(driver.turn());
            }
            ids
        })
        .collect();
    let wanted = if D::LACKS_KERNELS { 60 } else { 500 };
    let (mut random, mut open, mut number) = (Rng(7), BTreeMap::<u64, (Generation, Vec<u32>, usize)>::new(), 0);
    let (mut drops, mut whole) = (0, 0);
    while drops < wanted || !open.is_empty() {
        let kind = random.below(KINDS);
        if drops < wanted
            && random.below(2) == 0
            && let Ok(generation) = handle.generate(request(kind))
        {
            number += 1;
            open.insert(number, (generation, Vec::new(), kind));
        }
        pollster::block_on(driver.turn());
        if drops < wanted && random.below(3) == 0 && !open.is_empty() {
            let at = random.below(open.len());
            let key = *open.keys().nth(at).unwrap();
            open.remove(&key);
            drops += 1;
            pollster::block_on(driver.turn());
            let metrics = handle.metrics();
            assert!(metrics.num_requests_running + metrics.num_requests_waiting <= open.len(), "{metrics:?}");
        }
        open.retain(|_, (generation, ids, kind)| match read(generation, ids) {
            None => true,
            Some(reason) => {
                assert_eq!((reason.name(), &*ids), ("length", &expected[*kind]), "kind {kind}");
                whole += 1;
                false
            }
        });
    }
    pollster::block_on(driver.turn());
    let metrics = handle.metrics();
    assert_eq!((metrics.num_requests_running, metrics.num_requests_waiting, metrics.kv_cache_usage), (0, 0, 0.0));
    assert!(whole > wanted / 6, "{whole} were read to their end beside {drops} that were not");
}
