//! tokenizer.json, by the `tokenizers` crate, under limits of our own: the file is checked before the crate sees it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use serde_json::Value;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use super::bpe::Alphabet;
use super::special::{SpecialTokens, TextOrToken};
use super::spm::SPACE;
use super::tokenizer::{Strip, end_ids};
use super::vocab::{Kind, MAX_TOKENS, Vocab, byte_token};
use crate::{Error, Result};

/// The largest file in use has about 35 MB.
const MAX_BYTES: usize = 256 << 20;
/// Longest regular expression; the longest in use has about 700 bytes.
const MAX_PATTERN: usize = 4096;
/// How many times longer a chain of replacements may make a text.
const MAX_GROWTH: u64 = 64;
/// How many ids may be missing between those that are there.
const MAX_GAP: usize = 1 << 16;

/// The crate's tokenizer, twice: one finds the control tokens in a text, the other takes them as text.
#[derive(Debug)]
pub(crate) struct Hf {
    parsing: tokenizers::Tokenizer,
    plain: OnceLock<tokenizers::Tokenizer>, // made when a text first holds a control string that is not trusted
}

/// What a file yields.
pub(crate) struct Loaded {
    pub(crate) model: Hf,
    pub(crate) vocab: Vocab,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) eog: Vec<u32>,
    pub(crate) add_bos: bool,
    pub(crate) add_eos: bool,
    pub(crate) frame: (Option<u32>, Option<u32>),
    pub(crate) strip: Strip,
}

impl Hf {
    pub(crate) fn load(json: &[u8], config: Option<&[u8]>) -> Result<Loaded> {
        if json.len() > MAX_BYTES {
            return Err(bad(format!("{} bytes; the limit is {MAX_BYTES}", json.len())));
        }
        // serde_json refuses more than 128 levels, so that all walks below are shallow.
        let file: Value = serde_json::from_slice(json).map_err(|e| bad(format!("JSON: {e}")))?;
        let config: Option<Value> = config
            .map(serde_json::from_slice)
            .transpose()
            .map_err(|e| Error::malformed("tokenizer_config.json", None, format!("JSON: {e}")))?;
        let tokens = tokens(&file)?;
        check_merges(&file, &tokens)?;
        ["normalizer", "pre_tokenizer", "decoder"]
            .iter()
            .filter_map(|part| file.get(part))
            .try_for_each(check_patterns)?;
        check_growth(file.get("normalizer").unwrap_or(&Value::Null))?;

        let mut parsing = tokenizers::Tokenizer::from_bytes(json).map_err(|e| bad(e.to_string()))?;
        parsing.with_truncation(None).map_err(|e| bad(e.to_string()))?;
        parsing.with_padding(None);
        for (text, &id) in &tokens {
            if parsing.token_to_id(text) != Some(id) {
                return Err(bad(format!("token {text:?} has id {id}, but the order of the tokens gives another")));
            }
        }

        let find = |name: &str| {
            let token = config.as_ref()?.get(name)?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            tokens.get(text).copied()
        };
        let (first, last) = frame(file.get("post_processor").unwrap_or(&Value::Null));
        let flag = |name: &str| config.as_ref().and_then(|config| config.get(name)).and_then(Value::as_bool);
        let in_range = |id: Option<u64>| {
            let id = u32::try_from(id?).ok()?;
            tokens.values().any(|&known| known == id).then_some(id)
        };
        let (first, last) = (in_range(first), in_range(last));
        let bos = find("bos_token").or(first);
        let eos = find("eos_token").or(last);
        let add_bos = flag("add_bos_token").unwrap_or(first.is_some());
        let add_eos = flag("add_eos_token").unwrap_or(last.is_some());
        let eog = end_ids(tokens.iter().map(|(text, &id)| (text.as_str(), id)), [eos]);
        let unk = file.pointer("/model/unk_token").and_then(Value::as_str).and_then(|text| tokens.get(text)).copied();
        let decoding = Decoding::of(file.get("decoder").unwrap_or(&Value::Null));
        let vocab = vocab(&file, &tokens, &decoding, |id, kind| {
            if eog.binary_search(&id).is_ok() || Some(id) == bos {
                Kind::Control
            } else if Some(id) == unk {
                Kind::Unknown
            } else {
                kind
            }
        })?;
        Ok(Loaded {
            model: Self { parsing, plain: OnceLock::new() },
            vocab,
            bos,
            eos,
            eog,
            add_bos,
            add_eos,
            // The post-processor's own, which need not be those of chats.
            frame: (first.or(bos.filter(|_| add_bos)), last.or(eos.filter(|_| add_eos))),
            strip: if decoding.strip { Strip::Start } else { Strip::Nowhere },
        })
    }

    /// The ids of `text`, control tokens from the `trusted` ranges alone.
    pub(crate) fn encode(
        &self,
        vocab: &Vocab,
        special: &SpecialTokens,
        text: &str,
        trusted: &[Range<usize>],
    ) -> Result<Vec<u32>> {
        let is_control = |id: u32| vocab.kind(id) == Some(Kind::Control);
        let failed = |e: tokenizers::Error| bad(format!("encoding failed: {e}"));
        // First as the crate does it: right unless a control token overlaps what a user wrote.
        let encoding = self.parsing.encode(text, false).map_err(failed)?;
        let trusted_token =
            |&(start, end): &(usize, usize)| trusted.iter().any(|range| range.start <= start && end <= range.end);
        let mut tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
        if tokens.all(|(&id, offsets)| !is_control(id) || trusted_token(offsets)) {
            return Ok(encoding.get_ids().to_vec());
        }
        // Else cut at the trusted control tokens and take the rest as text.
        let plain = self.plain.get_or_init(|| {
            let mut plain = self.parsing.clone();
            plain.set_encode_special_tokens(true);
            plain
        });
        let mut ids = Vec::new();
        let flush = |range: Range<usize>, ids: &mut Vec<u32>| {
            let text = text.get(range).unwrap_or_default();
            let encoding = plain.encode(text, false).map_err(failed)?;
            if let Some(id) = encoding.get_ids().iter().find(|&&id| is_control(id)) {
                return Err(bad(format!(
                    "the model spells control token {id} with plain text; this cannot be made safe"
                )));
            }
            ids.extend_from_slice(encoding.get_ids());
            Ok(())
        };
        let mut start = 0;
        let mut at = 0;
        for part in special.split(text, trusted) {
            match part {
                TextOrToken::Text(range) => at = range.end,
                TextOrToken::Token(id) => {
                    let end = at + vocab.piece(id).map_or(0, <[u8]>::len);
                    // User-defined tokens are left to the crate, which sees them in the text.
                    if is_control(id) {
                        if start < at {
                            flush(start..at, &mut ids)?;
                        }
                        ids.push(id);
                        start = end;
                    }
                    at = end;
                }
            }
        }
        if start < text.len() {
            flush(start..text.len(), &mut ids)?;
        }
        Ok(ids)
    }
}

fn bad(problem: impl Into<String>) -> Error {
    Error::malformed("tokenizer.json", None, problem)
}

/// All tokens with their ids, the added ones included.
fn tokens(file: &Value) -> Result<HashMap<String, u32>> {
    let vocab = file.pointer("/model/vocab").ok_or_else(|| bad("model.vocab is missing"))?;
    let mut tokens = HashMap::new();
    let mut ids: HashMap<u32, String> = HashMap::new();
    let mut add = |text: &str, id: &Value, what: &str| {
        let id = id.as_u64().filter(|&id| id < MAX_TOKENS as u64).ok_or_else(|| {
            bad(format!("{what} id {id} of {text:?} is invalid: ids are integers from 0 to {MAX_TOKENS}"))
        })? as u32;
        if tokens.insert(text.to_owned(), id).is_some_and(|before| before != id) {
            return Err(bad(format!("{what} {text:?} has two ids, {id} and another")));
        }
        match ids.insert(id, text.to_owned()) {
            Some(other) if other != text => Err(bad(format!("duplicate id {id}: {other:?} and {text:?}"))),
            _ => Ok(()),
        }
    };
    if vocab.as_object().is_some_and(|v| v.is_empty()) || vocab.as_array().is_some_and(Vec::is_empty) {
        return Err(bad("the model's vocabulary is empty"));
    }
    match vocab {
        Value::Object(entries) => entries.iter().try_for_each(|(text, id)| add(text, id, "vocabulary"))?,
        Value::Array(entries) => {
            for (id, entry) in entries.iter().enumerate() {
                let text = entry.get(0).and_then(Value::as_str);
                let text = text.ok_or_else(|| bad(format!("vocabulary entry {id} is not [text, score]")))?;
                add(text, &Value::from(id), "vocabulary")?;
            }
        }
        _ => return Err(bad("model.vocab is neither an object nor a list")),
    }
    for token in added(file) {
        let text = token.get("content").and_then(Value::as_str);
        let text = text.ok_or_else(|| bad("an added token has no content"))?;
        add(text, token.get("id").unwrap_or(&Value::Null), "added token")?;
    }
    let max = ids.keys().max().map_or(0, |&id| id as usize);
    if max >= tokens.len() + MAX_GAP {
        return Err(bad(format!("vocabulary id {max} is out of range for {} tokens", tokens.len())));
    }
    Ok(tokens)
}

fn added(file: &Value) -> impl Iterator<Item = &Value> {
    file.get("added_tokens").and_then(Value::as_array).into_iter().flatten()
}

/// Merges name two texts of the vocabulary whose join is a third.
fn check_merges(file: &Value, tokens: &HashMap<String, u32>) -> Result<()> {
    let prefix = file.pointer("/model/continuing_subword_prefix").and_then(Value::as_str).unwrap_or("");
    for (rank, merge) in file.pointer("/model/merges").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let parts = match merge {
            Value::String(text) => text.split_once(' '),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let Some((left, right)) = parts.filter(|(left, right)| !left.is_empty() && !right.is_empty()) else {
            return Err(bad(format!("merge {rank} ({merge}) is not two texts")));
        };
        let joined = format!("{left}{}", right.strip_prefix(prefix).unwrap_or(right));
        if let Some(unknown) = [left, right, &joined].iter().find(|part| !tokens.contains_key(**part)) {
            return Err(bad(format!("merge {rank} ({merge}): {unknown:?} is not in the vocabulary")));
        }
    }
    Ok(())
}

/// Every pattern is short and compiles, under the limits of the regex engine.
fn check_patterns(value: &Value) -> Result<()> {
    match value {
        Value::Object(entries) => {
            entries.iter().try_for_each(|(key, value)| match value.as_str().filter(|_| key == "Regex") {
                Some(pattern) => check_pattern(pattern),
                None => check_patterns(value),
            })
        }
        Value::Array(values) => values.iter().try_for_each(check_patterns),
        _ => Ok(()),
    }
}

fn check_pattern(pattern: &str) -> Result<()> {
    if pattern.len() > MAX_PATTERN {
        return Err(bad(format!("a pattern (regex) of {} bytes; the limit is {MAX_PATTERN}", pattern.len())));
    }
    match Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false) {
        Ok(_) => Ok(()),
        Err(e) => Err(bad(format!("pattern {pattern:?}: {e}"))),
    }
}

/// Replacements run one after another: their growth multiplies.
fn check_growth(normalizer: &Value) -> Result<()> {
    fn growth(value: &Value) -> u64 {
        let parts = value.get("normalizers").and_then(Value::as_array);
        if let Some(parts) = parts {
            return parts.iter().map(growth).fold(1, u64::saturating_mul);
        }
        let Some(content) = value.get("content").and_then(Value::as_str) else { return 1 };
        let pattern = value.pointer("/pattern/String").and_then(Value::as_str).map_or(1, str::len).max(1);
        (content.len().div_ceil(pattern) as u64).max(1)
    }
    match growth(normalizer) {
        0..=MAX_GROWTH => Ok(()),
        times => Err(bad(format!("the normalizer can make a text {times} times longer; the limit is {MAX_GROWTH}"))),
    }
}

/// The ids that the post-processor puts before and after a text.
fn frame(processor: &Value) -> (Option<u64>, Option<u64>) {
    let id = |name: &str| processor.get(name)?.get(1)?.as_u64();
    match processor.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            let parts = processor.get("processors").and_then(Value::as_array).into_iter().flatten();
            parts.map(frame).fold((None, None), |(a, b), (c, d)| (a.or(c), b.or(d)))
        }
        Some("BertProcessing" | "RobertaProcessing") => (id("cls"), id("sep")),
        Some("TemplateProcessing") => {
            let single = processor.get("single").and_then(Value::as_array);
            let id = |part: Option<&Value>| {
                let name = part?.get("SpecialToken")?.get("id")?.as_str()?;
                processor.get("special_tokens")?.get(name)?.get("ids")?.get(0)?.as_u64()
            };
            single.map_or((None, None), |parts| (id(parts.first()), id(parts.last())))
        }
        _ => (None, None),
    }
}

/// How the bytes of a token follow from its text.
#[derive(Default)]
struct Decoding {
    byte_level: bool,
    byte_fallback: bool,
    spaces: bool,                // `▁` is a space
    word_prefix: Option<String>, // marks a piece that does not begin a word
    strip: bool,                 // a space is dropped at the start of the text
}

impl Decoding {
    fn of(decoder: &Value) -> Self {
        let mut this = Self::default();
        this.collect(decoder);
        this
    }

    fn collect(&mut self, decoder: &Value) {
        let text = |path: &str| decoder.pointer(path).and_then(Value::as_str);
        match text("/type") {
            Some("Sequence") => {
                let parts = decoder.get("decoders").and_then(Value::as_array);
                parts.into_iter().flatten().for_each(|part| self.collect(part));
            }
            Some("ByteLevel") => self.byte_level = true,
            Some("ByteFallback") => self.byte_fallback = true,
            Some("Replace") => self.spaces |= text("/pattern/String") == Some(SPACE),
            Some("Strip") => self.strip |= decoder.get("start").and_then(Value::as_u64).is_some_and(|n| n > 0),
            Some("Metaspace") => {
                let never = text("/prepend_scheme") == Some("never")
                    || decoder.get("add_prefix_space").and_then(Value::as_bool) == Some(false);
                (self.spaces, self.strip) = (true, !never);
            }
            Some("WordPiece") => {
                self.word_prefix = text("/prefix").map(str::to_owned);
                self.strip = true;
            }
            _ => {}
        }
    }

    fn bytes(&self, alphabet: &Alphabet, text: &str) -> (Vec<u8>, Kind) {
        let raw = || text.as_bytes().to_vec();
        if self.byte_level {
            return (alphabet.decode(text).unwrap_or_else(raw), Kind::Normal);
        }
        if let Some(byte) = byte_token(text.as_bytes()).filter(|_| self.byte_fallback) {
            return (vec![byte], Kind::Byte);
        }
        let bytes = match &self.word_prefix {
            Some(prefix) => match text.strip_prefix(prefix.as_str()) {
                Some(rest) => rest.as_bytes().to_vec(),
                None => [b" ", text.as_bytes()].concat(),
            },
            None if self.spaces => text.replace(SPACE, " ").into_bytes(),
            None => raw(),
        };
        (bytes, Kind::Normal)
    }
}

/// The table of all ids; an id without token is unused.
fn vocab(
    file: &Value,
    tokens: &HashMap<String, u32>,
    decoding: &Decoding,
    kind: impl Fn(u32, Kind) -> Kind,
) -> Result<Vocab> {
    let alphabet = Alphabet::new();
    let mut texts = vec![None; tokens.values().max().map_or(0, |&id| id as usize + 1)];
    for (text, &id) in tokens {
        if let Some(slot) = texts.get_mut(id as usize) {
            *slot = Some(text);
        }
    }
    let special = |token: &Value| token.get("special").and_then(Value::as_bool).unwrap_or(false);
    let added: HashMap<&str, Kind> = added(file)
        .filter_map(|token| {
            let kind = if special(token) { Kind::Control } else { Kind::UserDefined };
            Some((token.get("content")?.as_str()?, kind))
        })
        .collect();
    let mut vocab = Vocab::default();
    for (id, text) in (0..).zip(texts) {
        let Some(text) = text else {
            vocab.push(b"", Kind::Unused, None)?;
            continue;
        };
        let (bytes, model_kind) = match added.get(text.as_str()) {
            Some(&kind) => (text.as_bytes().to_vec(), kind),
            None => decoding.bytes(&alphabet, text),
        };
        vocab.push(&bytes, kind(id, model_kind), None)?;
    }
    Ok(vocab)
}
