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

/// Callers that come and go for a while: no memory is kept of those who have gone. `WGSLM_SOAK` says for how many seconds; ten
/// minutes and more find what this leaves out.
#[test]
#[cfg(target_os = "linux")]
fn a_soak_takes_no_memory() {
    let seconds = std::env::var("WGSLM_SOAK").map_or(12.0, |seconds| seconds.parse().expect("seconds"));
    let options = wgslm::Options {
        device: wgslm::DeviceChoice::Cpu,
        context: 256,
        seqs: 4,
        cache: wgslm::exec::CacheSize::Positions(512),
        threads: Some(2),
        ..wgslm::Options::default()
    };
    let serve = ServeOptions { queue_requests: 8, ..ServeOptions::default() };
    let (model, thread) = pollster::block_on(wgslm::open(wgslm::TINY, &options)).unwrap().serve(serve);
    let resident = || {
        let pages: u64 =
            std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    };
    let (start, mut random, mut open) = (std::time::Instant::now(), Rng(5), Vec::<Generation>::new());
    // The resident memory in each tenth of the time: its least, since what is in flight comes and goes.
    let (mut least, mut ended) = ([u64::MAX; 10], 0u64);
    loop {
        let tenth = (10.0 * start.elapsed().as_secs_f64() / seconds) as usize;
        let Some(least) = least.get_mut(tenth) else { break };
        let beginning: String =
            (0..random.below(40)).map(|_| ["a dog ", "Tom ", "the sun "][random.below(3)]).collect();
        let run = wgslm::GenerateOptions { max_tokens: Some(1 + random.below(24) as u32), ..Default::default() };
        if let Ok(generation) = model.generate(&format!("Once {beginning}"), &run) {
            open.push(generation);
        }
        if open.len() > 8 || random.below(4) == 0 {
            // Some are read to their end, some are dropped on the way.
            let mut generation = open.swap_remove(random.below(open.len()));
            let events = if random.below(3) == 0 { random.below(5) } else { usize::MAX };
            ended += u64::from((0..events).map_while(|_| generation.wait()).count() < events);
        }
        *least = resident().min(*least);
    }
    open.clear();
    let handle = model.handle().clone();
    drop(model);
    assert!(ended > 10 * seconds as u64, "{ended} answers in {seconds} s");
    let (early, late) = (least[2], least[9]);
    println!("{ended} answers; resident memory in tenths: {:?} MiB", least.map(|bytes| bytes >> 20));
    // Allocators keep a little; each answer may not.
    assert!(late < early + (4 << 20), "{early} bytes became {late}");
    let metrics = handle.metrics();
    assert!(metrics.finished_error == 0, "{metrics:?}");
    drop(handle);
    thread.join().unwrap();
}
