use super::*;
use crate::driver::{GenerateRequest, Next, ServeOptions, block_on};
use crate::engine::{EmbedOptions, Embedder, Finish, Request};
use crate::exec::{AnyExecutor, DeviceChoice, Numerics, Options};
use crate::gpu::Device;
use crate::sample::Sampling;
use crate::text::{Special, TextStream};
use crate::{Error, TINY};

fn options() -> Options {
    Options { device: DeviceChoice::Cpu, threads: Some(1), context: 512, ..Options::default() }
}

fn tiny() -> LanguageModel {
    block_on(open(TINY, &options())).unwrap()
}

fn greedy(max_tokens: u32) -> GenerateOptions {
    GenerateOptions { sampling: Some(Sampling::GREEDY), max_tokens: Some(max_tokens), ..GenerateOptions::default() }
}

/// Runtimes that spawn tasks on threads require it.
#[test]
fn futures_are_send() {
    fn send<T: Send>(value: T) -> T {
        value
    }
    let options = options();
    let mut loaded = 0;
    let mut progress = |_| loaded += 1;
    let mut model = block_on(send(LanguageModel::open(TINY, &options, &mut progress))).unwrap();
    assert!(loaded > 0);
    drop(send(open(TINY, &options)));
    drop(send(Embedder::open(TINY, &EmbedOptions::default(), &options, &mut |_| {})));
    let generate = greedy(4);
    let mut chat = model.conversation().unwrap();
    chat.say("Hello!");
    block_on(send(model.chat(&mut chat, &generate))).unwrap();
    let mut stream = send(model.stream("Once", &generate).unwrap());
    block_on(send(stream.next())).unwrap().unwrap();
    block_on(send(stream.finish())).unwrap();
    send(model);
}

/// A stream's pieces, its whole answer, `generate` and the engine's own tokens agree.
#[test]
fn pieces_are_the_whole() {
    let mut model = tiny();
    let whole = block_on(model.generate("Once upon a time", &greedy(40))).unwrap();
    assert_eq!((whole.ids.len(), whole.usage.generated), (40, 40));
    assert!(matches!(whole.finish, Finish::Length));
    let pieces: crate::Result<Vec<String>> = model.stream("Once upon a time", &greedy(40)).unwrap().collect();
    let pieces = pieces.unwrap();
    assert!(pieces.len() > 10, "{pieces:?}");
    assert_eq!(pieces.concat(), whole.text);
    // Read in part, the rest comes with the end.
    let mut stream = model.stream("Once upon a time", &greedy(40)).unwrap();
    assert_eq!(block_on(stream.next()).unwrap().unwrap(), pieces[0]);
    assert_eq!(block_on(stream.finish()).unwrap().text, whole.text);
    let prompt = crate::chat::continuation(model.tokenizer(), "Once upon a time").unwrap();
    let mut text = TextStream::after(&**model.tokenizer(), &prompt);
    let decoded: String = whole.ids.iter().map(|&id| text.push(id)).collect::<String>() + &text.finish();
    assert_eq!(decoded, whole.text);
}

/// A dropped stream ends its request, and the next answer knows nothing of it.
#[test]
fn a_dropped_stream_leaves_no_trace() {
    let mut model = tiny();
    let expected = block_on(model.generate("The dog", &greedy(12))).unwrap();
    for read in 0..3 {
        let mut stream = model.stream("Once upon a time", &greedy(40)).unwrap();
        for _ in 0..read {
            block_on(stream.next()).unwrap().unwrap();
        }
        drop(stream);
        let answer = block_on(model.generate("The dog", &greedy(12))).unwrap();
        assert_eq!((answer.text, answer.ids), (expected.text.clone(), expected.ids.clone()));
    }
}

#[test]
fn a_stop_string_is_not_shown() {
    let mut model = tiny();
    let all = block_on(model.generate("Once upon a time", &greedy(40))).unwrap().text;
    let (before, _) = all.split_once(" was").expect("a story says what was");
    let options = GenerateOptions { stop: vec!["nowhere".into(), " was".into()], ..greedy(40) };
    let answer = block_on(model.generate("Once upon a time", &options)).unwrap();
    assert_eq!(answer.text, before);
    assert!(matches!(answer.finish, Finish::StopString(1)), "{:?}", answer.finish);
    // The next one is not disturbed by the end of this one.
    assert_eq!(block_on(model.generate("Once upon a time", &greedy(40))).unwrap().text, all);
}

#[test]
fn a_conversation_goes_on_where_it_was() {
    let mut model = tiny();
    let mut chat = model.conversation().unwrap();
    chat.say("Hello!");
    let first = block_on(model.chat(&mut chat, &greedy(20))).unwrap();
    chat.say("What is 2 + 3?");
    let second = block_on(model.chat(&mut chat, &greedy(20))).unwrap();
    assert!(second.usage.reused >= first.usage.prompt + first.usage.generated - 1, "{first:?} {second:?}");
    let said: Vec<_> = chat.messages().iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
    let expected =
        [("user", "Hello!"), ("assistant", &first.text), ("user", "What is 2 + 3?"), ("assistant", &second.text)];
    assert_eq!(said, expected);
    // Read in part and dropped: what was read is the answer. Ended by a string: the text before it.
    chat.clear();
    chat.say("Hello!");
    let mut stream = model.chat_stream(&mut chat, &greedy(20)).unwrap();
    let piece = block_on(stream.next()).unwrap().unwrap();
    drop(stream);
    assert!(chat.messages()[1].content.starts_with(&piece) && first.text.starts_with(&chat.messages()[1].content));
    chat.clear();
    chat.say("Hello!");
    let stop = first.text[4..7].to_owned();
    let answer = block_on(model.chat(&mut chat, &GenerateOptions { stop: vec![stop.clone()], ..greedy(20) })).unwrap();
    assert_eq!(Some(answer.text.as_str()), first.text.split(stop.as_str()).next());
    assert_eq!(chat.messages()[1].content, answer.text);
    chat.say("What is 2 + 3?");
    assert!(block_on(model.chat(&mut chat, &greedy(20))).is_ok());
}

/// What fails is said, and the conversation stays as it was.
#[test]
fn mistakes_are_errors() {
    let Err(error) = block_on(open("nowhere/model.gguf", &options())) else { panic!("it is nowhere") };
    assert!(matches!(error, Error::Io { .. }), "{error}");
    let Err(error) = block_on(open(b"no model", &options())) else { panic!("it is no model") };
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    let mut model = tiny();
    let long = "time ".repeat(600);
    assert!(matches!(block_on(model.generate(&long, &greedy(4))), Err(Error::Limit { .. })));
    let mut chat = model.conversation().unwrap();
    chat.say(long);
    assert!(matches!(block_on(model.chat(&mut chat, &greedy(4))), Err(Error::Limit { .. })));
    assert_eq!(chat.messages().len(), 1);
    let wrong = GenerateOptions { sampling: Some(Sampling { top_p: 2.0, ..Sampling::GREEDY }), ..greedy(4) };
    assert!(matches!(block_on(model.generate("Once", &wrong)), Err(Error::Argument { .. })));
    assert!(block_on(model.generate("Once", &greedy(4))).is_ok());
}

#[test]
fn texts_become_vectors() {
    let exact = Options { numerics: Numerics::Exact, ..options() };
    let mut embedder = block_on(Embedder::open(TINY, &EmbedOptions::default(), &exact, &mut |_| {})).unwrap();
    let vectors = block_on(embedder.embed(&["The cat", "A dog"])).unwrap();
    let again = embedder.text("A dog").unwrap();
    assert_eq!(block_on(embedder.run(&[again])).unwrap()[0], vectors[1]);
    let length = vectors[0].iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!((length - 1.0).abs() < 1e-4 && vectors[0].len() == embedder.width() as usize, "{length}");
    // The same without code for GPUs.
    let cpu = Options { device: DeviceChoice::Cpu, ..exact.clone() };
    let mut named = block_on(Embedder::open(TINY, &EmbedOptions::default(), &cpu, &mut |_| {})).unwrap();
    let mut cpu = block_on(Embedder::open_on_cpu(TINY, &EmbedOptions::default(), &exact, &mut |_| {})).unwrap();
    assert_eq!(
        block_on(cpu.embed(&["The cat", "A dog"])).unwrap(),
        block_on(named.embed(&["The cat", "A dog"])).unwrap()
    );
}

/// Who drops a model that owns its thread waits for the requests that it has, and nothing keeps the thread.
#[test]
fn a_model_that_is_dropped_ends_its_thread() {
    let model = tiny().serve_owned(ServeOptions::default());
    assert_eq!(model.detokenize(&model.tokenizer().encode("Once", Special::Plain).unwrap()).unwrap(), "Once");
    let unknown = model.detokenize(&[u32::MAX]).unwrap_err();
    assert_eq!(unknown.code(), "argument", "{unknown}");
    let (kept, generation) = (model.handle().clone(), model.generate("Once", &greedy(40)).unwrap());
    drop(model);
    assert!(kept.is_closed());
    assert_eq!(generation.finish_blocking().unwrap().ids.len(), 40);
    assert_eq!(kept.generate(GenerateRequest::from(Request::new(vec![1]))).unwrap_err().code(), "refused");
}

/// A device that is gone is waited for. Another one would go on with other kernels, to other tokens.
#[test]
fn no_other_device_is_taken_for_one_that_is_away() {
    let (name, backend) = ("no such adapter".to_owned(), "Vulkan".to_owned());
    let away = Options { device: DeviceChoice::Named { name, backend }, ..options() };
    let Err(error) = block_on(open(TINY, &away)) else { panic!("it is not there") };
    assert!(error.code() == "device" && error.to_string().contains("no such adapter (Vulkan) is not there"), "{error}");
    assert_eq!(tiny().engine().executor().device_choice(), DeviceChoice::Cpu);
}

/// Whoever serves a model has its device opened again: the same one, tuned as before.
#[test]
fn gpu_of_a_served_model_is_opened_again() {
    let index = block_on(Device::list()).iter().position(|adapter| adapter.name.contains("llvmpipe"));
    let device = DeviceChoice::Adapter(index.expect("scripts/test installs it"));
    let tuning = "reduce = 16".to_owned();
    let options = Options { device, self_test_results: None, tuning, ..options() };
    let (mut driver, model) = block_on(open(TINY, &options)).unwrap().driver(ServeOptions::default());
    let AnyExecutor::Gpu(gpu) = driver.engine().executor() else { panic!("it is on a GPU") };
    let (device, opened_on) = (driver.engine().executor().device_choice(), gpu.opened_on().clone());
    assert!(matches!(&device, DeviceChoice::Named { name, .. } if name.contains("llvmpipe")), "{device:?}");
    let mut answer = |lose: bool| {
        let mut generation = model.generate("Once upon a time", &greedy(12)).unwrap();
        for turn in 0.. {
            if turn == 2 && lose {
                opened_on.faults.gone.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            if block_on(driver.turn()) == Next::Idle {
                break;
            }
        }
        let mut ids = Vec::new();
        while let Some(event) = generation.try_next() {
            if let crate::driver::GenerationEvent::Token { id, .. } = event {
                ids.push(id);
            }
        }
        ids
    };
    let expected = answer(false);
    assert_eq!((expected.len(), answer(true)), (12, expected));
    assert_eq!((model.handle().metrics().devices_lost, model.handle().is_lost()), (1, false));
    assert_eq!(driver.engine().executor().device_choice(), device);
    let AnyExecutor::Gpu(gpu) = driver.engine().executor() else { panic!("it is on a GPU") };
    assert!(!gpu.opened_on().is(&opened_on));
    assert_eq!(format!("{:?}", gpu.opened_on().caps().tuning), format!("{:?}", opened_on.caps().tuning));
}
