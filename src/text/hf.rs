//! tokenizer.json, by the `tokenizers` crate, under limits of our own: the file is checked before the crate sees it.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use super::bpe::Alphabet;
use super::pattern::too_slow;
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
        check_charsmaps(&file)?;
        check_post_processor(file.get("post_processor").unwrap_or(&Value::Null), &tokens)?;
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
        // The crate takes that many bytes from it unseen: what is left must be text.
        let Some(rest) = right.strip_prefix(prefix) else {
            return Err(bad(format!("merge {rank} ({merge}): {right:?} does not begin with {prefix:?}")));
        };
        let joined = format!("{left}{rest}");
        if let Some(unknown) = [left, right, &joined].iter().find(|part| !tokens.contains_key(**part)) {
            return Err(bad(format!("merge {rank} ({merge}): {unknown:?} is not in the vocabulary")));
        }
    }
    Ok(())
}

/// Every id that the post-processor puts into a text is a token's.
fn check_post_processor(processor: &Value, tokens: &HashMap<String, u32>) -> Result<()> {
    let ids: HashSet<u64> = tokens.values().map(|&id| id.into()).collect();
    let known = |id: &Value| match id.as_u64().is_some_and(|id| ids.contains(&id)) {
        true => Ok(()),
        false => Err(bad(format!("the post-processor names token {id}, which is out of range or unused"))),
    };
    let mut processors = vec![processor];
    while let Some(processor) = processors.pop() {
        processors.extend(processor.get("processors").and_then(Value::as_array).into_iter().flatten());
        let pairs = ["cls", "sep"].iter().filter_map(|name| processor.get(name)?.get(1));
        pairs.into_iter().try_for_each(known)?;
        let special = processor.get("special_tokens").and_then(Value::as_object).into_iter().flatten();
        let lists = special.filter_map(|(_, token)| token.get("ids")?.as_array());
        lists.flatten().try_for_each(known)?;
    }
    Ok(())
}

/// Every charsmap of SentencePiece, a trie and the texts that it leads to, stays within itself: the crate follows it unseen.
fn check_charsmaps(value: &Value) -> Result<()> {
    match value {
        Value::Object(entries) => entries.iter().try_for_each(|(key, value)| match value.as_str() {
            Some(map) if key == "precompiled_charsmap" => {
                check_charsmap(map).map_err(|problem| bad(format!("precompiled_charsmap: {problem}")))
            }
            _ => check_charsmaps(value),
        }),
        Value::Array(values) => values.iter().try_for_each(check_charsmaps),
        _ => Ok(()),
    }
}

/// Walks all of a trie. It is a double array of 32-bit units: the bytes of its length, its units, then the texts in UTF-8.
fn check_charsmap(map: &str) -> Result<(), String> {
    let bytes = STANDARD.decode(map).map_err(|e| format!("base64: {e}"))?;
    let (size, rest) = bytes.split_first_chunk().ok_or("it is shorter than the length of its trie")?;
    let size = u32::from_le_bytes(*size) as usize / 4 * 4;
    let (trie, texts) = rest.split_at_checked(size).ok_or_else(|| format!("a trie of {size} bytes is past its end"))?;
    let texts = std::str::from_utf8(texts).map_err(|e| e.to_string())?;
    let trie: Vec<usize> = trie.as_chunks().0.iter().map(|&unit| u32::from_le_bytes(unit) as usize).collect();
    let offset = |unit: usize| (unit >> 10) << ((unit & 1 << 9) >> 6);
    let root = *trie.first().ok_or("its trie has no root")?;
    let mut nodes = vec![offset(root)];
    let mut seen = vec![false; trie.len()];
    while let Some(node) = nodes.pop() {
        // A text may go on with any byte, each of which is looked up.
        if node | 0xff >= trie.len() {
            return Err(format!("its trie leads to unit {node} of {}", trie.len()));
        }
        if std::mem::replace(&mut seen[node], true) {
            continue;
        }
        for byte in 1..=0xff {
            let (at, unit) = (node ^ byte, trie[node ^ byte]);
            if unit & (1 << 31 | 0xff) != byte {
                continue;
            }
            let next = at ^ offset(unit);
            if let (true, Some(value)) = (unit & 1 << 8 != 0, trie.get(next)) {
                let at = value & 0x7fff_ffff;
                if !texts.is_char_boundary(at) {
                    return Err(format!("its trie leads to byte {at} of {} of text", texts.len()));
                }
            }
            nodes.push(next);
        }
    }
    Ok(())
}

/// Every pattern is short, compiles, and takes a time that its text justifies.
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
    if let Err(e) = Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false) {
        return Err(bad(format!("pattern {pattern:?}: {e}")));
    }
    match too_slow(pattern) {
        Some(problem) => Err(bad(format!("pattern {pattern:?}: {problem}"))),
        None => Ok(()),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Random;

    /// A file with three letters, and other parts in place of its own.
    fn file(parts: Value) -> Vec<u8> {
        let mut file = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": null,
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u{e9}": 3, "a\u{e9}": 4}, "merges": ["a b"]},
        });
        for (name, part) in parts.as_object().expect("an object") {
            match (file[name].as_object_mut(), part) {
                (Some(object), Value::Object(fields)) => object.extend(fields.clone()),
                _ => file[name] = part.clone(),
            }
        }
        file.to_string().into_bytes()
    }

    fn refused(parts: Value, words: &str) {
        match Hf::load(&file(parts.clone()), None) {
            Ok(_) => panic!("{parts} is taken"),
            Err(error) => assert!(error.to_string().contains(words), "{error}"),
        }
    }

    /// `a` becomes `b`: a root, a node for `a`, and its text.
    fn charsmap() -> Vec<u8> {
        let mut trie = vec![0u32; 512];
        let node = 256 ^ u32::from(b'a');
        trie[0] = 256 << 10;
        trie[node as usize] = (node ^ 384) << 10 | 1 << 8 | u32::from(b'a');
        trie[384] = 1 << 31;
        let mut map = (trie.len() as u32 * 4).to_le_bytes().to_vec();
        map.extend(trie.iter().flat_map(|unit| unit.to_le_bytes()));
        map.extend(b"b\0");
        map
    }

    fn normalizer(map: &[u8]) -> Value {
        json!({ "normalizer": { "type": "Precompiled", "precompiled_charsmap": STANDARD.encode(map) } })
    }

    fn encode(loaded: &Loaded, text: &str) -> Vec<u32> {
        let special = SpecialTokens::new(&loaded.vocab).expect("none");
        loaded.model.encode(&loaded.vocab, &special, text, &[]).expect("an encoding")
    }

    #[test]
    fn what_the_crate_would_cut_unseen_is_refused() {
        let with_prefix = |prefix: &str| json!({ "model": { "continuing_subword_prefix": prefix } });
        refused(with_prefix("###"), "does not begin with");
        refused(with_prefix("a"), "does not begin with");
        // One byte of a letter of two.
        refused(
            json!({ "model": { "merges": ["a \u{e9}"], "continuing_subword_prefix": "#" } }),
            "does not begin with",
        );
        assert!(Hf::load(&file(with_prefix("")), None).is_ok());
    }

    #[test]
    fn ids_of_the_post_processor_are_tokens() {
        for id in [5u64, u64::from(u32::MAX), u64::MAX] {
            let bert = json!({ "type": "BertProcessing", "cls": ["a", 0], "sep": ["b", id] });
            refused(json!({ "post_processor": bert }), "out of range");
            let template = json!({
                "type": "TemplateProcessing", "pair": [],
                "single": [{ "SpecialToken": { "id": "x", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
                "special_tokens": { "x": { "id": "x", "ids": [id], "tokens": ["x"] } },
            });
            refused(json!({ "post_processor": { "type": "Sequence", "processors": [template] } }), "out of range");
        }
        let bert = json!({ "type": "BertProcessing", "cls": ["a", 0], "sep": ["b", 1] });
        assert!(Hf::load(&file(json!({ "post_processor": bert })), None).is_ok());
    }

    /// Whatever a charsmap holds, it is refused, or any text can be normalised with it.
    #[test]
    fn charsmaps_stay_within_themselves() {
        let sound = Hf::load(&file(normalizer(&charsmap())), None).map_err(|e| e.to_string()).expect("sound");
        assert_eq!(encode(&sound, "ab"), [1, 1]);
        refused(normalizer(&[]), "precompiled_charsmap");
        refused(normalizer(&[0xff; 8]), "past its end");
        refused(normalizer(&[0; 4]), "no root");
        let all: String = (1..=0x17fu32).filter_map(char::from_u32).collect();
        let mut rng = Random::new(11);
        let mut taken = 0;
        for _ in 0..400 {
            let mut map = charsmap();
            for _ in 0..=rng.below(3) {
                // The units that are reached, and the texts: elsewhere nothing is read.
                let spots = [4, 4 + 4 * (256 ^ usize::from(b'a')), 4 + 4 * 384, map.len() - 4];
                let at = spots[rng.below(4) as usize] + rng.below(4) as usize;
                map[at] = rng.below(256) as u8;
            }
            if let Ok(loaded) = Hf::load(&file(normalizer(&map)), None) {
                taken += 1;
                encode(&loaded, &all);
                encode(&loaded, "aaabbb");
            }
        }
        assert!((20..400).contains(&taken), "{taken} of 400");
    }
}
