//! `wgslm inspect`: what a model's files say, and how much memory it takes.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::exit::Exit;
use super::{memory, models, open, term};
use crate::file::{Array, Description, ModelFile, Value};
use crate::model::{CacheSpec, Model, Program};
use crate::ops::KvStorage;
use crate::text::Tokenizer;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// GGUF file (any part of a split one), safetensors folder, or a name, as -m of other commands takes them.
    #[arg(value_name = "MODEL")]
    source: PathBuf,
    #[command(flatten)]
    hub: models::HubArg,
    #[command(flatten)]
    access: open::AccessArg,
    /// Also lists every tensor.
    #[arg(long)]
    tensors: bool,
    /// Prints a JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    let file = args.access.open(&args.hub.locate(&args.source)?)?;
    let mut about = describe(&file, args.tensors);
    match Tokenizer::of(&file) {
        Ok(tokenizer) => {
            about["tokenizer"] = json!({
                "tokens": tokenizer.vocab_size(),
                "bos": tokenizer.bos(),
                "add_bos": tokenizer.add_bos(),
            });
        }
        Err(error) => about["tokenizer"] = json!({ "problem": error.to_string() }),
    }
    // What cannot be run can be looked at.
    match pollster::block_on(Model::open(file)) {
        Ok(model) => about["model"] = model_json(&model),
        Err(error) => about["model"] = json!({ "problem": error.to_string() }),
    }
    let mut out = term::out();
    if args.json {
        writeln!(out, "{about}")?;
    } else {
        print(&about, &mut out)?;
    }
    Ok(out.flush()?)
}

/// The types of a model's weights, the most common first: `Q4_K 180 MB, Q6_K 40 MB`.
pub(super) fn types(file: &ModelFile) -> String {
    let mut types: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in file.tensors() {
        let bytes = types.entry(tensor.ty.name()).or_default();
        *bytes = bytes.saturating_add(tensor.bytes);
    }
    let mut types: Vec<_> = types.into_iter().collect();
    types.sort_by_key(|(name, bytes)| (std::cmp::Reverse(*bytes), *name));
    types.iter().map(|(name, bytes)| format!("{name} {}", memory::bytes(*bytes))).collect::<Vec<_>>().join(", ")
}

/// What the files say, whether or not the model can be run.
fn describe(file: &ModelFile, list: bool) -> Json {
    let mut types: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for tensor in file.tensors() {
        let [count, numbers, bytes] = types.entry(tensor.ty.name()).or_default();
        *count += 1;
        *numbers = numbers.saturating_add(tensor.len());
        *bytes = bytes.saturating_add(tensor.bytes);
    }
    let mut types: Vec<_> = types.into_iter().collect();
    types.sort_by_key(|(name, [_, _, bytes])| (std::cmp::Reverse(*bytes), *name));
    let of_type = |(name, [count, numbers, bytes]): &(&str, [u64; 3])| json!({ "type": name, "tensors": count, "parameters": numbers, "bytes": bytes });
    let metadata: serde_json::Map<String, Json> = match &file.description {
        Description::Gguf(meta) => meta.iter().map(|(key, value)| (key.to_owned(), value_json(value))).collect(),
        Description::Folder(texts) => {
            let config = texts.get("config.json").and_then(|text| serde_json::from_str(text).ok());
            config.unwrap_or_default()
        }
    };
    let sum = |of: fn(&crate::file::TensorInfo) -> u64| file.tensors().iter().map(of).fold(0, u64::saturating_add);
    let mut about = json!({
        "name": file.name(),
        "format": if file.gguf().is_some() { "GGUF" } else { "safetensors" },
        "tensors": file.tensors().len(),
        "parameters": sum(|t| t.len()),
        "bytes": sum(|t| t.bytes),
        "types": types.iter().map(of_type).collect::<Vec<_>>(),
        "metadata": metadata,
    });
    if list {
        let tensor = |t: &crate::file::TensorInfo| json!({ "name": t.name, "type": t.ty.name(), "shape": t.shape, "bytes": t.bytes });
        about["list"] = file.tensors().iter().map(tensor).collect();
    }
    about
}

/// A value of GGUF metadata; of arrays, which may hold a vocabulary, the length and the first few.
fn value_json(value: &Value) -> Json {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        // The shortest digits of the f32, not those of its value as f64.
        Value::F32(v) => json!(v.to_string().parse::<f64>().unwrap_or(f64::NAN)),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::Str(v) => json!(v),
        Value::Array(v) => {
            const SHOWN: usize = 8;
            let first = match v {
                Array::U8(v) => json!(&v[..v.len().min(SHOWN)]),
                Array::I8(v) => json!(&v[..v.len().min(SHOWN)]),
                Array::U16(v) => json!(&v[..v.len().min(SHOWN)]),
                Array::I16(v) => json!(&v[..v.len().min(SHOWN)]),
                Array::U32(v) => json!(&v[..v.len().min(SHOWN)]),
                Array::I32(v) => json!(&v[..v.len().min(SHOWN)]),
                Array::U64(v) => json!(&v[..v.len().min(SHOWN)]),
                Array::I64(v) => json!(&v[..v.len().min(SHOWN)]),
                Array::F32(v) => json!(&v[..v.len().min(SHOWN)]),
                Array::F64(v) => json!(&v[..v.len().min(SHOWN)]),
                Array::Bool(v) => json!(&v[..v.len().min(SHOWN)]),
                Array::Str(v) => v.iter().take(SHOWN).collect(),
                Array::Array(_) => json!([]),
            };
            json!({ "length": v.len(), "first": first })
        }
    }
}

/// What the engine makes of it.
fn model_json(model: &Model) -> Json {
    let program = &model.program;
    // Powers of two, and the context that the model was made for.
    let mut contexts: Vec<u32> = (11..31).map(|bits| 1u32 << bits).filter(|n| *n < program.context).collect();
    contexts.push(program.context);
    let weights: u64 = model.file.tensors().iter().map(|t| t.bytes).fold(0, u64::saturating_add);
    let memory = |&context: &u32| {
        let cache = cache_bytes(program, context);
        json!({ "context": context, "cache_bytes": cache, "bytes": weights.saturating_add(cache) })
    };
    json!({
        "name": model.name,
        "architecture": model.arch,
        "layers": program.layers(),
        "vocabulary": program.vocab,
        "context": program.context,
        "gives": if program.logits().is_some() { "logits" } else { "vectors" },
        "chat_template": model.chat_template.is_some(),
        "gpu": match program.on_gpu(KvStorage::default()) {
            Ok(()) => Json::Bool(true),
            Err(error) => error.to_string().into(),
        },
        "memory": contexts.iter().map(memory).collect::<Vec<_>>(),
    })
}

/// Bytes of the caches of a sequence, keys and values in 16 bits.
pub(super) fn cache_bytes(program: &Program, context: u32) -> u64 {
    let cache = |spec: &CacheSpec| match *spec {
        CacheSpec::Pages { kv_heads, k_dim, v_dim, v_in_k, window, .. } => {
            let dims = u64::from(k_dim) + if v_in_k { 0 } else { u64::from(v_dim) };
            let positions = u64::from(window.map_or(context, |window| window.min(context)));
            u64::from(kv_heads).saturating_mul(dims).saturating_mul(positions).saturating_mul(2)
        }
        CacheSpec::State { len } => u64::from(len) * 4,
    };
    program.caches.iter().map(cache).fold(0, u64::saturating_add)
}

/// The same for people.
fn print(about: &Json, out: &mut dyn Write) -> std::io::Result<()> {
    let number = |json: &Json| json.as_u64().unwrap_or(0) as f64;
    let size = |json: &Json| match number(json) {
        bytes if bytes >= 1e9 => format!("{:.2} GB", bytes / 1e9),
        bytes => format!("{:.1} MB", bytes / 1e6),
    };
    let mut line = |name: &str, value: &str| writeln!(out, "{name:<14} {value}");
    line("file", &shown(&about["name"]))?;
    line("format", &shown(&about["format"]))?;
    line("parameters", &format!("{:.1} M in {} tensors", number(&about["parameters"]) / 1e6, about["tensors"]))?;
    line("size", &size(&about["bytes"]))?;
    for of_type in about["types"].as_array().into_iter().flatten() {
        let share = 100.0 * number(&of_type["bytes"]) / number(&about["bytes"]).max(1.0);
        let name = shown(&of_type["type"]);
        line(
            "",
            &format!(
                "{name:<8} {:>5} tensors {:>10} {share:>5.1} %",
                number(&of_type["tensors"]),
                size(&of_type["bytes"])
            ),
        )?;
    }
    let tokenizer = &about["tokenizer"];
    match tokenizer.get("problem") {
        Some(problem) => line("tokenizer", &format!("none that runs: {}", shown(problem)))?,
        None => line("tokenizer", &format!("{} tokens, bos {}", tokenizer["tokens"], tokenizer["bos"]))?,
    }
    let model = &about["model"];
    if let Some(problem) = model.get("problem") {
        line("cannot be run", &shown(problem))?;
    } else {
        line("architecture", &format!("{}, {} layers", shown(&model["architecture"]), model["layers"]))?;
        line("gives", &format!("{}, vocabulary of {}", shown(&model["gives"]), model["vocabulary"]))?;
        line("chat template", if model["chat_template"] == true { "yes" } else { "no" })?;
        line("GPU", &if model["gpu"] == true { "yes".to_owned() } else { shown(&model["gpu"]) })?;
        line("memory", "weights and the cache of one sequence, in 16 bits")?;
        for memory in model["memory"].as_array().into_iter().flatten() {
            let (all, cache) = (size(&memory["bytes"]), size(&memory["cache_bytes"]));
            let context = memory["context"].as_u64().unwrap_or(0);
            line("", &format!("context {context:>9} {all:>10}, of it cache {cache:>10}"))?;
        }
    }
    line("metadata", "")?;
    for (key, value) in about["metadata"].as_object().into_iter().flatten() {
        let value = match (value.get("length"), value.get("first")) {
            (Some(length), Some(first)) => format!("{length}: {}", shown(first)),
            _ => shown(value),
        };
        writeln!(out, "  {} = {value}", printable(key))?;
    }
    for tensor in about["list"].as_array().into_iter().flatten() {
        let (name, ty) = (shown(&tensor["name"]), shown(&tensor["type"]));
        writeln!(out, "  {name} {ty} {} {}", tensor["shape"], size(&tensor["bytes"]))?;
    }
    Ok(())
}

/// A value on one line, not too long, without what would steer a terminal.
fn shown(value: &Json) -> String {
    const MOST: usize = 100;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut short: String = text.chars().take(MOST).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    printable(&short)
}

fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}
