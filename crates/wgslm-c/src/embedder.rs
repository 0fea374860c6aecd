//! Texts as vectors.

use std::ffi::c_char;
use std::sync::{Mutex, PoisonError};

use wgslm::engine::EmbedOptions;
use wgslm::model::ModelSource;
use wgslm::{Embedder as Inner, block_on};

use crate::WGSLM_TO_NUL;
use crate::error::{Error, guard, infallible};
use crate::options::Options;
use crate::text::{array, given, optional, text};

/// A model that turns texts into vectors.
pub struct Embedder {
    inner: Mutex<Inner>,
    width: u32,
}

/// Opens a model for vectors of texts: an encoder, or any other. `path` as for wgslm_open; of `options`, device, context, threads,
/// exact and progress count. Texts that are too long are truncated. Returns NULL if it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_embedder_open(
    path: *const c_char,
    options: *const Options,
    error: *mut *mut Error,
) -> *mut Embedder {
    let open = || {
        // SAFETY: as the caller promised.
        let (path, options) = unsafe { (optional("path", path)?, Options::read(options)?) };
        let source: ModelSource = path.map_or(wgslm::TINY.into(), ModelSource::from);
        // SAFETY: likewise.
        let run = unsafe { options.run()? };
        let context = (options.context > 0).then_some(options.context);
        let embed = EmbedOptions { context, truncate: true, ..EmbedOptions::default() };
        let inner = block_on(Inner::open(source, &embed, &run, &mut options.progress()))?;
        let width = inner.width();
        Ok(Box::into_raw(Box::new(Embedder { inner: Mutex::new(inner), width })))
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, std::ptr::null_mut(), open) }
}

/// Numbers in a vector; 0 of NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_embedder_width(embedder: *const Embedder) -> u32 {
    // SAFETY: as the caller promised.
    unsafe { embedder.as_ref() }.map_or(0, |embedder| embedder.width)
}

/// Writes the vectors of `count` texts, each with a NUL, one after another to `vectors`, which has space for `count` times the
/// width. Returns whether it did not fail.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_embed(
    embedder: *const Embedder,
    texts: *const *const c_char,
    count: usize,
    vectors: *mut f32,
    error: *mut *mut Error,
) -> bool {
    let embed = || {
        // SAFETY: as the caller promised.
        let (embedder, texts) = unsafe { (given("embedder", embedder)?, array("texts", texts, count)?) };
        // SAFETY: likewise.
        let read = |at: &*const c_char| unsafe { text("texts", *at, WGSLM_TO_NUL) };
        let texts: Vec<&str> = texts.iter().map(read).collect::<wgslm::Result<_>>()?;
        if vectors.is_null() && count > 0 {
            return Err(wgslm::Error::argument("vectors", "it is NULL"));
        }
        let mut inner = embedder.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let found = block_on(inner.embed(&texts))?;
        for (i, vector) in found.iter().enumerate() {
            // SAFETY: likewise.
            unsafe {
                std::ptr::copy_nonoverlapping(vector.as_ptr(), vectors.add(i * embedder.width as usize), vector.len())
            };
        }
        Ok(true)
    };
    // SAFETY: as the caller promised.
    unsafe { guard(error, false, embed) }
}

/// Frees an embedder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_embedder_free(embedder: *mut Embedder) {
    if !embedder.is_null() {
        // SAFETY: it was made by `wgslm_embedder_open`, and the caller gives it up.
        infallible((), || drop(unsafe { Box::from_raw(embedder) }));
    }
}
