//! BERT's WordPiece: a text is lower-cased and split at spaces and punctuation, then each word is split into the longest
//! pieces of the vocabulary.
//!
//! GGUF marks the pieces that begin a word with `▁` and leaves the others bare.

use regex::Regex;
use unicode_normalization::UnicodeNormalization;

use super::spm::SPACE;
use super::vocab::{Vocab, malformed};
use crate::Result;

/// A longer word is unknown, as in BERT.
const MAX_WORD_CHARS: usize = 100;

/// The word part of a BERT tokenizer.
#[derive(Debug)]
pub(crate) struct WordPiece {
    unk: u32,
    dropped: Regex,     // accents and control characters
    punctuation: Regex, // a word of its own
}

impl WordPiece {
    /// `unk` stands for words that cannot be spelled.
    pub(crate) fn new(unk: Option<u32>) -> Result<Self> {
        let unk = unk.ok_or_else(|| malformed("a WordPiece vocabulary needs unknown_token_id"))?;
        let compile = |pattern| Regex::new(pattern).map_err(|e| malformed(format!("{pattern}: {e}")));
        Ok(Self {
            unk,
            dropped: compile(r"^[\p{Mn}\p{Cc}\p{Cf}\x{FFFD}]$")?,
            punctuation: compile(
                r"(?x)^[\p{P} !-/ :-@ \[-` \{-~
                \x{4E00}-\x{9FFF} \x{3400}-\x{4DBF} \x{20000}-\x{2A6DF} \x{2A700}-\x{2B73F} \x{2B740}-\x{2B81F}
                \x{2B920}-\x{2CEAF} \x{F900}-\x{FAFF} \x{2F800}-\x{2FA1F}]$",
            )?,
        })
    }

    /// Appends the ids of `text`.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let mut word = String::new();
        let mut buffer = [0; 4];
        for c in text.nfd() {
            if c.is_whitespace() {
                self.encode_word(vocab, &mut word, out);
                continue;
            }
            let one = &*c.encode_utf8(&mut buffer);
            if self.dropped.is_match(one) {
                continue;
            }
            if self.punctuation.is_match(one) {
                self.encode_word(vocab, &mut word, out);
                word.extend(c.to_lowercase());
                self.encode_word(vocab, &mut word, out);
            } else {
                word.extend(c.to_lowercase());
            }
        }
        self.encode_word(vocab, &mut word, out);
    }

    /// Appends the ids of `word` and empties it.
    fn encode_word(&self, vocab: &Vocab, word: &mut String, out: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let marked = format!("{SPACE}{}", std::mem::take(word));
        let before = out.len();
        let mut rest = marked.as_str();
        while !rest.is_empty() && marked.chars().count() <= MAX_WORD_CHARS + 1 {
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            let longest = ends
                .map(|end| rest.split_at(end))
                .find_map(|(piece, tail)| Some((vocab.find(piece.as_bytes())?, tail)));
            let Some((id, tail)) = longest else { break };
            out.push(id);
            rest = tail;
        }
        if !rest.is_empty() {
            out.truncate(before);
            out.push(self.unk);
        }
    }
}
