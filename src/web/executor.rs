//! What a module runs models on: WebGPU, or in a module of its own the processor, without any code for WebGPU.

use crate::exec::{self, CacheSize, Progress};
#[cfg(not(feature = "web-cpu"))]
use crate::exec::{GpuExecutor, SelfTestResults};
use crate::file::ModelFile;
#[cfg(not(feature = "web-cpu"))]
use crate::gpu::{Buffer, Choice, Device, Kind};
use crate::language_model::LanguageModel;
use crate::model::Model;
use crate::{Result, engine::StepTime};

use super::Options;

/// Answers at once; more wait.
const SEQS: u32 = 4;

#[cfg(not(feature = "web-cpu"))]
pub(super) type WebExecutor = GpuExecutor;
#[cfg(feature = "web-cpu")]
pub(super) type WebExecutor = exec::CpuExecutor;

/// Options for any executor.
fn common(model: &Model, options: &Options) -> Result<exec::Options> {
    let context = options.context.min(model.program.context);
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

/// Loads a model; gives how long its steps may take, where that is limited.
#[cfg(not(feature = "web-cpu"))]
pub(super) async fn load(
    file: ModelFile,
    options: &Options,
    results: &std::sync::Arc<SelfTestResults>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(LanguageModel<WebExecutor>, Option<StepTime>)> {
    let model = Model::open(file).await?;
    let device = Device::open(&Choice { software: true, ..Choice::default() }).await?;
    let software = device.caps().kind == Kind::Software;
    let run = exec::Options {
        // A step cannot be stopped: on a software adapter a token takes some 20 ms of a model of 135M parameters.
        prefill_tokens: if software { 16 } else { 256 },
        self_test_results: options.self_test.unwrap_or(!software).then(|| results.clone()),
        ..common(&model, options)?
    };
    let model = LanguageModel::open_on(&device, model, &run, progress).await?;
    // The steps of a software adapter take long whatever is in them, and have few rows already.
    Ok((model, (!software).then(StepTime::default)))
}

/// Loads a model; gives how long its steps may take, where that is limited.
#[cfg(feature = "web-cpu")]
pub(super) async fn load(
    file: ModelFile,
    options: &Options,
    _: &std::sync::Arc<exec::SelfTestResults>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(LanguageModel<WebExecutor>, Option<StepTime>)> {
    let model = Model::open(file).await?;
    let run = exec::Options { prefill_tokens: 256, ..common(&model, options)? };
    let model = LanguageModel::open_on_cpu(model, &run, progress).await?;
    Ok((model, Some(StepTime::default())))
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
