//! The serving loop, over an executor that samples a hash of what it finds in its pages, and over a small model.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_core::Stream;

use super::*;
use crate::engine::fake::{Fake, ROOMY, TIGHT, VOCAB, program};
use crate::engine::{Engine, Finish, Priority, Request};
use crate::exec::{DeviceChoice, Limits, Options};
use crate::model::ModelSource;
use crate::sample::Sampling;
use crate::testing::Random;
use crate::text::Tokenizer;
use crate::{Error, TINY};

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let model = block_on(ModelSource::from(TINY).model()).unwrap();
    Arc::new(Tokenizer::of(&model.file).unwrap())
});

/// A clock that tests turn by hand, in microseconds.
#[derive(Clone, Default)]
struct Hand(Arc<AtomicU64>);

impl Hand {
    fn turn(&self, time: Duration) {
        self.0.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

fn served(limits: Limits, seed: u64, options: ServeOptions) -> (Driver<Fake>, Handle, Hand) {
    let mut engine = Engine::new(Fake::new(limits, seed, &program()), &program());
    let clock = Hand::default();
    let of_engine = clock.clone();
    engine.set_clock(move || of_engine.now());
    let (driver, handle) = Driver::new(engine, Arc::clone(&TOKENIZER), options);
    (driver, handle, clock)
}

/// What was read of a request.
#[derive(Default)]
struct Read {
    ids: Vec<u32>,
    end: Option<(Finish, crate::engine::Timings)>,
}

impl Read {
    fn all(&mut self, generation: &mut Generation) {
        while let Some(event) = generation.try_next() {
            assert!(self.end.is_none(), "an event after the end");
            match event {
                GenerationEvent::Token { id, .. } => self.ids.push(id),
                GenerationEvent::Finished { reason, timings, .. } => self.end = Some((reason, timings)),
            }
        }
    }
}

fn alone(request: &Request) -> Vec<u32> {
    let (mut driver, handle, _) = served(ROOMY, 0, ServeOptions::default());
    let request = Request { deadline: None, ..request.clone() };
    let (mut generation, mut read) = (handle.generate(request).unwrap(), Read::default());
    while read.end.is_none() {
        block_on(driver.turn());
        read.all(&mut generation);
    }
    read.ids
}

fn request(random: &mut Random) -> Request {
    let prompt = (0..1 + random.below(24)).map(|_| random.below(VOCAB)).collect();
    let priority = [Priority::High, Priority::Normal, Priority::Low, Priority::Background][random.below(4) as usize];
    Request {
        sampling: Sampling { temperature: 1.0, seed: random.next(), ..Sampling::GREEDY },
        max_tokens: Some(random.below(12)),
        priority,
        exact: true,
        deadline: (random.below(50) == 0).then(|| Duration::from_millis(u64::from(random.below(400)))),
        ..Request::new(prompt)
    }
}

/// So many requests of all classes, more at times than can be served, some dropped, some with a deadline: all end, each waits no
/// longer than its class and those before it explain, the queue keeps its bounds, and answers are those that they are alone.
fn simulate(requests: usize, seed: u64) -> Metrics {
    let options = ServeOptions { queue_requests: 40, queue_tokens: 600, ..ServeOptions::default() };
    let limits = Limits { blocks: 20, ..TIGHT };
    let (mut driver, handle, clock) = served(limits, seed, options);
    let mut random = Random::new(seed);
    let mut open: BTreeMap<usize, (Generation, Read, Request)> = BTreeMap::new();
    let (mut asked, mut refused, mut dropped, mut turns) = (0, 0, 0, 0);
    let (mut ended, mut longest) = (0, BTreeMap::<Priority, Duration>::new());
    while asked < requests || !open.is_empty() {
        turns += 1;
        assert!(turns < requests * 40 + 1000, "they do not end: {} are open", open.len());
        clock.turn(Duration::from_millis(1));
        // Waves: at times nothing comes, at times more than is served.
        let wave = if turns / 2000 % 3 == 2 { 2 } else { 5 };
        while asked < requests && random.below(8) < wave {
            let request = request(&mut random);
            match handle.generate(request.clone()) {
                Ok(generation) => {
                    open.insert(asked, (generation, Read::default(), request));
                }
                Err(Error::Refused { retry_after, .. }) => {
                    assert!(retry_after.is_some_and(|time| time >= Duration::from_secs(1)));
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
            asked += 1;
            if refused > 0 && random.below(2) == 0 {
                break;
            }
        }
        let metrics = handle.metrics();
        // Those that have begun and must wait again are not counted among those that are refused.
        let most = 40 + limits.seqs as usize;
        assert!(metrics.num_requests_waiting <= most, "{}", metrics.num_requests_waiting);
        block_on(driver.turn());
        driver.check();
        if random.below(40) == 0
            && let Some(key) = open.keys().nth(random.below(1 + open.len() as u32) as usize).copied()
        {
            open.remove(&key);
            dropped += 1;
        }
        let mut over = Vec::new();
        for (key, (generation, read, _)) in &mut open {
            read.all(generation);
            if read.end.is_some() {
                over.push(*key);
            }
        }
        for key in over {
            let (_, read, request) = open.remove(&key).unwrap();
            let (reason, timings) = read.end.unwrap();
            ended += 1;
            let most = longest.entry(request.priority).or_default();
            *most = timings.queued.max(*most);
            if ended % 97 == 0 {
                let expected = alone(&request);
                let cut = matches!(reason, Finish::Deadline);
                assert!(if cut { expected.starts_with(&read.ids) } else { expected == read.ids }, "{reason:?}");
            }
        }
    }
    for _ in 0..20 {
        block_on(driver.turn());
    }
    let metrics = handle.metrics();
    assert_eq!((metrics.num_requests_running, metrics.num_requests_waiting), (0, 0));
    assert_eq!(metrics.kv_cache_usage, 0.0);
    assert_eq!(metrics.requests_refused, refused);
    let all = metrics.finished_stop + metrics.finished_length + metrics.finished_abort + metrics.finished_error;
    assert_eq!(all + refused, requests as u64);
    assert!(metrics.finished_error == 0 && dropped > 0);
    // Forty requests of at most 11 tokens and 5 chunks in two slots of three take less than a second; the rest is the head
    // start of higher classes.
    for (priority, queued) in longest {
        let bound = Duration::from_secs(1) + priority.delay();
        assert!(queued <= bound, "{priority:?} waited {queued:?}, more than {bound:?}");
    }
    metrics
}

#[test]
fn all_requests_end_and_none_starves() {
    let metrics = simulate(100_000, 1);
    assert!(metrics.requests_refused > 1000 && metrics.num_preemptions > 100, "{metrics:?}");
}

#[test]
fn nobody_waits_for_a_reader_that_never_reads() {
    let options = ServeOptions { unread_events: 5, ..ServeOptions::default() };
    let (mut driver, handle, _) = served(ROOMY, 3, options);
    let ask =
        |seed| Request { max_tokens: Some(20), exact: true, sampling: sampled(seed), ..Request::new(vec![1, 2, 3]) };
    let (mut never, mut mate) = (handle.generate(ask(1)).unwrap(), handle.generate(ask(2)).unwrap());
    let mut read = Read::default();
    while read.end.is_none() {
        block_on(driver.turn());
        read.all(&mut mate);
    }
    assert_eq!(read.ids, alone(&ask(2)));
    let mut late = Read::default();
    late.all(&mut never);
    assert_eq!(late.ids, alone(&ask(1))[..5]);
    let Some((Finish::Error(error), _)) = late.end else { panic!("{:?}", late.end) };
    assert!(error.to_string().contains("unread events"), "{error}");
    assert!(never.try_next().is_none());
}

/// A server that unloads models, and whoever counts, asks right after an answer has ended.
#[test]
fn who_sees_an_end_finds_it_in_the_metrics() {
    let (driver, handle, _) = served(ROOMY, 1, ServeOptions::default());
    let thread = std::thread::spawn(move || driver.run());
    for ended in 1..=500 {
        let request = Request { max_tokens: Some(2), ..Request::new(vec![1, 2, 3]) };
        handle.generate(request).unwrap().finish_blocking().unwrap();
        let metrics = handle.metrics();
        let open = metrics.num_requests_running + metrics.num_requests_waiting;
        assert_eq!((open, metrics.kv_cache_usage, metrics.e2e_request_latency.count()), (0, 0.0, ended));
    }
    drop(handle);
    thread.join().unwrap();
}

/// Whatever comes first: a token that nobody takes, or the word that nobody wants more.
#[test]
fn who_lets_go_is_no_error() {
    let (mut driver, handle, _) = served(ROOMY, 1, ServeOptions::default());
    for _ in 0..50 {
        let generation = handle.generate(Request { max_tokens: Some(9), ..Request::new(vec![1, 2, 3]) }).unwrap();
        block_on(driver.turn());
        drop(generation);
        // The step that is in flight is read before the word.
        let commands = std::mem::take(&mut handle.shared.lock().commands);
        block_on(driver.turn());
        handle.shared.lock().commands.extend(commands);
        while block_on(driver.turn()) == Next::Go {}
    }
    let metrics = handle.metrics();
    assert_eq!(
        (metrics.finished_error, metrics.finished_abort + metrics.finished_length + metrics.finished_stop),
        (0, 50)
    );
    assert!(metrics.finished_abort > 25, "{metrics:?}");
}

fn sampled(seed: u64) -> Sampling {
    Sampling { temperature: 1.0, seed, ..Sampling::GREEDY }
}

/// At whatever step the device is lost, requests go on on the next one, to the tokens that they have without, whatever the size
/// of its cache.
#[test]
fn a_lost_device_is_opened_again() {
    for at in 0..24 {
        let options = ServeOptions { reopen_wait: Duration::from_millis(30), ..ServeOptions::default() };
        let (driver, handle, _) = served(TIGHT, at, options);
        let mut opened = 0;
        let mut driver = driver.reopen_with(Box::new(move || {
            opened += 1;
            // It may have less memory than the one before, or more.
            let limits = Limits { blocks: [TIGHT.blocks, 12, 30][(at as usize + opened) % 3], ..TIGHT };
            let mut fake = Fake::new(limits, at + 100, &program());
            // The second one is lost, too; then opening waits.
            fake.gone_at = (opened == 1).then_some(9);
            Box::pin(async move { Ok(fake) })
        }));
        driver.engine_mut().executor_mut().gone_at = Some(at);
        let mut random = Random::new(at);
        let asked: Vec<Request> = (0..5).map(|_| Request { deadline: None, ..request(&mut random) }).collect();
        let ask = |request: &Request| (handle.generate(request.clone()).unwrap(), Read::default());
        let mut open: Vec<(Generation, Read)> = asked.iter().map(ask).collect();
        let began = Instant::now();
        let mut waited = false;
        while open.iter().any(|(_, read)| read.end.is_none()) {
            assert!(began.elapsed() < Duration::from_secs(20), "device {at}");
            match block_on(driver.turn()) {
                Next::Wait(time) => {
                    waited |= time > Duration::from_millis(1);
                    std::thread::sleep(time);
                }
                Next::Go | Next::Idle => {}
                Next::Over => panic!("the handle is there"),
            }
            open.iter_mut().for_each(|(generation, read)| read.all(generation));
        }
        for ((_, read), request) in open.iter().zip(&asked) {
            assert_eq!(read.ids, alone(request), "lost at step {at}: {:?}", read.end);
        }
        let lost = handle.metrics().devices_lost;
        assert!(lost <= 2 && (lost < 2 || waited), "{lost} were lost, waited: {waited}");
        assert!(at > 6 || lost == 2, "{lost} at {at}");
    }
}

/// A device that is away for a moment is waited for; one that never comes back is not waited for for ever.
#[test]
fn opening_that_fails_is_tried_again() {
    for failures in 0..5 {
        let options = ServeOptions { reopen_wait: Duration::from_millis(20), ..ServeOptions::default() };
        let (driver, handle, _) = served(TIGHT, 1, options);
        let tries = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&tries);
        let mut driver = driver.reopen_with(Box::new(move || {
            let absent = counted.fetch_add(1, Ordering::Relaxed) < failures;
            Box::pin(async move {
                match absent {
                    true => Err(Error::Device("there is no adapter".to_owned())),
                    false => Ok(Fake::new(TIGHT, 9, &program())),
                }
            })
        }));
        driver.engine_mut().executor_mut().gone_at = Some(2);
        let asked = Request { max_tokens: Some(9), ..Request::new(vec![1, 2, 3]) };
        let (mut generation, mut read) = (handle.generate(asked.clone()).unwrap(), Read::default());
        let mut waited = 0;
        for _ in 0..100 {
            if let Next::Wait(time) = block_on(driver.turn()) {
                waited += u64::from(time > Duration::ZERO);
                std::thread::sleep(time);
            }
            read.all(&mut generation);
        }
        let (reason, _) = read.end.unwrap();
        match failures {
            0..3 => assert_eq!((&*read.ids, reason.name()), (&*alone(&asked), "length"), "{failures}"),
            _ => assert!(
                matches!(&reason, Finish::Error(error) if error.to_string().contains("no adapter")),
                "{reason:?}"
            ),
        }
        assert_eq!((tries.load(Ordering::Relaxed), waited), ((failures + 1).min(3), failures.min(2)), "{failures}");
    }
}

/// What takes down every device it runs on ends at the third.
#[test]
fn devices_are_not_lost_for_ever() {
    let (driver, handle, _) = served(TIGHT, 1, ServeOptions { reopen_wait: Duration::ZERO, ..ServeOptions::default() });
    let gone = || {
        let mut fake = Fake::new(TIGHT, 9, &program());
        fake.gone_at = Some(0);
        fake
    };
    let mut driver = driver.reopen_with(Box::new(move || Box::pin(async move { Ok(gone()) })));
    driver.engine_mut().executor_mut().gone_at = Some(0);
    let generation = ask_of(&handle);
    for _ in 0..30 {
        block_on(driver.turn());
    }
    assert_eq!(generation.finish_blocking().unwrap_err().code(), "device_lost");
    assert_eq!(handle.metrics().devices_lost, 3);
}

/// A step that is refused, now and then and for ever, costs requests, and never the loop.
#[test]
fn refused_steps_end_requests() {
    let (mut driver, handle, _) = served(TIGHT, 1, ServeOptions::default());
    let asked = [1, 2].map(|i| Request { max_tokens: Some(9), exact: true, ..Request::new(vec![3, i]) });
    let mut answers = |refusals| {
        driver.engine_mut().executor_mut().no_steps[0] = refusals;
        let generations = asked.clone().map(|request| handle.generate(request).unwrap());
        while block_on(driver.turn()) != Next::Idle {}
        generations.map(|generation| generation.finish_blocking().map(|answer| answer.ids))
    };
    let ids = asked.each_ref().map(alone);
    let [first, newest] = answers(1);
    assert_eq!((first.unwrap(), newest.unwrap_err().code()), (ids[0].clone(), "device"));
    assert!(answers(u32::MAX).into_iter().all(|answer| answer.unwrap_err().code() == "device"));
    assert_eq!(answers(0).map(Result::unwrap), ids);
}

#[test]
fn without_another_device_requests_end() {
    let (driver, handle, _) = served(TIGHT, 1, ServeOptions { reopen_wait: Duration::ZERO, ..ServeOptions::default() });
    let mut driver =
        driver.reopen_with(Box::new(|| Box::pin(async { Err(Error::Device("there is no adapter".to_owned())) })));
    driver.engine_mut().executor_mut().gone_at = Some(2);
    let ask = || handle.generate(Request::new(vec![1, 2, 3])).unwrap();
    let asked = [ask(), ask()];
    for _ in 0..30 {
        block_on(driver.turn());
    }
    for generation in asked {
        let error = block_on(generation.finish()).unwrap_err();
        assert!(error.to_string().contains("there is no adapter"), "{error}");
    }
    // A driver that cannot open another ends them with what happened, and takes no more.
    let (mut driver, handle, _) = served(TIGHT, 1, ServeOptions::default());
    driver.engine_mut().executor_mut().gone_at = Some(2);
    let asked = [ask_of(&handle), ask_of(&handle)];
    for _ in 0..30 {
        block_on(driver.turn());
    }
    let [first, second] = asked.map(|generation| block_on(generation.finish()).unwrap_err());
    assert!(matches!((first.code(), second.code()), ("device_lost", "device_lost")), "{first}, {second}");
    let later = ask_of(&handle);
    block_on(driver.turn());
    assert_eq!(block_on(later.finish()).unwrap_err().code(), "device_lost");
}

/// A driver that waits for a device waits, also when nobody can ask for anything any more.
#[test]
fn waiting_is_no_spinning() {
    let (driver, handle, _) = served(ROOMY, 1, ServeOptions::default());
    let shared = Arc::clone(&handle.shared);
    drop(handle);
    let began = Instant::now();
    shared.wait_for(Duration::from_millis(60));
    assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
    drop(driver);
}

/// The time to the first token counts from when it was asked for.
#[test]
fn nobody_waits_uncounted() {
    let (mut driver, handle, _) = served(ROOMY, 1, ServeOptions::default());
    let (mut generation, mut read) = (ask_of(&handle), Read::default());
    std::thread::sleep(Duration::from_millis(60));
    while read.end.is_none() {
        block_on(driver.turn());
        read.all(&mut generation);
    }
    let times = handle.metrics().time_to_first_token;
    assert!(times.count() == 1 && times.sum >= 0.06, "{times:?}");
    let (queued, whole) = (handle.metrics().request_queue_time.sum, handle.metrics().e2e_request_latency.sum);
    assert!(queued >= 0.06 && whole >= queued, "{queued} of {whole}");
}

fn ask_of(handle: &Handle) -> Generation {
    handle.generate(Request::new(vec![1, 2, 3])).unwrap()
}

#[test]
fn requests_end_when_their_time_is_over() {
    let (mut driver, handle, clock) = served(ROOMY, 1, ServeOptions::default());
    let request = Request { deadline: Some(Duration::from_millis(5)), ..Request::new(vec![1, 2, 3]) };
    let (mut generation, mut read) = (handle.generate(request).unwrap(), Read::default());
    while read.end.is_none() {
        clock.turn(Duration::from_millis(1));
        block_on(driver.turn());
        read.all(&mut generation);
    }
    let Some((Finish::Deadline, timings)) = read.end else { panic!("{:?}", read.end) };
    // With what passed before the driver looked, by the true clock.
    let whole = timings.queued + timings.prefill + timings.decode;
    assert!((5..50).contains(&whole.as_millis()), "{whole:?}");
    assert!((1..6).contains(&read.ids.len()), "{:?}", read.ids);
}

/// A request that finds all slots taken by such in the background takes one of them; they end with the same tokens.
#[test]
fn the_background_gives_way() {
    let (mut driver, handle, _) = served(Limits { seqs: 2, ..ROOMY }, 1, ServeOptions::default());
    let ask = |priority, seed| Request {
        priority,
        sampling: sampled(seed),
        max_tokens: Some(30),
        exact: true,
        ..Request::new(vec![5, 6])
    };
    let background = [1, 2].map(|seed| ask(Priority::Background, seed));
    let mut open = background.clone().map(|request| (handle.generate(request).unwrap(), Read::default()));
    for _ in 0..8 {
        block_on(driver.turn());
    }
    assert_eq!(handle.metrics().num_requests_running, 2);
    let (mut urgent, mut read) = (handle.generate(ask(Priority::Normal, 3)).unwrap(), Read::default());
    while read.end.is_none() {
        block_on(driver.turn());
        read.all(&mut urgent);
    }
    open.iter_mut().for_each(|(generation, read)| read.all(generation));
    assert!(open.iter().any(|(_, read)| read.end.is_none()) && handle.metrics().num_preemptions == 1);
    assert_eq!(read.ids, alone(&ask(Priority::Normal, 3)));
    while open.iter().any(|(_, read)| read.end.is_none()) {
        block_on(driver.turn());
        open.iter_mut().for_each(|(generation, read)| read.all(generation));
    }
    for ((_, read), request) in open.iter().zip(&background) {
        assert_eq!(read.ids, alone(request));
    }
}

/// While others of the highest class wait all the time, each class waits as long as its head start says, and then has its turn:
/// also one in the background, which no longer gives way then.
#[test]
fn nobody_starves() {
    let (mut driver, handle, clock) = served(Limits { seqs: 2, ..ROOMY }, 1, ServeOptions::default());
    let ask = |priority, seed| Request {
        priority,
        sampling: sampled(seed),
        max_tokens: Some(3),
        ..Request::new(vec![seed as u32 % VOCAB, 6])
    };
    let mut urgent: Vec<(Generation, Read)> = Vec::new();
    let classes = [Priority::Normal, Priority::Low, Priority::Background];
    let mut waiting = classes.map(|priority| (handle.generate(ask(priority, 1)).unwrap(), Read::default()));
    let mut began = [None; 3];
    for turn in 0..20_000 {
        urgent.iter_mut().for_each(|(generation, read)| read.all(generation));
        urgent.retain(|(_, read)| read.end.is_none());
        while urgent.len() < 6 {
            urgent.push((handle.generate(ask(Priority::High, turn)).unwrap(), Read::default()));
        }
        block_on(driver.turn());
        clock.turn(Duration::from_millis(500));
        for ((generation, read), began) in waiting.iter_mut().zip(&mut began) {
            read.all(generation);
            if began.is_none() && !read.ids.is_empty() {
                *began = Some(clock.now());
            }
        }
        if waiting.iter().all(|(_, read)| read.end.is_some()) {
            break;
        }
    }
    for (began, priority) in began.into_iter().zip(classes) {
        let wait = began.unwrap_or_else(|| panic!("{priority:?} starves"));
        // Those before it that still wait, and those that run.
        let bound = priority.delay() + Duration::from_secs(20);
        assert!((priority.delay()..bound).contains(&wait), "{priority:?} after {wait:?}");
    }
}

#[test]
fn what_may_be_sent_between_threads_can_be() {
    fn both<T: Send + Sync>() {}
    fn send<T: Send + Unpin>() {}
    both::<Handle>();
    both::<Metrics>();
    send::<Generation>();
    send::<Driver<crate::exec::AnyExecutor>>();
}

#[test]
fn a_generation_is_a_stream() {
    let (mut driver, handle, _) = served(ROOMY, 1, ServeOptions::default());
    let mut generation =
        std::pin::pin!(handle.generate(Request { max_tokens: Some(2), ..Request::new(vec![1]) }).unwrap());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut events = Vec::new();
    loop {
        match generation.as_mut().poll_next(&mut context) {
            Poll::Pending => _ = block_on(driver.turn()),
            Poll::Ready(Some(event)) => events.push(event),
            Poll::Ready(None) => break,
        }
    }
    assert!(matches!(
        events[..],
        [GenerationEvent::Token { .. }, GenerationEvent::Token { .. }, GenerationEvent::Finished { .. }]
    ));
}

/// Many threads ask a small model through handles of their own; some let go.
#[test]
fn threads_share_a_model() {
    let options = Options { device: DeviceChoice::Cpu, threads: Some(1), context: 256, seqs: 4, ..Options::default() };
    let model = block_on(crate::open(TINY, &options)).unwrap();
    let (model, thread) = model.serve(ServeOptions::default());
    let run = crate::GenerateOptions { max_tokens: Some(12), sampling: Some(Sampling::GREEDY), ..Default::default() };
    let expected = model.generate("The dog", &run).unwrap().finish_blocking().unwrap().text;
    std::thread::scope(|scope| {
        for i in 0..6 {
            let (model, run, expected) = (model.clone(), &run, &expected);
            scope.spawn(move || {
                for j in 0..8 {
                    let mut generation = model.generate("The dog", run).unwrap();
                    if (i + j) % 3 == 0 {
                        // Let go after a token, or at once.
                        let event = (j % 2 == 0).then(|| generation.wait());
                        assert!(event.is_none_or(|event| event.is_some()));
                        continue;
                    }
                    let text: String = generation
                        .blocking()
                        .map(|event| match event {
                            GenerationEvent::Token { text, .. } | GenerationEvent::Finished { text, .. } => text,
                        })
                        .collect();
                    assert_eq!(text, *expected);
                }
            });
        }
    });
    let stopped = crate::GenerateOptions { stop: vec![expected[2..6].to_owned()], ..run.clone() };
    let answer = model.generate("The dog", &stopped).unwrap().finish_blocking().unwrap();
    assert_eq!((&*answer.text, answer.finish.name()), (&expected[..2], "stop"));
    let handle = model.handle().clone();
    drop(model);
    handle.close();
    thread.join().unwrap();
    assert!(handle.is_closed());
    assert_eq!(handle.generate(Request::new(vec![1])).unwrap_err().code(), "refused");
    let metrics = handle.metrics();
    assert_eq!((metrics.num_requests_running, metrics.num_requests_waiting), (0, 0));
}

/// Whoever reads learns of it when the loop itself is gone.
#[test]
fn readers_of_a_driver_that_is_gone_learn_of_it() {
    let (driver, handle, _) = served(ROOMY, 1, ServeOptions::default());
    let generation = ask_of(&handle);
    drop(driver);
    assert_eq!(generation.finish_blocking().unwrap_err().code(), "refused");
}

/// Nobody waits for a driver whose thread panicked, whatever it was doing for them.
#[test]
fn a_driver_that_panics_ends_its_requests() {
    for at in 0..4 {
        let (mut driver, handle, _) = served(ROOMY, 1, ServeOptions::default());
        driver.engine_mut().executor_mut().panics_at = Some(at);
        let generations: Vec<_> = (0..12).map(|_| ask_of(&handle)).collect();
        let thread = std::thread::spawn(move || driver.run());
        assert!(thread.join().is_err(), "step {at}");
        assert!(handle.is_closed());
        assert_eq!(handle.metrics().num_requests_running, 0);
        let ended = generations.into_iter().map(Generation::finish_blocking);
        let refused = ended.filter(|end| end.as_ref().is_err_and(|error| error.code() == "refused")).count();
        assert!(refused > 4, "{refused} of 12 at step {at}");
    }
}
