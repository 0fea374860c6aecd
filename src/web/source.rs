//! Files that JavaScript reads for us.

use js_sys::Uint8Array;
use send_wrapper::SendWrapper;
use wasm_bindgen::prelude::*;

use crate::file::{ByteSource, ReadFuture};
use crate::{Error, Result};

#[wasm_bindgen]
extern "C" {
    /// A file: `ByteSource` in web/src/source.ts.
    pub type JsFile;

    #[wasm_bindgen(method, getter)]
    fn name(this: &JsFile) -> String;

    /// Bytes.
    #[wasm_bindgen(method, getter)]
    fn size(this: &JsFile) -> f64;

    /// Exactly `length` bytes from `offset` on, as a `Uint8Array`; rejects otherwise.
    #[wasm_bindgen(method, catch)]
    async fn read(this: &JsFile, offset: f64, length: u32) -> std::result::Result<JsValue, JsValue>;
}

/// A file of JavaScript's as a source of bytes. It is read where it was made: threads that compute have no files.
pub(super) struct JsSource {
    file: SendWrapper<JsFile>,
    name: String,
    len: u64,
}

impl JsSource {
    pub(super) fn new(file: JsFile) -> Self {
        Self { name: file.name(), len: file.size() as u64, file: SendWrapper::new(file) }
    }

    async fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let beyond = || Error::malformed(&self.name, offset, format!("{} bytes are beyond its end", out.len()));
        let length = u32::try_from(out.len()).map_err(|_| beyond())?;
        if offset.checked_add(length.into()).is_none_or(|end| end > self.len) {
            return Err(beyond());
        }
        // Offsets are integers below 2^53: no file is larger.
        let read = self.file.read(offset as f64, length).await.map_err(|e| self.failed(&e))?;
        let bytes: Uint8Array = read.dyn_into().map_err(|e| self.failed(&e))?;
        if bytes.length() != length {
            return Err(Error::malformed(&self.name, offset, format!("{} of {length} bytes came", bytes.length())));
        }
        bytes.copy_to(out);
        Ok(())
    }

    fn failed(&self, why: &JsValue) -> Error {
        let message = why.dyn_ref::<js_sys::Error>().map(|e| String::from(e.message()));
        Error::io(&self.name, std::io::Error::other(message.unwrap_or_else(|| format!("{why:?}"))))
    }
}

impl ByteSource for JsSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ReadFuture<'a> {
        Box::pin(self.read_now(offset, out))
    }
}
