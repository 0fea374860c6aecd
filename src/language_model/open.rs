//! Opening a model with all that text needs.

use std::sync::Arc;

use crate::chat::{self, Conversation};
#[cfg(not(target_arch = "wasm32"))]
use crate::driver::ReopenFuture;
use crate::engine::{Engine, Request, SeqId, StepTime};
use crate::exec::{AnyExecutor, CpuExecutor, Executor, GpuExecutor, Options, ProgressFn};
use crate::gpu::Device;
use crate::model::{Model, ModelSource};
use crate::sample::Sampling;
use crate::text::{ChatTemplate, Tokenizer};
use crate::{Error, Result};

/// Opens a model with its tokenizer and chat template, loads it where [`Options::device`] says, and makes an engine ready.
///
/// `source` is a path, the bytes of a GGUF file, a [`ModelFile`](crate::file::ModelFile) or a [`Model`].
/// [`LanguageModel::open`] reports its progress, too.
pub async fn open(source: impl Into<ModelSource>, options: &Options) -> Result<LanguageModel> {
    LanguageModel::open(source, options, &mut |_| {}).await
}

/// What turns text into a model's tokens and back: its files, tokenizer and chat template.
pub struct ModelText {
    model: Model,
    tokenizer: Arc<Tokenizer>,
    stop_tokens: Vec<u32>,
}

impl ModelText {
    fn new(model: Model, tokenizer: Tokenizer) -> Self {
        let stop_tokens = chat::stops(&model, &tokenizer);
        Self { model, tokenizer: Arc::new(tokenizer), stop_tokens }
    }

    /// What its files say.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The text of tokens, control tokens included. Fails where one is not in the vocabulary.
    pub fn detokenize(&self, ids: &[u32]) -> Result<String> {
        let vocab = self.tokenizer.vocab_size();
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(Error::argument("ids", format!("token {id}; the vocabulary has {vocab}"))),
            None => Ok(self.tokenizer.decode(ids, false)),
        }
    }

    /// Tokens that end its answers.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// Its chat template, if it has one. Fails if that does not compile.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        let source = self.model.chat_template.as_ref();
        source.map(|source| ChatTemplate::for_tokenizer(source, &self.tokenizer)).transpose()
    }

    /// An empty conversation. Without a template, texts are continued as they are.
    pub fn conversation(&self) -> Result<Conversation> {
        Ok(Conversation::new(Arc::clone(&self.tokenizer), self.chat_template()?))
    }

    /// How the model's files recommend to sample, where they say something that works; else [`Sampling::default`].
    pub fn sampling(&self) -> Sampling {
        let files = self.model.sampling;
        let mut sampling = Sampling::default();
        let mut take = |change: &dyn Fn(&mut Sampling)| {
            let mut changed = sampling;
            change(&mut changed);
            if changed.check().is_ok() {
                sampling = changed;
            }
        };
        take(&|s| s.temperature = files.temperature.unwrap_or(s.temperature));
        take(&|s| s.top_k = files.top_k.unwrap_or(s.top_k));
        take(&|s| s.top_p = files.top_p.unwrap_or(s.top_p));
        take(&|s| s.min_p = files.min_p.unwrap_or(s.min_p));
        take(&|s| s.penalties.repeat = files.repeat_penalty.unwrap_or(s.penalties.repeat));
        take(&|s| s.last_n = files.last_n.unwrap_or(s.last_n));
        sampling
    }

    /// A request that ends where the model ends its answers.
    pub fn request(&self, prompt: Vec<u32>) -> Request {
        Request { stop: self.stop_tokens.clone(), ..Request::new(prompt) }
    }
}

/// A model that is ready to answer: its files, tokenizer and chat template, and an engine on the device that it was loaded on.
///
/// It answers one request at a time. The prefix that a prompt shares with the one before is not computed again.
pub struct LanguageModel<E = AnyExecutor> {
    pub(super) text: ModelText,
    pub(super) engine: Engine<E>,
    pub(super) sequence: SeqId,
    /// What loads the model again when the device of a driver is lost, if it is not a caller's own. A page loads the module anew.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) reopen: Option<ReopenModelFn<E>>,
}

/// Opens another executor for a model.
#[cfg(not(target_arch = "wasm32"))]
pub(super) type ReopenModelFn<E> = Box<dyn FnMut(Arc<ModelText>) -> ReopenFuture<E> + Send>;

impl LanguageModel {
    /// [`open`](open()) that reports progress to `progress`.
    pub async fn open(
        source: impl Into<ModelSource>,
        options: &Options,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Self> {
        let (model, tokenizer) = generative(source).await?;
        let executor = AnyExecutor::open(&model, options, progress).await?;
        #[cfg(not(target_arch = "wasm32"))]
        let reopen: ReopenModelFn<AnyExecutor> = {
            let again = Options { device: executor.device_choice(), ..options.clone() };
            Box::new(move |text| {
                let again = again.clone();
                Box::pin(async move { AnyExecutor::open(text.model(), &again, &mut |_| {}).await })
            })
        };
        Ok(Self {
            #[cfg(not(target_arch = "wasm32"))]
            reopen: Some(reopen),
            ..Self::assemble(model, tokenizer, executor)
        })
    }
}

impl LanguageModel<GpuExecutor> {
    /// Opens a model on a device that is open already: one that other work shares, made by
    /// [`Device::from_host`](crate::gpu::Device::from_host) from the caller's own adapter, device and queue.
    pub async fn open_on(
        device: &Device,
        source: impl Into<ModelSource>,
        options: &Options,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Self> {
        let (model, tokenizer) = generative(source).await?;
        let executor = GpuExecutor::open(device, &model, options, progress).await?;
        Ok(Self::assemble(model, tokenizer, executor))
    }
}

impl LanguageModel<CpuExecutor> {
    /// Opens a model on the CPU, whatever [`Options::device`] says: programs that call nothing else of this kind carry no code
    /// for GPUs.
    pub async fn open_on_cpu(
        source: impl Into<ModelSource>,
        options: &Options,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Self> {
        let (model, tokenizer) = generative(source).await?;
        let executor = CpuExecutor::open(&model, options, progress).await?;
        Ok(Self::assemble(model, tokenizer, executor))
    }
}

impl<E: Executor> LanguageModel<E> {
    /// A model on an executor that was made for its program.
    pub fn with_executor(model: Model, executor: E) -> Result<Self> {
        let tokenizer = Tokenizer::of(&model.file)?;
        Ok(Self::assemble(model, tokenizer, executor))
    }

    fn assemble(model: Model, tokenizer: Tokenizer, executor: E) -> Self {
        let mut engine = Engine::new(executor, &model.program);
        engine.set_step_time(Some(StepTime::default()));
        let sequence = engine.open();
        Self {
            text: ModelText::new(model, tokenizer),
            engine,
            sequence,
            #[cfg(not(target_arch = "wasm32"))]
            reopen: None,
        }
    }

    /// Its files, tokenizer and chat template.
    pub fn text(&self) -> &ModelText {
        &self.text
    }

    /// What its files say.
    pub fn model(&self) -> &Model {
        self.text.model()
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.text.tokenizer()
    }

    /// Its chat template, if it has one. Fails if that does not compile.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        self.text.chat_template()
    }

    /// An empty conversation with this model, for [`chat`](Self::chat). Without a template, texts are continued as they are.
    pub fn conversation(&self) -> Result<Conversation> {
        self.text.conversation()
    }

    /// How the model's files recommend to sample, where they say something that works; else [`Sampling::default`].
    pub fn sampling(&self) -> Sampling {
        self.text.sampling()
    }

    /// A request for the engine that goes on with the kept sequence, and ends where the model ends its answers.
    pub fn request(&self, prompt: Vec<u32>) -> Request {
        Request { sequence: Some(self.sequence), ..self.text.request(prompt) }
    }

    /// Tokens of context, for prompt and answer together.
    pub fn context(&self) -> u32 {
        self.engine.executor().limits().context
    }

    /// The device that it runs on, in words.
    pub fn device(&self) -> String {
        self.engine.executor().device()
    }

    /// The engine.
    pub fn engine(&self) -> &Engine<E> {
        &self.engine
    }

    /// The engine, for requests in tokens, and for several at a time ([`Options::seqs`]).
    pub fn engine_mut(&mut self) -> &mut Engine<E> {
        &mut self.engine
    }
}

/// A model that gives logits, with its tokenizer; errors of either come before weights are loaded.
async fn generative(source: impl Into<ModelSource>) -> Result<(Model, Tokenizer)> {
    let model = source.into().model().await?;
    if model.program.logits().is_none() {
        let what = format!("text from {}, which turns texts into vectors or scores,", model.name);
        return Err(Error::unsupported(what, "Embedder::open works"));
    }
    let tokenizer = Tokenizer::of(&model.file)?;
    Ok((model, tokenizer))
}
