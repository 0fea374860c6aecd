//! How a driver shares a device: what clients that read feel while a long prompt is computed, and what an idle driver costs.
//!
//! `cargo bench --bench serving -- [160M] [Q4_0] [cpu|gpu]`: the time of a prompt of 4,096 tokens alone, and beside four streams;
//! gaps between the streams' tokens meanwhile (median, 99th percentile, largest) and before; in turns, medians of the rounds. Then
//! those gaps beside a fifth stream that somebody reads, and beside one that nobody reads. Then the share of a core that an idle
//! driver takes.

use std::time::{Duration, Instant};

use wgslm::driver::{Driver, Generation, GenerationEvent, Handle, ServeOptions};
use wgslm::engine::{Engine, Request};
use wgslm::exec::{AnyExecutor, DeviceChoice, Executor, Options};
use wgslm::model::{KnownShape, Model, ModelSource};
use wgslm::quant::mix::FileType;
use wgslm::text::Tokenizer;

const ROUNDS: u32 = 5;
const STREAMS: u32 = 4;
const PROMPT: u32 = 4096;

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
    let shape: KnownShape = args.next().as_deref().unwrap_or("160M").parse().expect("a shape");
    let quant: FileType = args.next().as_deref().unwrap_or("Q4_0").parse().expect("a type of weights");
    let device: DeviceChoice = args.next().as_deref().unwrap_or("cpu").parse().expect("a device");
    let model = pollster::block_on(shape.model_file(quant, 1)).expect("random weights");
    let model = pollster::block_on(Model::open(model)).expect("a model");
    // Random weights come without a vocabulary; tokens are counted and not read.
    let words = pollster::block_on(ModelSource::from(wgslm::TINY).model()).expect("the embedded model");
    let tokenizer = std::sync::Arc::new(Tokenizer::of(&words.file).expect("its tokenizer"));
    let options = Options { device, context: PROMPT + 64, seqs: STREAMS + 1, ..Options::default() };
    let executor = pollster::block_on(AnyExecutor::open(&model, &options, &mut |_| {})).expect("an executor");
    println!("{}, {STREAMS} streams", executor.device());
    let engine = Engine::new(executor, &model.program);
    let (driver, handle) = Driver::new(engine, tokenizer, ServeOptions::default());
    let thread = std::thread::spawn(move || driver.run());

    let vocab = model.program.vocab;
    let mut ratios = Vec::new();
    let (mut before, mut during) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Once more, so that steps have been measured.
        let prompt = |seed: u32, tokens: u32| -> Vec<u32> {
            (0..tokens).map(|i| i.wrapping_mul(7919).wrapping_add((100 * round + seed) * 104_729) % vocab).collect()
        };
        let long = |seed| first_token(&handle, prompt(seed, PROMPT));
        let alone = long(0);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let reading = std::sync::atomic::AtomicU32::new(0);
        let (beside, gaps) = std::thread::scope(|scope| {
            let streams: Vec<_> = (0..STREAMS)
                .map(|i| {
                    let request = Request { max_tokens: Some(PROMPT), ..Request::new(prompt(10 + i, 16)) };
                    let generation = handle.generate(request).expect("the queue is empty");
                    let (stop, reading) = (&stop, &reading);
                    scope.spawn(move || arrivals(generation, stop, reading))
                })
                .collect();
            while reading.load(std::sync::atomic::Ordering::Relaxed) < STREAMS {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(500));
            let start = Instant::now();
            let beside = long(1);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            let gaps: Vec<_> = streams.into_iter().map(|stream| (start, stream.join().expect("it reads"))).collect();
            (beside, gaps)
        });
        for (start, arrivals) in gaps {
            for pair in arrivals.windows(2) {
                let gap = (pair[1] - pair[0]).as_secs_f64() * 1e3;
                if pair[0] >= start {
                    during.push(gap)
                } else if pair[1] < start {
                    before.push(gap)
                }
            }
        }
        println!("prompt   alone {alone:7.2} s, beside streams {beside:7.2} s");
        ratios.push(alone / beside);
    }
    ratios.sort_by(f64::total_cmp);
    println!("speed of the prompt beside streams, to alone: {:.3}", ratios[ratios.len() / 2]);
    for (name, gaps) in [("before", &mut before), ("during", &mut during)] {
        gaps.sort_by(f64::total_cmp);
        let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share) as usize];
        println!("gaps {name}: median {:.1} ms, p99 {:.1} ms, largest {:.1} ms", at(0.5), at(0.99), at(1.0));
    }
    unread(&handle, vocab);
    idle();
    drop(handle);
    thread.join().expect("the driver ends");
}

/// Gaps between tokens of streams beside one that is read, and one that nobody reads.
fn unread(handle: &Handle, vocab: u32) {
    const TOKENS: u32 = 600;
    let request = |seed: u32| {
        let prompt = (0..16).map(|i: u32| (i * 7919 + seed * 104_729) % vocab).collect();
        Request { max_tokens: Some(TOKENS), ..Request::new(prompt) }
    };
    let p99 = |read: bool, round: u32| {
        let [stop, reading] = [std::sync::atomic::AtomicBool::new(false), std::sync::atomic::AtomicBool::new(false)];
        let count = std::sync::atomic::AtomicU32::new(0);
        let start = |i| handle.generate(request(1000 + 10 * round + i)).expect("the queue is empty");
        let (fifth, streams): (Generation, Vec<Generation>) = (start(STREAMS), (0..STREAMS).map(start).collect());
        let mut gaps: Vec<f64> = std::thread::scope(|scope| {
            let (never, count) = (&reading, &count);
            let fifth = match read {
                true => scope.spawn(move || drop(arrivals(fifth, never, count))),
                false => scope.spawn(move || {
                    while !never.load(std::sync::atomic::Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    drop(fifth);
                }),
            };
            let stop = &stop;
            let streams: Vec<_> =
                streams.into_iter().map(|one| scope.spawn(move || arrivals(one, stop, count))).collect();
            let arrivals: Vec<_> = streams.into_iter().map(|stream| stream.join().expect("it reads")).collect();
            reading.store(true, std::sync::atomic::Ordering::Relaxed);
            fifth.join().expect("it ends");
            let gaps = |arrivals: &Vec<Instant>| -> Vec<f64> {
                arrivals.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3).collect()
            };
            arrivals.iter().flat_map(gaps).collect()
        });
        gaps.sort_by(f64::total_cmp);
        gaps[gaps.len() * 99 / 100]
    };
    let mut pairs: Vec<[f64; 2]> = (0..ROUNDS)
        .map(|round| {
            if round % 2 == 0 {
                let read = p99(true, round);
                [read, p99(false, round)]
            } else {
                let unread = p99(false, round);
                [p99(true, round), unread]
            }
        })
        .collect();
    pairs.sort_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])));
    let [read, unread] = pairs[pairs.len() / 2];
    println!(
        "p99 of gaps beside a stream that is read {read:.2} ms, that nobody reads {unread:.2} ms: {:.3}",
        unread / read
    );
}

/// Seconds to the first token of a prompt that is asked alone.
fn first_token(handle: &Handle, prompt: Vec<u32>) -> f64 {
    let start = Instant::now();
    let request = Request { max_tokens: Some(1), ..Request::new(prompt) };
    let mut generation = handle.generate(request).expect("the queue is empty");
    let event = generation.wait();
    assert!(matches!(event, Some(GenerationEvent::Token { .. })), "{event:?}");
    start.elapsed().as_secs_f64()
}

/// When each token of a stream came, until it is to stop.
fn arrivals(
    mut generation: Generation,
    stop: &std::sync::atomic::AtomicBool,
    reading: &std::sync::atomic::AtomicU32,
) -> Vec<Instant> {
    let mut arrivals = Vec::new();
    while let Some(GenerationEvent::Token { .. }) = generation.wait() {
        arrivals.push(Instant::now());
        if arrivals.len() == 1 {
            reading.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            break;
        }
    }
    arrivals
}

/// The part of a core that this process takes while nobody asks for anything.
fn idle() {
    #[cfg(unix)]
    {
        use nix::sys::resource::{UsageWho, getrusage};
        let used = || {
            let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the system counts");
            let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6;
            seconds(usage.user_time()) + seconds(usage.system_time())
        };
        std::thread::sleep(Duration::from_secs(1));
        let (before, start) = (used(), Instant::now());
        std::thread::sleep(Duration::from_secs(10));
        println!("idle: {:.2} % of a core", 100.0 * (used() - before) / start.elapsed().as_secs_f64());
    }
}
