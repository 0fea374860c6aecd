//! A model that is open, and what is asked of it.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use wgslm::language_model::OwnedModel;
use wgslm::model::ModelSource;
use wgslm::text::{ChatTemplate, Special};
use wgslm::{LanguageModel, block_on};

use crate::error::{Error, guard, infallible};
use crate::generation::Generation;
use crate::options::{Options, Request, Sampling};
use crate::text::{array, fill, given, optional, text};

/// A model that is loaded, and a thread that answers requests.
pub struct Model(pub(crate) Arc<Served>);

/// What a model, its chats and its generations share. The last of them ends the thread.
pub(crate) struct Served {
    pub(crate) model: OwnedModel,
    pub(crate) template: Option<ChatTemplate>,
    name: CString,
    device: CString,
}

/// Opens a model: `path` is a GGUF file, or a folder with safetensors files; NULL is the small model that is compiled in.
/// `options` may be NULL. Returns NULL if it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_open(
    path: *const c_char,
    options: *const Options,
    error: *mut *mut Error,
) -> *mut Model {
    let open = || {
        // SAFETY: as the caller promised.
        let (path, options) = unsafe { (optional("path", path)?, Options::read(options)?) };
        let source: ModelSource = path.map_or(wgslm::TINY.into(), ModelSource::from);
        // SAFETY: likewise.
        let (run, serve) = (unsafe { options.run()? }, options.serve());
        let model: LanguageModel = block_on(LanguageModel::open(source, &run, &mut options.progress()))?;
        let template = model.chat_template()?;
        let c_text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let (name, device) = (c_text(&model.model().name), c_text(&model.device()));
        let served = Served { model: model.serve_owned(serve), template, name, device };
        Ok(Box::into_raw(Box::new(Model(Arc::new(served)))))
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, std::ptr::null_mut(), open) }
}

/// Frees a model. It stays loaded until its chats and generations are freed, too; whoever frees the last of them waits for what
/// is being computed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_model_free(model: *mut Model) {
    if !model.is_null() {
        // SAFETY: it was made by `wgslm_open`, and the caller gives it up.
        infallible((), || drop(unsafe { Box::from_raw(model) }));
    }
}

/// The name of a model, as its files have it. It lives as long as the model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_model_name(model: *const Model) -> *const c_char {
    // SAFETY: as the caller promised.
    unsafe { model.as_ref() }.map_or(c"".as_ptr(), |model| model.0.name.as_ptr())
}

/// The device that a model was loaded on, in words. It lives as long as the model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_model_device(model: *const Model) -> *const c_char {
    // SAFETY: as the caller promised.
    unsafe { model.as_ref() }.map_or(c"".as_ptr(), |model| model.0.device.as_ptr())
}

/// Tokens of context, for prompt and answer together; 0 of NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_model_context(model: *const Model) -> u32 {
    // SAFETY: as the caller promised.
    unsafe { model.as_ref() }.map_or(0, |model| model.0.model.context())
}

/// Whether a model has a chat template. Without one, wgslm_chat continues texts as they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_model_has_chat(model: *const Model) -> bool {
    // SAFETY: as the caller promised.
    unsafe { model.as_ref() }.is_some_and(|model| model.0.template.is_some())
}

/// How the model's files recommend to sample: what NULL stands for in a request. `sampling` has its size. Returns whether it did
/// not fail.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_sampling_of(
    model: *const Model,
    sampling: *mut Sampling,
    error: *mut *mut Error,
) -> bool {
    let recommended = || {
        // SAFETY: as the caller promised.
        let model = unsafe { given("model", model)? };
        // SAFETY: likewise.
        unsafe { fill("sampling", sampling, &Sampling::of(&model.0.model.sampling()))? };
        Ok(true)
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, false, recommended) }
}

/// Continues a text. `request` may be NULL. Returns NULL if it fails, at once where too many requests wait ("refused").
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_generate(
    model: *const Model,
    prompt: *const c_char,
    prompt_len: usize,
    request: *const Request,
    error: *mut *mut Error,
) -> *mut Generation {
    let generate = || {
        // SAFETY: as the caller promised.
        let (model, prompt) = unsafe { (given("model", model)?, text("prompt", prompt, prompt_len)?) };
        let served = Arc::clone(&model.0);
        let ids = wgslm::chat::continuation(served.model.tokenizer(), prompt)?;
        // SAFETY: likewise.
        let request = unsafe { Request::read(request, &served.model, ids)? };
        let generation = served.model.handle().generate(request)?;
        Ok(Box::into_raw(Box::new(Generation::new(generation, served, None))))
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, std::ptr::null_mut(), generate) }
}

/// Makes tokens of a text: writes the first `capacity` of them, and returns how many there are. Returns WGSLM_TO_NUL if it
/// fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_tokenize(
    model: *const Model,
    text: *const c_char,
    text_len: usize,
    ids: *mut u32,
    capacity: usize,
    error: *mut *mut Error,
) -> usize {
    let tokenize = || {
        // SAFETY: as the caller promised.
        let (model, text) = unsafe { (given("model", model)?, crate::text::text("text", text, text_len)?) };
        let tokens = model.0.model.tokenizer().encode(text, Special::Plain)?;
        let written = if ids.is_null() { 0 } else { tokens.len().min(capacity) };
        // SAFETY: likewise.
        unsafe { std::ptr::copy_nonoverlapping(tokens.as_ptr(), ids, written) };
        Ok(tokens.len())
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, usize::MAX, tokenize) }
}

/// Makes text of tokens: writes its first `capacity` bytes, without a NUL, and returns how many there are. Returns WGSLM_TO_NUL
/// if it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_detokenize(
    model: *const Model,
    ids: *const u32,
    count: usize,
    text: *mut c_char,
    capacity: usize,
    error: *mut *mut Error,
) -> usize {
    let detokenize = || {
        // SAFETY: as the caller promised.
        let (model, ids) = unsafe { (given("model", model)?, array("ids", ids, count)?) };
        let decoded = model.0.model.detokenize(ids)?;
        let written = if text.is_null() { 0 } else { decoded.len().min(capacity) };
        // SAFETY: likewise.
        unsafe { std::ptr::copy_nonoverlapping(decoded.as_ptr(), text.cast::<u8>(), written) };
        Ok(decoded.len())
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, usize::MAX, detokenize) }
}
