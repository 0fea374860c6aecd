//! What the model read and wrote last, as text and as ids.

use super::prompt;
use crate::Result;
use crate::text::{Segment, Tokenizer};

/// The last prompt with its answer.
///
/// Encoding an answer's text again may give other ids than those that were sampled; a kept sequence would then be computed
/// again from there. So where a prompt only adds to this one and its answer, the new text alone is encoded, from a control
/// token on.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// The last prompt.
    asked: (String, Vec<u32>),
    /// The last prompt that was answered, and its answer.
    answered: (String, Vec<u32>),
    /// How much of its text is the prompt.
    asked_bytes: usize,
}

/// What a text that goes on from an answer keeps of it.
struct Kept<'a> {
    ids: &'a [u32],
    /// Their text's length in bytes.
    bytes: usize,
    /// What is kept of the answer's text beyond the ids: an id may end with whitespace that is gone.
    rest: &'a str,
}

impl Transcript {
    /// The ids of a prompt. `continued`: it is a text without control tokens, and may go on anywhere.
    pub fn encode(&self, tokenizer: &Tokenizer, segments: &[Segment], continued: bool) -> Result<Vec<u32>> {
        if let Some(kept) = self.kept(tokenizer, &text(segments)) {
            let new = tokenizer.encode_segments(&after(segments, kept.bytes))?;
            // Elsewhere than at a control token, an id could span the border; within an answer, the border was sampled.
            let at_border = match kept.rest {
                "" => continued || new.first().is_some_and(|&id| tokenizer.is_control(id)),
                rest => begins_with(tokenizer, &new, rest),
            };
            if at_border {
                return Ok([kept.ids, &new].concat());
            }
        }
        prompt::begun(tokenizer, tokenizer.encode_segments(segments)?)
    }

    /// This is asked, as it was [encoded](Transcript::encode).
    pub fn ask(&mut self, segments: &[Segment], ids: &[u32]) {
        self.ask_text(text(segments), ids.to_vec());
    }

    /// This is asked, as text and as ids.
    pub(super) fn ask_text(&mut self, text: String, ids: Vec<u32>) {
        self.asked = (text, ids);
    }

    /// The last prompt that was answered, with its answer.
    pub(super) fn answered_text(&self) -> &str {
        &self.answered.0
    }

    /// How many bytes a text has in common with the last prompt and its answer, if it goes on from both. Many templates trim
    /// the answers, so the whitespace at an answer's end may be gone.
    pub(super) fn answered_bytes(&self, text: &str) -> Option<usize> {
        let whole = self.answered.0.as_str();
        let trimmed = self.asked_bytes + whole[self.asked_bytes..].trim_end().len();
        [whole.len(), trimmed].into_iter().find(|&bytes| text.starts_with(&whole[..bytes]))
    }

    fn kept(&self, tokenizer: &Tokenizer, text: &str) -> Option<Kept<'_>> {
        let end = self.answered_bytes(text)?;
        let (whole, mut ids) = (self.answered.0.as_str(), self.answered.1.as_slice());
        let mut bytes = whole.len();
        while bytes > end {
            let (&id, before) = ids.split_last()?;
            bytes = whole.as_bytes()[..bytes].strip_suffix(tokenizer.piece(id)?)?.len();
            ids = before;
        }
        (!ids.is_empty()).then_some(Kept { ids, bytes, rest: whole.get(bytes..end)? })
    }

    /// Memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.answered.0.len() + size_of_val(&*self.answered.1)
    }

    /// This was answered: its ids, without the token that ended it, and its text.
    pub fn hear(&mut self, ids: &[u32], text: &str) {
        self.answered = std::mem::take(&mut self.asked);
        self.asked_bytes = self.answered.0.len();
        self.answered.0.push_str(text);
        self.answered.1.extend_from_slice(ids);
    }
}

/// Their text.
pub fn text(segments: &[Segment]) -> String {
    segments.iter().map(|s| s.text.as_str()).collect()
}

/// Whether the text of `ids` begins with `text`: some encodings put a space before it.
fn begins_with(tokenizer: &Tokenizer, ids: &[u32], text: &str) -> bool {
    let mut left = text.as_bytes();
    for &id in ids {
        let Some(piece) = tokenizer.piece(id) else { return false };
        match left.strip_prefix(piece) {
            Some(rest) => left = rest,
            None => return piece.starts_with(left),
        }
    }
    left.is_empty()
}

/// What of `segments` lies after the first `bytes`, which end at a character's border.
fn after(segments: &[Segment], mut bytes: usize) -> Vec<Segment> {
    let mut rest = Vec::new();
    for segment in segments {
        if bytes >= segment.text.len() {
            bytes -= segment.text.len();
            continue;
        }
        let text = segment.text.get(bytes..).unwrap_or_default().to_owned();
        rest.push(Segment { text, origin: segment.origin });
        bytes = 0;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{GgufVocab, Origin};

    /// `a`, `b`, the pair, a line's end, `b` with it; two line's ends as one; a control token.
    fn tokenizer() -> Tokenizer {
        let tokens = ["a", "b", "ab", "\u{10a}", "b\u{10a}", "\u{10a}\u{10a}", "<end>", "<unk>"];
        Tokenizer::from_gguf(GgufVocab {
            model: "gpt2",
            pre: Some("gpt-2"),
            tokens: tokens.iter().map(|t| t.as_bytes()).collect(),
            types: Some(vec![1, 1, 1, 1, 1, 1, 3, 2]),
            merges: Some(vec![b"a b"]),
            unk: Some(7),
            ..GgufVocab::default()
        })
        .unwrap()
    }

    fn segments(texts: &[&str]) -> Vec<Segment> {
        let origin = |text: &str| if text.starts_with('<') { Origin::Template } else { Origin::User };
        texts.iter().map(|text| Segment { text: (*text).to_owned(), origin: origin(text) }).collect()
    }

    #[test]
    fn an_answer_that_a_template_trims_keeps_its_ids() {
        let tokenizer = tokenizer();
        // What was sampled after "a<end>", and what of it the next prompt repeats: its ids where they can be kept.
        let cases: &[(&[u32], &str, &str, &[u32])] = &[
            (&[0, 1, 3], "ab\n", "ab\n", &[0, 1, 3]),
            (&[0, 1, 3], "ab\n", "ab", &[0, 1]),
            (&[0, 1, 5, 3], "ab\n\n\n", "ab", &[0, 1]),
            (&[0, 1, 0, 4], "abab\n", "abab", &[0, 1, 0, 1]),
            (&[0, 4, 3, 3, 0, 1], "ab\n\n\nab", "ab\n\n\nab", &[0, 4, 3, 3, 0, 1]),
            // Another text is encoded anew: the pair is one token.
            (&[0, 1, 5], "ab\n\n", "ab\n", &[2, 3]),
            (&[0, 1], "ab", "aba", &[2, 0]),
            (&[5], "\n\n", "", &[]),
            // Ids that are not the text's.
            (&[0, 1, 0], "ab\n", "ab", &[2]),
        ];
        for (ids, answer, repeated, expected) in cases {
            let mut transcript = Transcript::default();
            let first = segments(&["a", "<end>"]);
            let asked = transcript.encode(&tokenizer, &first, false).unwrap();
            transcript.ask(&first, &asked);
            transcript.hear(ids, answer);
            let next = segments(&["a", "<end>", repeated, "<end>", "b", "<end>"]);
            let got = transcript.encode(&tokenizer, &next, false).unwrap();
            assert_eq!(got, [&[0, 6], *expected, &[6, 1, 6]].concat(), "{answer:?} as {repeated:?}");
        }
    }
}
