//! Recurrent models in the engine: what is kept between turns, taken back, preempted or begun again changes no token.

use wgslm::engine::{Engine, Event, Request, RequestId};
use wgslm::exec::{CpuExecutor, Limits, Numerics};
use wgslm::model::Model;

use super::golden::golden;
use super::runner::Device;
use super::{Cpu, open};
use wgslm_test::data;

const LIMITS: Limits =
    Limits { rows: 64, seqs: 2, outs: 2, block: 4, blocks: 64, context: 128, in_flight: 1, checkpoints: 6 };

/// An engine that collects what it receives.
struct Bench {
    engine: Engine<CpuExecutor>,
    reported: Vec<(RequestId, u32)>,
    reused: u32,
}

impl Bench {
    fn new(model: &Model, limits: Limits) -> Self {
        let mut executor = Cpu::load(model, Numerics::Exact, limits).unwrap();
        Cpu::poison(&mut executor);
        Self { engine: Engine::new(executor, &model.program), reported: Vec::new(), reused: 0 }
    }

    fn step(&mut self) {
        for event in pollster::block_on(self.engine.step()) {
            match event {
                Event::Token { request, id, .. } => self.reported.push((request, id)),
                Event::Finished { usage, .. } => self.reused = usage.reused,
            }
        }
    }

    fn run(&mut self) {
        while self.engine.busy() {
            self.step();
        }
    }

    fn tokens(&self, request: RequestId) -> Vec<u32> {
        self.reported.iter().filter(|(of, _)| *of == request).map(|(_, id)| *id).collect()
    }

    /// The tokens after a prompt, and how much of it was kept.
    fn answer(&mut self, request: Request) -> (Vec<u32>, u32) {
        let id = self.engine.submit(request).unwrap();
        self.run();
        (self.tokens(id), self.reused)
    }
}

fn each_model(test: impl Fn(&str, &Model, &[u32], &[u32])) {
    for name in ["falconh1-multipliers", "lfm2-shortconv", "qwen35-hybrid", "mamba2-groups"] {
        let golden = golden(name);
        let (prompt, greedy) = (golden["prompt"].ids(), golden["greedy"].ids());
        test(name, &open(&data("tiny-models").join(name)).unwrap(), &prompt, &greedy[..12]);
    }
}

fn greedy(prompt: &[u32], n: usize) -> Request {
    Request { max_tokens: Some(n as u32), ..Request::new(prompt.to_vec()) }
}

#[test]
fn turns_are_kept_and_taken_back() {
    each_model(|name, model, prompt, expected| {
        // Capacity for checkpoints, for few, for none: the same tokens, since positions keep their phases.
        let mut all = Vec::new();
        for checkpoints in [6, 2, 0] {
            let mut bench = Bench::new(model, Limits { checkpoints, ..LIMITS });
            let sequence = Some(bench.engine.open());
            let mut answers = Vec::new();
            let mut reused = Vec::new();
            let mut text = prompt.to_vec();
            for turn in 0..4 {
                let (answer, kept) = bench.answer(Request { sequence, ..greedy(&text, expected.len()) });
                assert!(bench.engine.checkpoints() <= checkpoints, "{name}: beyond the budget");
                if turn == 0 {
                    assert_eq!(answer, expected, "{name}");
                }
                reused.push(kept as usize);
                text.extend(&answer);
                // The third turn replaces the second answer but for its first token.
                if turn == 1 {
                    text.truncate(text.len() - expected.len() + 1);
                }
                text.extend([7, 11 + turn, 5]);
                answers.push(answer);
            }
            println!("{name}, {checkpoints} checkpoints: {reused:?} positions kept");
            match checkpoints {
                6 => assert!(reused[1] == prompt.len() + expected.len() - 1 && reused[2] > prompt.len(), "{reused:?}"),
                0 => assert_eq!(reused, [0; 4]),
                _ => assert!(reused[1] > 0 && reused[3] > 0, "{reused:?}"),
            }
            all.push(answers);
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{name}: {all:?}");
    });
}

#[test]
fn company_preemption_and_used_slots_change_nothing() {
    each_model(|name, model, prompt, expected| {
        // Pages for little more than one of the two.
        let tight = Limits { rows: 5, blocks: 9, context: 36, ..LIMITS };
        let other: Vec<u32> = prompt.iter().rev().copied().collect();
        let (of_other, _) = Bench::new(model, LIMITS).answer(greedy(&other, expected.len()));
        let mut bench = Bench::new(model, tight);
        for round in 0..3 {
            let first = bench.engine.submit(greedy(prompt, expected.len())).unwrap();
            // The second joins while the first is in flight.
            (0..round * 3).for_each(|_| bench.step());
            let second = bench.engine.submit(greedy(&other, expected.len())).unwrap();
            bench.run();
            assert_eq!(bench.tokens(first), expected, "{name}, round {round}");
            assert_eq!(bench.tokens(second), of_other, "{name}, round {round}");
        }
        // A model without pages never runs out of them.
        assert_eq!(bench.engine.preemptions() > 0, model.program.groups > 0, "{name}");
    });
}
