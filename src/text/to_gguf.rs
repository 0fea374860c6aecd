//! A folder's tokenizer as GGUF metadata.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::pretokenize::PRE_TOKENIZERS;
use super::tokenizer::{GgufVocab, Special, Tokenizer};
use crate::file::{Array, Strings, Texts, Value, json};
use crate::{Error, Result};

/// A text that the known pre-tokenizers split differently.
const PROBE: &str = "Hello, wörld!!! I'LL it's 'tis 1 12 123 1234 12345678 3.14 x2y a_b camelCase HTTPServer ABCdef's\n\n\n  indented\r\n\t\ttabs   \n mixed \u{85}x\u{a0}y 中文字符，测试。かな カナ 한국어 ไทย عربي हिन्दी é e\u{301} 🦀👩‍👩‍👧 $100 + 5% = x^2; foo(bar)/baz->qux //comment \"quoted\" ... --- ___ ~!@#$%^&*()[]{}|\\`<> end  ";

/// A vocabulary as the metadata has it.
struct Table {
    /// Every id's text, as the file has it; empty where no token has the id.
    texts: Vec<String>,
    /// `tokenizer.ggml.token_type`
    types: Vec<i32>,
    merges: Vec<String>,
    scores: Option<Vec<f32>>,
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The `tokenizer.*` pairs for a model whose embedding table has `rows` rows: from `tokenizer.json` and
/// `tokenizer_config.json`. The pre-tokenizer is found by trial: `tokenizer.ggml.pre` is the first name that gives the
/// same ids for a text on which they differ.
pub fn gguf_tokenizer(texts: &Texts, rows: u32) -> Result<Vec<(String, Value)>> {
    const FILE: &str = "tokenizer.json";
    let text =
        texts.get(FILE).ok_or_else(|| Error::Model(format!("{FILE} is missing; GGUF files hold a tokenizer")))?;
    let config = texts.get("tokenizer_config.json");
    let tokenizer = Tokenizer::from_json(text.as_bytes(), config.map(String::as_bytes))?;
    let file: serde_json::Map<String, Json> = json::parse(FILE, text)?;
    let file = Json::Object(file);
    let config: Option<serde_json::Map<String, Json>> =
        config.map(|text| json::parse("tokenizer_config.json", text)).transpose()?;
    let kind = file.pointer("/model/type").and_then(Json::as_str).unwrap_or("BPE");
    let byte_level = mentions(file.get("decoder"), "ByteLevel") || mentions(file.get("pre_tokenizer"), "ByteLevel");
    let model = match kind {
        "BPE" if byte_level => "gpt2",
        "BPE" => "llama",
        "WordPiece" => "bert",
        other => {
            return Err(Error::unsupported(
                format!("a tokenizer of type {other} in a GGUF file"),
                "BPE and WordPiece work",
            ));
        }
    };
    let table = table(&file, model, &tokenizer, rows)?;
    let id_of = |name: &str| {
        let token = config.as_ref()?.get(name)?;
        let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
        table.texts.iter().position(|t| t == text).map(|id| id as u32)
    };
    let unk = table.types.iter().position(|&ty| ty == UNKNOWN).map(|id| id as u32);
    let prefix = model == "llama" && adds_space(&file);

    let mut pairs = Vec::new();
    let mut add = |key: &str, value: Value| pairs.push((format!("tokenizer.ggml.{key}"), value));
    add("model", Value::Str(model.to_owned()));
    let ids = [
        ("bos_token_id", tokenizer.bos()),
        ("eos_token_id", tokenizer.eos()),
        ("unknown_token_id", unk),
        ("padding_token_id", id_of("pad_token")),
        ("seperator_token_id", id_of("sep_token")),
        ("cls_token_id", id_of("cls_token")),
        ("mask_token_id", id_of("mask_token")),
    ];
    let id = |name: &str| ids.iter().find(|(key, _)| *key == name).and_then(|(_, id)| *id).map(i64::from);
    if model == "gpt2" {
        let wanted = tokenizer.encode(PROBE, Special::Plain)?;
        let same = |pre: &&&str| {
            let spec = GgufVocab {
                model,
                pre: Some(pre),
                tokens: table.texts.iter().map(String::as_bytes).collect(),
                types: Some(table.types.clone()),
                merges: Some(table.merges.iter().map(String::as_bytes).collect()),
                bos: id("bos_token_id"),
                eos: id("eos_token_id"),
                unk: id("unknown_token_id"),
                ..GgufVocab::default()
            };
            let ids = Tokenizer::from_gguf(spec).and_then(|t| t.encode(PROBE, Special::Plain));
            ids.is_ok_and(|ids| ids == wanted)
        };
        let pre = PRE_TOKENIZERS.iter().find(same).ok_or_else(|| {
            let what = "a tokenizer.json whose pre-tokenizer is none of those that GGUF files name";
            Error::unsupported(what, PRE_TOKENIZERS.join(", ") + " are known; the folder works as it is")
        })?;
        add("pre", Value::Str((*pre).to_owned()));
    } else {
        add("pre", Value::Str("default".to_owned()));
    }
    add("tokens", Value::Array(Array::Str(table.texts.iter().collect())));
    add("token_type", Value::Array(Array::I32(table.types)));
    if let Some(scores) = table.scores {
        add("scores", Value::Array(Array::F32(scores)));
    } else if model == "gpt2" {
        add("merges", Value::Array(Array::Str(table.merges.iter().collect::<Strings>())));
    }
    for (name, id) in ids {
        if let Some(id) = id {
            add(name, Value::U32(id));
        }
    }
    add("add_bos_token", Value::Bool(tokenizer.add_bos()));
    add("add_eos_token", Value::Bool(tokenizer.add_eos()));
    if model == "llama" {
        add("add_space_prefix", Value::Bool(prefix));
    }
    Ok(pairs)
}

/// Whether a part of the tokenizer, or a part of that, is of a type.
fn mentions(part: Option<&Json>, ty: &str) -> bool {
    let Some(part) = part else { return false };
    let inner = ["pretokenizers", "decoders", "normalizers"].iter().filter_map(|list| part.get(list)?.as_array());
    part.get("type").and_then(Json::as_str) == Some(ty) || inner.flatten().any(|part| mentions(Some(part), ty))
}

/// Whether a space is put before a text.
fn adds_space(file: &Json) -> bool {
    fn metaspace(part: Option<&Json>) -> bool {
        let Some(part) = part else { return false };
        let scheme = part.get("prepend_scheme").and_then(Json::as_str);
        let old = part.get("add_prefix_space").and_then(Json::as_bool);
        let own = part.get("type").and_then(Json::as_str) == Some("Metaspace")
            && scheme.map_or(old.unwrap_or(true), |scheme| scheme != "never");
        let inner = part.get("pretokenizers").and_then(Json::as_array);
        own || inner.into_iter().flatten().any(|part| metaspace(Some(part)))
    }
    mentions(file.get("normalizer"), "Prepend") || metaspace(file.get("pre_tokenizer"))
}

fn table(file: &Json, model: &str, tokenizer: &Tokenizer, rows: u32) -> Result<Table> {
    let bad = |problem: String| Error::malformed("tokenizer.json", None, problem);
    let empty = serde_json::Map::new();
    let vocab = file.pointer("/model/vocab").and_then(Json::as_object).unwrap_or(&empty);
    let byte_fallback = file.pointer("/model/byte_fallback").and_then(Json::as_bool).unwrap_or(false);
    let unk = file.pointer("/model/unk_token").and_then(Json::as_str);
    // As many as the embedding has rows: ids without a token get a name that no text has.
    let count = (tokenizer.vocab_size() as u64).max(rows.into());
    if count > rows.into() {
        return Err(bad(format!("{count} tokens, but the embedding table has {rows} rows")));
    }
    let mut texts: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![UNUSED; rows as usize];
    let mut set = |text: String, id: Option<u64>, ty: i32| {
        let slot = id.and_then(|id| usize::try_from(id).ok()).filter(|&id| id < rows as usize);
        let Some(slot) = slot else { return Err(bad(format!("token {text:?} has no valid id"))) };
        (texts[slot], types[slot]) = (text, ty);
        Ok(())
    };
    for (text, id) in vocab {
        let is_byte = byte_fallback && text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        let ty = if Some(text.as_str()) == unk {
            UNKNOWN
        } else if is_byte {
            BYTE
        } else {
            NORMAL
        };
        let text = match (model, text.strip_prefix("##")) {
            ("bert", Some(rest)) => rest.to_owned(),
            // A piece that begins a word begins with a space.
            ("bert", None) if !(text.starts_with('[') && text.ends_with(']')) => format!("\u{2581}{text}"),
            _ => text.clone(),
        };
        set(text, id.as_u64(), ty)?;
    }
    for token in file.get("added_tokens").and_then(Json::as_array).into_iter().flatten() {
        let text = token.get("content").and_then(Json::as_str).unwrap_or_default();
        let special = token.get("special").and_then(Json::as_bool).unwrap_or(false);
        let ty = if Some(text) == unk && model != "gpt2" {
            UNKNOWN
        } else if special {
            CONTROL
        } else {
            USER_DEFINED
        };
        set(text.to_owned(), token.get("id").and_then(Json::as_u64), ty)?;
    }
    let merges: Vec<String> =
        file.pointer("/model/merges").and_then(Json::as_array).into_iter().flatten().map(merge).collect();
    // SentencePiece joins the pair whose result has the highest score: the earlier the merge, the higher.
    let scores = (model != "gpt2").then(|| {
        let mut ranks = HashMap::<String, usize>::new();
        if model == "llama" {
            for (rank, merge) in merges.iter().enumerate() {
                ranks.entry(merge.replacen(' ', "", 1)).or_insert(rank);
            }
        }
        texts.iter().map(|text| ranks.get(text).map_or(-1e9, |&rank| -(rank as f32))).collect()
    });
    Ok(Table { texts, types, merges, scores })
}

/// `a b`, however the file writes it.
fn merge(merge: &Json) -> String {
    match merge {
        Json::String(text) => text.clone(),
        Json::Array(pair) => pair.iter().filter_map(Json::as_str).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    }
}
