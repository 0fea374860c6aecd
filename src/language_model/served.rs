//! A model that many callers use at once.

use std::ops::Deref;
use std::sync::Arc;
#[cfg(not(target_arch = "wasm32"))]
use std::thread::JoinHandle;

use super::{GenerateOptions, LanguageModel, ModelText};
use crate::Result;
use crate::chat;
use crate::driver::{Driver, GenerateRequest, Generation, Handle, ServeOptions};
use crate::engine::{Request, SeqId};
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
    sequence: SeqId,
    device: Arc<str>,
}

impl ServedModel {
    /// The way to the driver, for requests in tokens.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// A request that goes on with the kept sequence, as [`LanguageModel::request`] does: for one conversation at a time. All others
    /// share what they have in common with [`ModelText::request`].
    pub fn kept_request(&self, prompt: Vec<u32>) -> Request {
        Request { sequence: Some(self.sequence), ..self.text.request(prompt) }
    }

    /// Its files, tokenizer and chat template, for those who keep them longer than the model is served.
    pub fn text(&self) -> &Arc<ModelText> {
        &self.text
    }

    /// Tokens of context, for prompt and answer together.
    pub fn context(&self) -> u32 {
        self.handle.context()
    }

    /// The device that it was loaded on, in words.
    pub fn device(&self) -> &str {
        &self.device
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

impl<E: Executor + 'static> LanguageModel<E> {
    /// A driver that somebody runs, and the model for its callers. A device that [`LanguageModel::open`] opened is opened again when
    /// it is lost, the very same one, and answers go on; [`Driver::reopen_with`] does that for other models.
    pub fn driver(self, options: ServeOptions) -> (Driver<E>, ServedModel) {
        let (text, sequence) = (Arc::new(self.text), self.sequence);
        let device = self.engine.executor().device().into();
        let (driver, handle) = Driver::new(self.engine, Arc::clone(text.tokenizer()), options);
        #[cfg(not(target_arch = "wasm32"))]
        let driver = match self.reopen {
            Some(mut reopen) => {
                let again = Arc::clone(&text);
                driver.reopen_with(Box::new(move || reopen(Arc::clone(&again))))
            }
            None => driver,
        };
        (driver, ServedModel { handle, text, sequence, device })
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl<E: Executor + Send + 'static> LanguageModel<E> {
    /// Gives the model to a driver on a thread of its own, which ends when all that was made of the returned model is dropped.
    pub fn serve(self, options: ServeOptions) -> (ServedModel, JoinHandle<()>) {
        let (driver, model) = self.driver(options);
        (model, std::thread::spawn(move || driver.run()))
    }

    /// [`serve`](Self::serve) for hosts that may leave no thread running: dropping what is returned waits for its end.
    pub fn serve_owned(self, options: ServeOptions) -> OwnedModel {
        let (model, thread) = self.serve(options);
        OwnedModel { model, thread: Some(thread) }
    }
}

/// A served model and the thread that runs it. Dropping it ends both, after the requests that it has: new ones are refused.
#[cfg(not(target_arch = "wasm32"))]
pub struct OwnedModel {
    model: ServedModel,
    /// None while it is dropped.
    thread: Option<JoinHandle<()>>,
}

#[cfg(not(target_arch = "wasm32"))]
impl Deref for OwnedModel {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        &self.model
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Drop for OwnedModel {
    fn drop(&mut self) {
        self.model.handle().close();
        if let Some(thread) = self.thread.take() {
            // What it panicked with was reported to those who waited.
            _ = thread.join();
        }
    }
}
