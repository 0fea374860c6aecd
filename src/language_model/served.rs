//! A model that many callers use at once.

use std::ops::Deref;
use std::sync::Arc;

use super::{GenerateOptions, LanguageModel, ModelText};
use crate::Result;
use crate::chat;
use crate::driver::{Driver, GenerateRequest, Generation, Handle, ServeOptions};
use crate::exec::Executor;

/// A model that a driver runs, for any number of threads and tasks: clones are handles to the same one.
///
/// ```
/// # fn main() -> wgslm::Result<()> {
/// # #[cfg(feature = "tiny")] {
/// use wgslm::driver::ServeOptions;
/// use wgslm::{GenerateOptions, Options, block_on};
///
/// let options = Options { seqs: 4, ..Options::default() };
/// let (model, thread) = block_on(wgslm::open(wgslm::TINY, &options))?.serve(ServeOptions::default());
/// let run = GenerateOptions { max_tokens: Some(16), ..GenerateOptions::default() };
/// // Four at once; each could be read in a thread or task of its own.
/// let answers = ["Once", "One day", "Tom", "The dog"].map(|prompt| model.generate(prompt, &run));
/// for answer in answers {
///     println!("{}", answer?.finish_blocking()?.text);
/// }
/// drop(model);
/// thread.join().expect("the driver has ended");
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ServedModel {
    handle: Handle,
    text: Arc<ModelText>,
}

impl ServedModel {
    /// The way to the driver, for requests in tokens.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Its files, tokenizer and chat template, without a handle: whoever has them does not keep the driver from its end.
    #[cfg(feature = "cli")]
    pub(crate) fn clone_text(&self) -> Arc<ModelText> {
        Arc::clone(&self.text)
    }

    /// Continues a text.
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Generation> {
        let prompt = chat::continuation(self.text.tokenizer(), prompt)?;
        let sampling = options.sampling.unwrap_or_else(|| self.text.sampling());
        let mut request = self.text.request(prompt);
        (request.sampling, request.max_tokens) = (sampling, options.max_tokens);
        self.handle.generate(GenerateRequest { request, stop: options.stop.clone() })
    }
}

/// Its files, tokenizer and chat template.
impl Deref for ServedModel {
    type Target = ModelText;

    fn deref(&self) -> &ModelText {
        &self.text
    }
}

impl<E: Executor> LanguageModel<E> {
    /// A driver that somebody runs, and the model for its callers.
    pub fn driver(self, options: ServeOptions) -> (Driver<E>, ServedModel) {
        let Self { text, engine, .. } = self;
        let (driver, handle) = Driver::new(engine, Arc::clone(text.tokenizer()), options);
        (driver, ServedModel { handle, text: Arc::new(text) })
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl<E: Executor + Send + 'static> LanguageModel<E> {
    /// Gives the model to a driver on a thread of its own, which ends when all that was made of the returned model is dropped.
    pub fn serve(self, options: ServeOptions) -> (ServedModel, std::thread::JoinHandle<()>) {
        let (driver, model) = self.driver(options);
        (model, std::thread::spawn(move || driver.run()))
    }
}
