//! Many conversations' last answers, found by their text.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Transcript;
use crate::text::Segment;

/// Prompts with their answers, for callers who send a whole conversation each time: a server's. A prompt that goes on from one
/// of them has its ids as they were sampled ([`Transcript`]).
#[derive(Debug)]
pub struct Answers {
    /// The last one used last.
    kept: VecDeque<Kept>,
    bytes: usize,
    most: usize,
}

#[derive(Debug)]
struct Kept {
    /// Whose it is: nobody else is answered from it.
    salt: Option<Arc<[u8]>>,
    transcript: Arc<Transcript>,
    bytes: usize,
}

/// Conversations at most: each is compared with each new prompt.
const MOST: usize = 512;

impl Answers {
    /// Keeps so many bytes of text and ids at most.
    pub fn new(most: usize) -> Self {
        Self { kept: VecDeque::new(), bytes: 0, most }
    }

    /// The longest conversation that a prompt goes on from, if there is one; its [`Transcript::encode`] gives the prompt's ids.
    pub fn find(&mut self, segments: &[Segment], salt: Option<&[u8]>) -> Option<Arc<Transcript>> {
        let text = super::transcript::text(segments);
        let continued = |(at, kept): (usize, &Kept)| {
            let bytes = kept.transcript.answered_bytes(&text)?;
            (kept.salt.as_deref() == salt).then_some((bytes, at))
        };
        let (_, at) = self.kept.iter().enumerate().filter_map(continued).max()?;
        let kept = self.kept.remove(at)?;
        let transcript = Arc::clone(&kept.transcript);
        self.kept.push_back(kept);
        Some(transcript)
    }

    /// Keeps a prompt, as text and ids, with its answer: its ids, without the token that ended it, and its text.
    pub fn keep(&mut self, asked: (String, Vec<u32>), ids: &[u32], text: &str, salt: Option<Arc<[u8]>>) {
        let mut transcript = Transcript::default();
        transcript.ask_text(asked.0, asked.1);
        transcript.hear(ids, text);
        let bytes = transcript.bytes();
        if ids.is_empty() || bytes > self.most {
            return;
        }
        self.kept.retain(|kept| {
            let same = kept.salt == salt && kept.transcript.answered_text() == transcript.answered_text();
            self.bytes -= if same { kept.bytes } else { 0 };
            !same
        });
        self.bytes += bytes;
        self.kept.push_back(Kept { salt, transcript: Arc::new(transcript), bytes });
        while self.bytes > self.most || self.kept.len() > MOST {
            self.bytes -= self.kept.pop_front().map_or(0, |kept| kept.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{GgufVocab, Origin, Tokenizer};

    /// Letters a and b, and the pair; control tokens `<s>` and `</s>`.
    fn tokenizer() -> Tokenizer {
        let tokens = ["<unk>", "<s>", "</s>", "\u{2581}", "a", "b", "ab"];
        Tokenizer::from_gguf(GgufVocab {
            model: "llama",
            tokens: tokens.iter().map(|t| t.as_bytes()).collect(),
            scores: Some(vec![0.0, 0.0, 0.0, -3.0, -2.0, -2.0, -1.0]),
            types: Some(vec![2, 3, 3, 1, 1, 1, 1]),
            bos: Some(1),
            eos: Some(2),
            unk: Some(0),
            ..GgufVocab::default()
        })
        .unwrap()
    }

    fn segments(texts: &[&str]) -> Vec<Segment> {
        let control = |text: &str| text.starts_with('<');
        let origin = |text: &str| if control(text) { Origin::Template } else { Origin::User };
        texts.iter().map(|text| Segment { text: (*text).to_owned(), origin: origin(text) }).collect()
    }

    #[test]
    fn many_conversations_go_on_as_they_were_sampled() {
        let tokenizer = tokenizer();
        let mut answers = Answers::new(1 << 16);
        let salt: Option<Arc<[u8]>> = Some(Arc::from(*b"key"));
        let encode = |answers: &mut Answers, segments: &[Segment], salt: Option<&[u8]>| {
            let found = answers.find(segments, salt).unwrap_or_default();
            found.encode(&tokenizer, segments, false).unwrap()
        };
        for question in ["a", "b", "ba"] {
            let first = segments(&[question, "</s>"]);
            let ids = encode(&mut answers, &first, salt.as_deref());
            // As one token it would be 6.
            answers.keep((format!("{question}</s>"), ids), &[4, 5], "ab", salt.clone());
        }
        for question in ["b", "a", "ba"] {
            let second = segments(&[question, "</s>", "ab", "</s>", "b", "</s>"]);
            let pair = |ids: &[u32]| ids.windows(2).any(|pair| pair == [4, 5]);
            assert!(pair(&encode(&mut answers, &second, salt.as_deref())), "{question}");
            let others = encode(&mut answers, &second, None);
            assert!(!pair(&others), "another's answer: {others:?}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut answers = Answers::new(1000);
        for i in 0..2000u32 {
            answers.keep((format!("{i}"), vec![i]), &[4], "a", None);
            assert!(answers.bytes <= 1000);
            assert_eq!(answers.bytes, answers.kept.iter().map(|kept| kept.bytes).sum::<usize>());
        }
        answers.keep(("x".repeat(2000), vec![1]), &[4], "a", None);
        answers.keep(("1999".to_owned(), vec![1]), &[4], "a", None);
        let texts: Vec<&str> = answers.kept.iter().map(|kept| kept.transcript.answered_text()).collect();
        assert_eq!(texts.iter().filter(|text| **text == "1999a").count(), 1);
        assert!(!texts.iter().any(|text| text.starts_with('x')));
    }
}
