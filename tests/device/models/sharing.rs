//! What requests take from the cache, whoever computed it, changes no bit: cold, warm, forked, preempted, in company.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use wgslm::engine::{Engine, Event, Request, RequestId, Usage};
use wgslm::exec::{Limits, Numerics};
use wgslm::model::Model;
use wgslm::ops::Penalties;
use wgslm::sample::Sampling;

use super::golden::golden;
use super::open;
use super::runner::Device;
use wgslm_test::data;

/// Full attention, windows beside it, latent attention, and recurrent layers with and without pages.
const MODELS: [&str; 5] = ["llama-rope3", "gemma3-local-global", "deepseek3-yarn", "qwen3next-hybrid", "mamba2-groups"];

const ROOMY: Limits =
    Limits { rows: 64, seqs: 3, outs: 3, block: 4, blocks: 96, context: 128, in_flight: 2, checkpoints: 12 };

/// Tokens, with the bits of their log-probabilities, and what was reported at the end.
#[derive(Clone, Debug, Default)]
struct Answer {
    tokens: Vec<(u32, u32)>,
    usage: Usage,
    decoded: Vec<Range<u32>>,
}

struct Bench<D: Device> {
    engine: Engine<D::Exec>,
    answers: BTreeMap<RequestId, Answer>,
}

impl<D: Device> Bench<D> {
    fn new(model: &Model, limits: Limits) -> Self {
        let mut executor = D::load(model, Numerics::Exact, limits).unwrap();
        D::poison(&mut executor);
        Self { engine: Engine::new(executor, &model.program), answers: BTreeMap::new() }
    }

    fn step(&mut self) {
        for event in pollster::block_on(self.engine.step()) {
            match event {
                Event::Token { request, id, logprobs } => {
                    self.answers.entry(request).or_default().tokens.push((id, logprobs[0].logprob.to_bits()));
                }
                Event::Finished { request, usage, decoded, reason, .. } => {
                    assert_eq!(reason.name(), "length");
                    let answer = self.answers.entry(request).or_default();
                    (answer.usage, answer.decoded) = (usage, decoded);
                }
            }
        }
    }

    fn run(&mut self) {
        while self.engine.busy() {
            self.step();
        }
    }

    fn answer(&mut self, request: &Request) -> Answer {
        let id = self.engine.submit(request.clone()).unwrap();
        self.run();
        self.answers[&id].clone()
    }
}

fn request(prompt: &[u32], seed: Option<u64>) -> Request {
    let penalties = Penalties { repeat: 1.1, ..Penalties::NONE };
    let sampling = match seed {
        None => Sampling::GREEDY,
        Some(seed) => Sampling { temperature: 1.0, top_k: 20, penalties, seed, ..Sampling::GREEDY },
    };
    Request { sampling, max_tokens: Some(9), logprobs: Some(1), ..Request::new(prompt.to_vec()) }
}

fn ids(answer: &Answer) -> Vec<u32> {
    answer.tokens.iter().map(|(id, _)| *id).collect()
}

fn each_model(test: impl Fn(&str, &Model, &[u32])) {
    for name in MODELS {
        let prompt = golden(name)["prompt"].ids();
        // Long enough that windows end within it, and blocks are shared.
        let prompt: Vec<u32> = prompt.iter().copied().cycle().take(37).collect();
        test(name, &open(&data("tiny-models").join(name)).unwrap(), &prompt);
    }
}

/// An exact request gives the bits that it gives on an empty cache.
pub(crate) fn exact_requests_have_the_same_bits<D: Device>() {
    each_model(|name, model, prompt| {
        let exact = |prompt: &[u32], seed| Request { exact: true, ..request(prompt, seed) };
        let edited = [&prompt[..30], &[5, 6, 7, 8, 9, 10][..]].concat();
        let asked = [exact(prompt, None), exact(prompt, Some(7)), exact(&edited, None), exact(&edited, Some(8))];
        let cold: Vec<Answer> = asked.iter().map(|request| Bench::<D>::new(model, ROOMY).answer(request)).collect();
        // Warm, one after the other, twice; whatever was answered lies there as decoded, too.
        let mut bench = Bench::<D>::new(model, ROOMY);
        let mut reused = 0;
        for round in 0..3 {
            for (request, cold) in asked.iter().zip(&cold) {
                let warm = bench.answer(request);
                assert_eq!(warm.tokens, cold.tokens, "{name}, round {round}");
                assert_eq!(warm.decoded, cold.decoded);
                reused += warm.usage.reused;
            }
            let followed = [prompt, &ids(&cold[0]), &[3]].concat();
            let expected = Bench::<D>::new(model, ROOMY).answer(&exact(&followed, None));
            assert_eq!(bench.answer(&exact(&followed, None)).tokens, expected.tokens, "{name}, continued");
            assert_eq!(bench.answer(&request(&followed, None)).usage.generated, 9);
        }
        assert!(reused > 60, "{name}: {reused} positions were found");
        // Another salt finds nothing.
        let salt: Option<Arc<[u8]>> = Some(Arc::from(*b"other"));
        let apart = bench.answer(&Request { salt, ..asked[0].clone() });
        assert_eq!((apart.tokens, apart.usage.reused), (cold[0].tokens.clone(), 0), "{name}");
        // A fork that goes on after the answer has the prompt, recurrent or not: its states are kept there.
        let mut roomy = Bench::<D>::new(model, ROOMY);
        let first = roomy.engine.open();
        roomy.answer(&Request { sequence: Some(first), ..asked[0].clone() });
        let followed = [prompt, &ids(&cold[0]), &[3]].concat();
        let expected = Bench::<D>::new(model, ROOMY).answer(&exact(&followed, None));
        let sequence = Some(roomy.engine.fork(first).unwrap());
        let goes_on = roomy.answer(&Request { sequence, ..exact(&followed, None) });
        assert_eq!(goes_on.tokens, expected.tokens, "{name}, a fork that goes on");
        assert!(goes_on.usage.reused >= 32, "{name}: {:?}", goes_on.usage);
        // In company, by small chunks, on a cache that is too small for all, with forks of one conversation.
        let tight = Limits { rows: 5, blocks: 24, checkpoints: 4, context: 60, ..ROOMY };
        let mut bench = Bench::<D>::new(model, tight);
        let first = bench.engine.open();
        let on_it = bench.answer(&Request { sequence: Some(first), ..asked[0].clone() });
        assert_eq!(on_it.tokens, cold[0].tokens, "{name}, a conversation");
        // Two ways on from the same blocks, before others take them.
        let forks = [2, 3].map(|i| {
            let sequence = Some(bench.engine.fork(first).unwrap());
            (i, bench.engine.submit(Request { sequence, ..asked[i].clone() }).unwrap())
        });
        bench.run();
        for (i, id) in forks {
            let answer = &bench.answers[&id];
            assert_eq!(answer.tokens, cold[i].tokens, "{name}, {i} on a fork");
            assert!(answer.usage.reused > 0 || model.program.state_bytes() > 0, "{name}: a fork begins with nothing");
        }
        let mut all = Vec::new();
        for round in 0..3 {
            for (i, request) in asked.iter().enumerate() {
                let sequence = if i == 3 { Some(bench.engine.fork(first).unwrap()) } else { None };
                // Those of a round share nothing with those of another, so that there is less space.
                let salt: Option<Arc<[u8]>> = if i == 3 { None } else { Some(Arc::from([round as u8])) };
                all.push((i, bench.engine.submit(Request { sequence, salt, ..request.clone() }).unwrap()));
                (0..round * i).for_each(|_| bench.step());
            }
        }
        bench.run();
        for (i, id) in all {
            assert_eq!(bench.answers[&id].tokens, cold[i].tokens, "{name}, {i} in company");
        }
        let recurrent = model.program.state_bytes() > 0;
        println!("{name}: {} preemptions, recurrent: {recurrent}", bench.engine.preemptions());
        assert!(bench.engine.preemptions() > 0 || model.program.groups == 0, "{name}");
    });
}

/// A request that took an earlier answer as it was sampled gives the bits of one that states which positions were.
pub(crate) fn answers_are_replayed<D: Device>() {
    each_model(|name, model, prompt| {
        let mut bench = Bench::<D>::new(model, ROOMY);
        let first = bench.answer(&request(prompt, Some(3)));
        let followed = [prompt, &ids(&first), &[11, 12]].concat();
        let second = bench.answer(&request(&followed, None));
        let len = followed.len() as u32;
        let of_prompt: Vec<Range<u32>> = second.decoded.iter().filter(|range| range.end < len).cloned().collect();
        // The answer but for its last token, whose row was never computed, and without a block's first position alone, which
        // is quicker to compute than to copy.
        let found = if model.program.state_bytes() > 0 { 45 } else { 44 };
        let expected = 37..found;
        assert_eq!(of_prompt, [expected], "{name}");
        assert_eq!(second.usage.reused, found, "{name}");
        let stated = Request { decoded: of_prompt, ..request(&followed, None) };
        assert_eq!(Bench::<D>::new(model, ROOMY).answer(&stated).tokens, second.tokens, "{name}");
    });
}
