//! What the engine costs beside the executor: an executor that computes nothing stands in for one.
//!
//! `cargo bench --bench scheduling`: microseconds a step of 64 sequences that decode; the same beside 1,000 conversations that
//! are kept in the cache, and beside 64 requests that wait since they do not fit; and what it takes to publish a block of a prompt
//! and to find it again. Median and 99th percentile.

use std::collections::VecDeque;
use std::time::Instant;

use wgslm::engine::{Engine, Event, Request};
use wgslm::exec::{CacheOp, Executor, Limits, Phase, Sampled, Step, StepOut, Ticket};
use wgslm::file::CountFn;
use wgslm::model::{CacheSpec, Out, Program};
use wgslm::ops::{GroupId, ValueId};

/// Samples the same token everywhere, at once.
struct Nothing {
    limits: Limits,
    finished: VecDeque<(Ticket, StepOut)>,
    steps: u64,
}

impl Executor for Nothing {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn device(&self) -> String {
        "nothing".to_owned()
    }

    async fn plan(&mut self, _: Phase, _: &mut CountFn<'_>) -> wgslm::Result<()> {
        Ok(())
    }

    fn enqueue(&mut self, step: &Step<'_>) -> wgslm::Result<Ticket> {
        let samples = step.seqs.iter().filter(|seq| seq.sample.is_some());
        let sampled: Vec<_> = samples.map(|seq| Sampled { slot: seq.slot, token: Some(1) }).collect();
        let logprobs = vec![Vec::new(); sampled.len()];
        self.steps += 1;
        self.finished.push_back((Ticket(self.steps), StepOut { sampled, logprobs, ..StepOut::default() }));
        Ok(Ticket(self.steps))
    }

    fn cache(&mut self, _: &[CacheOp]) -> wgslm::Result<()> {
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(Ticket, wgslm::Result<&StepOut>)) -> usize {
        let finished = self.finished.len();
        self.finished.drain(..).for_each(|(ticket, out)| done(ticket, Ok(&out)));
        finished
    }

    async fn wait(&mut self) -> wgslm::Result<()> {
        Ok(())
    }

    fn blocked(&self) -> u64 {
        0
    }
}

const BLOCK: u32 = 16;
const VOCAB: u32 = 32_000;
const CONTEXT: u32 = 1 << 17;

/// A group that sees everything, one with a window, and what a recurrent layer keeps if `recurrent`.
fn engine(seqs: u32, blocks: u32, recurrent: bool) -> Engine<Nothing> {
    let pages = |group, window| CacheSpec::Pages {
        group: GroupId(group),
        kv_heads: 1,
        k_dim: 64,
        v_dim: 64,
        v_in_k: false,
        window,
    };
    let mut caches = vec![pages(0, None), pages(1, Some(1024))];
    caches.extend(recurrent.then_some(CacheSpec::State { len: 1024 }));
    let outs = vec![Out::Logits(ValueId(0))];
    let program = Program { groups: 2, vocab: VOCAB, context: CONTEXT, outs, caches, ..Program::default() };
    let limits =
        Limits { rows: 512, seqs, outs: seqs, block: BLOCK, blocks, context: CONTEXT, in_flight: 1, checkpoints: 2048 };
    Engine::new(Nothing { limits, finished: VecDeque::new(), steps: 0 }, &program)
}

fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| i.wrapping_mul(7919).wrapping_add(seed.wrapping_mul(104_729)) % VOCAB).collect()
}

/// Runs until nothing is left to do; the microseconds of each step.
fn run(engine: &mut Engine<Nothing>) -> Vec<f64> {
    let mut times = Vec::new();
    while engine.busy() {
        let before = engine.executor().steps;
        let start = Instant::now();
        let events = pollster::block_on(engine.step());
        let time = start.elapsed().as_secs_f64() * 1e6;
        assert!(
            !events
                .iter()
                .any(|event| { matches!(event, Event::Finished { reason: wgslm::engine::Finish::Error(_), .. }) })
        );
        let steps = engine.executor().steps - before;
        times.extend((0..steps).map(|_| time / steps as f64));
    }
    times
}

fn print(what: &str, times: &mut [f64]) {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{what:<46} {:8.2} {:8.2} us, {} steps", at(0.5), at(0.99), times.len());
}

/// Steps of so many sequences that decode 512 tokens each, beside so many conversations that are kept.
fn decode(seqs: u32, kept: u32, recurrent: bool) -> Vec<f64> {
    let mut engine = engine(seqs, 200_000, recurrent);
    for i in 0..kept {
        let sequence = Some(engine.open());
        engine.submit(Request { sequence, max_tokens: Some(2), ..Request::new(prompt(1000 + i, 400)) }).unwrap();
        run(&mut engine);
    }
    for i in 0..seqs {
        engine.submit(Request { max_tokens: Some(512), ..Request::new(prompt(i, 100)) }).unwrap();
    }
    let mut times = run(&mut engine);
    // The prompts' steps come first.
    times.drain(..(seqs as usize * 100).div_ceil(512) + 2);
    times
}

/// Steps of 8 sequences that decode, while 64 requests wait for blocks. They begin like each other, so that much is found.
fn beside_waiting(recurrent: bool) -> Vec<f64> {
    let mut engine = engine(32, 600, recurrent);
    for i in 0..8 {
        engine.submit(Request { max_tokens: Some(512), ..Request::new(prompt(i, 100)) }).unwrap();
    }
    // First one that is computed, so that its blocks are found; then those that wait.
    let long = |i| prompt(77, 4000).into_iter().chain(prompt(i, 2000)).collect();
    engine.submit(Request { max_tokens: Some(1), ..Request::new(long(99)) }).unwrap();
    while engine.running() < 9 || engine.waiting().0 > 0 {
        pollster::block_on(engine.step());
    }
    for i in 0..64 {
        engine.submit(Request { max_tokens: Some(1), ..Request::new(long(i)) }).unwrap();
    }
    let mut times = Vec::new();
    while engine.running() > 8 {
        pollster::block_on(engine.step());
    }
    for _ in 0..300 {
        let start = Instant::now();
        pollster::block_on(engine.step());
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times
}

fn main() {
    for recurrent in [false, true] {
        let kind = if recurrent { "recurrent" } else { "attention" };
        print(&format!("{kind}: 64 sequences decode"), &mut decode(64, 0, recurrent));
        print(&format!("{kind}: 8 decode beside 1,000 kept"), &mut decode(8, 1000, recurrent));
        print(&format!("{kind}: 64 decode beside 1,000 kept"), &mut decode(64, 1000, recurrent));
        print(&format!("{kind}: 8 decode beside 64 that wait"), &mut beside_waiting(recurrent));
        // A prompt, and the same with a block more: it finds the first.
        let tokens = 64_000;
        let blocks = f64::from(tokens / BLOCK);
        let mut all = [Vec::new(), Vec::new()];
        for round in 0..9 {
            let mut engine = engine(2, 100_000, recurrent);
            for (i, times) in (0..).zip(&mut all) {
                let prompt = prompt(round, tokens).into_iter().chain((0..i * BLOCK).map(|_| 1)).collect();
                let request = Request { max_tokens: Some(1), ..Request::new(prompt) };
                let start = Instant::now();
                engine.submit(request).unwrap();
                run(&mut engine);
                times.push(start.elapsed().as_secs_f64() * 1e6 / blocks);
            }
            assert!(engine.cache_counts().found == u64::from(tokens));
        }
        let [first, second] = &mut all;
        print(&format!("{kind}: a block computed and published"), first);
        print(&format!("{kind}: a block found"), second);
    }
}
