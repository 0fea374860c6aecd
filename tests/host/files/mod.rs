//! Model files: sound ones are read as their references say, broken ones are refused with a typed error.

mod dequant;
mod encode;
mod fuzz;
mod hostile;
mod q8;
mod reference;

use std::ops::Range;

use wgslm::Result;
use wgslm::file::{ByteSource, Bytes, ModelFile};

/// Opens bytes as the kind that `name` ends with.
fn open_bytes(name: &str, bytes: Vec<u8>) -> Result<ModelFile> {
    let sources: Vec<Box<dyn ByteSource>> = vec![Box::new(Bytes::new(name, bytes))];
    pollster::block_on(async {
        match name.ends_with(".safetensors") {
            true => ModelFile::open_safetensors(Default::default(), sources).await,
            false => ModelFile::open_gguf(sources).await,
        }
    })
}

/// All numbers of a tensor.
fn f32s(model: &ModelFile, name: &str) -> Vec<f32> {
    pollster::block_on(model.read_f32(model.tensor(name).unwrap())).unwrap()
}

/// Bytes of a tensor.
fn bytes(model: &ModelFile, name: &str, range: Range<u64>) -> Vec<u8> {
    let mut out = vec![0; (range.end - range.start) as usize];
    pollster::block_on(model.read(model.tensor(name).unwrap(), range, &mut out)).unwrap();
    out
}
