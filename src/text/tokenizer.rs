//! One tokenizer type over all kinds: SentencePiece-style and byte-level BPE and WordPiece from GGUF metadata, and
//! whatever a tokenizer.json describes.

use std::collections::HashSet;
use std::ops::Range;

use super::bpe::{Alphabet, Bpe};
use super::hf::Hf;
use super::pretokenize::PreTokenizer;
use super::special::{SpecialTokens, TextOrToken};
use super::spm::{SPACE, Spm, byte_ids};
use super::vocab::{Kind, MAX_TOKENS, Vocab, byte_token, malformed};
use super::wordpiece::WordPiece;
use crate::{Error, Result};

/// What to do with the text of a control token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// It is text like any other: right for everything that a user wrote.
    Plain,
    /// It becomes the control token: right for what a template or a programmer wrote.
    Parse,
}

/// Who wrote a piece of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The chat template, that is, the model's maker: control strings become control tokens.
    Template,
    /// A user, a tool, a document: control strings stay text.
    User,
}

/// A piece of a prompt and who wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The text.
    pub text: String,
    /// Who wrote it.
    pub origin: Origin,
}

/// A vocabulary as GGUF metadata gives it; the keys begin with `tokenizer.ggml.`. Nothing here has been checked.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab<'a> {
    /// `model`: `llama`, `gpt2` or `bert`.
    pub model: &'a str,
    /// `pre`: how byte-level BPE cuts a text into words.
    pub pre: Option<&'a str>,
    /// `tokens`, in the order of their ids.
    pub tokens: Vec<&'a [u8]>,
    /// `scores`, one a token.
    pub scores: Option<Vec<f32>>,
    /// `token_type`, one a token, 1 to 6.
    pub types: Option<Vec<i32>>,
    /// `merges`, earliest first.
    pub merges: Option<Vec<&'a [u8]>>,
    /// `bos_token_id`
    pub bos: Option<i64>,
    /// `eos_token_id`
    pub eos: Option<i64>,
    /// `eot_token_id`
    pub eot: Option<i64>,
    /// `eom_token_id`
    pub eom: Option<i64>,
    /// `unknown_token_id`
    pub unk: Option<i64>,
    /// `padding_token_id`
    pub pad: Option<i64>,
    /// `seperator_token_id` (spelled so)
    pub sep: Option<i64>,
    /// `cls_token_id`
    pub cls: Option<i64>,
    /// `mask_token_id`
    pub mask: Option<i64>,
    /// `add_bos_token`
    pub add_bos: Option<bool>,
    /// `add_eos_token`
    pub add_eos: Option<bool>,
    /// `add_space_prefix`
    pub add_space_prefix: Option<bool>,
    /// `remove_extra_whitespaces`
    pub remove_extra_whitespaces: Option<bool>,
    /// Rows of the embedding, where it is known: there must be as many tokens.
    pub rows: Option<u64>,
}

/// Text to token ids and back.
///
/// ```
/// use wgslm::text::{GgufVocab, Special, Tokenizer};
/// let tokens: [&[u8]; 5] = [b"a", b"b", b"ab", b"<unk>", b"<end>"];
/// let tokenizer = Tokenizer::from_gguf(GgufVocab {
///     model: "gpt2",
///     pre: Some("gpt-2"),
///     tokens: tokens.to_vec(),
///     types: Some(vec![1, 1, 1, 2, 3]),
///     merges: Some(vec![b"a b"]),
///     unk: Some(3),
///     ..GgufVocab::default()
/// })?;
/// assert_eq!(tokenizer.encode("aba<end>", Special::Parse)?, [2, 0, 4]);
/// assert!(!tokenizer.encode("aba<end>", Special::Plain)?.contains(&4));
/// # Ok::<(), wgslm::Error>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    special: SpecialTokens,
    model: Model,
    bos: Option<u32>,
    eos: Option<u32>,
    eog: Vec<u32>, // ascending
    add_bos: bool,
    add_eos: bool,
    frame: (Option<u32>, Option<u32>),
    strip: Strip,
}

/// Where decoding drops a space that encoding has put before the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strip {
    Nowhere,
    Start,
    StartAndAfterSpecial,
}

#[derive(Debug)]
enum Model {
    Spm(Spm),
    Bpe(Bpe),
    WordPiece(WordPiece),
    Hf(Box<Hf>),
}

/// Texts of tokens that end a generation, whatever the metadata says: the makers' spellings of end of turn, of message
/// and of text.
const END_NAMES: [&str; 20] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|eot|>",
    "<|eom|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "< EOT >",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<|END_OF_TURN_TOKEN|>",
];

impl Tokenizer {
    /// The tokenizer that GGUF metadata describes. Everything in it is checked.
    pub fn from_gguf(spec: GgufVocab<'_>) -> Result<Self> {
        let n = spec.tokens.len();
        if n == 0 || n > MAX_TOKENS {
            return Err(malformed(format!("the vocabulary has {n} tokens; there must be 1 to {MAX_TOKENS}")));
        }
        if let Some(rows) = spec.rows.filter(|&rows| rows != n as u64) {
            return Err(malformed(format!("the vocabulary has {n} tokens, but the embedding {rows} rows")));
        }
        let id = |name: &str, id: Option<i64>| match id {
            None => Ok(None),
            Some(id) => u32::try_from(id).ok().filter(|&id| (id as usize) < n).map(Some).ok_or_else(|| {
                malformed(format!("{name}_token_id {id} is out of range: the vocabulary has {n} tokens"))
            }),
        };
        let (bos, eos, unk) = (id("bos", spec.bos)?, id("eos", spec.eos)?, id("unknown", spec.unk)?);
        let (eot, eom, pad) = (id("eot", spec.eot)?, id("eom", spec.eom)?, id("padding", spec.pad)?);
        let (sep, cls, mask) = (id("seperator", spec.sep)?, id("cls", spec.cls)?, id("mask", spec.mask)?);
        let texts = texts(&spec.tokens)?;
        let mut kinds = kinds(&spec)?;
        let eog = end_ids(texts.iter().copied().zip(0..), [eos, eot, eom]);
        for &id in eog.iter().chain([bos, pad, sep, cls, mask].iter().flatten()) {
            set_kind(&mut kinds, id, Kind::Control);
        }
        // Text may become the unknown token, so it is no control token. One that begins or ends texts as well is not made from
        // text: where nothing else spells it, encoding fails.
        let unk = unk.filter(|unk| Some(*unk) != bos && !eog.contains(unk));
        if let Some(unk) = unk {
            set_kind(&mut kinds, unk, Kind::Unknown);
        }

        let space_prefix = spec.model == "llama" && spec.add_space_prefix.unwrap_or(true);
        let vocab = match spec.model {
            "llama" | "bert" => spm_vocab(&texts, &kinds)?,
            "gpt2" => bpe_vocab(&texts, &kinds)?,
            model => {
                return Err(Error::unsupported(
                    format!("tokenizer model {model:?} (tokenizer.ggml.model)"),
                    "known are llama, gpt2 and bert",
                ));
            }
        };
        let mut whole_words = false;
        let model = match spec.model {
            "llama" => {
                let collapse = spec.remove_extra_whitespaces.unwrap_or(false);
                let bytes = byte_ids(&vocab);
                Model::Spm(Spm::new(scores(spec.scores, n)?, bytes, unk, space_prefix, collapse))
            }
            "gpt2" => {
                let merges = spec.merges.ok_or_else(|| malformed("byte-level BPE needs merges"))?;
                let pre = PreTokenizer::new(spec.pre)?;
                whole_words = pre.whole_words();
                Model::Bpe(Bpe::new(&vocab, &merges, pre, unk)?)
            }
            _ => Model::WordPiece(WordPiece::new(unk)?),
        };
        let bert = spec.model == "bert";
        let (bos, eos) = if bert { (cls.or(bos), sep.or(eos)) } else { (bos, eos) };
        // The default without a key: SentencePiece, BERT and tiktoken-made vocabularies begin texts with BOS.
        let add_bos = spec.add_bos.unwrap_or(spec.model != "gpt2" || whole_words);
        let add_eos = spec.add_eos.unwrap_or(bert);
        Ok(Self {
            special: SpecialTokens::new(&vocab)?,
            vocab,
            model,
            bos,
            eos,
            eog,
            add_bos,
            add_eos,
            frame: (bos.filter(|_| add_bos), eos.filter(|_| add_eos)),
            strip: match (space_prefix, bert) {
                (true, _) => Strip::StartAndAfterSpecial,
                (_, true) => Strip::Start,
                _ => Strip::Nowhere,
            },
        })
    }

    /// The tokenizer of a model folder: `tokenizer.json`, and `tokenizer_config.json` for BOS and EOS.
    pub fn from_json(tokenizer_json: &[u8], tokenizer_config: Option<&[u8]>) -> Result<Self> {
        let parts = Hf::load(tokenizer_json, tokenizer_config)?;
        Ok(Self {
            special: SpecialTokens::new(&parts.vocab)?,
            vocab: parts.vocab,
            model: Model::Hf(Box::new(parts.model)),
            bos: parts.bos,
            eos: parts.eos,
            eog: parts.eog,
            add_bos: parts.add_bos,
            add_eos: parts.add_eos,
            frame: parts.frame,
            strip: parts.strip,
        })
    }

    /// The ids of `text`; no BOS or EOS is added.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        let whole = 0..text.len();
        match special {
            Special::Plain => self.encode_trusting(text, &[]),
            Special::Parse => self.encode_trusting(text, std::slice::from_ref(&whole)),
        }
    }

    /// The ids of a prompt. Control tokens come from [`Origin::Template`] alone, and none spans a border to
    /// [`Origin::User`]; apart from that the text is encoded as if it were one piece.
    pub fn encode_segments(&self, segments: &[Segment]) -> Result<Vec<u32>> {
        let mut text = String::with_capacity(segments.iter().map(|segment| segment.text.len()).sum());
        let mut trusted: Vec<Range<usize>> = Vec::new();
        for segment in segments {
            let start = text.len();
            text.push_str(&segment.text);
            match (segment.origin, trusted.last_mut()) {
                (Origin::Template, Some(last)) if last.end == start => last.end = text.len(),
                (Origin::Template, _) => trusted.push(start..text.len()),
                (Origin::User, _) => {}
            }
        }
        self.encode_trusting(&text, &trusted)
    }

    /// Encodes `text`, taking control tokens from the `trusted` ranges (ascending, not touching) alone.
    fn encode_trusting(&self, text: &str, trusted: &[Range<usize>]) -> Result<Vec<u32>> {
        if let Model::Hf(model) = &self.model {
            return model.encode(&self.vocab, &self.special, text, trusted);
        }
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        for part in self.special.split(text, trusted) {
            let range = match part {
                TextOrToken::Token(id) => {
                    ids.push(id);
                    continue;
                }
                TextOrToken::Text(range) => range,
            };
            let text = text.get(range).ok_or_else(|| malformed("a special token cuts a character in two"))?;
            match &self.model {
                Model::Spm(model) => model.encode(&self.vocab, text, &mut ids)?,
                Model::Bpe(model) => model.encode(&self.vocab, text, &mut ids)?,
                Model::WordPiece(model) => model.encode(&self.vocab, text, &mut ids),
                Model::Hf(_) => {}
            }
        }
        Ok(ids)
    }

    /// How many ids there are: they run from 0.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The token that begins a text (BERT: `[CLS]`).
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text (BERT: `[SEP]`).
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Every token that ends a generation, ascending: end of text, of turn, of message.
    pub fn eog(&self) -> &[u32] {
        &self.eog
    }

    /// Whether `id` ends a generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog.binary_search(&id).is_ok()
    }

    /// Whether the model expects BOS before a text.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether the model expects EOS after a text.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// The tokens that stand before and after a text that is read whole, not continued: BERT's `[CLS]` and `[SEP]`.
    pub fn frame(&self) -> (Option<u32>, Option<u32>) {
        self.frame
    }

    /// The bytes of a token, a control token's text included; not always valid UTF-8. None past the vocabulary.
    pub fn piece(&self, id: u32) -> Option<&[u8]> {
        self.vocab.piece(id)
    }

    /// Whether `id` structures a text and must not be shown or made from a user's text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(Kind::Control)
    }

    /// The texts of all control tokens.
    pub fn control_texts(&self) -> impl Iterator<Item = &str> {
        let controls = self.vocab.iter().filter(|&(_, _, kind)| kind == Kind::Control);
        controls.filter_map(|(_, piece, _)| std::str::from_utf8(piece).ok())
    }

    /// Whether a text loses the space that it begins with.
    pub(super) fn strips_start(&self) -> bool {
        self.strip != Strip::Nowhere
    }

    /// What a token adds to a text. `strip` says whether the text loses the next space, and is set for the token after.
    pub(super) fn shown(&self, id: u32, skip_special: bool, strip: &mut bool) -> &[u8] {
        let (Some(piece), Some(kind)) = (self.piece(id), self.vocab.kind(id)) else { return &[] };
        if matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown) {
            *strip = self.strip == Strip::StartAndAfterSpecial;
            return if skip_special && kind != Kind::UserDefined { &[] } else { piece };
        }
        match std::mem::take(strip) {
            true => piece.strip_prefix(b" ").unwrap_or(piece),
            false => piece,
        }
    }

    /// The text of `ids`, invalid bytes as U+FFFD. A space that encoding puts before a text is dropped again.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::new();
        let mut strip = self.strips_start();
        for &id in ids {
            bytes.extend_from_slice(self.shown(id, skip_special, &mut strip));
        }
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }
}

/// The tokens as text.
fn texts<'a>(tokens: &[&'a [u8]]) -> Result<Vec<&'a str>> {
    let text = |(id, token): (usize, &&'a [u8])| {
        std::str::from_utf8(token).map_err(|_| malformed(format!("token {id} is not valid UTF-8")))
    };
    tokens.iter().enumerate().map(text).collect()
}

/// The kinds of all tokens; all are normal where the file does not say.
fn kinds(spec: &GgufVocab<'_>) -> Result<Vec<Kind>> {
    let n = spec.tokens.len();
    let Some(types) = &spec.types else { return Ok(vec![Kind::Normal; n]) };
    if types.len() != n {
        return Err(malformed(format!("{} token types for {n} tokens", types.len())));
    }
    let kind = |(id, &number): (usize, &i32)| {
        let kind = Kind::from_gguf(number.into());
        kind.ok_or_else(|| malformed(format!("token {id} has type {number}; types are 1 to 6")))
    };
    types.iter().enumerate().map(kind).collect()
}

/// One finite score a token.
fn scores(scores: Option<Vec<f32>>, n: usize) -> Result<Vec<f32>> {
    let scores = scores.ok_or_else(|| malformed("a llama vocabulary needs scores"))?;
    if scores.len() != n {
        return Err(malformed(format!("{} scores for {n} tokens", scores.len())));
    }
    match scores.iter().position(|score| !score.is_finite()) {
        Some(id) => Err(malformed(format!("the score of token {id} is not finite"))),
        None => Ok(scores),
    }
}

fn set_kind(kinds: &mut [Kind], id: u32, kind: Kind) {
    if let Some(slot) = kinds.get_mut(id as usize) {
        *slot = kind;
    }
}

/// The tokens that end a generation: those named by the file and those known by their text; ascending.
pub(crate) fn end_ids<'a>(
    texts: impl Iterator<Item = (&'a str, u32)>,
    named: impl IntoIterator<Item = Option<u32>>,
) -> Vec<u32> {
    let names = HashSet::from(END_NAMES);
    let mut harmony = [None; 3]; // <|return|>, <|call|>, <|end|>
    let mut ids: Vec<u32> = named.into_iter().flatten().collect();
    for (text, id) in texts.filter(|(text, _)| names.contains(text)) {
        for (slot, name) in harmony.iter_mut().zip(["<|return|>", "<|call|>", "<|end|>"]) {
            if text == name {
                *slot = Some(id);
            }
        }
        ids.push(id);
    }
    // In the harmony format <|end|> ends a message, and the answer may go on with the next.
    if let [Some(_), Some(_), Some(end)] = harmony {
        ids.retain(|&id| id != end);
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Tokens whose spaces are written `▁`, and whose byte tokens are written `<0x41>`.
fn spm_vocab(texts: &[&str], kinds: &[Kind]) -> Result<Vocab> {
    let mut vocab = Vocab::default();
    for (id, (&text, &kind)) in texts.iter().zip(kinds).enumerate() {
        match kind {
            Kind::Byte => {
                let byte = byte_token(text.as_bytes())
                    .ok_or_else(|| malformed(format!("byte token {id} is {text:?}, not <0x00> to <0xFF>")))?;
                vocab.push(&[byte], kind, None)?;
            }
            Kind::Normal | Kind::UserDefined => {
                vocab.push(text.replace(SPACE, " ").as_bytes(), kind, Some(text.as_bytes()))?;
            }
            Kind::Control | Kind::Unknown | Kind::Unused => vocab.push(text.as_bytes(), kind, None)?,
        }
    }
    Ok(vocab)
}

/// Tokens written in GPT-2's byte alphabet, but for those that are found by their text.
fn bpe_vocab(texts: &[&str], kinds: &[Kind]) -> Result<Vocab> {
    let alphabet = Alphabet::new();
    let mut vocab = Vocab::default();
    for (&text, &kind) in texts.iter().zip(kinds) {
        match alphabet.decode(text).filter(|_| matches!(kind, Kind::Normal | Kind::Byte)) {
            Some(bytes) => vocab.push(&bytes, kind, Some(&bytes))?,
            None if kind == Kind::UserDefined => vocab.push(text.as_bytes(), kind, Some(text.as_bytes()))?,
            None => vocab.push(text.as_bytes(), kind, None)?, // no text can spell it
        }
    }
    Ok(vocab)
}
