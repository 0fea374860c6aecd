//! Generated ids to text, piece by piece.

use std::ops::Deref;

use super::stream::Utf8Stream;
use super::tokenizer::Tokenizer;

/// Turns ids that arrive one by one into text that can be shown at once. Control tokens are not shown.
#[derive(Clone, Debug)]
pub struct TextStream<T> {
    tokenizer: T,
    utf8: Utf8Stream,
    /// Nothing but control tokens so far: the next piece begins a text, where some tokenizers put a space that is not part
    /// of it.
    at_start: bool,
}

impl<T: Deref<Target = Tokenizer>> TextStream<T> {
    /// The continuation of a prompt, with a tokenizer that is borrowed or shared.
    pub fn after(tokenizer: T, prompt: &[u32]) -> Self {
        let at_start = prompt.iter().all(|&id| tokenizer.is_control(id));
        Self { tokenizer, utf8: Utf8Stream::new(), at_start }
    }

    /// Adds a token, returns the text that is now certain.
    pub fn push(&mut self, id: u32) -> String {
        if self.tokenizer.is_control(id) {
            return String::new();
        }
        let mut piece = self.tokenizer.piece(id).unwrap_or_default();
        // Decoded alone, a token stands at the start of a text, and loses its space if the tokenizer adds one there.
        if std::mem::take(&mut self.at_start) && !self.tokenizer.decode(&[id], true).starts_with(' ') {
            piece = piece.strip_prefix(b" ").unwrap_or(piece);
        }
        self.utf8.push(piece)
    }

    /// The end: bytes of a character that never came.
    pub fn finish(&mut self) -> String {
        self.utf8.finish()
    }
}
