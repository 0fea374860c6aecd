//! What a module runs models on: WebGPU, or in a module of its own the processor, without any code for WebGPU.

use serde_json::Value;

use super::answers::Answering;
use super::{Loaded, Options, Task, described};
use crate::engine::{EmbedOptions, Embedder, StepTime};
use crate::exec::{self, CacheSize, Progress};
#[cfg(not(feature = "web-cpu"))]
use crate::exec::{GpuExecutor, SelfTestResults};
use crate::file::ModelFile;
#[cfg(not(feature = "web-cpu"))]
use crate::gpu::{Buffer, Choice, Device, Kind};
use crate::language_model::LanguageModel;
use crate::model::Model;
use crate::{Error, Result};

/// Answers at once; more wait.
const SEQS: u32 = 4;

#[cfg(not(feature = "web-cpu"))]
pub(super) type WebExecutor = GpuExecutor;
#[cfg(feature = "web-cpu")]
pub(super) type WebExecutor = exec::CpuExecutor;

/// Options for any executor.
fn common(model: &Model, options: &Options) -> Result<exec::Options> {
    let context = options.context.unwrap_or(4096).min(model.program.context);
    Ok(exec::Options {
        numerics: options.numerics()?,
        context,
        // Several answers at once share what one conversation may need, and half as much again.
        seqs: SEQS,
        cache: CacheSize::Positions(context.saturating_add(context / 2)),
        state_bytes: 64 << 20, // of a tab's memory, for hybrid models' conversations
        ..exec::Options::default()
    })
}

/// Options for vectors, if it is vectors that the model is to give.
fn embedding(model: &Model, options: &Options) -> Result<Option<EmbedOptions>> {
    let own = if model.program.logits().is_some() { Task::Answer } else { Task::Embed };
    if options.task.unwrap_or(own) == Task::Answer {
        return Ok(None);
    }
    if model.program.scores() {
        let what = format!("{}, which gives scores of pairs of texts,", model.name);
        return Err(Error::unsupported(what, "a model that gives vectors or answers works"));
    }
    Ok(Some(EmbedOptions { context: options.context, ..EmbedOptions::default() }))
}

/// An engine for vectors, with what is known of the model.
fn vectors(mut info: Value, embedder: Embedder<WebExecutor>) -> Loaded {
    info["width"] = embedder.width().into();
    info["context"] = embedder.longest().into();
    Loaded::Vectors { embedder, info }
}

/// Loads a model.
#[cfg(not(feature = "web-cpu"))]
pub(super) async fn load(
    file: ModelFile,
    options: &Options,
    results: &std::sync::Arc<SelfTestResults>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Loaded> {
    let model = Model::open_whole(file).await?;
    let device = Device::open(&Choice { software: true, ..Choice::default() }).await?;
    let software = device.caps().kind == Kind::Software;
    let run = exec::Options {
        // A step cannot be stopped: on a software adapter a token takes some 20 ms of a model of 135M parameters.
        prefill_tokens: if software { 16 } else { 256 },
        self_test_results: options.self_test.unwrap_or(!software).then(|| results.clone()),
        ..common(&model, options)?
    };
    if let Some(how) = embedding(&model, options)? {
        let info = described(&model, Task::Embed);
        return Ok(vectors(info, Embedder::open_on(&device, model, &how, &run, progress).await?));
    }
    let model = LanguageModel::open_on(&device, model, &run, progress).await?;
    // The steps of a software adapter take long whatever is in them, and have few rows already.
    Ok(Loaded::Answers(Answering::new(model, (!software).then(StepTime::default))?))
}

/// Loads a model.
#[cfg(feature = "web-cpu")]
pub(super) async fn load(
    file: ModelFile,
    options: &Options,
    _: &std::sync::Arc<exec::SelfTestResults>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Loaded> {
    let model = Model::open_whole(file).await?;
    let run = exec::Options { prefill_tokens: 256, ..common(&model, options)? };
    if let Some(how) = embedding(&model, options)? {
        let info = described(&model, Task::Embed);
        return Ok(vectors(info, Embedder::open_on_cpu(model, &how, &run, progress).await?));
    }
    let model = LanguageModel::open_on_cpu(model, &run, progress).await?;
    Ok(Loaded::Answers(Answering::new(model, Some(StepTime::default()))?))
}

/// What the KV cache holds, where all of it does not fit on the GPU.
#[cfg(not(feature = "web-cpu"))]
pub(super) fn smaller_cache(executor: &WebExecutor) -> Option<String> {
    executor.smaller_cache().map(|smaller| smaller.to_string())
}

#[cfg(feature = "web-cpu")]
pub(super) fn smaller_cache(_: &WebExecutor) -> Option<String> {
    None
}

/// Buffers on the GPU that are alive.
pub(super) fn live_buffers() -> u64 {
    #[cfg(not(feature = "web-cpu"))]
    return Buffer::live();
    #[cfg(feature = "web-cpu")]
    0
}
