//! The engine against an executor that samples a hash of what it finds in its pages.

mod admission;
mod faults;

use std::collections::BTreeMap;
use std::ops::Range;

use super::fake::{Fake, ROOMY, STOP, TIGHT, VOCAB, program, recurrent, windowed};
use super::*;
use crate::Error;
use crate::exec::{Executor, Limits};
use crate::model::Program;
use crate::ops::Penalties;
use crate::sample::Sampling;
use crate::testing::Random;

type Answer = (Vec<u32>, Option<Finish>, Usage);

struct Bench {
    engine: Engine<Fake>,
    answers: BTreeMap<RequestId, Answer>,
    /// The positions of each request that were computed as decode.
    decoded: BTreeMap<RequestId, Vec<Range<u32>>>,
}

impl Bench {
    fn new(limits: Limits, seed: u64) -> Self {
        Self::of(&program(), limits, seed)
    }

    fn of(program: &Program, limits: Limits, seed: u64) -> Self {
        let engine = Engine::new(Fake::new(limits, seed, program), program);
        Self { engine, answers: BTreeMap::new(), decoded: BTreeMap::new() }
    }

    fn step(&mut self) {
        for event in pollster::block_on(self.engine.step()) {
            match event {
                Event::Token { request, id, .. } => {
                    let answer = self.answers.entry(request).or_default();
                    assert!(answer.1.is_none(), "a token after the end");
                    answer.0.push(id);
                }
                Event::Finished { request, reason, usage, decoded, .. } => {
                    self.decoded.insert(request, decoded);
                    let answer = self.answers.entry(request).or_default();
                    assert!(answer.1.replace(reason).is_none(), "a second end");
                    answer.2 = usage;
                }
            }
        }
    }

    fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.engine.busy() {
                return;
            }
            self.step();
        }
        panic!("the engine does not come to an end");
    }

    fn answer(&mut self, request: Request) -> (Vec<u32>, &'static str, Usage) {
        let id = self.engine.submit(request).unwrap();
        self.run();
        let (tokens, reason, usage) = self.answers.remove(&id).unwrap();
        (tokens, reason.unwrap().name(), usage)
    }
}

fn prompt(len: u32, seed: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + i / 13 + seed) % 39).collect()
}

fn request(prompt: Vec<u32>, most: u32) -> Request {
    Request { max_tokens: Some(most), sampling: Sampling { seed: 5, ..Sampling::default() }, ..Request::new(prompt) }
}

fn random_request(random: &mut Random) -> Request {
    let prompt = (0..1 + random.below(20)).map(|_| random.below(VOCAB)).collect();
    let temperature = if random.below(3) == 0 { 0.0 } else { 0.7 };
    let top_k = if random.below(3) == 0 { 5 } else { 0 };
    // Every third one asks for what is sampled on the host.
    let typical = if random.below(3) == 0 { 0.9 } else { 1.0 };
    let repeat = if random.below(2) == 0 { 1.3 } else { 1.0 };
    let penalties = Penalties { repeat, presence: 0.2, frequency: 0.1 };
    let last_n = 1 + random.below(12);
    Request {
        prompt,
        sampling: Sampling { temperature, top_k, typical, penalties, last_n, seed: random.next(), ..Sampling::GREEDY },
        bias: if random.below(4) == 0 { vec![(3, 1.5), (9, -4.0)] } else { vec![] },
        allowed: (random.below(4) == 0).then(|| [0xffff_fff7, 0xff].into()),
        max_tokens: (random.below(4) > 0).then(|| random.below(30)),
        stop: if random.below(2) == 0 { vec![STOP] } else { vec![] },
        ..Request::new(vec![])
    }
}

/// Alone on an executor with capacity for everything, one step at a time.
fn alone(request: &Request) -> (Vec<u32>, &'static str) {
    alone_of(&program(), request)
}

/// The same of another program. A recurrent one gives the same answers as one that keeps all positions.
fn alone_of(program: &Program, request: &Request) -> (Vec<u32>, &'static str) {
    alone_in(program, ROOMY.context, request)
}

/// The same in a context of another length.
fn alone_in(program: &Program, context: u32, request: &Request) -> (Vec<u32>, &'static str) {
    let limits = Limits { context, ..ROOMY };
    let (tokens, reason, _) = Bench::of(program, limits, 0).answer(Request { sequence: None, ..request.clone() });
    (tokens, reason)
}

/// The same with the phases of its prompt that were reported.
fn replayed(program: &Program, context: u32, request: &Request, decoded: &[Range<u32>]) -> (Vec<u32>, &'static str) {
    let len = request.prompt.len() as u32;
    let clip = |range: &Range<u32>| range.start..range.end.min(len);
    let decoded = decoded.iter().filter(|range| range.start < len).map(clip).collect();
    alone_in(program, context, &Request { exact: true, decoded, ..request.clone() })
}

/// How many tokens two lists begin with, all the same.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Bench {
    fn ask(&mut self, request: Request) -> RequestId {
        self.engine.submit(request).unwrap()
    }

    fn tokens(&self, id: RequestId) -> usize {
        self.answers.get(&id).map_or(0, |(tokens, ..)| tokens.len())
    }

    fn ended(&self, id: RequestId) -> bool {
        self.answers.get(&id).is_some_and(|(_, end, _)| end.is_some())
    }

    fn steps_until(&mut self, done: impl Fn(&Self) -> bool) -> u32 {
        for steps in 0..1000 {
            if done(self) {
                return steps;
            }
            self.step();
        }
        panic!("it does not come to that");
    }

    /// Nothing is in use, in no group.
    fn all_available(&self) -> bool {
        self.engine.cache_blocks().iter().all(|blocks| blocks.in_use == 0)
    }
}

/// Requests that share beginnings, salts and ends, some of whose steps are lost and whose logits are NaN, on small caches: each
/// has the answer that it has alone, in the phases that it reports. Every other cache is for long prompts, with windows that have
/// smaller pools than what sees everything.
#[test]
fn answers_do_not_depend_on_company() {
    let mut stats = BTreeMap::new();
    let programs = [program(), recurrent(), windowed(None, 6), windowed(Some(5), 9)];
    for seed in 0..800 {
        let mut random = Random::new(seed);
        let in_flight = 1 + random.below(3);
        let program = programs[seed as usize % 4].clone();
        let (long, faults) = (seed / 4 % 2 == 1, seed / 8 % 2 == 1);
        let checkpoints = random.below(5);
        let limits = if long {
            Limits { in_flight, checkpoints, rows: 24, context: 192, blocks: 48 + random.below(24), ..TIGHT }
        } else {
            Limits { in_flight, checkpoints, blocks: 12 + random.below(12), ..TIGHT }
        };
        let (beginning, longest) = if long { (130, 170) } else { (20, 40) };
        if long {
            let pools = program.windows().into_iter().filter(Option::is_some).map(|window| limits.blocks_of(window));
            pools.for_each(|blocks| assert!(blocks < limits.blocks));
        }
        let mut bench = Bench::of(&program, limits, seed);
        bench.engine.executor_mut().poison = Some(39).filter(|_| faults);
        let beginnings: Vec<Vec<u32>> = (0..2).map(|_| (0..beginning).map(|_| random.below(39)).collect()).collect();
        let mut requests: BTreeMap<RequestId, Request> = BTreeMap::new();
        let mut cancelled = Vec::new();
        // A conversation of which others go on.
        let mut open = vec![bench.engine.open()];
        let first = Request { prompt: beginnings[0].clone(), ..random_request(&mut random) };
        let on_it = Request { sequence: Some(open[0]), ..first.clone() };
        requests.insert(bench.engine.submit(on_it).unwrap(), first);
        for _ in 0..80 {
            if random.below(3) == 0 && requests.len() < 12 {
                let mut request = random_request(&mut random);
                match random.below(4) {
                    // What another one asked, or what it was answered, continued.
                    0 if !requests.is_empty() => {
                        let (id, earlier) = requests.iter().nth(random.below(requests.len() as u32) as usize).unwrap();
                        let answer = bench.answers.get(id).map_or(&[][..], |(tokens, ..)| tokens);
                        request.prompt = [&earlier.prompt, answer, &[random.below(VOCAB)]].concat();
                    }
                    1 | 2 => {
                        let shared = &beginnings[random.below(2) as usize];
                        let shared = &shared[..1 + random.below(beginning) as usize];
                        request.prompt.truncate(1 + random.below(6) as usize);
                        request.prompt = [shared, &request.prompt].concat();
                    }
                    _ => {}
                }
                request.prompt.truncate(longest);
                request.priority = match random.below(5) {
                    0 => Priority::Background,
                    1 => Priority::High,
                    _ => Priority::Normal,
                };
                request.exact = random.below(3) == 0;
                request.salt = (random.below(4) == 0).then(|| [7; 5].into());
                let copies = if random.below(6) == 0 { 3 } else { 1 };
                for _ in 0..copies {
                    request.sampling.seed = random.next();
                    let sequence = (random.below(4) == 0).then(|| bench.engine.fork(open[0]).unwrap());
                    open.extend(sequence);
                    let submitted = Request { sequence, ..request.clone() };
                    requests.insert(bench.engine.submit(submitted).unwrap(), request.clone());
                }
            }
            if random.below(25) == 0
                && let Some(id) = requests.keys().nth(random.below(9) as usize)
            {
                bench.engine.cancel(*id);
                cancelled.push(*id);
            }
            if faults && random.below(20) == 0 {
                let fake = bench.engine.executor_mut();
                fake.lost.insert(fake.next + 1 + u64::from(random.below(3)));
                fake.no_copies[0] = random.below(2);
            }
            bench.step();
            bench.engine.scheduler.check();
        }
        bench.run();
        bench.engine.scheduler.check();
        *stats.entry("forked").or_insert(0) += open.len() as u64 - 1;
        open.into_iter().for_each(|sequence| bench.engine.close(sequence));
        assert!(bench.all_available(), "blocks leaked");
        // Everything that was in the cache under some salt.
        let computed: Vec<(&Request, Vec<u32>)> =
            requests.iter().map(|(id, r)| (r, [&r.prompt[..], &bench.answers[id].0].concat())).collect();
        for (id, request) in &requests {
            let reused = bench.answers[id].2.reused as usize;
            let others = computed.iter().filter(|(r, _)| r.salt == request.salt && !std::ptr::eq(*r, request));
            let shared = others.map(|(_, tokens)| common(tokens, &request.prompt)).max().unwrap_or(0);
            assert!(shared >= reused, "{reused} tokens of {shared} that others asked under its salt");
        }
        for (id, request) in &requests {
            let (tokens, reason, usage) = bench.answers.remove(id).unwrap();
            let decoded = bench.decoded.remove(id).unwrap();
            if request.exact {
                assert!(decoded.first().is_none_or(|range| range.start >= usage.prompt), "{decoded:?}");
            }
            let (expected, expected_reason) = replayed(&program, limits.context, request, &decoded);
            let reason = reason.unwrap().name();
            *stats.entry(reason).or_insert(0) += 1;
            *stats.entry("reused").or_insert(0) += u64::from(usage.reused > 0);
            *stats.entry("decoded").or_insert(0) += u64::from(decoded.first().is_some_and(|d| d.start < usage.prompt));
            assert_eq!(usage.generated as usize, tokens.len());
            match reason {
                "cancelled" => assert!(cancelled.contains(id)),
                "error" if faults => {}
                _ => assert_eq!((&tokens, reason), (&expected, expected_reason), "seed {seed} {request:?}"),
            }
            assert_eq!(tokens, expected[..tokens.len()], "seed {seed} {request:?}");
        }
        *stats.entry("preempted").or_insert(0) += bench.engine.preemptions();
        let [states, blocks] = bench.engine.executor().copies;
        *stats.entry("states").or_insert(0) += states as u64;
        *stats.entry("blocks").or_insert(0) += blocks as u64;
        *stats.entry("copies refused").or_insert(0) += u64::from(bench.engine.executor().no_copies[1]);
        *stats.entry("evicted").or_insert(0) += bench.engine.cache_counts().evicted;
    }
    let kinds =
        ["stop", "length", "context", "cancelled", "error", "preempted", "reused", "decoded", "states", "blocks"];
    for what in kinds.into_iter().chain(["forked", "copies refused"]) {
        assert!(stats.get(what).is_some_and(|n| *n > 100), "too few cases: {stats:?}");
    }
}

/// Conversations whose cache is evicted at times, beside other requests: the same answers as computed at once.
#[test]
fn conversations_are_continued_as_if_computed_anew() {
    let (mut turns, mut reused, mut evicted) = (0, 0, 0);
    let (mut copies, mut checkpoints, mut forked) = (0, 0, 0);
    for seed in 0..600 {
        let mut random = Random::new(seed);
        // Of a recurrent model less is kept, according to the space for checkpoints.
        let paged = if seed % 2 == 0 { program() } else { windowed(None, 6) };
        let program = if seed % 3 == 0 { paged } else { recurrent() };
        let recurrent = seed % 3 != 0;
        let mut bench = Bench::of(&program, Limits { checkpoints: seed as u32 % 5, ..TIGHT }, seed);
        // The oracle keeps its sequences too, with capacity for all, so that phases are the same.
        let mut oracle = Bench::new(ROOMY, 1);
        let conversations = [bench.engine.open(), bench.engine.open()];
        let oracles = [oracle.engine.open(), oracle.engine.open()];
        let mut history = [vec![1, 2, 3], vec![1, 2, 4]];
        for _ in 0..4 {
            for _ in 0..random.below(3) {
                bench.engine.submit(random_request(&mut random)).unwrap();
            }
            for i in 0..2 {
                // Some go on twice, in different ways.
                let fork = (random.below(3) == 0).then(|| {
                    let own = bench.engine.fork(conversations[i]).unwrap();
                    let mut request = random_request(&mut random);
                    let known = &history[i][..history[i].len().min(38)];
                    request.prompt = [known, &[random.below(VOCAB), random.below(VOCAB)]].concat();
                    request.max_tokens = Some(random.below(8));
                    let of_oracle = oracle.engine.fork(oracles[i]).unwrap();
                    let expected = oracle.answer(Request { sequence: Some(of_oracle), ..request.clone() });
                    oracle.engine.close(of_oracle);
                    let id = bench.engine.submit(Request { sequence: Some(own), ..request }).unwrap();
                    (id, own, expected)
                });
                let mut request = random_request(&mut random);
                request.prompt = history[i].clone();
                request.max_tokens = Some(random.below(8));
                let context = request.prompt.len() as u32;
                let id = bench.engine.submit(Request { sequence: Some(conversations[i]), ..request.clone() }).unwrap();
                bench.run();
                let (tokens, reason, usage) = bench.answers.remove(&id).unwrap();
                let (expected, expected_reason, full) =
                    oracle.answer(Request { sequence: Some(oracles[i]), ..request });
                assert_eq!((&tokens, reason.unwrap().name()), (&expected, expected_reason), "seed {seed}");
                assert!(usage.reused < context);
                if let Some((id, own, (expected, expected_reason, _))) = fork {
                    let (tokens, reason, usage) = bench.answers.remove(&id).unwrap();
                    assert_eq!((&tokens, reason.unwrap().name()), (&expected, expected_reason), "fork, seed {seed}");
                    forked += usize::from(usage.reused > 0);
                    bench.engine.close(own);
                }
                assert!(bench.engine.checkpoints() <= seed as u32 % 5, "more checkpoints than there is capacity for");
                checkpoints = checkpoints.max(bench.engine.checkpoints());
                assert!(full.reused < context);
                turns += 1;
                reused += usize::from(usage.reused > 0);
                evicted += usize::from(usage.reused < full.reused);
                // The next turn: what was answered, sometimes changed from some token on, and something new.
                history[i].extend(tokens);
                if random.below(4) == 0 {
                    let keep = 1 + random.below(history[i].len() as u32) as usize;
                    history[i].truncate(keep);
                }
                let new = 1 + random.below(4);
                history[i].extend((0..new).map(|_| random.below(VOCAB)));
                history[i].truncate(40);
            }
        }
        conversations.into_iter().for_each(|c| bench.engine.close(c));
        assert!(bench.all_available());
        copies += bench.engine.executor().copies[0];
        assert!(recurrent || bench.engine.executor().copies[0] == 0);
    }
    assert!(copies > 1000 && checkpoints == 4, "{copies} copies of states, {checkpoints} checkpoints");
    assert!(forked > turns / 20, "{forked} forks reused something, of {turns} turns");
    assert!(reused > turns / 5 && evicted > turns / 20, "{turns} turns, {reused} reused, {evicted} evicted");
}

#[test]
fn the_second_turn_computes_only_its_new_tokens() {
    let mut bench = Bench::new(ROOMY, 3);
    let seq = bench.engine.open();
    let first = Request { sequence: Some(seq), max_tokens: Some(6), ..Request::new(vec![1, 2, 3, 4]) };
    let (answer, _, usage) = bench.answer(first);
    assert_eq!((usage.reused, answer.len(), bench.engine.executor().rows), (0, 6, 9));
    let prompt = [&[1, 2, 3, 4], answer.as_slice(), &[8, 9]].concat();
    let (_, _, usage) = bench.answer(Request { sequence: Some(seq), max_tokens: Some(1), ..Request::new(prompt) });
    // The last token of the answer was never a row; it is one now.
    assert_eq!((usage.prompt, usage.reused, bench.engine.executor().rows), (12, 9, 12));
}

#[test]
fn a_recurrent_sequence_goes_back_to_a_checkpoint() {
    let limits = Limits { checkpoints: 6, ..ROOMY };
    let mut bench = Bench::of(&recurrent(), limits, 3);
    let seq = bench.engine.open();
    let turn = |prompt: Vec<u32>| Request { sequence: Some(seq), max_tokens: Some(4), ..Request::new(prompt) };
    let (answer, _, usage) = bench.answer(turn(vec![1, 2, 3, 4]));
    assert_eq!((usage.reused, bench.engine.checkpoints()), (0, 2));
    // All that was computed: the prompt and three tokens.
    let whole = [&[1, 2, 3, 4], answer.as_slice(), &[8]].concat();
    assert_eq!(bench.answer(turn(whole)).2.reused, 7);
    // Another continuation after the first token of the answer: from the end of the prompt.
    let other = vec![1, 2, 3, 4, answer[0], 9, 9];
    let (tokens, _, usage) = bench.answer(turn(other.clone()));
    assert_eq!(usage.reused, 4);
    let mut pages = Bench::new(ROOMY, 3);
    assert_eq!(pages.engine.open(), seq);
    pages.answer(turn(vec![1, 2, 3, 4]));
    let (expected, _, usage) = pages.answer(turn(other));
    assert_eq!((tokens, usage.reused), (expected, 5));
    // Nothing in common: from the start.
    assert_eq!(bench.answer(turn(vec![9, 1])).2.reused, 0);
    // Without space for checkpoints too.
    let mut bench = Bench::of(&recurrent(), Limits { checkpoints: 0, ..ROOMY }, 3);
    let seq = bench.engine.open();
    let (first, ..) = bench.answer(Request { sequence: Some(seq), ..turn(vec![1, 2, 3, 4]) });
    assert_eq!(first, answer);
    assert_eq!(bench.answer(Request { sequence: Some(seq), ..turn(vec![1, 2, 3, 4, 5]) }).2.reused, 0);
}

/// A running sequence may take the only checkpoint of one whose request waits. That one has then lost its states.
#[test]
fn a_waiting_recurrent_sequence_may_lose_its_checkpoint() {
    let mut bench = Bench::of(&recurrent(), Limits { seqs: 1, checkpoints: 1, ..ROOMY }, 3);
    let [first, second] = [bench.engine.open(), bench.engine.open()];
    let turn = |sequence, prompt: &[u32]| Request {
        sequence: Some(sequence),
        max_tokens: Some(4),
        ..Request::new(prompt.to_vec())
    };
    let (answer, ..) = bench.answer(turn(first, &[1, 2, 3, 4]));
    assert_eq!(bench.engine.checkpoints(), 1);
    let next = [&[1, 2, 3, 4], answer.as_slice(), &[8, 9]].concat();
    // The second one has the only slot, and keeps its states when its prompt has run.
    bench.engine.submit(turn(second, &[5, 6, 7])).unwrap();
    let waiting = bench.engine.submit(turn(first, &next)).unwrap();
    bench.run();
    let (tokens, reason, usage) = bench.answers.remove(&waiting).unwrap();
    assert_eq!(usage.reused, 0);
    let mut pages = Bench::new(ROOMY, 3);
    assert_eq!(pages.engine.open(), first);
    pages.answer(turn(first, &[1, 2, 3, 4]));
    let (expected, expected_reason, _) = pages.answer(turn(first, &next));
    assert_eq!((tokens, reason.unwrap().name()), (expected, expected_reason));
}

/// How much of a request that ended early is known does not depend on how many steps were in flight.
#[test]
fn what_is_kept_of_an_answer_does_not_depend_on_timing() {
    for in_flight in 1..=4 {
        for steps in [0, 1, 2, 5, 9] {
            for length in [Some(6), None] {
                let mut bench = Bench::new(Limits { in_flight, ..ROOMY }, 3);
                let sequence = Some(bench.engine.open());
                let prompt = vec![1, 2, 3, 4];
                let request = Request { sequence, max_tokens: length, ..Request::new(prompt.clone()) };
                let id = bench.engine.submit(request).unwrap();
                match length {
                    Some(_) => bench.run(),
                    None => {
                        (0..steps).for_each(|_| bench.step());
                        bench.engine.cancel(id);
                        bench.run();
                    }
                }
                let answer = bench.answers.remove(&id).map_or(Vec::new(), |(tokens, ..)| tokens);
                let next = [&prompt, answer.as_slice(), &[8, 9]].concat();
                let (_, _, usage) = bench.answer(Request { sequence, max_tokens: Some(1), ..Request::new(next) });
                // The last token of an answer counts as part of the next prompt, even if its row was in flight.
                let known = prompt.len() + answer.len() - 1;
                let reused = usage.reused as usize;
                assert!(
                    reused == known || answer.is_empty() && reused <= known,
                    "{in_flight} {steps} {length:?}: {reused}"
                );
            }
        }
    }
}

#[test]
fn windows_bound_what_a_long_answer_holds() {
    // Capacity for 32 positions: a window of 6, and what is kept for going back a little.
    let limits = Limits { blocks: 8, context: 4000, ..TIGHT };
    let request = Request { max_tokens: Some(300), ..Request::new(vec![1, 2, 3]) };
    let mut bench = Bench::of(&windowed(Some(6), 5), limits, 3);
    let (tokens, reason, _) = bench.answer(request.clone());
    assert_eq!((tokens.len(), reason, bench.all_available()), (300, "length", true));
    let mut roomy = Bench::of(&windowed(Some(6), 5), Limits { blocks: 400, ..limits }, 1);
    assert_eq!(roomy.answer(request.clone()).0, tokens);
    // A layer that sees everything still needs everything.
    let (tokens, reason, _) = Bench::of(&windowed(None, 5), limits, 3).answer(request);
    assert_eq!((tokens.len(), reason), (30, "context"));
}

#[test]
fn a_sequence_goes_back_before_its_windows_from_the_start() {
    let mut bench = Bench::of(&windowed(None, 6), Limits { block: 2, ..ROOMY }, 3);
    let seq = bench.engine.open();
    let turn = |prompt: Vec<u32>| Request { sequence: Some(seq), max_tokens: Some(1), ..Request::new(prompt) };
    let whole: Vec<u32> = (0..30).collect();
    bench.answer(turn(whole.clone()));
    assert_eq!(bench.answer(turn([&whole[..28], &[7, 8]].concat())).2.reused, 28);
    assert_eq!(bench.answer(turn([&whole[..10], &[7, 8]].concat())).2.reused, 0);
}

#[test]
fn a_full_cache_ends_a_lone_request() {
    let mut bench = Bench::new(Limits { blocks: 5, ..TIGHT }, 0);
    let (tokens, reason, _) = bench.answer(Request::new(vec![1; 6]));
    // 20 positions are cached; the token that the last of them gives is the 21st.
    assert_eq!((tokens.len(), reason), (15, "context"));
    let (tokens, reason, _) = Bench::new(TIGHT, 0).answer(Request::new(vec![1; 6]));
    assert_eq!((tokens.len(), reason), (42, "context"));
}

#[test]
fn requests_that_could_never_run_are_refused() {
    let mut engine = Bench::new(TIGHT, 0).engine;
    let refused = |engine: &mut Engine<Fake>, request| engine.submit(request).unwrap_err().to_string();
    assert!(refused(&mut engine, Request::new(vec![])).contains("no tokens"));
    assert!(refused(&mut engine, Request::new(vec![VOCAB])).contains("the vocabulary has 40"));
    assert!(refused(&mut engine, Request::new(vec![1; 48])).contains("48 of context"));
    let seq = engine.open();
    let on_seq = Request { sequence: Some(seq), ..Request::new(vec![1]) };
    engine.submit(on_seq.clone()).unwrap();
    assert!(refused(&mut engine, on_seq.clone()).contains("one at a time"));
    engine.close(seq);
    assert!(refused(&mut engine, on_seq).contains("not open"));
    let mut engine = Bench::new(Limits { blocks: 2, ..TIGHT }, 0).engine;
    assert!(refused(&mut engine, Request::new(vec![1; 9])).contains("8 in the cache"));
}

#[test]
fn decoding_on_the_device_keeps_steps_in_flight() {
    let mut bench = Bench::new(TIGHT, 0);
    let request = Request { max_tokens: Some(9), ..Request::new(vec![1, 2]) };
    bench.engine.submit(request).unwrap();
    while let Some(plan) = bench.engine.scheduler.schedule(TIGHT.in_flight) {
        let Engine { executor, scheduler, .. } = &mut bench.engine;
        scheduler.run(plan, |step| executor.enqueue(step));
    }
    assert_eq!(bench.engine.executor().rows, 4, "the prompt and two tokens that the host has not seen");
    bench.run();
    assert_eq!(bench.engine.executor().rows, 10, "no row after the last token");
}

#[test]
fn only_sampling_on_the_host_stalls_the_device() {
    let on_device = Sampling { temperature: 1.0, top_k: 9, top_p: 0.9, min_p: 0.01, ..Sampling::GREEDY };
    let penalties = Penalties { repeat: 1.2, ..Penalties::NONE };
    let on_host = Sampling { typical: 0.9, ..on_device };
    for (sampling, most) in [(on_device, 1), (Sampling { penalties, ..on_device }, 1), (on_host, 40)] {
        let mut bench = Bench::new(TIGHT, 0);
        bench.answer(Request { sampling, max_tokens: Some(40), ..Request::new(vec![1, 2]) });
        let stalls = bench.engine.stalls();
        assert!(stalls <= most && (most == 1 || stalls > 10), "{stalls} stalls with {sampling:?}");
    }
}

#[test]
fn scoring_gives_the_logits_of_every_position() {
    let mut fake = Fake::new(TIGHT, 0, &program());
    let ids: Vec<u32> = (0..11).collect();
    let logits = pollster::block_on(score(&mut fake, &program(), &ids)).unwrap();
    assert_eq!(logits.len(), 11 * VOCAB as usize);
    let last = pollster::block_on(score(&mut fake, &program(), &ids[..8])).unwrap();
    assert_eq!(logits[7 * 40..8 * 40], last[7 * 40..]);
    assert!(logits.chunks(40).collect::<Vec<_>>().windows(2).all(|w| w[0] != w[1]));
}

#[test]
fn rows_can_be_bounded() {
    let request = Request { max_tokens: Some(9), ..Request::new((1..30).collect()) };
    let whole = Bench::new(TIGHT, 3).answer(request.clone());
    for rows in [0, 1, 4, 1000] {
        let mut bench = Bench::new(TIGHT, 3);
        bench.engine.set_rows(rows);
        assert_eq!(bench.answer(request.clone()), whole);
    }
    let mut bench = Bench::new(Limits { in_flight: 1, ..ROOMY }, 3);
    bench.engine.set_rows(8);
    bench.engine.submit(request).unwrap();
    bench.step();
    assert_eq!(bench.engine.executor().rows, 8);
}

#[test]
fn a_cancelled_request_is_reported_at_once() {
    let mut bench = Bench::new(TIGHT, 5);
    let id = bench.engine.submit(Request::new((1..30).collect())).unwrap();
    while bench.engine.scheduler.in_flight() == 0 {
        bench.step();
    }
    let waited = bench.engine.executor().blocked();
    bench.engine.cancel(id);
    bench.step();
    assert!(matches!(bench.answers[&id].1, Some(Finish::Cancelled)));
    assert_eq!(bench.engine.executor().blocked(), waited, "nobody waits for what is in flight");
    bench.run();
}

/// Whoever waits for a prompt that another one computes finds all of it but the last block, whatever layers there are.
#[test]
fn a_prompt_of_several_requests_is_computed_once() {
    for (name, program) in [("pages", program()), ("states", recurrent()), ("windows", windowed(None, 6))] {
        for len in [9, 32, 33, 40, 41] {
            let limits = Limits { rows: 64, blocks: 64, checkpoints: 8, ..TIGHT };
            let mut bench = Bench::of(&program, limits, 3);
            let request = Request { max_tokens: Some(3), ..Request::new((0..len).map(|i| i * 7 % 39).collect()) };
            let ids: Vec<_> = (0..3).map(|_| bench.engine.submit(request.clone()).unwrap()).collect();
            bench.run();
            let expected = alone_of(&program, &request);
            for (i, id) in ids.iter().enumerate() {
                let (tokens, reason, usage) = bench.answers.remove(id).unwrap();
                assert_eq!((tokens, reason.unwrap().name()), expected, "{name}");
                let whole_blocks = (len - 1) / 4 * 4;
                assert!(
                    usage.reused >= if i == 0 { 0 } else { whole_blocks },
                    "{name}, {len}: {} of {i}",
                    usage.reused
                );
            }
        }
    }
}

/// Who has the least to compute again gives its blocks up, although another one came later; and what it published is there
/// when it goes on.
#[test]
fn the_one_with_the_least_to_lose_is_preempted() {
    // The first request grows, the second has published its prompt, the third computes a long one in pieces.
    let limits = Limits { rows: 8, blocks: 19, context: 70, in_flight: 1, ..TIGHT };
    let mut bench = Bench::new(limits, 3);
    let request = |seed: u32, len: u32, most: u32| Request {
        max_tokens: Some(most),
        ..Request::new((0..len).map(|i| (i * 7 + seed) % 39).collect())
    };
    let requests = [request(0, 10, 30), request(1, 17, 20), request(2, 36, 4)];
    let [first, second] = [0, 1].map(|i| bench.engine.submit(requests[i].clone()).unwrap());
    while ![first, second].iter().all(|id| bench.answers.get(id).is_some_and(|(tokens, ..)| tokens.len() > 4)) {
        bench.step();
    }
    let third = bench.engine.submit(requests[2].clone()).unwrap();
    while bench.engine.preemptions() == 0 {
        assert!(bench.engine.busy(), "there was space for all");
        bench.step();
    }
    assert_eq!([first, second, third].map(|id| bench.engine.scheduler.runs(id)), [true, false, true]);
    bench.run();
    for (id, request) in [first, second, third].into_iter().zip(&requests) {
        let (tokens, reason, _) = &bench.answers[&id];
        assert_eq!((tokens.clone(), reason.as_ref().unwrap().name()), alone(request));
    }
    let rows: usize = requests.iter().map(|r| r.prompt.len() + r.max_tokens.unwrap() as usize - 1).sum();
    let again = bench.engine.executor().rows - rows;
    // What it had not published, and a block that the first one took. The third one had computed sixteen.
    assert_eq!(bench.engine.preemptions(), 1);
    assert!(again <= 12, "{again} rows were computed again");
}

/// Of a long answer the last states are kept; those at the end of the prompt stay beside them.
#[test]
fn states_of_a_prompt_outlast_its_answer() {
    for in_flight in 1..4 {
        let limits = Limits { block: 16, blocks: 64, context: 512, rows: 64, checkpoints: 8, in_flight, ..TIGHT };
        let mut bench = Bench::of(&recurrent(), limits, 3);
        let prompt: Vec<u32> = (0..64).map(|i| i * 5 % 39).collect();
        bench.answer(Request { max_tokens: Some(200), ..Request::new(prompt.clone()) });
        let other = [&prompt[..], &[1, 2]].concat();
        assert_eq!(bench.answer(Request { max_tokens: Some(1), ..Request::new(other) }).2.reused, 64);
    }
}

#[test]
fn rows_without_a_token_end_their_request_alone() {
    let mut bench = Bench::new(TIGHT, 0);
    bench.engine.executor_mut().poison = Some(39);
    let good = Request { max_tokens: Some(9), sampling: Sampling::GREEDY, ..Request::new(vec![1, 2]) };
    let expected = alone(&good);
    assert!(!expected.0.contains(&39));
    for (top_k, typical) in [(0, 1.0), (3, 1.0), (0, 0.9)] {
        let sampling = Sampling { temperature: 1.0, top_k, typical, ..Sampling::GREEDY };
        let bad = bench.engine.submit(Request { sampling, ..Request::new(vec![39, 1]) }).unwrap();
        let (tokens, reason, _) = bench.answer(good.clone());
        assert_eq!((tokens, reason), expected);
        let (tokens, reason, _) = bench.answers.remove(&bad).unwrap();
        assert!(tokens.is_empty());
        assert!(matches!(reason, Some(Finish::Error(e)) if matches!(*e, Error::Numerical { pos: 2, .. })));
        // The same where no token is allowed.
        let allowed = Some([0, 0].into());
        let nothing = bench.engine.submit(Request { sampling, allowed, ..Request::new(vec![3, 1]) }).unwrap();
        let (tokens, reason, _) = bench.answer(good.clone());
        assert_eq!((tokens, reason), expected);
        let (tokens, reason, _) = bench.answers.remove(&nothing).unwrap();
        assert!(tokens.is_empty() && matches!(reason, Some(Finish::Error(e)) if matches!(*e, Error::Numerical { .. })));
    }
}
