//! What the server serves: models that answer, or that give vectors, and how they stand.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::ask::{Ask, Asked};
use super::catalog::{Catalog, Known, Served};
use super::failure::{Failure, Outcome};
use super::http::on_a_thread;
use super::policy::Policy;
use super::reply::Reply;
use super::{Limits, Residence};
use crate::chat::{self, AnswerFormat, Answers, Splitter};
use crate::driver::GenerateRequest;
use crate::engine::{Embedder, Input};
use crate::exec::AnyExecutor;
use crate::language_model::{Held, ServedModel, Slots, Standing};
use crate::text::ChatTemplate;
use crate::{Error, Result};

/// Memory for answers by their text.
const REMEMBERED: usize = 64 << 20;
/// Calls for vectors that may wait.
const VECTORS_WAITING: usize = 64;
/// Names of models that an error lists.
const NAMED: usize = 12;
/// How soon somebody who waits for a model that another one opens looks again.
const LOOK: Duration = Duration::from_millis(10);
/// How long it is remembered that a model could not be opened, for those who waited with it.
const FAILED: Duration = Duration::from_secs(60);

/// All that connections share.
pub(super) struct App {
    /// The model that is meant where a request names none.
    pub(super) name: String,
    pub(super) created: u64,
    pub(super) policy: Policy,
    pub(super) limits: Limits,
    pub(super) catalog: Box<dyn Catalog>,
    slots: Slots<Arc<Loaded>>,
    first: Mutex<First>,
    /// Nothing new is taken.
    pub(super) draining: AtomicBool,
    /// Models that could not be opened just now.
    failed: Mutex<Vec<(String, Instant, Arc<Error>)>>,
    /// Models that are being downloaded.
    pub(super) pulling: Mutex<Vec<String>>,
}

/// The model that is opened at the start.
#[derive(Default)]
struct First {
    /// It is to be opened, or is being opened.
    loading: bool,
    /// Its name, and how long it stays without requests, whenever it is opened again.
    stays: Option<(String, Option<Duration>)>,
}

/// A model that is open.
pub(super) struct Loaded {
    pub(super) known: Known,
    kind: Kind,
    /// Whether its weights are in a GPU's memory, as far as it is known.
    pub(super) on_gpu: bool,
    /// When the engine was last seen to do something, and the steps that it had done.
    progress: Mutex<(Instant, u64)>,
}

enum Kind {
    Language(Arc<Language>),
    Vectors(Vectors),
}

/// A model that answers.
pub(super) struct Language {
    pub(super) model: ServedModel,
    template: Option<ChatTemplate>,
    pub(super) template_source: String,
    format: AnswerFormat,
    answers: Mutex<Answers>,
}

/// A model that gives vectors or scores, on a thread of its own.
pub(super) struct Vectors {
    jobs: mpsc::SyncSender<Job>,
    ended: Arc<AtomicBool>,
    pub(super) scores: bool,
}

/// Texts, or a query with documents, and where their vectors go.
struct Job {
    texts: Texts,
    result: oneshot::Sender<Result<Vectored>>,
}

/// What is to be embedded.
pub(super) enum Texts {
    /// Some that are too long may be truncated.
    Single {
        texts: Vec<String>,
        truncate: bool,
    },
    Pairs(String, Vec<String>),
}

/// Vectors of texts, or scores as vectors of one element, and how many tokens it took.
pub(super) struct Vectored {
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) tokens: usize,
}

impl Loaded {
    fn open(known: &Known, served: Served) -> Result<(Arc<Self>, Option<JoinHandle<()>>)> {
        let (kind, thread, on_gpu) = match served {
            Served::Language { model, thread, on_gpu } => {
                (Kind::Language(Arc::new(Language::new(model)?)), thread, on_gpu)
            }
            Served::Vectors(embedder) => {
                let on_gpu = matches!(embedder.executor(), AnyExecutor::Gpu(_));
                let (vectors, thread) = Vectors::new(*embedder);
                (Kind::Vectors(vectors), thread, on_gpu)
            }
        };
        let progress = Mutex::new((Instant::now(), 0));
        Ok((Arc::new(Self { known: known.clone(), kind, on_gpu, progress }), Some(thread)))
    }

    /// What clients call it.
    pub(super) fn name(&self) -> &str {
        &self.known.name
    }

    /// The model that answers.
    pub(super) fn language(&self) -> Outcome<&Arc<Language>> {
        match &self.kind {
            Kind::Language(language) => Ok(language),
            Kind::Vectors(_) => {
                let message = format!("{} gives vectors or scores, and no text; /v1/embeddings works", self.name());
                Err(Failure { code: Some("unsupported"), ..Failure::new(hyper::StatusCode::BAD_REQUEST, message) })
            }
        }
    }

    /// The model that answers, if its queue takes a request: said before a prompt is read, which costs more than the refusal.
    pub(super) fn taking(&self) -> Outcome<&Arc<Language>> {
        let language = self.language()?;
        language.model.handle().check_queue()?;
        Ok(language)
    }

    /// The model that gives vectors.
    pub(super) fn vectors(&self) -> Outcome<&Vectors> {
        match &self.kind {
            Kind::Vectors(vectors) => Ok(vectors),
            Kind::Language(_) => {
                let message = format!("{} gives text, and no vectors; a model for embeddings works", self.name());
                Err(Failure { code: Some("unsupported"), ..Failure::new(hyper::StatusCode::BAD_REQUEST, message) })
            }
        }
    }

    /// Whether its engine answers now: one that has requests and comes to no end of a step for so long is stuck.
    fn ready(&self, stuck: Duration) -> Outcome<()> {
        let Kind::Language(language) = &self.kind else { return Ok(()) };
        let handle = language.model.handle();
        // The next request opens one that has ended; whoever sends requests to ready servers alone would never send it.
        if handle.is_closed() {
            return Ok(());
        }
        let metrics = handle.metrics();
        let busy = metrics.num_requests_running + metrics.num_requests_waiting > 0;
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if !busy || progress.1 != metrics.steps {
            *progress = (Instant::now(), metrics.steps);
        }
        match progress.0.elapsed() {
            time if time > stuck => {
                let message = format!("{} shows no progress for {:.1} s", self.name(), time.as_secs_f64());
                Err(Failure::unavailable(message))
            }
            _ => Ok(()),
        }
    }
}

impl Held for Arc<Loaded> {
    fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::Language(language) => Held::bytes(&language.model),
            Kind::Vectors(_) => self.known.bytes,
        }
    }

    fn requests(&self) -> usize {
        // Whoever holds it is about to ask it something, or reads its answer.
        let holders = Arc::strong_count(self) - 1;
        match &self.kind {
            Kind::Language(language) => {
                let holders = holders + Arc::strong_count(language) - 1;
                holders.max(Held::requests(&language.model))
            }
            Kind::Vectors(_) => holders,
        }
    }

    fn is_closed(&self) -> bool {
        match &self.kind {
            Kind::Language(language) => Held::is_closed(&language.model),
            Kind::Vectors(vectors) => vectors.ended.load(Ordering::Acquire),
        }
    }

    fn trim(&self) {
        if let Kind::Language(language) = &self.kind {
            Held::trim(&language.model);
        }
    }

    fn close(&self) {
        if let Kind::Language(language) = &self.kind {
            Held::close(&language.model);
        }
    }
}

impl App {
    pub(super) fn new(
        name: String,
        catalog: Box<dyn Catalog>,
        policy: Policy,
        limits: Limits,
        residence: &Residence,
    ) -> Self {
        Self {
            name,
            created: now().and_then(|now| u64::try_from(now).ok()).unwrap_or(0),
            policy,
            limits,
            catalog,
            slots: Slots::new(residence.most, residence.bytes, residence.keep_alive),
            first: Mutex::default(),
            draining: AtomicBool::new(false),
            failed: Mutex::default(),
            pulling: Mutex::default(),
        }
    }

    /// The model that a client means. Clients of Ollama add `:latest`.
    fn find(&self, name: Option<&str>) -> Outcome<Known> {
        let name = name.filter(|name| *name != "default" && *name != "default:latest").unwrap_or(&self.name);
        let found = match self.catalog.find(name)? {
            None => match name.strip_suffix(":latest") {
                Some(name) => self.catalog.find(name)?,
                None => None,
            },
            found => found,
        };
        found.ok_or_else(|| {
            let all = self.catalog.list().unwrap_or_default();
            let mut names: Vec<String> = all.iter().map(|known| format!("{:?}", known.name)).collect();
            let more = if names.len() > NAMED { ", \u{2026}" } else { "" };
            names.truncate(NAMED);
            let are = if names.len() == 1 { "is" } else { "are" };
            let message = format!("model: there is no {name:?} here; {}{more} {are}", names.join(", "));
            let param = Some("model".to_owned());
            Failure { param, code: Some("model_not_found"), ..Failure::not_found(message) }
        })
    }

    /// What is known of the model that a client means; nothing is opened.
    pub(super) async fn known(self: &Arc<Self>, name: Option<String>) -> Outcome<Known> {
        let app = Arc::clone(self);
        on_a_thread(move || app.find(name.as_deref())).await
    }

    /// The model that a client means, opened if it is not. Other requests go on meanwhile.
    pub(super) async fn model(self: &Arc<Self>, name: Option<String>) -> Outcome<Arc<Loaded>> {
        // The usual case costs no thread.
        if let Standing::Ready(model) = self.slots.peek(name.as_deref().unwrap_or(&self.name)) {
            return Ok(model);
        }
        let asked = Instant::now();
        let known = self.known(name).await?;
        loop {
            match self.slots.peek(&known.name) {
                Standing::Ready(model) => return Ok(model),
                // A thread of those who wait would be missing elsewhere.
                Standing::Opening => tokio::time::sleep(LOOK).await,
                Standing::Absent => {
                    let app = Arc::clone(self);
                    return on_a_thread(move || app.load(&known, asked)).await;
                }
            }
        }
    }

    /// Opens a model on this thread, unless it has failed since it was asked for.
    fn load(&self, known: &Known, asked: Instant) -> Outcome<Arc<Loaded>> {
        let mut opened = false;
        let open = || match self.failure(&known.name, asked) {
            Some(error) => Err(Error::Shared(error)),
            None => {
                opened = true;
                let opened = self.catalog.open(known).and_then(|served| Loaded::open(known, served));
                opened.map_err(|error| self.has_failed(&known.name, error))
            }
        };
        let model = self.slots.get(&known.name, known.bytes, open)?;
        // The first stays as long as ever, though it gave way or ended meanwhile.
        let stays = self.first().stays.clone().filter(|(name, _)| opened && *name == known.name);
        if let Some((name, keep)) = stays {
            self.slots.keep(&name, keep);
        }
        Ok(model)
    }

    fn first(&self) -> MutexGuard<'_, First> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is ready before the first model is.
    pub(super) fn expect_first(&self) {
        self.first().loading = true;
    }

    fn has_failed(&self, name: &str, error: Error) -> Error {
        let error = Arc::new(error);
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.retain(|(other, at, _)| other != name && at.elapsed() < FAILED);
        failed.push((name.to_owned(), Instant::now(), Arc::clone(&error)));
        Error::Shared(error)
    }

    /// Opens the model that is meant where a request names none, on this thread; it stays for so long without requests.
    pub(super) fn load_first(&self, keep: Option<Duration>) -> Result<()> {
        let loaded = self.open_first(keep);
        self.first().loading = false;
        loaded
    }

    fn open_first(&self, keep: Option<Duration>) -> Result<()> {
        let known = self.catalog.find(&self.name)?;
        let known = known.ok_or_else(|| Error::argument("model", format!("there is no {:?}", self.name)))?;
        self.first().stays = Some((known.name.clone(), keep));
        self.slots.get(&known.name, known.bytes, || Loaded::open(&known, self.catalog.open(&known)?))?;
        self.slots.keep(&known.name, keep);
        Ok(())
    }

    /// Why a model could not be opened after a request asked for it.
    fn failure(&self, name: &str, asked: Instant) -> Option<Arc<Error>> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let since = failed.iter().find(|(failed, at, _)| failed == name && *at >= asked);
        since.map(|(_, _, error)| Arc::clone(error))
    }

    /// How long a model stays from now on, if a request says so.
    pub(super) fn keep(&self, model: &Loaded, keep: Option<Option<Duration>>) {
        if let Some(keep) = keep {
            self.slots.keep(model.name(), keep);
        }
    }

    /// Closes a model after the requests that it has, without waiting; who asks for it until then keeps it.
    pub(super) fn unload(self: &Arc<Self>, name: &str) {
        self.slots.keep(name, Some(Duration::ZERO));
        let app = Arc::clone(self);
        tokio::task::spawn_blocking(move || app.unload_idle());
    }

    /// Closes what nobody has asked for anything for long enough.
    pub(super) fn unload_idle(&self) {
        self.slots.unload_idle();
    }

    /// The models that are open, and the time that each has left without requests.
    pub(super) fn loaded(&self) -> Vec<(Arc<Loaded>, Option<Duration>)> {
        self.slots.list().into_iter().map(|listed| (listed.model, listed.left)).collect()
    }

    /// Looks at whether engines that have work do it.
    pub(super) fn watch(&self) {
        self.slots.look(|model| _ = model.ready(self.limits.stuck));
    }

    /// Whether requests are answered now.
    pub(super) fn ready(&self) -> Outcome<()> {
        if self.draining.load(Ordering::Acquire) {
            return Err(Failure::unavailable("the server is about to end"));
        }
        // Later ones are loaded while the others answer.
        if self.first().loading {
            let name = self.slots.opening().unwrap_or_else(|| self.name.clone());
            return Err(Failure::unavailable(format!("{name} is being loaded")));
        }
        self.loaded().iter().try_for_each(|(model, _)| model.ready(self.limits.stuck))
    }
}

impl Language {
    fn new(model: ServedModel) -> Result<Self> {
        let template_source = model.model().chat_template.clone().unwrap_or_default();
        Ok(Self {
            template: model.chat_template()?,
            format: AnswerFormat::of_template(&template_source),
            template_source,
            answers: Mutex::new(Answers::new(REMEMBERED)),
            model,
        })
    }

    /// Whether messages can be answered as such.
    pub(super) fn chats(&self) -> bool {
        self.template.is_some()
    }

    /// Tokens of the vocabulary.
    pub(super) fn vocab(&self) -> u32 {
        self.model.tokenizer().vocab_size().try_into().unwrap_or(u32::MAX)
    }

    pub(super) fn remember(&self, asked: (String, Vec<u32>), ids: &[u32], text: &str, salt: Option<Arc<[u8]>>) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).keep(asked, ids, text, salt);
    }

    /// The ids of what is asked; of messages their text, too.
    pub(super) fn prompt(&self, asked: &Asked, salt: Option<&[u8]>) -> Outcome<(Vec<u32>, Option<String>)> {
        let tokenizer = self.model.tokenizer();
        match asked {
            Asked::Text(text) => Ok((chat::continuation(tokenizer, text)?, None)),
            Asked::Ids(ids) => Ok((ids.clone(), None)),
            Asked::Messages { messages, tools, variables } => {
                let Some(template) = &self.template else {
                    let instead = "this model has no chat template; a prompt at /v1/completions works: it is continued";
                    return Err(Failure::unsupported("messages", instead));
                };
                let mut variables: Map<String, Value> = variables.clone();
                if !tools.is_empty() {
                    if !self.format.calls() {
                        return Err(Failure::unsupported("tools", "this model's chat template knows no tools"));
                    }
                    variables.insert("tools".to_owned(), tools.clone().into());
                }
                let segments = chat::render(template, messages, &variables, now())?;
                let found = self.answers.lock().unwrap_or_else(PoisonError::into_inner).find(&segments, salt);
                let ids = found.unwrap_or_default().encode(tokenizer, &segments, false)?;
                Ok((ids, Some(chat::text(&segments))))
            }
        }
    }

    /// Asks for answers.
    pub(super) fn start(self: &Arc<Self>, ask: Ask, salt: Option<Arc<[u8]>>) -> Outcome<Vec<Reply>> {
        let asked = std::slice::from_ref(&ask.asked);
        self.start_all(asked, &ask, salt)
    }

    /// Asks for answers to several prompts, with all else as `ask` has it.
    pub(super) fn start_all(
        self: &Arc<Self>,
        prompts: &[Asked],
        ask: &Ask,
        salt: Option<Arc<[u8]>>,
    ) -> Outcome<Vec<Reply>> {
        // Those that came meanwhile may have filled it.
        self.model.handle().check_queue()?;
        let read: Vec<_> = prompts.iter().map(|asked| self.prompt(asked, salt.as_deref())).collect::<Outcome<_>>()?;
        self.check_size(&read, ask.n)?;
        let mut replies = Vec::new();
        for (asked, (ids, text)) in prompts.iter().zip(read) {
            replies.extend(self.start_one(asked, ids, text, ask, &salt)?);
        }
        Ok(replies)
    }

    /// Refuses more answers than can ever wait: however often they were asked for, they would be too many.
    fn check_size(&self, read: &[(Vec<u32>, Option<String>)], n: u32) -> Outcome<()> {
        let queue = self.model.handle().options();
        let tokens: u64 = read.iter().map(|(ids, _)| ids.len() as u64).sum();
        let (prompts, n) = (read.len() as u64, u64::from(n));
        // Answers to each prompt.
        let most = (queue.queue_requests as u64 / prompts.max(1)).min(queue.queue_tokens / tokens.max(1));
        if n <= most || n * prompts == 1 {
            return Ok(());
        }
        let fit = |what: &str, works: &str| format!("{what} never fit into the queue; {works} work");
        if prompts == 1 {
            return Err(Failure::invalid("n", fit(&format!("{n} answers"), &most.max(1).to_string())));
        }
        let what = format!("{prompts} prompts of {tokens} tokens, {n} answers to each,");
        let (requests, tokens) = (queue.queue_requests, queue.queue_tokens);
        Err(Failure::invalid("prompt", fit(&what, &format!("{requests} answers with {tokens} tokens"))))
    }

    fn start_one(
        self: &Arc<Self>,
        asked: &Asked,
        ids: Vec<u32>,
        text: Option<String>,
        ask: &Ask,
        salt: &Option<Arc<[u8]>>,
    ) -> Outcome<Vec<Reply>> {
        let tools: Arc<[Value]> = match asked {
            Asked::Messages { tools, .. } => tools.as_slice().into(),
            _ => Arc::from([]),
        };
        let one = |i: u32| {
            let mut request = self.model.request(ids.clone());
            request.sampling = ask.sampling;
            request.sampling.seed = ask.sampling.seed.wrapping_add(u64::from(i));
            request.stop.extend(ask.stop_ids.iter().copied().filter(|id| !self.model.stop_tokens().contains(id)));
            request.max_tokens = ask.max_tokens;
            request.logprobs = ask.logprobs;
            request.bias.clone_from(&ask.bias);
            request.salt.clone_from(salt);
            let generation = self.model.handle().generate(GenerateRequest { request, stop: ask.stop.clone() })?;
            let splitter = |text: &String| self.format.splitter(text, Arc::clone(&tools));
            let splitter = text.as_ref().map_or_else(Splitter::plain, splitter);
            let asked = text.as_ref().map(|text| (text.clone(), ids.clone()));
            let prompt = u32::try_from(ids.len()).unwrap_or(u32::MAX);
            Ok(Reply::new(self, generation, prompt, splitter, asked, salt.clone()))
        };
        (0..ask.n).map(one).collect()
    }
}

/// Says that a thread has ended, however it does.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Vectors {
    fn new(mut embedder: Embedder) -> (Self, JoinHandle<()>) {
        let (jobs, asked) = mpsc::sync_channel::<Job>(VECTORS_WAITING);
        let scores = embedder.scores();
        let ended = Arc::new(AtomicBool::new(false));
        let ends = Ends(Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            let _ends = ends;
            for Job { texts, result } in asked {
                // Whoever has gone needs no vectors.
                if result.is_closed() {
                    continue;
                }
                let got = vectors(&mut embedder, &texts);
                let lost = matches!(got, Err(Error::DeviceLost(_)));
                let _ = result.send(got);
                // The next request opens it again.
                if lost {
                    return;
                }
            }
        });
        (Self { jobs, ended, scores }, thread)
    }

    /// The vectors of texts.
    pub(super) async fn of(&self, texts: Texts) -> Outcome<Vectored> {
        let (result, vectors) = oneshot::channel();
        self.jobs.try_send(Job { texts, result }).map_err(|error| match error {
            mpsc::TrySendError::Full(_) => Failure::from(Error::Refused {
                what: format!("{VECTORS_WAITING} calls wait already"),
                retry_after: Some(Duration::from_secs(1)),
            }),
            mpsc::TrySendError::Disconnected(_) => Failure::unavailable("the engine has ended"),
        })?;
        Ok(vectors.await.map_err(|_| Failure::unavailable("the engine has ended"))??)
    }
}

fn vectors(embedder: &mut Embedder, texts: &Texts) -> Result<Vectored> {
    let inputs: Vec<Input> = match texts {
        Texts::Single { texts, truncate } => {
            embedder.set_truncate(*truncate);
            texts.iter().map(|text| embedder.text(text)).collect::<Result<_>>()?
        }
        Texts::Pairs(query, documents) => {
            embedder.set_truncate(false);
            documents.iter().map(|document| embedder.pair(query, document)).collect::<Result<_>>()?
        }
    };
    let tokens = inputs.iter().map(|input| input.ids.len()).sum();
    Ok(Vectored { vectors: crate::block_on(embedder.run(&inputs))?, tokens })
}

/// Seconds since 1970.
pub(super) fn now() -> Option<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}
