//! What the window knows, and what it does when somebody asks for it.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use eframe::{egui, wgpu};
use wgslm::chat::Message;
use wgslm::gpu::Device;

use crate::conversations::{Conversation, Store};
use crate::engine::{Engine, Event, ModelInfo, Problem, Question, Source};
use crate::frames::Frames;
use crate::markdown::Block;
use crate::script::Script;
use crate::settings::Settings;
use crate::view;

/// Whether a model is open.
pub(crate) enum ModelState {
    None,
    /// What is done, and how much of it; the one before is used again if it fails.
    Opening {
        what: String,
        part: Option<f32>,
        before: Option<ModelInfo>,
    },
    Open(ModelInfo),
}

/// The answer that is being made.
struct Answer {
    conversation: String,
    tokens: usize,
    /// When its first token came.
    first: Option<Instant>,
}

pub(crate) struct App {
    pub(crate) adapter: String,
    engine: Option<Engine>,
    /// None where nothing can be kept.
    store: Option<Store>,
    /// The newest first; one at least.
    pub(crate) conversations: Vec<Conversation>,
    pub(crate) selected: usize,
    pub(crate) input: String,
    pub(crate) settings: Settings,
    saved: Settings,
    pub(crate) problems: Vec<Problem>,
    pub(crate) model: ModelState,
    answer: Option<Answer>,
    /// Tokens per second of the last answer.
    pub(crate) speed: Option<f64>,
    pub(crate) frames: Frames,
    pub(crate) name: String,
    pub(crate) shows_settings: bool,
    /// A dialog that is open.
    picked: Option<Receiver<Option<PathBuf>>>,
    /// What the device reports at any time, from any thread.
    device: Arc<Mutex<Vec<Problem>>>,
    /// The messages that are shown, as read when they had so many bytes.
    pub(crate) parsed: Vec<(usize, Vec<Block>)>,
    script: Option<Script>,
    failed: Arc<OnceLock<String>>,
}

impl App {
    /// `failed` gets what goes wrong in a script.
    pub(crate) fn new(
        context: &eframe::CreationContext<'_>,
        script: Option<Script>,
        model: Option<String>,
        failed: Arc<OnceLock<String>>,
    ) -> Result<Self, String> {
        let window = context.wgpu_render_state.as_ref().ok_or("the window is not of wgpu")?;
        let info = window.adapter.get_info();
        let device = watch(&window.device);
        let shared = Device::from_host(&info, window.device.clone(), window.queue.clone());
        // egui's own grey is for labels; these are texts to be read.
        let mut dark = egui::Visuals::dark();
        dark.widgets.noninteractive.fg_stroke.color = egui::Color32::from_gray(200);
        context.egui_ctx.set_visuals_of(egui::Theme::Dark, dark);
        let mut problems = Vec::new();
        let mut report = |what: String, advice| problems.push(Problem { what, advice });
        let store = match Store::usual_folder(|name| std::env::var_os(name)).map(Store::open) {
            Some(Ok(store)) => Some(store),
            Some(Err(error)) => {
                report(format!("conversations cannot be kept: {error}"), "Set WGSLM_DESKTOP_DATA to another folder.");
                None
            }
            None => {
                report("there is no folder for conversations".into(), "Set WGSLM_DESKTOP_DATA to one.");
                None
            }
        };
        let (mut conversations, mut settings) = (Vec::new(), Settings::default());
        if let Some(store) = &store {
            let (found, unreadable) = store.load();
            conversations = found;
            for what in unreadable {
                report(what, "The file stays as it is. Repair it, or move it out of the folder.");
            }
            match store.settings() {
                Ok(kept) => settings = kept.unwrap_or_default(),
                Err(what) => report(what, "The defaults are used; the file is replaced when a setting is changed."),
            }
        }
        let engine = match Engine::start(shared, context.egui_ctx.clone()) {
            Ok(engine) => Some(engine),
            Err(error) => {
                report(format!("the engine cannot start: {error}"), "Close other programs and start this one again.");
                None
            }
        };
        let mut app = Self {
            adapter: format!("{} ({}, {})", info.name, info.backend, info.driver_info),
            engine,
            store,
            conversations,
            selected: 0,
            input: String::new(),
            saved: settings.clone(),
            settings,
            problems,
            model: ModelState::None,
            answer: None,
            speed: None,
            frames: Frames::default(),
            name: String::new(),
            shows_settings: false,
            picked: None,
            device,
            parsed: Vec::new(),
            script,
            failed,
        };
        if app.conversations.is_empty() {
            app.new_conversation();
        }
        let source = match model {
            None => Source::Tiny,
            Some(model) if std::path::Path::new(&model).exists() => Source::Path(model.into()),
            Some(model) => Source::Name(model),
        };
        app.open(source);
        Ok(app)
    }

    // --- the model --------------------------------------------------------------------------------------------------

    /// Opens another model. An answer that is being made ends with what it has.
    pub(crate) fn open(&mut self, source: Source) {
        let Some(engine) = &self.engine else { return };
        if self.opening() {
            return;
        }
        engine.stop();
        engine.open(source);
        let before = match std::mem::replace(&mut self.model, ModelState::None) {
            ModelState::Open(info) => Some(info),
            _ => None,
        };
        self.model = ModelState::Opening { what: "Opening".into(), part: None, before };
    }

    pub(crate) fn opening(&self) -> bool {
        matches!(self.model, ModelState::Opening { .. })
    }

    /// Opens the system's dialog, which waits on a thread of its own.
    pub(crate) fn pick(&mut self, context: &egui::Context) {
        if self.picked.is_some() {
            return;
        }
        let dialog = rfd::AsyncFileDialog::new().add_filter("Models", &["gguf"]).pick_file();
        let ((sender, picked), context) = (channel(), context.clone());
        let wait = move || {
            let file = wgslm::block_on(dialog);
            _ = sender.send(file.map(|file| file.path().to_owned()));
            context.request_repaint();
        };
        match std::thread::Builder::new().name("dialog".into()).spawn(wait) {
            Ok(_) => self.picked = Some(picked),
            Err(error) => self.report(format!("no dialog: {error}"), "Drop the file onto the window."),
        }
    }

    fn report(&mut self, what: String, advice: &'static str) {
        self.problems.push(Problem { what, advice });
    }

    // --- conversations ----------------------------------------------------------------------------------------------

    pub(crate) fn conversation(&self) -> &Conversation {
        &self.conversations[self.selected]
    }

    pub(crate) fn select(&mut self, n: usize) {
        self.selected = n.min(self.conversations.len() - 1);
        self.parsed.clear();
    }

    /// An empty conversation; the one that there is, if there is one.
    pub(crate) fn new_conversation(&mut self) {
        let empty = self.conversations.iter().position(|one| one.messages.is_empty());
        let at = empty.unwrap_or_else(|| {
            let new = match &self.store {
                Some(store) => store.create(&self.conversations),
                None => {
                    Conversation { id: self.conversations.len().to_string(), model: String::new(), messages: vec![] }
                }
            };
            self.conversations.insert(0, new);
            0
        });
        self.select(at);
    }

    pub(crate) fn delete(&mut self, n: usize) {
        if self.answer.as_ref().is_some_and(|answer| answer.conversation == self.conversations[n].id) {
            self.stop();
        }
        let gone = self.conversations.remove(n);
        if let Some(Err(error)) = self.store.as_ref().map(|store| store.delete(&gone)) {
            self.report(format!("{} could not be deleted: {error}", gone.title()), "Delete its file by hand.");
        }
        if self.conversations.is_empty() {
            self.new_conversation();
        }
        self.select(self.selected - usize::from(n < self.selected));
    }

    fn save(&mut self, id: &str) {
        let Some(store) = &self.store else { return };
        let Some(conversation) = self.conversations.iter().find(|one| one.id == id) else { return };
        if let Err(error) = store.save(conversation) {
            let what = format!("{} could not be saved in {}: {error}", conversation.title(), store.folder().display());
            self.report(what, "Free some space, or set WGSLM_DESKTOP_DATA to another folder.");
        }
    }

    // --- answers ----------------------------------------------------------------------------------------------------

    pub(crate) fn answering(&self) -> bool {
        self.answer.is_some()
    }

    /// Whether the conversation that is shown is the one that is being answered.
    pub(crate) fn answering_here(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.conversation == self.conversation().id)
    }

    /// Tokens of the answer so far.
    pub(crate) fn tokens(&self) -> usize {
        self.answer.as_ref().map_or(0, |answer| answer.tokens)
    }

    /// Tokens per second of the answer so far, or of the last one.
    pub(crate) fn current_speed(&self) -> Option<f64> {
        let Some(Answer { tokens, first: Some(first), .. }) = self.answer else { return self.speed };
        (tokens > 1).then(|| (tokens - 1) as f64 / first.elapsed().as_secs_f64().max(1e-6))
    }

    pub(crate) fn can_ask(&self) -> bool {
        matches!(self.model, ModelState::Open(_)) && !self.answering()
    }

    /// Sends what was entered.
    pub(crate) fn ask(&mut self) {
        let text = self.input.trim().to_owned();
        if text.is_empty() || !self.can_ask() {
            return;
        }
        self.input.clear();
        self.conversations[self.selected].messages.push(Message { role: "user".into(), content: text });
        self.begin();
    }

    /// Asks the last question again.
    pub(crate) fn regenerate(&mut self) {
        if self.can_ask() && self.conversation().can_regenerate() {
            self.conversations[self.selected].unanswer();
            self.begin();
        }
    }

    fn begin(&mut self) {
        let (Some(engine), ModelState::Open(info)) = (&self.engine, &self.model) else { return };
        let conversation = &mut self.conversations[self.selected];
        conversation.model = info.name.clone();
        let id = conversation.id.clone();
        engine.ask(Question { messages: conversation.messages.clone(), settings: self.settings.clone() });
        self.answer = Some(Answer { conversation: id.clone(), tokens: 0, first: None });
        self.speed = None;
        self.parsed.clear();
        self.save(&id);
    }

    /// Ends the answer, or a download.
    pub(crate) fn stop(&self) {
        if let Some(engine) = &self.engine {
            engine.stop();
        }
    }

    /// Adds text to the answer.
    fn hear(&mut self, text: &str) {
        let Some(answer) = &self.answer else { return };
        let Some(conversation) = self.conversations.iter_mut().find(|one| one.id == answer.conversation) else {
            return;
        };
        match conversation.messages.last_mut().filter(|last| last.role == "assistant") {
            Some(last) => last.content.push_str(text),
            None if text.is_empty() => {}
            None => conversation.messages.push(Message { role: "assistant".into(), content: text.into() }),
        }
    }

    fn end(&mut self) {
        if let Some(answer) = self.answer.take() {
            self.save(&answer.conversation);
        }
    }

    // --- what happens -----------------------------------------------------------------------------------------------

    fn happened(&mut self, event: Event) {
        match event {
            Event::Opening { what, part } => {
                if let ModelState::Opening { what: now, part: done, .. } = &mut self.model {
                    (*now, *done) = (what, part);
                }
            }
            Event::Opened(info) => self.model = ModelState::Open(info),
            Event::NotOpened { problem, closed } => {
                self.problems.push(problem);
                self.model = match std::mem::replace(&mut self.model, ModelState::None) {
                    ModelState::Opening { before: Some(info), .. } if !closed => ModelState::Open(info),
                    _ => ModelState::None,
                };
            }
            Event::Piece(text) => {
                self.hear(&text);
                if let Some(answer) = &mut self.answer {
                    answer.tokens += 1;
                    answer.first.get_or_insert_with(Instant::now);
                }
            }
            Event::Answered { text, reason, speed } => {
                self.hear(&text);
                self.speed = speed;
                self.end();
                if reason == "context" {
                    self.report("the context is full".into(), "Begin a new conversation.");
                }
            }
            Event::AnswerFailed(problem) => {
                self.problems.push(problem);
                self.end();
            }
        }
    }

    /// Everything that has happened since the last frame.
    fn listen(&mut self, context: &egui::Context) {
        while let Some(next) = self.engine.as_ref().map(Engine::next) {
            match next {
                Ok(Some(event)) => self.happened(event),
                Ok(None) => break,
                Err(problem) => {
                    self.problems.push(problem);
                    (self.engine, self.model) = (None, ModelState::None);
                    self.end();
                }
            }
        }
        let reported = std::mem::take(&mut *self.device.lock().unwrap_or_else(PoisonError::into_inner));
        self.problems.extend(reported);
        match self.picked.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => {}
            Some(picked) => {
                self.picked = None;
                if let Ok(Some(path)) = picked {
                    self.open(Source::Path(path));
                }
            }
        }
        let dropped = context.input(|input| input.raw.dropped_files.first().map(|file| file.path().to_owned()));
        if let Some(path) = dropped {
            self.open(Source::Path(path));
        }
    }

    /// Writes settings that were changed, once nobody drags a slider any more.
    fn save_settings(&mut self, context: &egui::Context) {
        if self.settings == self.saved || context.input(|input| input.pointer.any_down()) {
            return;
        }
        self.saved = self.settings.clone();
        if let Some(Err(error)) = self.store.as_ref().map(|store| store.save_settings(&self.saved)) {
            self.report(format!("the settings could not be saved: {error}"), "Free some space.");
        }
    }

    fn play(&mut self, context: &egui::Context) {
        let Some(mut script) = self.script.take() else { return };
        match script.go_on(self, context) {
            Ok(false) => self.script = Some(script),
            ended => {
                if let Err(problem) = ended {
                    _ = self.failed.set(problem);
                }
                context.send_viewport_cmd(egui::ViewportCommand::Close);
            }
        }
    }
}

impl eframe::App for App {
    fn ui(&mut self, ui: &mut egui::Ui, _: &mut eframe::Frame) {
        let context = ui.ctx().clone();
        let moving = self.answering() || self.opening() || self.settings.frames || self.script.is_some();
        // Text that arrives between two frames waits for the second: tokens do not cause frames of their own.
        if let Some(next) = self.frames.begin(Instant::now(), moving) {
            context.request_repaint_after(next);
        }
        self.listen(&context);
        self.play(&context);
        view::show(self, ui);
        self.save_settings(&context);
    }

    /// An answer that is being made is kept as far as it is.
    fn on_exit(&mut self) {
        self.end();
        self.engine = None;
    }
}

/// Collects what a device reports outside of calls; else wgpu ends the program.
fn watch(device: &wgpu::Device) -> Arc<Mutex<Vec<Problem>>> {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let add = |to: &Mutex<Vec<Problem>>, what: String, advice| {
        eprintln!("{what}");
        let mut reported = to.lock().unwrap_or_else(PoisonError::into_inner);
        // One that repeats each frame is shown once.
        if reported.len() < 3 {
            reported.push(Problem { what, advice });
        }
    };
    let errors = Arc::clone(&reported);
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        let advice = match error {
            wgpu::Error::OutOfMemory { .. } => "Take a smaller model, or close other programs that use the GPU.",
            _ => "Start the program again. If that repeats, update the GPU's driver.",
        };
        add(&errors, error.to_string(), advice);
    }));
    let lost = Arc::clone(&reported);
    device.set_device_lost_callback(move |reason, why| {
        if reason != wgpu::DeviceLostReason::Destroyed {
            add(&lost, format!("the GPU was lost: {why}"), "Start the program again; conversations are kept.");
        }
    });
    reported
}
