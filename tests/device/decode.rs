//! What a decoding loop costs on a GPU: dispatches, bindings, pipelines, submissions, and waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wgslm::Error;
use wgslm::engine::{Engine, Event, Finish, Request, RequestId};
use wgslm::exec::{
    CpuExecutor, CpuOptions, Executor, GpuExecutor, GpuOptions, Limits, Numerics, Outs, Phase, SeqStep, Step, Token,
};
use wgslm::file::ModelFile;
use wgslm::gpu::{Buffer, Choice, Device};
use wgslm::model::{Model, Program};
use wgslm::ops::{Logprob, Penalties, RING, SampleLists, SampleSpec};
use wgslm::quant::BlockFormat;
use wgslm::sample::Sampling;
use wgslm_test::programs;

fn open(path: &str) -> Model {
    pollster::block_on(Model::open(ModelFile::open(&wgslm_test::data(path)).unwrap())).unwrap()
}

fn lavapipe() -> Device {
    let choice = Choice { name: Some("llvmpipe".into()), ..Choice::default() };
    let device = pollster::block_on(Device::open(&choice)).unwrap_or_else(|e| panic!("{e}; scripts/test installs it"));
    assert!(device.caps().name.contains("llvmpipe"));
    device
}

fn load(device: &Device, model: &Model) -> GpuExecutor {
    load_for(device, model, 2, 3)
}

/// With capacity for so many sequences, and steps in flight.
fn load_for(device: &Device, model: &Model, seqs: u32, in_flight: u32) -> GpuExecutor {
    load_with(device, model, Numerics::Fast, seqs, in_flight, seqs * model.program.context.min(256) / 16)
}

/// With so many blocks.
fn load_with(
    device: &Device,
    model: &Model,
    numerics: Numerics,
    seqs: u32,
    in_flight: u32,
    blocks: u32,
) -> GpuExecutor {
    let context = model.program.context.min(256);
    let limits = Limits { rows: 64, seqs, outs: seqs, block: 16, blocks, context, in_flight, checkpoints: 0 };
    let options = GpuOptions { numerics, kv: None, limits, unfused: false, keep_values: false };
    pollster::block_on(GpuExecutor::load(device, &model.program, model, options, &mut |_, _| {})).unwrap()
}

/// Runs a request to its end; gives its tokens.
fn generate<E: Executor>(engine: &mut Engine<E>, request: Request) -> Vec<u32> {
    engine.submit(request).unwrap();
    let mut tokens = Vec::new();
    while engine.busy() {
        for event in pollster::block_on(engine.step()) {
            match event {
                Event::Token { id, .. } => tokens.push(id),
                Event::Finished { reason, .. } => assert_eq!(reason.name(), "length"),
            }
        }
    }
    tokens
}

#[test]
fn gpu_decoding_waits_for_no_read_back() {
    let model = open("stories/stories-q8_0.gguf");
    let greedy = Request { max_tokens: Some(64), ..Request::new(vec![1, 350, 354, 404, 284, 261, 416]) };
    decode(&model, greedy.clone());
    let filters = Sampling { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.01, seed: 3, ..Sampling::GREEDY };
    let penalties = Penalties { repeat: 1.1, presence: 0.1, frequency: 0.1 };
    for sampling in [filters, Sampling { penalties, ..filters }, Sampling { penalties, ..Sampling::GREEDY }] {
        let allowed: Vec<u32> = (0..16).map(|word| if word == 0 { !0b110 } else { !0 }).collect();
        let (bias, allowed) = (vec![(13, -2.0), (300, 1.0)], Some(allowed.into()));
        decode(&model, Request { sampling, bias, allowed, logprobs: Some(3), ..greedy.clone() });
    }
}

/// Generates 64 tokens, none of which is waited for with nothing else in flight.
fn decode(model: &Model, request: Request) {
    let mut engine = Engine::new(load(&lavapipe(), model), &model.program);
    let tokens = generate(&mut engine, request.clone());
    assert_eq!(tokens.len(), 64);
    // A step follows every one that is waited for, but for the last.
    assert!(engine.stalls() <= 1, "{} stalls", engine.stalls());
    assert!(engine.executor().blocked() <= 1, "{} waits with nothing else in flight", engine.executor().blocked());
    // One submission a token, and no more steps than those in flight after the end.
    let submissions = engine.executor().submissions();
    assert!((64..=66).contains(&submissions), "{submissions} submissions");
    // The same again, without a new pipeline.
    let (.., pipelines) = engine.executor().counts(Phase::Decode);
    assert_eq!(generate(&mut engine, request), tokens);
    assert_eq!(engine.executor().counts(Phase::Decode).2, pipelines);
}

/// What became of a request: its tokens, their probabilities, and why it ended.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<Vec<Logprob>>,
    reason: &'static str,
}

/// By the order of submission.
type Answers = BTreeMap<RequestId, Answer>;

/// Runs requests on an engine whose submissions take at most `budget`. The first is submitted at once, each further one after
/// 5 more reported tokens; `cancelled` is cancelled after 9.
fn answers(
    engine: &mut Engine<GpuExecutor>,
    requests: &[Request],
    cancelled: Option<usize>,
    budget: Duration,
) -> Answers {
    engine.executor_mut().set_budget(budget);
    let (mut answers, mut reported, mut waiting) = (Answers::new(), 0, requests.iter());
    loop {
        if answers.len() * 5 <= reported
            && let Some(request) = waiting.next()
        {
            answers.insert(engine.submit(request.clone()).unwrap(), Answer::default());
        }
        if !engine.busy() {
            return answers;
        }
        for event in pollster::block_on(engine.step()) {
            match event {
                Event::Token { request, id, logprobs } => {
                    reported += 1;
                    let answer = answers.get_mut(&request).unwrap();
                    assert_eq!(answer.reason, "", "a token after the end");
                    answer.tokens.push(id);
                    answer.logprobs.push(logprobs);
                }
                Event::Finished { request, reason, .. } => answers.get_mut(&request).unwrap().reason = reason.name(),
            }
        }
        let cancelled = cancelled.and_then(|i| answers.iter().nth(i));
        if let Some((id, _)) = cancelled.filter(|(_, answer)| answer.tokens.len() >= 9) {
            engine.cancel(*id);
        }
    }
}

#[test]
fn gpu_steps_of_one_submission_are_those_of_many() {
    let model = open("stories/stories-q8_0.gguf");
    let device = lavapipe();
    let greedy = Request { max_tokens: Some(60), ..Request::new(vec![1, 350, 354, 404, 284, 261, 416]) };
    let sampling = Sampling { temperature: 1.1, top_k: 40, top_p: 0.95, min_p: 0.01, seed: 3, ..Sampling::GREEDY };
    let penalties = Penalties { repeat: 1.2, presence: 0.3, frequency: 0.2 };
    let mut requests = vec![
        greedy.clone(),
        Request { sampling, ..greedy.clone() },
        Request { sampling: Sampling { penalties, ..sampling }, ..greedy.clone() },
        Request { sampling: Sampling { seed: 4, ..sampling }, prompt: (1..40).collect(), ..greedy.clone() },
        Request { sampling: Sampling { penalties, ..Sampling::GREEDY }, max_tokens: Some(33), ..greedy },
    ];
    let run = |requests: &[Request], cancelled, budget| {
        let mut engine = Engine::new(load_for(&device, &model, 4, RING), &model.program);
        let answers = answers(&mut engine, requests, cancelled, budget);
        (answers, engine.executor().submissions())
    };
    let whole = run(&requests, None, Duration::ZERO).0;
    // Tokens at which answers end in the middle of a submission of up to eight steps.
    for (request, answer) in requests.iter_mut().zip(whole.values()) {
        assert_eq!(answer.reason, "length");
        request.stop.push(answer.tokens[answer.tokens.len() * 2 / 3]);
    }
    requests[1].stop.clear();
    for cancelled in [None, Some(1)] {
        let (apart, many) = run(&requests, cancelled, Duration::ZERO);
        let (together, few) = run(&requests, cancelled, Duration::MAX);
        assert!(few * 3 < many * 2, "{few} submissions and {many}");
        for (i, (apart, together)) in apart.values().zip(together.values()).enumerate() {
            assert_eq!(apart.reason, together.reason, "request {i}");
            let cut = if cancelled == Some(i) { 9 } else { usize::MAX };
            let of = |tokens: &[u32]| tokens[..tokens.len().min(cut)].to_vec();
            assert_eq!(of(&apart.tokens), of(&together.tokens), "request {i}");
        }
        let reasons: Vec<_> = together.values().map(|answer| answer.reason).collect();
        let second = if cancelled.is_some() { "cancelled" } else { "length" };
        assert_eq!(reasons, ["stop", second, "stop", "stop", "stop"]);
    }
}

/// The same with sliding windows, recurrent states, biases, maps of allowed tokens and probabilities.
#[test]
fn gpu_steps_of_one_submission_keep_windows_states_and_lists() {
    let device = lavapipe();
    for name in ["gemma3-local-global", "qwen3next-hybrid", "mamba2-groups", "lfm2-shortconv"] {
        let model = open(&format!("tiny-models/{name}"));
        let sampled = Sampling { temperature: 1.0, top_p: 0.95, seed: 5, ..Sampling::GREEDY };
        let plain = Request { max_tokens: Some(40), logprobs: Some(3), ..Request::new(vec![1, 5, 9, 13, 17, 21]) };
        let allowed: Vec<u32> = (0..model.program.vocab.div_ceil(32)).map(|word| 0xf7f7_7f7f ^ word).collect();
        let requests = [
            plain.clone(),
            Request { sampling: sampled, allowed: Some(allowed.into()), ..plain.clone() },
            Request { bias: vec![(7, 3.0), (11, -4.0)], prompt: (1..30).collect(), ..plain },
        ];
        let run = |budget| {
            let mut engine = Engine::new(load_for(&device, &model, 3, RING), &model.program);
            let answers = answers(&mut engine, &requests, None, budget);
            (answers, engine.executor().submissions())
        };
        let ((apart, many), (together, few)) = (run(Duration::ZERO), run(Duration::MAX));
        assert!(few * 3 < many * 2, "{name}: {few} submissions and {many}");
        assert!(apart.values().all(|answer| answer.tokens.len() == 40 && answer.logprobs.iter().all(|l| l.len() == 4)));
        assert_eq!(apart, together, "{name}");
    }
}

/// The same where requests are preempted and begin again.
#[test]
fn gpu_steps_of_one_submission_survive_preemption() {
    let (model, device) = (open("stories/stories-q8_0.gguf"), lavapipe());
    let request = |first: u32| Request { max_tokens: Some(60), ..Request::new(vec![1, 350, 354, first]) };
    let requests = [404, 261, 300, 402].map(request);
    let run = |budget, blocks| {
        let executor = load_with(&device, &model, Numerics::Exact, 4, RING, blocks);
        let mut engine = Engine::new(executor, &model.program);
        let answers = answers(&mut engine, &requests, None, budget);
        (answers, engine.preemptions())
    };
    let (roomy, none) = run(Duration::ZERO, 16);
    assert_eq!(none, 0);
    for budget in [Duration::ZERO, Duration::MAX] {
        let (answers, preempted) = run(budget, 9);
        assert!(preempted > 0);
        assert_eq!(answers, roomy);
    }
}

/// The tokens of three steps in a row, after a prompt that samples the first one: `stops` of it are reported to the others.
fn after_stop(executor: &mut impl Executor, stops: impl Fn(u32) -> Vec<u32>) -> Vec<Option<u32>> {
    let mut first: Vec<u32> = Vec::new();
    let mut tokens = Vec::new();
    for pos in 0..4 {
        let (phase, token) = if pos == 0 { (Phase::Prefill, Token::Host(1)) } else { (Phase::Decode, Token::Sampled) };
        let stops = first.first().map_or(Vec::new(), |first| stops(*first));
        let row = [token];
        let seq = SeqStep {
            outs: Outs::Last,
            sample: Some(SampleSpec::GREEDY),
            lists: SampleLists { stops: &stops, ..SampleLists::default() },
            ..SeqStep::new(1, phase, &row, pos, &[&[3]])
        };
        executor.enqueue(&Step { seqs: &[seq] }).unwrap();
        // The steps after the first are enqueued before the host sees any of them.
        while (pos == 0 || pos == 3) && tokens.len() <= pos as usize {
            pollster::block_on(executor.wait()).unwrap();
            executor.poll(&mut |_, out| tokens.extend(out.unwrap().sampled.iter().map(|d| d.token)));
        }
        first = tokens.iter().filter_map(|token| *token).collect();
    }
    tokens.split_off(1)
}

#[test]
fn gpu_nothing_is_sampled_after_a_stop() {
    let model = open("stories/stories-q8_0.gguf");
    let mut gpu = load_for(&lavapipe(), &model, 2, RING);
    gpu.set_budget(Duration::MAX);
    let others = after_stop(&mut gpu, |first| vec![first + 1, first + 2]);
    assert!(others.iter().all(Option::is_some), "{others:?}");
    assert_eq!(after_stop(&mut gpu, |first| vec![first + 1, first]), [None; 3]);
    let options = CpuOptions { threads: Some(1), ..CpuOptions::new(gpu.limits()) };
    let weights = pollster::block_on(model.cpu_weights(&mut |_, _| {})).unwrap();
    let mut cpu = CpuExecutor::new(&model.program, weights.into(), options).unwrap();
    assert_eq!(after_stop(&mut cpu, |first| vec![first + 1, first]), [None; 3]);
}

/// The tokens of three requests that run together, the given one between two good ones; and how each ended.
fn in_the_middle<E: Executor>(executor: E, program: &Program, bad: &Request) -> Vec<(Vec<u32>, Finish)> {
    let mut engine = Engine::new(executor, program);
    let good = |first| Request { max_tokens: Some(9), ..Request::new(vec![first, 2, 3]) };
    let ids: Vec<_> = [good(1), bad.clone(), good(5)].map(|request| engine.submit(request).unwrap()).into();
    let mut answers = vec![(Vec::new(), None); 3];
    while engine.busy() {
        for event in pollster::block_on(engine.step()) {
            let of = |request| ids.iter().position(|id| *id == request).unwrap();
            match event {
                Event::Token { request, id, .. } => answers[of(request)].0.push(id),
                Event::Finished { request, reason, .. } => answers[of(request)].1 = Some(reason),
            }
        }
    }
    answers.into_iter().map(|(tokens, reason)| (tokens, reason.unwrap())).collect()
}

#[test]
fn gpu_rows_without_a_token_end_their_request_alone() {
    let program = programs::gpt2(programs::Shape::SMALL);
    let mut rng = programs::Rng(3);
    let mut weights = (*programs::random_weights(&program, &[BlockFormat::F32], &mut rng)).clone();
    // From position 20 on, position embeddings are NaN: only the request in the middle gets there.
    let at = program.weights.iter().position(|spec| spec.tensor == "embed_pos.weight").unwrap();
    let (n, k) = (program.weights[at].n, program.weights[at].k);
    let mut positions = rng.normals((n * k) as usize, 1.0);
    positions[(20 * k) as usize..].fill(f32::NAN);
    weights.matrices[at] = programs::matrix(BlockFormat::F32, n, k, &positions);
    let weights = Arc::new(weights);

    let limits =
        Limits { rows: 16, seqs: 3, outs: 3, block: 16, blocks: 12, context: 64, in_flight: 3, checkpoints: 0 };
    let device = lavapipe();
    let gpu = || {
        let options = GpuOptions { numerics: Numerics::Exact, kv: None, limits, unfused: false, keep_values: false };
        pollster::block_on(GpuExecutor::load(&device, &program, &*weights, options, &mut |_, _| {})).unwrap()
    };
    let cpu = || {
        let options = CpuOptions { threads: Some(2), numerics: Numerics::Exact, ..CpuOptions::new(limits) };
        CpuExecutor::new(&program, weights.clone(), options).unwrap()
    };
    let harmless = Request { max_tokens: Some(1), ..Request::new(vec![8]) };
    let filters = Sampling { temperature: 0.9, top_k: 9, ..Sampling::GREEDY };
    for sampling in [Sampling::GREEDY, filters, Sampling { typical: 0.9, ..filters }] {
        // The token for position 21 would be sampled from the row at 20.
        let long = Request { sampling, ..Request::new((30..44).collect()) };
        let allowed = Some(vec![0; program.vocab.div_ceil(32) as usize].into());
        for (bad, reported) in [(Request { allowed, ..long.clone() }, 0), (long, 7)] {
            let check = |expected: Vec<(Vec<u32>, Finish)>, answers: Vec<(Vec<u32>, Finish)>| {
                for i in [0, 2] {
                    assert_eq!((&answers[i].0, answers[i].1.name()), (&expected[i].0, "length"));
                }
                let (tokens, reason) = &answers[1];
                assert_eq!(tokens.len(), reported);
                let pos = 14 + reported as u32;
                let Finish::Error(error) = reason else { panic!("{reason:?}") };
                assert!(matches!(**error, Error::Numerical { pos: at, .. } if at == pos), "{error}");
                assert_eq!(error.code(), "numerical_error");
            };
            check(in_the_middle(cpu(), &program, &harmless), in_the_middle(cpu(), &program, &bad));
            check(in_the_middle(gpu(), &program, &harmless), in_the_middle(gpu(), &program, &bad));
        }
    }
}

#[test]
fn gpu_few_chunks_of_a_prompt_are_in_flight() {
    let model = open("stories/stories-q8_0.gguf");
    let mut engine = Engine::new(load_for(&lavapipe(), &model, 2, RING), &model.program);
    engine.executor_mut().set_budget(Duration::MAX);
    generate(&mut engine, Request { max_tokens: Some(64), ..Request::new(vec![1]) });
    assert_eq!(engine.executor().target_in_flight(), RING);
    engine.set_rows(4);
    let before = engine.executor().submissions();
    engine.submit(Request::new((1..120).collect())).unwrap();
    pollster::block_on(engine.step());
    assert!(engine.executor().submissions() - before <= 3, "what is in flight cannot be cancelled");
}

/// Every layer of a plan takes at most so many dispatches; bindings and pipelines stay few.
fn count(what: &str, gpu: &mut GpuExecutor, layers: u32, decode: usize, prefill: usize) {
    for (phase, most) in [(Phase::Decode, decode), (Phase::Prefill, prefill)] {
        pollster::block_on(gpu.plan(phase, &mut |_, _| {})).unwrap();
        let labels = gpu.labels(phase);
        for layer in 0..layers {
            // KV splits are reduced only for tokens of long contexts; activations are quantised only for some matmul variants.
            let extra = ["attend_reduce", "quantize"];
            let own = labels.iter().filter(|(label, l)| *l == Some(layer) && !extra.contains(label));
            let own: Vec<_> = own.map(|(label, _)| *label).collect();
            assert!(own.len() <= most, "{what}, {phase:?}, layer {layer}: {own:?}");
        }
    }
    let (_, bindings, pipelines) = gpu.counts(Phase::Prefill);
    assert!(bindings <= 8, "{what}: {bindings} storage bindings");
    // One for each op and phase, and for matmuls another for a single row or a short prompt; seven for sampling and one for
    // the completion marker. A model of one block format needs no more.
    assert!(pipelines <= 40, "{what}: {pipelines} pipelines");
}

#[test]
fn gpu_layers_take_few_dispatches() {
    let device = lavapipe();
    let model = open("stories/stories.gguf");
    count("llama", &mut load(&device, &model), model.program.layers(), 5, 8);
    // Heads of an odd size share words of the cache, so q, k and v stay apart.
    let model = open("tiny-models/gpt2-odd");
    count("gpt2-odd", &mut load(&device, &model), model.program.layers(), 10, 10);
    let program = programs::gpt2(programs::Shape::SMALL);
    let weights = programs::random_weights(&program, &[BlockFormat::Q8_0], &mut programs::Rng(1));
    let limits = programs::limits();
    let options = GpuOptions { numerics: Numerics::Fast, kv: None, limits, unfused: false, keep_values: false };
    let mut quiet = |_, _| {};
    let gpu = pollster::block_on(GpuExecutor::load(&device, &program, &*weights, options, &mut quiet));
    // Layer norms are not folded.
    count("gpt2", &mut gpu.unwrap(), program.layers(), 7, 8);
}

#[test]
fn gpu_buffers_are_freed() {
    let device = lavapipe();
    let before = Buffer::live();
    let model = open("stories/stories-q8_0.gguf");
    let mut engine = Engine::new(load(&device, &model), &model.program);
    generate(&mut engine, Request { max_tokens: Some(4), ..Request::new(vec![1]) });
    assert!(Buffer::live() > before + 10);
    drop(engine);
    assert_eq!(Buffer::live(), before);
}
