//! Many clients at once: more than there are places for, and clients that go at any moment.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wgslm_test::Rng;

use super::client::{Response, Server};

/// 500 clients that go at random moments, also within prompts, beside others that stay: nothing of theirs is left, and those who
/// stay get what they asked for.
#[test]
fn five_hundred_who_go_leave_nothing() {
    const PLACES: usize = 6;
    let server = Server::start(&["--parallel", &PLACES.to_string(), "--context", "1024"]);
    let asked = |i: usize, words: usize| {
        // No two prompts begin alike, so that each is computed.
        let prompt = format!("{i} {}", "The dog ran to the big tree. ".repeat(words));
        let more = json!({ "prompt": prompt, "max_tokens": 200, "temperature": 1.0, "stream": !i.is_multiple_of(3), "n": 1 + i % 2 });
        server.request("POST", "/v1/completions", &[], &more.to_string())
    };
    let steady = json!({ "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0 });
    let expected = server.post("/v1/completions", &steady).json()["choices"][0]["text"].clone();
    let (over, stayed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let response = server.post("/v1/completions", &steady);
                    if response.status == 200 {
                        assert_eq!(response.json()["choices"][0]["text"], expected);
                        stayed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let leavers: Vec<_> = (0..4)
            .map(|thread| {
                let (server, asked) = (&server, &asked);
                scope.spawn(move || {
                    let mut rng = Rng(thread as u64 + 1);
                    let mut below = |n: usize| rng.below(n);
                    for i in 0..125 {
                        let request = asked(thread * 125 + i, below(60));
                        let mut stream = server.connect();
                        // Some go while they still write.
                        let part = if below(5) == 0 { below(request.len()) } else { request.len() };
                        let _ = stream.write_all(&request.as_bytes()[..part]);
                        match below(3) {
                            0 => std::thread::sleep(Duration::from_micros(below(40_000) as u64)),
                            // At once.
                            1 => {}
                            // After a part of the answer.
                            _ if part == request.len() => {
                                let mut some = vec![0; 1 + below(2000)];
                                stream.set_read_timeout(Some(Duration::from_millis(1 + below(200) as u64))).unwrap();
                                let _ = stream.read(&mut some);
                            }
                            _ => {}
                        }
                    }
                })
            })
            .collect();
        leavers.into_iter().for_each(|leaver| leaver.join().unwrap());
        over.store(true, Ordering::Relaxed);
    });
    assert!(stayed.load(Ordering::Relaxed) > 0, "nobody who stayed was answered");
    let begun = Instant::now();
    server.idle();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(server.metric("kv_cache_usage_perc"), 0.0);
    assert_eq!(server.get("/health/ready").status, 200);
    // All places are there: as many run at a time as ever, each with its whole context.
    let whole = json!({ "prompt": "The dog", "max_tokens": 1000, "temperature": 1.0, "stream": true });
    let request = server.request("POST", "/v1/completions", &[], &whole.to_string());
    let mut streams: Vec<_> = (0..PLACES).map(|_| server.connect()).collect();
    streams.iter_mut().for_each(|stream| stream.write_all(request.as_bytes()).unwrap());
    let mut most = 0.0f64;
    let begun = Instant::now();
    while most < PLACES as f64 && begun.elapsed() < Duration::from_secs(20) {
        most = most.max(server.metric("num_requests_running"));
    }
    assert_eq!(most, PLACES as f64);
    drop(streams);
    server.idle();
    assert_eq!(server.metric("kv_cache_usage_perc"), 0.0);
}

/// No block of the cache is lost with clients that go: in the end one request takes all of them.
#[test]
fn the_whole_cache_is_there_after_all_have_gone() {
    const POSITIONS: usize = 512;
    let positions = POSITIONS.to_string();
    let server = Server::start(&["--parallel", "4", "--context", &positions, "--cache", &positions]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let mut rng = Rng(thread as u64 + 1);
                for i in 0..30 {
                    // Some begin alike, so that blocks are shared.
                    let prompt = format!("{} {}", i % 5, "The dog ran to the big tree. ".repeat(rng.below(30)));
                    let body =
                        json!({ "prompt": prompt, "max_tokens": 200, "temperature": 1.0, "stream": true, "n": 2 });
                    let mut stream = server.connect();
                    let request = server.request("POST", "/v1/completions", &[], &body.to_string());
                    stream.write_all(request.as_bytes()).unwrap();
                    stream.set_read_timeout(Some(Duration::from_millis(1 + rng.below(100) as u64))).unwrap();
                    let _ = stream.read(&mut vec![0; 1 + rng.below(2000)]);
                }
            });
        }
    });
    server.idle();
    // The context is the cache: one block less, and this could never run.
    let body = json!({ "prompt": vec![5; POSITIONS - 1], "max_tokens": 1, "temperature": 0 });
    let made = server.post("/v1/completions", &body).json();
    assert_eq!(made["usage"]["total_tokens"], POSITIONS, "{made}");
}

/// Ten times as many clients as there are places, for ten seconds, or as many as `WGSLM_OVERLOAD_SECONDS` says: those who find no
/// place hear it at once, no more wait than may, and the server counts as the clients do.
#[test]
fn ten_times_too_many_clients() {
    const PLACES: u64 = 2;
    const QUEUE: u64 = 4;
    let seconds = std::env::var("WGSLM_OVERLOAD_SECONDS").map_or(10, |seconds| seconds.parse().unwrap());
    let server = Server::start(&["--parallel", &PLACES.to_string(), "--queue", &QUEUE.to_string(), "--context", "256"]);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (answered, tokens, prompts) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let refusals: Mutex<Vec<Duration>> = Mutex::default();
    let mut waited = 0.0f64;
    std::thread::scope(|scope| {
        for client in 0..10 * (PLACES + QUEUE) {
            let (server, answered, tokens, prompts, refusals) = (&server, &answered, &tokens, &prompts, &refusals);
            scope.spawn(move || {
                let body = json!({ "prompt": format!("{client} a dog"), "max_tokens": 24, "temperature": 1.0 });
                let request = server.request("POST", "/v1/completions", &[], &body.to_string());
                while Instant::now() < end {
                    let mut stream = server.connect();
                    let begun = Instant::now();
                    stream.write_all(request.as_bytes()).unwrap();
                    let response = Response::read(stream);
                    let took = begun.elapsed();
                    match response.status {
                        200 => {
                            let usage = response.json()["usage"].clone();
                            let count = |name: &str| usage[name].as_u64().unwrap();
                            answered.fetch_add(1, Ordering::Relaxed);
                            tokens.fetch_add(count("completion_tokens"), Ordering::Relaxed);
                            prompts.fetch_add(count("prompt_tokens"), Ordering::Relaxed);
                        }
                        429 => {
                            let seconds: u64 = response.header("retry-after").unwrap().parse().unwrap();
                            assert!((1..=60).contains(&seconds));
                            refusals.lock().unwrap().push(took);
                            // Far sooner than the answer asks for.
                            std::thread::sleep(Duration::from_millis(100));
                        }
                        other => panic!("{other}: {}", response.text()),
                    }
                }
            });
        }
        while Instant::now() < end {
            waited = waited.max(server.metric("num_requests_waiting"));
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    server.idle();
    let mut refusals = refusals.into_inner().unwrap();
    refusals.sort();
    let at = |part: usize| refusals[(refusals.len() * part / 100).min(refusals.len() - 1)];
    let (answered, tokens) = (answered.into_inner(), tokens.into_inner());
    println!("{answered} answered, {} refused: half in {:?}, 99 of 100 in {:?}", refusals.len(), at(50), at(99));
    assert!(answered > 0 && refusals.len() as u64 > answered, "{answered} answered, {} refused", refusals.len());
    assert!(at(99) <= Duration::from_millis(50), "{:?}, and half in {:?}", at(99), at(50));
    assert!(waited <= QUEUE as f64, "{waited} waited");
    assert_eq!(server.metric("requests_refused_total"), refusals.len() as f64);
    assert_eq!(server.metric("generation_tokens_total"), tokens as f64);
    assert_eq!(server.metric("prompt_tokens_total"), prompts.into_inner() as f64);
    assert_eq!(server.metric("e2e_request_latency_seconds_count"), answered as f64);
}

/// Several answers to one prompt: it is computed once.
#[test]
fn a_prompt_is_computed_once_for_all_answers() {
    let server = Server::start(&["--parallel", "8"]);
    let prompt = "The dog ran to the big tree and saw a small cat. ".repeat(12);
    let body = json!({ "prompt": prompt, "max_tokens": 4, "n": 6, "temperature": 1.0, "seed": 3 });
    let made = server.post("/v1/completions", &body).json();
    let choices: Vec<&Value> = made["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(choices.len(), 6);
    assert!(choices.iter().any(|text| *text != choices[0]), "{choices:?}");
    server.idle();
    let tokens = made["usage"]["prompt_tokens"].as_u64().unwrap() as f64;
    let (asked, found) = (server.metric("prefix_cache_queries_total"), server.metric("prefix_cache_hits_total"));
    assert_eq!(asked, 6.0 * tokens);
    // All blocks are free or kept by now.
    let text = server.get("/metrics").text();
    let blocks = |state: &str| -> f64 {
        let of_state = |line: &&str| line.starts_with("vllm:kv_cache_blocks{") && line.contains(state);
        text.lines().filter(of_state).map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    };
    assert!(blocks("\"free\"") > 0.0 && blocks("\"kept\"") > 0.0 && blocks("\"in_use\"") == 0.0, "{text}");
    // What is shared are whole blocks: the rest of the last one is computed by each.
    let computed = asked - found;
    assert!(computed >= tokens && computed <= tokens + 5.0 * 32.0, "{computed} of {tokens} tokens six times");
}

/// A thread of another process, which this one stops; it goes on when this is dropped.
#[cfg(target_os = "linux")]
struct Stoppable {
    thread: nix::unistd::Pid,
    stopped: bool,
}

#[cfg(target_os = "linux")]
impl Stoppable {
    /// The thread of a name; none where no process may be traced, which is nowhere in CI.
    fn named(name: &str, process: u32) -> Option<Self> {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|task| task.unwrap().path());
        let named = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).unwrap().trim() == name);
        let ids: Vec<i32> = named.map(|task| task.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect();
        let [id] = ids[..] else { panic!("threads of the name {name}: {ids:?}") };
        let thread = nix::unistd::Pid::from_raw(id);
        match nix::sys::ptrace::seize(thread, nix::sys::ptrace::Options::empty()) {
            Ok(()) => Some(Self { thread, stopped: false }),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "a process must be traced: {error}");
                None
            }
        }
    }

    fn stop(&mut self) {
        nix::sys::ptrace::interrupt(self.thread).unwrap();
        nix::sys::wait::waitpid(self.thread, Some(nix::sys::wait::WaitPidFlag::__WALL)).unwrap();
        self.stopped = true;
    }

    fn go_on(&mut self) {
        nix::sys::ptrace::cont(self.thread, None).unwrap();
        self.stopped = false;
    }
}

#[cfg(target_os = "linux")]
impl Drop for Stoppable {
    fn drop(&mut self) {
        // Only what is stopped can be given back, and what is not given back outlives its process.
        if !self.stopped {
            self.stop();
        }
        nix::sys::ptrace::detach(self.thread, None).unwrap();
    }
}

/// A thread of the pool that is stopped while it waits for work is missed by nobody: answers come without it. One that is stopped
/// while it computes is waited for, and then the answer goes on. The texts are the same.
#[test]
#[cfg(target_os = "linux")]
fn a_stopped_thread_keeps_only_what_it_has_begun() {
    let server = Server::start(&["--threads", "2"]);
    let ask = || {
        let response =
            server.post("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 200, "temperature": 0 }));
        assert_eq!(response.status, 200);
        response.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let begun = Instant::now();
    let expected = ask();
    let whole = begun.elapsed();
    let Some(mut worker) = Stoppable::named("wgslm cpu 1", server.child.id()) else { return };

    // Nothing is computed now, and spins are over.
    std::thread::sleep(Duration::from_millis(50));
    worker.stop();
    assert_eq!(ask(), expected, "by the other thread");
    worker.go_on();

    let (over, mut stops) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| {
            let answers: Vec<_> = (0..10).map(|_| ask()).collect();
            over.store(true, Ordering::Relaxed);
            answers
        });
        let mut rng = Rng(7);
        while !over.load(Ordering::Relaxed) {
            std::thread::sleep(whole.mul_f64(rng.below(100) as f64 / 300.0));
            worker.stop();
            std::thread::sleep(Duration::from_millis(20));
            worker.go_on();
            stops += 1;
        }
        assert_eq!(answers.join().unwrap(), vec![expected.clone(); 10]);
    });
    assert!(stops > 10, "{stops}");
}
