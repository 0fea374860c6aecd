//! Writing models: a safetensors folder or a GGUF file to a GGUF file of any [`FileType`].

use std::io::Write;

use crate::file::{CountFn, Description, ModelFile, NewTensor, TensorInfo, Value, gguf_header, padding};
use crate::model::{Conversion, Model, SamplingDefaults};
use crate::quant::BlockFormat;
use crate::quant::mix::{FileType, TensorContext};
use crate::text::gguf_tokenizer;
use crate::{Error, Result};

/// How a model is written.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The type of the file, and so the formats of its tensors; none keeps the numbers as they are (a folder's first matrix
    /// decides for all of them).
    pub to: Option<FileType>,
    /// Takes matrices that are quantised already as the source of others, which loses more than the originals would.
    pub requantize: bool,
    /// Threads that encode.
    pub threads: usize,
}

/// Writes `file` to `out`; `progress` receives the bytes done and the bytes in total. Memory is held for a few slices of
/// rows, or for one matrix where its rows are permuted; not for the model.
pub async fn convert(
    file: ModelFile,
    options: Options,
    out: &mut (dyn Write + Send),
    progress: &mut CountFn<'_>,
) -> Result<()> {
    let source = match file.description {
        Description::Gguf(_) => Source::Gguf(file),
        Description::Folder(_) => {
            let model = Model::open_whole(file).await?;
            let conversion = model.to_gguf().await?;
            Source::Folder(Box::new(model), conversion)
        }
    };
    let (metadata, tensors) = source.plan(&options)?;
    let io = |e| Error::io("the converted file", e);
    out.write_all(&gguf_header(&metadata, &tensors)?).map_err(io)?;
    let mut all = 0;
    for tensor in &tensors {
        all += tensor.bytes()?;
    }
    let mut done = 0;
    for (i, tensor) in tensors.iter().enumerate() {
        let bytes = tensor.bytes()?;
        let mut written = 0;
        let mut write = |encoded: &[u8]| {
            written += encoded.len() as u64;
            progress(done + written, all);
            out.write_all(encoded).map_err(io)
        };
        source.tensor(i, tensor, options.threads, &mut write).await?;
        if written != bytes {
            let problem = format!("{written} bytes were written for {bytes}");
            return Err(Error::malformed(tensor.name.clone(), None, problem));
        }
        done += bytes;
        out.write_all(&vec![0; padding(bytes)]).map_err(io)?;
    }
    out.flush().map_err(io)
}

/// Takes encoded bytes.
#[cfg(not(target_arch = "wasm32"))]
type BytesFn<'a> = dyn FnMut(&[u8]) -> Result<()> + Send + 'a;
#[cfg(target_arch = "wasm32")]
type BytesFn<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Metadata and tensors.
type Contents = (Vec<(String, Value)>, Vec<NewTensor>);

/// Elements that are decoded and encoded at a time, for each thread.
const SLICE: usize = 1 << 20;

enum Source {
    Folder(Box<Model>, Conversion),
    Gguf(ModelFile),
}

impl Source {
    /// Everything of the new file but the tensors' bytes.
    fn plan(&self, options: &Options) -> Result<Contents> {
        match self {
            Self::Folder(model, conversion) => plan_folder(model, conversion, options),
            Self::Gguf(file) => plan_gguf(file, options),
        }
    }

    /// Gives the bytes of tensor `i`, encoded.
    async fn tensor(&self, i: usize, tensor: &NewTensor, threads: usize, write: &mut BytesFn<'_>) -> Result<()> {
        // Parts of a vector are parts of its one row, unless that is made of blocks.
        let single = tensor.shape.len() <= 1 && tensor.format.info().weights == 1;
        let k = if single { 1 } else { tensor.shape.last().copied().unwrap_or(1) as usize };
        match self {
            Self::Folder(model, conversion) => {
                let mut encode = |rows: &[f32]| write(&tensor.format.encode_rows(rows, k, threads)?);
                // A slice of a file's rows, counted in its bytes: two to four an element.
                model.converted_rows(&conversion.tensors[i], 2 * SLICE * threads, &mut encode).await
            }
            Self::Gguf(file) => {
                let info = &file.tensors()[i];
                let rows = (SLICE * threads / k.max(1)).max(1) as u64;
                let from = info.format()?;
                let row_bytes = from.row_bytes(k as u64)?;
                let all = info.len() / k.max(1) as u64;
                for first in (0..all).step_by(rows as usize) {
                    let count = rows.min(all - first);
                    let mut bytes = vec![0; (count * row_bytes) as usize];
                    file.read(info, first * row_bytes..(first + count) * row_bytes, &mut bytes).await?;
                    if from == tensor.format {
                        write(&bytes)?;
                        continue;
                    }
                    let mut decoded = vec![0.0; count as usize * k];
                    from.decode(&bytes, &mut decoded)?;
                    write(&tensor.format.encode_rows(&decoded, k, threads)?)?;
                }
                Ok(())
            }
        }
    }
}

fn plan_folder(model: &Model, conversion: &Conversion, options: &Options) -> Result<Contents> {
    let as_it_is = || {
        let first = model.located.weights.first().map_or(BlockFormat::F32, |at| at.format);
        crate::quant::mix::FILE_TYPES.iter().copied().find(|t| t.format == first)
    };
    let to = match options.to.or_else(as_it_is) {
        Some(to) => to,
        None => "F32".parse()?,
    };
    let mut metadata = conversion.metadata.clone();
    metadata.insert(1, ("general.name".to_owned(), Value::Str(model.name.clone())));
    let SamplingDefaults { temperature, top_k, top_p, min_p, repeat_penalty, last_n } = model.sampling;
    for (key, value) in [
        ("temp", temperature.map(Value::F32)),
        ("top_k", top_k.and_then(|k| i32::try_from(k).ok()).map(Value::I32)),
        ("top_p", top_p.map(Value::F32)),
        ("min_p", min_p.map(Value::F32)),
        ("penalty_repeat", repeat_penalty.map(Value::F32)),
        ("penalty_last_n", last_n.and_then(|n| i32::try_from(n).ok()).map(Value::I32)),
    ] {
        metadata.extend(value.map(|value| (format!("general.sampling.{key}"), value)));
    }
    metadata.insert(2, ("general.file_type".to_owned(), Value::U32(to.number)));
    metadata.insert(3, ("general.quantization_version".to_owned(), Value::U32(2)));
    if let Description::Folder(texts) = &model.file.description
        && texts.contains_key("tokenizer.json")
    {
        metadata.extend(gguf_tokenizer(texts, model.program.vocab)?);
    } else {
        metadata.push(("tokenizer.ggml.model".to_owned(), Value::Str("none".to_owned())));
    }
    if let Some(bos) = model.specials.bos.filter(|_| !has(&metadata, "tokenizer.ggml.bos_token_id")) {
        metadata.push(("tokenizer.ggml.bos_token_id".to_owned(), Value::U32(bos)));
    }
    if let Some(&eos) = model.specials.eos.first().filter(|_| !has(&metadata, "tokenizer.ggml.eos_token_id")) {
        metadata.push(("tokenizer.ggml.eos_token_id".to_owned(), Value::U32(eos)));
    }
    // Another one ends turns.
    let stated = |id: &u32| metadata.contains(&("tokenizer.ggml.eos_token_id".to_owned(), Value::U32(*id)));
    if let Some(&eot) = model.specials.eos.iter().find(|id| !stated(id)) {
        metadata.push(("tokenizer.ggml.eot_token_id".to_owned(), Value::U32(eot)));
    }
    if let Some(template) = &model.chat_template {
        metadata.push(("tokenizer.chat_template".to_owned(), Value::Str(template.clone())));
    }
    let Conversion { layers, group, tied, .. } = *conversion;
    let new = |t: &crate::model::Converted| {
        let context = TensorContext { name: &t.name, shape: &t.shape, layers, group, tied };
        NewTensor { name: t.name.clone(), shape: t.shape.clone(), format: to.format_of(&context) }
    };
    Ok((metadata, conversion.tensors.iter().map(new).collect()))
}

fn has(metadata: &[(String, Value)], key: &str) -> bool {
    metadata.iter().any(|(k, _)| k == key)
}

fn plan_gguf(file: &ModelFile, options: &Options) -> Result<Contents> {
    let Some(meta) = file.gguf() else { return Err(Error::argument(file.name(), "it is not a GGUF file")) };
    let mut metadata: Vec<_> = meta
        .iter()
        .filter(|(key, _)| !key.starts_with("split.") && *key != "general.alignment") // one file now, laid out anew
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    let prefix = meta.get::<&str>("general.architecture")?.unwrap_or("");
    // Lists, one number a layer, say nothing about all layers.
    let number = |key: &str| meta.get::<u32>(&format!("{prefix}.{key}")).ok().flatten();
    let layers = number("block_count").unwrap_or(1);
    let heads = number("attention.head_count").unwrap_or(1);
    let group = heads / number("attention.head_count_kv").unwrap_or(heads).max(1);
    let tied = file.find("output.weight").is_none();
    let mut tensors = Vec::new();
    for info in file.tensors() {
        let format = match &options.to {
            None => info.format()?,
            Some(to) => {
                let context = TensorContext { name: &info.name, shape: &info.shape, layers, group, tied };
                changed(info, to.format_of(&context), options.requantize)?
            }
        };
        tensors.push(NewTensor { name: info.name.clone(), shape: info.shape.clone(), format });
    }
    if let Some(to) = &options.to {
        let stated = [("general.file_type", to.number), ("general.quantization_version", 2)];
        for (key, value) in stated {
            metadata.retain(|(k, _)| k != key);
            metadata.push((key.to_owned(), Value::U32(value)));
        }
    }
    Ok((metadata, tensors))
}

/// The format that a tensor of a GGUF file gets, if `to` is asked for.
fn changed(info: &TensorInfo, to: BlockFormat, requantize: bool) -> Result<BlockFormat> {
    let from = info.format()?;
    let plain = from.info().weights == 1;
    if info.shape.len() < 2 || from == to || (plain && to.info().weights == 1 && to == BlockFormat::F32) {
        return Ok(if info.shape.len() < 2 || from == to { from } else { to });
    }
    if !plain && !requantize {
        let what = format!("tensor {} of type {}, which is quantised already,", info.name, from.name());
        return Err(Error::unsupported(
            what,
            "a file in F32, F16 or BF16 works; --requantize takes this one, at a loss",
        ));
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_laid_out_otherwise_is_laid_out_anew() {
        let shape = vec![2, 32];
        let tensor = |name: &str| NewTensor { name: name.into(), shape: shape.clone(), format: BlockFormat::F32 };
        let text = |key: &str, value: &str| (key.to_owned(), Value::Str(value.to_owned()));
        let meta = [text("general.architecture", "llama"), ("general.alignment".to_owned(), Value::U32(256))];
        // Both tensors fill whole units, so only the start of the data lies elsewhere.
        let mut file = gguf_header(&meta, &[tensor("a.weight"), tensor("b.weight")]).unwrap();
        file.resize(file.len().next_multiple_of(256), 0);
        file.extend((0..128).flat_map(|i| (i as f32).to_le_bytes()));
        let options = Options { to: Some("F16".parse().unwrap()), requantize: false, threads: 2 };
        let mut out = Vec::new();
        let source = ModelFile::from_bytes("source", file).unwrap();
        pollster::block_on(convert(source, options, &mut out, &mut |_, _| {})).unwrap();
        let written = ModelFile::from_bytes("written", out).unwrap();
        let decoded = pollster::block_on(written.read_f32(written.tensor("b.weight").unwrap())).unwrap();
        assert_eq!(decoded, (64..128).map(|i| i as f32).collect::<Vec<_>>());
    }
}
