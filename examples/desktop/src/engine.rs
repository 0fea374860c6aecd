//! The model, on a thread of its own: the window sends it commands and reads events, and never waits for it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use eframe::egui;
use wgslm::chat::{ContextPolicy, Conversation, Message};
use wgslm::driver::{Canceller, GenerationEvent, ServeOptions};
use wgslm::engine::{Finish, Priority, Request};
use wgslm::exec::Progress;
use wgslm::gpu::Device;
use wgslm::hub::{self, Hub, Reference};
use wgslm::language_model::OwnedModel;
use wgslm::model::ModelSource;
use wgslm::text::Tokenizer;
use wgslm::{Error, LanguageModel, Options, Result, block_on};

use crate::settings::Settings;

/// Where a model comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The small one that is compiled in.
    Tiny,
    /// A GGUF file, or a folder of safetensors files.
    Path(PathBuf),
    /// A name on the hub, downloaded where it is not in the cache.
    Name(String),
}

/// A conversation to be answered.
pub(crate) struct Question {
    pub(crate) messages: Vec<Message>,
    pub(crate) settings: Settings,
}

enum Command {
    Open(Source),
    Ask(Question),
}

/// What is known of the model that is open.
#[derive(Clone, Debug)]
pub(crate) struct ModelInfo {
    pub(crate) name: String,
    pub(crate) device: String,
    pub(crate) context: u32,
    /// Without a chat template, texts are continued as they are.
    pub(crate) chats: bool,
}

/// What went wrong, and what to do about it.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) what: String,
    pub(crate) advice: &'static str,
}

/// What the window hears.
#[derive(Debug)]
pub(crate) enum Event {
    /// What is done to open a model, and how much of it is done, from 0 to 1, where that is known.
    Opening {
        what: String,
        part: Option<f32>,
    },
    Opened(ModelInfo),
    /// `closed`: no model is open any more; else the one before still is.
    NotOpened {
        problem: Problem,
        closed: bool,
    },
    /// A token, with the text that is certain with it.
    Piece(String),
    /// The answer has ended: with the rest of its text, one word why, and its tokens per second.
    Answered {
        text: String,
        reason: &'static str,
        speed: Option<f64>,
    },
    AnswerFailed(Problem),
}

/// What ends what the thread is doing.
#[derive(Default)]
struct Stop {
    wanted: AtomicBool,
    answer: Mutex<Option<Canceller>>,
}

impl Stop {
    fn now(&self) {
        self.wanted.store(true, Ordering::SeqCst);
        if let Some(answer) = &*self.answer.lock().unwrap_or_else(PoisonError::into_inner) {
            answer.cancel();
        }
    }

    /// An answer has begun, or ended.
    fn set(&self, answer: Option<Canceller>) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
        // It may have been asked for before there was anything to cancel.
        if self.wanted.load(Ordering::SeqCst) {
            self.now();
        }
    }
}

/// The window's side.
pub(crate) struct Engine {
    /// None once it ends.
    commands: Option<Sender<Command>>,
    events: Receiver<Event>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread, which works on the window's own device. `context` is woken for what the window should show soon.
    pub(crate) fn start(device: Device, context: egui::Context) -> std::io::Result<Self> {
        let ((commands, received), (sender, events)) = (channel(), channel());
        let stop = Arc::new(Stop::default());
        let worker = Worker { device, context, events: sender, stop: Arc::clone(&stop), open: None };
        let thread = std::thread::Builder::new().name("model".into()).spawn(move || worker.run(&received))?;
        Ok(Self { commands: Some(commands), events, stop, thread: Some(thread) })
    }

    fn send(&self, command: Command) {
        self.stop.wanted.store(false, Ordering::SeqCst);
        if let Some(commands) = &self.commands {
            // If the thread has ended, the window learns it from `next`.
            _ = commands.send(command);
        }
    }

    pub(crate) fn open(&self, source: Source) {
        self.send(Command::Open(source));
    }

    pub(crate) fn ask(&self, question: Question) {
        self.send(Command::Ask(question));
    }

    /// Ends the answer, or the download; its last event still comes.
    pub(crate) fn stop(&self) {
        self.stop.now();
    }

    /// The next event that is there already. An error: the thread has ended.
    pub(crate) fn next(&self) -> Result<Option<Event>, Problem> {
        match self.events.try_recv() {
            Ok(event) => Ok(Some(event)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                Err(Problem { what: "the engine has ended".into(), advice: "Start the program again." })
            }
        }
    }
}

impl Drop for Engine {
    /// The thread should not use the device while the program ends. What takes longer than this is left to the system.
    fn drop(&mut self) {
        self.stop.now();
        self.commands = None;
        let Some(thread) = self.thread.take() else { return };
        let latest = Instant::now() + Duration::from_secs(5);
        while !thread.is_finished() && Instant::now() < latest {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The thread's side.
struct Worker {
    device: Device,
    context: egui::Context,
    events: Sender<Event>,
    stop: Arc<Stop>,
    open: Option<Open>,
}

struct Open {
    model: OwnedModel,
    /// Remembers the tokens of its answers, so that they are not computed again.
    chat: Conversation<Arc<Tokenizer>>,
    chats: bool,
}

impl Worker {
    fn run(mut self, commands: &Receiver<Command>) {
        while let Ok(command) = commands.recv() {
            let event = match command {
                Command::Open(source) => match self.open(source) {
                    Ok(info) => Event::Opened(info),
                    Err(error) => Event::NotOpened { problem: Problem::of(&error), closed: self.open.is_none() },
                },
                Command::Ask(question) => match self.ask(question) {
                    Ok(event) => event,
                    Err(error) => Event::AnswerFailed(Problem::of(&error)),
                },
            };
            self.send(event);
            self.context.request_repaint();
        }
    }

    /// The window may have gone; its commands end then, too.
    fn send(&self, event: Event) {
        _ = self.events.send(event);
    }

    fn opening(&self, what: impl Into<String>, part: Option<f32>) {
        self.send(Event::Opening { what: what.into(), part });
    }

    fn open(&mut self, source: Source) -> Result<ModelInfo> {
        let source = match source {
            Source::Tiny => ModelSource::from(wgslm::TINY),
            Source::Path(path) => path.into(),
            Source::Name(name) => self.fetch(&name)?.into(),
        };
        self.opening("Reading", None);
        // A file that is no model costs nobody the one that is open.
        let model = block_on(source.model())?;
        if model.program.logits().is_none() {
            return Err(Error::unsupported(format!("chat with {}, a model for vectors,", model.name), "another works"));
        }
        // Before the next is loaded, so that there is memory for it.
        self.open = None;
        // Short steps of a prompt, and no self-test, which is for devices that the engine opens.
        let options = Options { prefill_tokens: 64, self_test_results: None, ..Options::default() };
        let events = self.events.clone();
        let mut report = move |progress| {
            let (what, part) = match progress {
                Progress::Testing => ("Testing the GPU", None),
                Progress::Loading(done, all) => ("Loading", Some((done, all))),
                Progress::Compiling(done, all) => ("Compiling", Some((done, all))),
            };
            let part = part.map(|(done, all)| done as f32 / all.max(1) as f32);
            _ = events.send(Event::Opening { what: what.into(), part });
        };
        let model = block_on(LanguageModel::open_on(&self.device, model, &options, &mut report))?;
        let chats = model.chat_template()?.is_some();
        let model = model.serve_owned(ServeOptions::default());
        let info = ModelInfo {
            name: model.model().name.clone(),
            device: model.device().to_owned(),
            context: model.context(),
            chats,
        };
        let chat = model.conversation()?;
        self.open = Some(Open { model, chat, chats });
        Ok(info)
    }

    /// The files of a model on the hub, downloaded where they are not here.
    fn fetch(&self, name: &str) -> Result<PathBuf> {
        let hub = Hub::from_env()?;
        let reference = Reference::parse(name, hub.endpoint())?;
        let unknown = || Error::argument("name", format!("{name:?}; ORG/REPO and ORG/REPO:QUANT work"));
        let reference = reference.or(hub.named(name)?).ok_or_else(unknown)?;
        if let Some(local) = hub.find(&reference)? {
            return Ok(local.path);
        }
        self.opening(format!("Asking for {name}"), None);
        let plan = hub.plan(&reference)?;
        let local = hub.download(&plan, &mut |progress| {
            match progress {
                hub::Progress::Waiting(file) => self.opening(format!("Another program downloads {file}"), None),
                hub::Progress::Bytes(done, all) => {
                    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
                    let what = format!("Downloading {:.2} of {:.2} GB", gigabytes(done), gigabytes(all));
                    self.opening(what, Some(done as f32 / all.max(1) as f32));
                }
            }
            match self.stop.wanted.load(Ordering::SeqCst) {
                true => Err(Error::Refused { what: "the download was stopped".into(), retry_after: None }),
                false => Ok(()),
            }
        })?;
        Ok(local.path)
    }

    fn ask(&mut self, question: Question) -> Result<Event> {
        let closed = || Error::NotFound { what: "an open model".into(), instead: "opening one works".into() };
        let Open { model, chat, chats } = self.open.as_mut().ok_or_else(closed)?;
        let Question { mut messages, settings } = question;
        let system = settings.system.trim();
        if *chats && !system.is_empty() {
            messages.insert(0, Message { role: "system".into(), content: system.into() });
        }
        chat.restore(messages)?;
        // The oldest turns are forgotten once the context is full.
        let policy = ContextPolicy { context: model.context(), shift: true };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok();
        let prompt = chat.prompt(&[], policy, now.and_then(|now| i64::try_from(now.as_secs()).ok()))?;
        let request = Request {
            sampling: settings.sampling(model.sampling()),
            max_tokens: Some(settings.max_tokens),
            // Short steps, one at a time: the window's frames come between them.
            priority: Priority::Background,
            ..model.kept_request(prompt.ids)
        };
        let mut generation = model.handle().generate(request)?;
        self.stop.set(Some(generation.canceller()));
        let (mut ids, mut answer) = (Vec::new(), String::new());
        let mut last = None;
        while let Some(event) = generation.wait() {
            match event {
                GenerationEvent::Token { id, text, .. } => {
                    ids.push(id);
                    answer += &text;
                    _ = self.events.send(Event::Piece(text));
                }
                GenerationEvent::Finished { text, reason, usage, timings, .. } => {
                    answer += &text;
                    last = Some((text, reason, usage, timings));
                }
            }
        }
        self.stop.set(None);
        let ended = || Error::Refused { what: "the engine has ended".into(), retry_after: None };
        let (text, reason, usage, timings) = last.ok_or_else(ended)?;
        if let Finish::Error(error) = reason {
            return Err(Error::from_shared(error));
        }
        chat.hear(&ids, &answer);
        let seconds = timings.decode.as_secs_f64();
        let speed = (usage.generated > 1 && seconds > 0.0).then(|| f64::from(usage.generated - 1) / seconds);
        Ok(Event::Answered { text, reason: reason.name(), speed })
    }
}

impl Problem {
    /// An error of the engine, with what people can do about it.
    pub(crate) fn of(error: &Error) -> Self {
        let advice = match error.code() {
            "io" => "Check that the file is there and may be read.",
            "malformed" => "The file is damaged or no model: download it again, or take another.",
            "unsupported" | "model" | "template" => "Take another model, or another file of it.",
            "limit" => "Take a smaller model or one of fewer bits, or close other programs that use the GPU.",
            "device_lost" => "Start the program again. If that repeats, update the GPU's driver.",
            "device" | "miscomputed" | "lost_step" => "Try again. If that repeats, update the GPU's driver.",
            "not_found" => "Check the name; ORG/REPO or ORG/REPO:QUANT is what the hub knows.",
            "network" => "Check the connection; what was downloaded is kept, and goes on from there.",
            "denied" => "The hub wants an account for this model: set HF_TOKEN and start the program again.",
            "argument" => "Change what was entered, and try again.",
            _ => "Try again.",
        };
        Self { what: error.to_string(), advice }
    }
}
