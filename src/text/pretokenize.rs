//! How byte-level BPE splits a text into words before merging: one or several patterns, by the name in
//! `tokenizer.ggml.pre`.
//!
//! The published patterns use a look-ahead in one place, `\s+(?!\S)`: a run of spaces leaves its last one to the next
//! word. The `regex` crate has no look-ahead, but runs in linear time on any text; so the patterns here say `\s+`
//! and [`Stage::give_back`] shortens such a match by its last character.

use std::ops::Range;

use regex::Regex;

use crate::{Error, Result};

/// A named chain of patterns.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    stages: Vec<Stage>,
    whole_words: bool,
}

/// One pattern. Its matches and the text between them become the words that the next stage splits further.
#[derive(Debug)]
struct Stage {
    pattern: Regex,
    give_back: bool,         // it ends in `\s+(?!\S)|\s+`
    whole_line_breaks: bool, // before that it has `\s*[\r\n]+`, whose matches stay whole
}

/// GPT-2's pattern.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
/// The contractions of cl100k and its descendants.
const CONTRACTION: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
/// The end that all of cl100k's descendants share.
const SPACES: &str = r"\s*[\r\n]+|\s+";
/// Chinese, Yi, Hangul and the ranges between, as DeepSeek splits them.
const CJK: &str = "[一-龥ࠀ-一가-퟿]+";
/// Words of o200k and tekken, which begin or end a word where the case changes.
const CASED: [&str; 2] = [
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
];

/// The names of the pre-tokenizers, one for each way to split, the most used first.
pub(crate) const PRE_TOKENIZERS: &[&str] = &[
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "smollm",
    "gpt-4o",
    "tekken",
    "deepseek-v3",
    "deepseek-llm",
    "deepseek-coder",
    "qwen35",
    "falcon",
    "bloom",
    "viking",
    "default",
];

impl PreTokenizer {
    /// The pre-tokenizer `name`, as llama.cpp names it; `None` is `default`.
    pub(crate) fn new(name: Option<&str>) -> Result<Self> {
        let cl100k = |digits: &str| {
            format!(r"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}")
        };
        let cased = |suffix: &str, digits: &str| {
            let [a, b] = CASED;
            format!(r"{a}{suffix}|{b}{suffix}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}")
        };
        let name = name.unwrap_or("default");
        let patterns: Vec<String> = match name {
            "default" => {
                vec![r"[\p{P}\$\+<=>\^~\|]+".into(), GPT2.into(), r"\p{N}+".into(), "[0-9][0-9][0-9]".into()]
            }
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "jina-v1-en" | "jina-v2-es" | "jina-v2-de" | "a.x-4.0"
            | "mellum" | "gigachat" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "exaone4"
            | "roberta-bpe" | "modern-bert" => vec![GPT2.into()],
            "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b" => {
                vec![r"\p{N}".into(), GPT2.into()]
            }
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
            | "dbrx" | "smaug-bpe" | "chatglm-bpe" | "glm4" => vec![cl100k(r"\p{N}{1,3}")],
            "qwen2" | "stablelm2" | "deepseek-r1-qwen" | "megrez" | "hunyuan" | "solar-open" => {
                vec![cl100k(r"\p{N}")]
            }
            "qwen35" => vec![format!(
                r"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
            )],
            "gpt-4o" | "llama4" | "kanana2" => {
                vec![cased("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}")]
            }
            "tekken" => vec![cased("", r"\p{N}")],
            "deepseek-llm" => vec![
                r"[\r\n]".into(),
                r"\s?[[\p{Lu}\p{Ll}\p{Lt}]--[ა-ჿ]]+".into(),
                r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+".into(),
                r"\s+$".into(),
                CJK.into(),
                r"\p{N}+".into(),
            ],
            "deepseek-coder" => {
                vec![r"[\r\n]".into(), r"\s?\p{L}+".into(), r"\s?\p{P}+".into(), CJK.into(), r"\p{N}".into()]
            }
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => vec![
                r"\p{N}{1,3}".into(),
                "[一-龥\u{3040}-ゟ゠-ヿ]+".into(),
                format!(
                    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{{|}}~][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"##
                ),
            ],
            "falcon" => vec![r"[\p{P}\$\+<=>\^~\|`]+".into(), GPT2.into(), "[0-9][0-9][0-9]".into()],
            "bloom" | "poro-chat" | "gpt3-finnish" => vec![r" ?[^(\s|.,!?…。，、।۔،)]+".into()],
            "viking" => vec![r" ?[^(\s|.,!?…。，、।۔،)]+".into(), r"\p{N}".into()],
            _ => {
                return Err(Error::unsupported(
                    format!("pre-tokenizer {name:?} (tokenizer.ggml.pre)"),
                    "known are default, gpt-2, llama-bpe, qwen2, qwen35, deepseek-llm, deepseek-v3, gpt-4o, tekken, \
                     starcoder, smollm, falcon and their relatives; a tokenizer.json beside the model works too",
                ));
            }
        };
        let stages = patterns.iter().map(|pattern| {
            let compiled = Regex::new(pattern)
                .map_err(|e| Error::unsupported(format!("pre-tokenizer {name:?}: pattern {e}"), "report this"))?;
            Ok(Stage {
                pattern: compiled,
                give_back: pattern.ends_with(r"|\s+"),
                whole_line_breaks: pattern.ends_with(SPACES),
            })
        });
        // Vocabularies made by tiktoken: a word that is a token is that token, whatever the merges say.
        let whole_words = matches!(
            name,
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" | "tekken"
        );
        Ok(Self { stages: stages.collect::<Result<_>>()?, whole_words })
    }

    /// Whether a word that is a token is taken whole, before any merge.
    pub(crate) fn whole_words(&self) -> bool {
        self.whole_words
    }

    /// The words of `text`, in order and without gaps.
    pub(crate) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let mut words: Vec<Range<usize>> = std::iter::once(0..text.len()).filter(|word| !word.is_empty()).collect();
        for stage in &self.stages {
            let mut finer = Vec::with_capacity(words.len());
            for word in words {
                stage.split(text.get(word.clone()).unwrap_or_default(), word.start, &mut finer);
            }
            words = finer;
        }
        words
    }
}

impl Stage {
    /// Appends the words of `text`, which begins at byte `offset` of the whole.
    fn split(&self, text: &str, offset: usize, words: &mut Vec<Range<usize>>) {
        let mut at = 0;
        while let Some(found) = self.pattern.find_at(text, at) {
            let end = self.end(text, found.range());
            if at < found.start() {
                words.push(offset + at..offset + found.start());
            }
            if end <= found.start() {
                break; // no pattern here matches the empty text
            }
            words.push(offset + found.start()..offset + end);
            at = end;
        }
        if at < text.len() {
            words.push(offset + at..offset + text.len());
        }
    }

    /// `\s+(?!\S)|\s+`: a match of two or more spaces leaves the last one to the next word, unless the text ends.
    fn end(&self, text: &str, found: Range<usize>) -> usize {
        let matched = text.get(found.clone()).unwrap_or_default();
        let Some(last) = matched.chars().next_back() else { return found.end };
        let line_break = self.whole_line_breaks && matches!(last, '\r' | '\n');
        let shorter = found.end - last.len_utf8();
        let gives = self.give_back && !line_break && found.end < text.len() && shorter > found.start;
        if gives && matched.chars().all(char::is_whitespace) { shorter } else { found.end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        PreTokenizer::new(Some(name)).unwrap().split(text).into_iter().map(|r| &text[r]).collect()
    }

    #[test]
    fn spaces_go_to_the_next_word() {
        assert_eq!(words("gpt-2", "a   b\n\n\nc  "), ["a", "  ", " b", "\n\n", "\n", "c", "  "]);
        assert_eq!(words("llama-bpe", "a   b\n\n\nc  "), ["a", "  ", " b", "\n\n\n", "c", "  "]);
        assert_eq!(words("llama-bpe", "x \n  1234567"), ["x", " \n", " ", " ", "123", "456", "7"]);
        assert_eq!(words("qwen2", "I'LL 12"), ["I", "'LL", " ", "1", "2"]);
        assert_eq!(words("gpt-4o", "camelCase"), ["camel", "Case"]);
    }

    #[test]
    fn every_name_compiles_and_loses_nothing() {
        let text = "Hello, wörld!! 中文 かな 12345 'tis\r\n\t  x\u{85}y\u{3000}。 🦀 ABCdef's";
        for name in PRE_TOKENIZERS {
            assert_eq!(words(name, text).concat(), text, "{name}");
        }
        assert!(PreTokenizer::new(Some("no-such")).unwrap_err().to_string().contains("no-such"));
    }
}
