//! What shared blocks save, and what they cost.
//!
//! `cargo bench --bench sharing -- [160M] [Q4_0] [2048] [cpu]`: a shape, a type of weights, the tokens that prompts share, a
//! device. Each round asks three times on a new engine: prompts that begin alike and end otherwise; then as many that have
//! nothing in common. Times are to the first token, in milliseconds, lowest and median of the rounds.
//!
//! On the CPU then whether times betray what others ask: prompts of 256 tokens that were asked under another salt before, and such that
//! nobody asked, in turns; and with how many of all ways to deal these times the medians would lie as far apart.
//!
//! Then 16 streams of prompts and answers of many lengths run in a cache that holds them all, and in one that is 1.2 times too
//! small for what they ever hold together, in turns: tokens a second, and the median of the ratios.

use std::sync::Arc;
use std::time::Instant;

use wgslm::engine::{Engine, Event, Request};
use wgslm::exec::{AnyExecutor, CacheSize, DeviceChoice, Executor, Options};
use wgslm::model::{KnownShape, Model};
use wgslm::quant::mix::FileType;

const ROUNDS: usize = 5;
/// Tokens after those that are shared.
const OWN: u32 = 16;

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
    let shape: KnownShape = args.next().as_deref().unwrap_or("160M").parse().expect("a shape");
    let quant: FileType = args.next().as_deref().unwrap_or("Q4_0").parse().expect("a type of weights");
    let shared: u32 = args.next().map_or(2048, |n| n.parse().expect("a number of tokens"));
    let device: DeviceChoice = args.next().as_deref().unwrap_or("cpu").parse().expect("a device");
    let model = pollster::block_on(shape.model_file(quant, 1)).expect("random weights");
    let model = pollster::block_on(Model::open(model)).expect("a model");
    let context = shared + 4 * OWN;
    let options = Options { device: device.clone(), context, seqs: 4, ..Options::default() };
    let mut executor = Some(pollster::block_on(AnyExecutor::open(&model, &options, &mut |_| {})).expect("an executor"));

    let token = |seed: u32, i: u32| (i * 7919 + seed * 104_729) % model.program.vocab;
    let prompt = |first: u32, own: u32| -> Vec<u32> {
        (0..shared).map(|i| token(first, i)).chain((0..OWN).map(|i| token(own, i))).collect()
    };
    let mut times: Vec<[Vec<f64>; 3]> = vec![Default::default(); 2];
    for round in 0..ROUNDS as u32 {
        for (case, times) in times.iter_mut().enumerate() {
            let mut engine = Engine::new(executor.take().expect("it is given back"), &model.program);
            for (i, times) in times.iter_mut().enumerate() {
                let first = if case == 0 { round } else { 100 + 3 * round + i as u32 };
                times.push(first_token(&mut engine, prompt(first, 7 + i as u32), None));
            }
            executor = Some(engine.into_executor());
        }
    }
    println!("{}, {shared} + {OWN} tokens", executor.expect("it was given back").device());
    for (name, times) in ["shared", "apart"].iter().zip(&mut times) {
        for (nth, times) in ["first", "second", "third"].iter().zip(times) {
            times.sort_by(f64::total_cmp);
            println!("{name:<8} {nth:<8} {:8.1} {:8.1}", times[0], times[ROUNDS / 2]);
        }
    }
    if device == DeviceChoice::Cpu {
        salts(&model);
        streams(&model);
    }
}

/// Milliseconds to the first of four tokens.
fn first_token(engine: &mut Engine<AnyExecutor>, prompt: Vec<u32>, salt: Option<Arc<[u8]>>) -> f64 {
    let start = Instant::now();
    engine.submit(Request { max_tokens: Some(4), salt, ..Request::new(prompt) }).expect("it fits");
    let mut first = None;
    while engine.busy() {
        for event in pollster::block_on(engine.step()) {
            if matches!(event, Event::Token { .. }) {
                first.get_or_insert(start.elapsed());
            }
        }
    }
    first.expect("a token").as_secs_f64() * 1e3
}

/// Prompts that were asked under another salt take as long as any.
fn salts(model: &Model) {
    const PROMPTS: u32 = 40;
    const DEALS: usize = 10_000;
    // The cache keeps what others asked: it could be found.
    let cache = CacheSize::Positions(4096);
    let options = Options { device: DeviceChoice::Cpu, context: 512, seqs: 1, cache, ..Options::default() };
    let executor = pollster::block_on(AnyExecutor::open(model, &options, &mut |_| {})).expect("an executor");
    let mut engine = Engine::new(executor, &model.program);
    let prompt = |seed: u32| -> Vec<u32> {
        (0..256).map(|at| (at * 7919 + (10_000 + seed) * 104_729) % model.program.vocab).collect()
    };
    let [theirs, ours] = [b"them", b"us  "].map(|salt| -> Option<Arc<[u8]>> { Some(Arc::from(*salt)) });
    let mut times: Vec<f64> = Vec::new();
    for i in 0..PROMPTS {
        first_token(&mut engine, prompt(2 * i), theirs.clone());
        // Which of the two comes first is as often one as the other.
        let [asked, unasked] = [0, 1].map(|new| (new, prompt(2 * i + new)));
        let turns = if i % 2 == 0 { [asked, unasked] } else { [unasked, asked] };
        let mut pair = [0.0; 2];
        turns.into_iter().for_each(|(new, prompt)| pair[new as usize] = first_token(&mut engine, prompt, ours.clone()));
        times.extend(pair);
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    // Each pair dealt at random: how often are the medians as far apart as these?
    let difference = |swapped: &mut dyn FnMut() -> bool| {
        let mut of: [Vec<f64>; 2] = Default::default();
        for pair in times.chunks(2) {
            let swapped = usize::from(swapped());
            (0..2).for_each(|i| of[i ^ swapped].push(pair[i]));
        }
        let [asked, unasked] = of.each_mut().map(median);
        (asked - unasked, asked, unasked)
    };
    let (found, asked, unasked) = difference(&mut || false);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut coin = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random >> 63 == 1
    };
    let as_far = (0..DEALS).filter(|_| difference(&mut coin).0.abs() >= found.abs()).count();
    println!(
        "salts    asked by others {asked:8.2} ms, by nobody {unasked:8.2} ms, by chance in {:.3}",
        as_far as f64 / DEALS as f64
    );
    let same = first_token(&mut engine, prompt(2 * (PROMPTS - 1)), theirs);
    println!("         the same salt   {same:8.2} ms");
    assert!(same < asked / 2.0, "what others asked was not there to be found");
}

/// 16 streams in a cache that holds them all, and in one that is too small.
fn streams(model: &Model) {
    const STREAMS: u32 = 16;
    let lengths = |i: u32| (64 + i * 37 % 449, 64 + i * 29 % 193);
    let positions: u32 = (0..STREAMS).map(|i| (lengths(i).0 + lengths(i).1).next_multiple_of(16)).sum();
    let run = |cache: u32, round: u32| {
        let cache = CacheSize::Positions(cache);
        let options = Options { device: DeviceChoice::Cpu, context: 1024, seqs: STREAMS, cache, ..Options::default() };
        let executor = pollster::block_on(AnyExecutor::open(model, &options, &mut |_| {})).expect("an executor");
        let mut engine = Engine::new(executor, &model.program);
        let mut tokens = 0;
        for i in 0..STREAMS {
            let (prompt, answer) = lengths(i);
            let prompt =
                (0..prompt).map(|at| (at * 7919 + (round * 100 + i) * 104_729) % model.program.vocab).collect();
            tokens += answer;
            engine.submit(Request { max_tokens: Some(answer), ..Request::new(prompt) }).expect("it fits");
        }
        let start = Instant::now();
        let mut most = 0;
        while engine.busy() {
            pollster::block_on(engine.step());
            most = most.max(engine.cache_blocks()[0].in_use * engine.executor().limits().block);
        }
        (f64::from(tokens) / start.elapsed().as_secs_f64(), engine.preemptions(), most)
    };
    let mut ratios: Vec<f64> = Vec::new();
    for round in 0..ROUNDS as u32 {
        let (roomy, _, most) = run(positions + 16 * STREAMS, round);
        // Of what they ever held together.
        let (tight, preemptions, _) = run(most * 5 / 6, round);
        println!("streams  {roomy:8.1} tokens/s, too small {tight:8.1}, {preemptions} preemptions");
        ratios.push(tight / roomy);
    }
    ratios.sort_by(f64::total_cmp);
    println!("ratio {:.3}", ratios[ROUNDS / 2]);
}
