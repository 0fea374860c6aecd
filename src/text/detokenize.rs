//! Generated ids to text, piece by piece.

use std::ops::Deref;

use super::stream::Utf8Stream;
use super::tokenizer::Tokenizer;

/// Turns ids that arrive one by one into text that can be shown at once. Control tokens are not shown.
///
/// The pieces together are what [`Tokenizer::decode`] gives for all ids, less what it gives for the prompt.
#[derive(Clone, Debug)]
pub struct TextStream<T> {
    tokenizer: T,
    utf8: Utf8Stream,
    /// The next piece loses its space.
    strip: bool,
}

impl<T: Deref<Target = Tokenizer>> TextStream<T> {
    /// The continuation of a prompt, with a tokenizer that is borrowed or shared.
    pub fn after(tokenizer: T, prompt: &[u32]) -> Self {
        let mut strip = tokenizer.strips_start();
        for &id in prompt {
            tokenizer.shown(id, true, &mut strip);
        }
        Self { tokenizer, utf8: Utf8Stream::new(), strip }
    }

    /// Adds a token, returns the text that is now certain.
    pub fn push(&mut self, id: u32) -> String {
        self.utf8.push(self.tokenizer.shown(id, true, &mut self.strip))
    }

    /// The end: bytes of a character that never came.
    pub fn finish(&mut self) -> String {
        self.utf8.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use crate::text::GgufVocab;

    #[test]
    fn pieces_are_the_whole() {
        let tokens = ["<unk>", "<s>", "\u{2581}a", "b", "\u{2581}", "<0xC3>", "<0xA9>", "c\u{2581}d"];
        let tokenizer = Tokenizer::from_gguf(GgufVocab {
            model: "llama",
            tokens: tokens.iter().map(|t| t.as_bytes()).collect(),
            scores: Some(vec![0.0; 8]),
            types: Some(vec![2, 3, 1, 1, 1, 6, 6, 1]),
            bos: Some(1),
            unk: Some(0),
            ..GgufVocab::default()
        })
        .unwrap();
        let mut random = Random::new(5);
        for _ in 0..20_000 {
            let ids: Vec<u32> = (0..random.below(10)).map(|_| random.below(8)).collect();
            let (prompt, answer) = ids.split_at(random.below(ids.len() as u32 + 1) as usize);
            let whole = tokenizer.decode(&ids, true);
            let mut stream = TextStream::after(&tokenizer, prompt);
            let text: String = answer.iter().map(|&id| stream.push(id)).collect::<String>() + &stream.finish();
            // A character that the border cuts in two is whole on neither side.
            let before = tokenizer.decode(prompt, true);
            if !before.ends_with(char::REPLACEMENT_CHARACTER) {
                assert_eq!(before + &text, whole, "{prompt:?} {answer:?}");
            }
        }
    }
}
