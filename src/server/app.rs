//! What the server serves: a model that answers, or one that gives vectors, and how it stands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::ask::{Ask, Asked};
use super::failure::{Failure, Outcome};
use super::policy::Policy;
use super::reply::Reply;
use super::split::{CallFormat, Splitter, thought_marks};
use super::{Limits, Served};
use crate::chat::{self, Answers};
use crate::driver::GenerateRequest;
use crate::engine::{Embedder, Input};
use crate::language_model::ServedModel;
use crate::text::ChatTemplate;
use crate::{Error, Result};

/// Memory for answers by their text.
const REMEMBERED: usize = 64 << 20;
/// Calls for vectors that may wait.
const VECTORS_WAITING: usize = 64;
/// An engine with work that shows no progress for so long is stuck.
const STUCK: Duration = Duration::from_secs(120);

/// All that connections share.
pub(super) struct App {
    /// What clients call the model.
    pub(super) name: String,
    pub(super) created: u64,
    pub(super) policy: Policy,
    pub(super) limits: Limits,
    language: Option<Arc<Language>>,
    vectors: Option<Vectors>,
    /// Nothing new is taken.
    pub(super) draining: AtomicBool,
    /// When the engine was last seen to do something, and what it had done.
    progress: Mutex<(Instant, [u64; 4])>,
}

/// A model that answers.
pub(super) struct Language {
    pub(super) model: ServedModel,
    template: Option<ChatTemplate>,
    pub(super) template_source: String,
    marks: (&'static str, &'static str),
    calls: Option<CallFormat>,
    answers: Mutex<Answers>,
}

/// A model that gives vectors or scores, on a thread of its own.
pub(super) struct Vectors {
    jobs: mpsc::SyncSender<Job>,
    pub(super) scores: bool,
}

/// Texts, or a query with documents, and where their vectors go.
struct Job {
    texts: Texts,
    result: oneshot::Sender<Result<Vectored>>,
}

/// What is to be embedded.
pub(super) enum Texts {
    Single(Vec<String>),
    Pairs(String, Vec<String>),
}

/// Vectors of texts, or scores as vectors of one element, and how many tokens it took.
pub(super) struct Vectored {
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) tokens: usize,
}

impl App {
    pub(super) fn new(name: String, served: Served, policy: Policy, limits: Limits) -> Result<Self> {
        let (language, vectors) = match served {
            Served::Language(model) => (Some(Arc::new(Language::new(model)?)), None),
            Served::Vectors(embedder) => (None, Some(Vectors::new(*embedder))),
        };
        Ok(Self {
            name,
            created: now().and_then(|now| u64::try_from(now).ok()).unwrap_or(0),
            policy,
            limits,
            language,
            vectors,
            draining: AtomicBool::new(false),
            progress: Mutex::new((Instant::now(), [0; 4])),
        })
    }

    /// The model that answers.
    pub(super) fn language(&self) -> Outcome<&Arc<Language>> {
        self.language.as_ref().ok_or_else(|| {
            let message = format!("{} gives vectors or scores, and no text; /v1/embeddings works", self.name);
            Failure { code: Some("unsupported"), ..Failure::new(hyper::StatusCode::BAD_REQUEST, message) }
        })
    }

    /// The model that gives vectors.
    pub(super) fn vectors(&self) -> Outcome<&Vectors> {
        self.vectors.as_ref().ok_or_else(|| {
            let message =
                format!("{} gives text, and no vectors; a model for embeddings works: wgslm serve MODEL", self.name);
            Failure { code: Some("unsupported"), ..Failure::new(hyper::StatusCode::BAD_REQUEST, message) }
        })
    }

    /// Whether a client means the model that is here. Clients of Ollama add `:latest`.
    pub(super) fn check_name(&self, name: Option<&str>) -> Outcome<()> {
        let Some(name) = name else { return Ok(()) };
        let same = |name: &str| name.eq_ignore_ascii_case(&self.name) || name == "default";
        if same(name) || name.strip_suffix(":latest").is_some_and(same) {
            return Ok(());
        }
        let message = format!("model: there is no {name:?} here; {:?} is", self.name);
        let param = Some("model".to_owned());
        Err(Failure { param, code: Some("model_not_found"), ..Failure::not_found(message) })
    }

    /// Whether requests are answered now.
    pub(super) fn ready(&self) -> Outcome<()> {
        if self.draining.load(Ordering::Acquire) {
            return Err(Failure::unavailable("the server is about to end"));
        }
        let Some(language) = &self.language else { return Ok(()) };
        let handle = language.model.handle();
        if handle.is_closed() {
            return Err(Failure::unavailable("the engine has ended"));
        }
        let metrics = handle.metrics();
        let ended = metrics.finished_stop + metrics.finished_length + metrics.finished_abort + metrics.finished_error;
        let done = [metrics.generation_tokens, metrics.prefix_cache_queries, ended, metrics.devices_lost];
        let busy = metrics.num_requests_running + metrics.num_requests_waiting > 0;
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if !busy || progress.1 != done {
            *progress = (Instant::now(), done);
        }
        match progress.0.elapsed() {
            time if time > STUCK => {
                Err(Failure::unavailable(format!("the engine shows no progress for {} s", time.as_secs())))
            }
            _ => Ok(()),
        }
    }
}

impl Language {
    fn new(model: ServedModel) -> Result<Self> {
        let template_source = model.model().chat_template.clone().unwrap_or_default();
        Ok(Self {
            template: model.chat_template()?,
            marks: thought_marks(&template_source),
            calls: CallFormat::of_template(&template_source),
            template_source,
            answers: Mutex::new(Answers::new(REMEMBERED)),
            model,
        })
    }

    /// Whether messages can be answered as such.
    pub(super) fn chats(&self) -> bool {
        self.template.is_some()
    }

    /// Whether its template knows tools whose calls are understood.
    pub(super) fn calls_tools(&self) -> bool {
        self.calls.is_some()
    }

    /// Whether its template says something about thoughts.
    pub(super) fn thinks(&self) -> bool {
        self.template_source.contains(self.marks.1)
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
                    if self.calls.is_none() {
                        return Err(Failure::unsupported("tools", "this model's chat template knows no tools"));
                    }
                    variables.insert("tools".to_owned(), tools.clone().into());
                }
                let segments = chat::render(template, messages, &variables, now())?;
                let found = self.answers.lock().unwrap_or_else(PoisonError::into_inner).find(&segments, salt);
                let ids = found.unwrap_or_default().encode(tokenizer, &segments, false)?;
                Ok((ids, Some(segments.iter().map(|segment| segment.text.as_str()).collect())))
            }
        }
    }

    /// Asks for answers.
    pub(super) fn start(self: &Arc<Self>, ask: Ask, salt: Option<Arc<[u8]>>) -> Outcome<Vec<Reply>> {
        let (ids, text) = self.prompt(&ask.asked, salt.as_deref())?;
        let calls = match &ask.asked {
            Asked::Messages { tools, .. } if !tools.is_empty() => self.calls,
            _ => None,
        };
        let one = |i: u32| {
            let mut request = self.model.request(ids.clone());
            request.sampling = ask.sampling;
            request.sampling.seed = ask.sampling.seed.wrapping_add(u64::from(i));
            request.stop.extend(ask.stop_ids.iter().copied().filter(|id| !self.model.stop_tokens().contains(id)));
            request.max_tokens = ask.max_tokens;
            request.logprobs = ask.logprobs;
            request.bias.clone_from(&ask.bias);
            request.salt.clone_from(&salt);
            let generation = self.model.handle().generate(GenerateRequest { request, stop: ask.stop.clone() })?;
            let splitter = text.as_ref().map_or_else(Splitter::plain, |text| Splitter::new(text, self.marks, calls));
            let asked = text.as_ref().map(|text| (text.clone(), ids.clone()));
            let prompt = u32::try_from(ids.len()).unwrap_or(u32::MAX);
            Ok(Reply::new(self, generation, prompt, splitter, asked, salt.clone()))
        };
        (0..ask.n).map(one).collect()
    }
}

impl Vectors {
    fn new(mut embedder: Embedder) -> Self {
        let (jobs, asked) = mpsc::sync_channel::<Job>(VECTORS_WAITING);
        let scores = embedder.scores();
        std::thread::spawn(move || {
            for Job { texts, result } in asked {
                // Whoever has gone needs no vectors.
                if !result.is_closed() {
                    let _ = result.send(vectors(&mut embedder, &texts));
                }
            }
        });
        Self { jobs, scores }
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
        Texts::Single(texts) => texts.iter().map(|text| embedder.text(text)).collect::<Result<_>>()?,
        Texts::Pairs(query, documents) => {
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
