//! Vectors of texts, and scores of pairs of texts: the other thing that models are run for.

use crate::exec::{
    AnyExecutor, CpuExecutor, Executor, GpuExecutor, Options, Phase, ProgressFn, SeqStep, Step, StepOut, Token,
};
use crate::file::{self, ModelFile};
use crate::gpu::Device;
use crate::kv::Kv;
use crate::model::{Embedding, Model, ModelSource, Program, Task};
use crate::text::{Special, Tokenizer};
use crate::{Error, Result};

/// A text, or a pair of texts, as a model reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// Token ids, at least one.
    pub ids: Vec<u32>,
    /// For each token, which of two texts it belongs to; empty if there is one.
    pub types: Vec<u32>,
}

/// Runs inputs, several in a step, and gives the vector of each, or its score as a vector of one element.
///
/// The result of an input does not depend on what it is run with. The executor must have no step in flight, and what its
/// cache holds is overwritten.
pub async fn embed<E: Executor>(executor: &mut E, program: &Program, inputs: &[Input]) -> Result<Vec<Vec<f32>>> {
    let Some(pooled) = program.pooled() else {
        return Err(Error::argument("model", "it gives logits; one that is opened for vectors works"));
    };
    let width = program.value(pooled).width as usize;
    let mut vectors = Vec::with_capacity(inputs.len());
    let mut rest = inputs;
    while !rest.is_empty() {
        let (batch, after) = rest.split_at(fitting(executor, program, rest)?);
        let pooled = step(executor, program, batch).await?;
        for (vector, pos) in pooled.chunks_exact(width).zip(batch.iter().map(|input| input.ids.len() as u32)) {
            if vector.iter().any(|x| !x.is_finite()) {
                return Err(Error::Numerical { seq: vectors.len() as u32, pos });
            }
            vectors.push(vector.to_vec());
        }
        rest = after;
    }
    Ok(vectors)
}

/// How many of the first inputs fit in one step.
fn fitting<E: Executor>(executor: &E, program: &Program, inputs: &[Input]) -> Result<usize> {
    let limits = executor.limits();
    let longest = limits.rows.min(limits.context);
    let blocks = |rows: usize| rows.div_ceil(limits.block as usize);
    let paged = program.groups > 0;
    let (mut rows, mut used, mut count) = (0, 0, 0);
    for input in inputs {
        let len = input.ids.len();
        if len == 0 {
            return Err(Error::argument("input", "it holds no tokens; at least one works"));
        }
        if len > longest as usize {
            return Err(too_long(len, longest));
        }
        let full = rows + len > limits.rows as usize || paged && used + blocks(len) > limits.blocks as usize;
        if count > 0 && full || count == limits.seqs as usize {
            break;
        }
        (rows, used, count) = (rows + len, used + blocks(len), count + 1);
    }
    Ok(count)
}

fn too_long(tokens: usize, longest: u32) -> Error {
    Error::Limit {
        what: "text".into(),
        needed: format!("{tokens} tokens"),
        available: format!("{longest}"),
        instead: "a shorter text works, and `truncate` shortens it".into(),
    }
}

/// Runs inputs that fit in one step; returns their vectors, one after another.
async fn step<E: Executor>(executor: &mut E, program: &Program, inputs: &[Input]) -> Result<Vec<f32>> {
    let limits = executor.limits();
    let mut kv = Kv::of(program, &limits);
    let mut tables = Vec::new();
    for input in inputs {
        let mut table = kv.table();
        let positions = input.ids.len() as u32;
        kv.grow(&mut table, positions).map_err(|_| too_long(input.ids.len(), limits.blocks * limits.block))?;
        tables.push(table);
    }
    let tables: Vec<Vec<&[u32]>> = tables.iter().map(|table| table.groups().collect()).collect();
    let tokens: Vec<Vec<Token>> =
        inputs.iter().map(|input| input.ids.iter().map(|&id| Token::Host(id)).collect()).collect();
    let seqs: Vec<_> = (0..)
        .zip(inputs)
        .zip(tokens.iter().zip(&tables))
        .map(|((slot, input), (tokens, tables))| SeqStep {
            types: &input.types,
            ..SeqStep::new(slot, Phase::Prefill, tokens, 0, tables)
        })
        .collect();
    executor.enqueue(&Step { seqs: &seqs })?;
    let mut result = Ok(Vec::new());
    let mut take = |out: Result<&StepOut>| result = out.map(|out| out.pooled.clone());
    while executor.poll(&mut |_, out| take(out)) == 0 {
        executor.wait().await?;
    }
    result
}

/// How an [`Embedder`] is made.
#[derive(Clone, Debug, Default)]
pub struct EmbedOptions {
    /// How vectors are made, where it is not left to the model.
    pub embedding: Embedding,
    /// Tokens of a text at most; none: what the model is meant for, at most 4096.
    pub context: Option<u32>,
    /// Truncates texts that are too long; else they are errors.
    pub truncate: bool,
}

/// A model that turns texts into vectors, or pairs of texts into scores, with its tokenizer.
pub struct Embedder<E: Executor = AnyExecutor> {
    program: Program,
    tokenizer: Tokenizer,
    executor: E,
    longest: u32,
    truncate: bool,
}

impl Embedder {
    /// Opens a model, from a path, bytes or a file that is open. `run` says where and how it runs; its context and its sequences
    /// follow from `options`.
    pub async fn open(
        source: impl Into<ModelSource>,
        options: &EmbedOptions,
        run: &Options,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Self> {
        let (model, ready) = Ready::of(source.into(), options, run).await?;
        let executor = AnyExecutor::open(&model, &ready.run, progress).await?;
        Ok(Self::assemble(model, ready, executor))
    }
}

impl Embedder<GpuExecutor> {
    /// [`Embedder::open`] on a device that is open already: one that other work shares, made by
    /// [`Device::from_host`] from the caller's own adapter, device and queue.
    pub async fn open_on(
        device: &Device,
        source: impl Into<ModelSource>,
        options: &EmbedOptions,
        run: &Options,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Self> {
        let (model, ready) = Ready::of(source.into(), options, run).await?;
        let executor = GpuExecutor::open(device, &model, &ready.run, progress).await?;
        Ok(Self::assemble(model, ready, executor))
    }
}

impl Embedder<CpuExecutor> {
    /// [`Embedder::open`] on the CPU, whatever [`Options::device`] says: programs that call nothing else of this kind carry no code
    /// for GPUs.
    pub async fn open_on_cpu(
        source: impl Into<ModelSource>,
        options: &EmbedOptions,
        run: &Options,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Self> {
        let (model, ready) = Ready::of(source.into(), options, run).await?;
        let executor = CpuExecutor::open(&model, &ready.run, progress).await?;
        Ok(Self::assemble(model, ready, executor))
    }
}

/// What is known of an embedder before it has an executor.
struct Ready {
    tokenizer: Tokenizer,
    longest: u32,
    truncate: bool,
    run: Options,
}

impl Ready {
    async fn of(source: ModelSource, options: &EmbedOptions, run: &Options) -> Result<(Model, Self)> {
        /// Texts in a step.
        const SEQS: u32 = 32;
        /// A step's memory grows with the longest text.
        const LONGEST: u32 = 4096;
        let file = source.file()?;
        let tokenizer = Tokenizer::of(&file)?;
        let model = Model::open_for(file, Task::Embed(options.embedding)).await?;
        let meant = meant(&model.file)?.unwrap_or(LONGEST).min(model.program.context);
        let longest = match options.context {
            None => meant.min(LONGEST),
            Some(context) if (1..=model.program.context).contains(&context) => context,
            Some(context) => {
                let problem = format!("{context}; 1 to {} work with this model", model.program.context);
                return Err(Error::argument("context", problem));
            }
        };
        let run = Options { seqs: SEQS, context: longest, ..run.clone() };
        Ok((model, Self { tokenizer, longest, truncate: options.truncate, run }))
    }
}

impl<E: Executor> Embedder<E> {
    fn assemble(model: Model, ready: Ready, executor: E) -> Self {
        let Ready { tokenizer, longest, truncate, .. } = ready;
        Self { program: model.program, tokenizer, executor, longest, truncate }
    }

    /// Whether it gives scores of pairs of texts, and not vectors.
    pub fn scores(&self) -> bool {
        self.program.scores()
    }

    /// Whether texts that are too long are truncated from now on; else they are errors.
    pub fn set_truncate(&mut self, truncate: bool) {
        self.truncate = truncate;
    }

    /// Elements of a vector.
    pub fn width(&self) -> u32 {
        self.program.pooled().map_or(0, |v| self.program.value(v).width)
    }

    /// Tokens of a text at most.
    pub fn longest(&self) -> u32 {
        self.longest
    }

    /// Where it runs.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// The vector of each text.
    pub async fn embed(&mut self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        let inputs: Vec<Input> = texts.iter().map(|text| self.text(text.as_ref())).collect::<Result<_>>()?;
        self.run(&inputs).await
    }

    /// A text as the model reads it, between the tokens that begin and end one.
    pub fn text(&self, text: &str) -> Result<Input> {
        let (first, last) = self.tokenizer.frame();
        let text = self.tokenizer.encode(text, Special::Plain)?;
        let ids = self.fit(text, [first, last].iter().flatten().count())?;
        Ok(Input { ids: first.into_iter().chain(ids).chain(last).collect(), types: Vec::new() })
    }

    /// A query and a document as a reranker reads them: `[CLS] query [SEP] document [SEP]`. Truncation shortens the
    /// document.
    pub fn pair(&self, query: &str, document: &str) -> Result<Input> {
        let (first, last) = self.tokenizer.frame();
        let query = self.tokenizer.encode(query, Special::Plain)?;
        let document = self.tokenizer.encode(document, Special::Plain)?;
        let mut ids: Vec<u32> = first.into_iter().chain(query).chain(last).collect();
        let start = ids.len();
        ids.extend(self.fit(document, start + usize::from(last.is_some()))?);
        ids.extend(last);
        let types = (0..ids.len()).map(|i| u32::from(i >= start)).collect();
        Ok(Input { ids, types })
    }

    /// The tokens of a text, truncated to fit beside `others`.
    fn fit(&self, mut text: Vec<u32>, others: usize) -> Result<Vec<u32>> {
        let all = text.len() + others;
        if all > self.longest as usize {
            if !self.truncate || others >= self.longest as usize {
                return Err(too_long(all, self.longest));
            }
            text.truncate(self.longest as usize - others);
        }
        Ok(text)
    }

    /// The vector of each input, or its score as a vector of one element. Inputs with ids from elsewhere must fit as they are.
    pub async fn run(&mut self, inputs: &[Input]) -> Result<Vec<Vec<f32>>> {
        embed(&mut self.executor, &self.program, inputs).await
    }
}

/// The length of texts that a sentence-transformers folder says its model is meant for.
fn meant(file: &ModelFile) -> Result<Option<u32>> {
    const NAME: &str = "sentence_bert_config.json";
    let Some(text) = file.text(NAME) else { return Ok(None) };
    let json: serde_json::Map<String, serde_json::Value> = file::json::parse(NAME, text)?;
    match json.get("max_seq_length") {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(value) => {
            let length = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0);
            length
                .map(Some)
                .ok_or_else(|| Error::Model(format!("max_seq_length in {NAME} is {value}; 1 or more works")))
        }
    }
}
