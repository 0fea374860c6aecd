//! Finds the tokens that are matched in a text before the model runs: control tokens and user-defined ones.

use std::collections::HashMap;
use std::ops::Range;

use super::vocab::{Kind, Vocab, malformed};
use crate::Result;

/// Longest text of such a token. The scan costs at most this much per byte, whatever the vocabulary holds.
const MAX_BYTES: usize = 512;

/// A prefix tree over the bytes of control and user-defined tokens.
#[derive(Debug, Default)]
pub(crate) struct SpecialTokens {
    edges: HashMap<(u32, u8), u32>,
    tokens: Vec<Option<(u32, Kind)>>, // per node: the token that ends there
    first: Vec<bool>,                 // (256) bytes that some token begins with
}

/// A part of a text: a token found in it, or what lies between two of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TextOrToken {
    /// A control or user-defined token.
    Token(u32),
    /// Bytes for the model to encode, never empty.
    Text(Range<usize>),
}

impl SpecialTokens {
    /// Collects the tokens of `vocab` that are found by their text.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self> {
        let mut this = Self { edges: HashMap::new(), tokens: vec![None], first: vec![false; 256] };
        for (id, piece, kind) in vocab.iter() {
            if matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown) && !piece.is_empty() {
                this.insert(piece, id, kind)?;
            }
        }
        Ok(this)
    }

    fn insert(&mut self, piece: &[u8], id: u32, kind: Kind) -> Result<()> {
        if piece.len() > MAX_BYTES {
            return Err(malformed(format!(
                "special token {id} is {} bytes long; the limit is {MAX_BYTES}",
                piece.len()
            )));
        }
        let mut node = 0;
        for &byte in piece {
            let new = self.tokens.len() as u32;
            node = *self.edges.entry((node, byte)).or_insert(new);
            if node == new {
                self.tokens.push(None);
            }
        }
        if let (Some(&byte), Some(slot)) = (piece.first(), self.tokens.get_mut(node as usize)) {
            if let Some(first) = self.first.get_mut(byte as usize) {
                *first = true;
            }
            // Of twins, the control token wins: it is the one that must be kept from users.
            if slot.is_none() || kind == Kind::Control {
                *slot = Some((id, kind));
            }
        }
        Ok(())
    }

    /// The longest token at the start of `text` that `accept(length, kind)` allows.
    fn longest(&self, text: &[u8], accept: impl Fn(usize, Kind) -> bool) -> Option<(usize, u32)> {
        let mut node = 0;
        let mut best = None;
        for (i, &byte) in text.iter().enumerate() {
            let Some(&next) = self.edges.get(&(node, byte)) else { break };
            node = next;
            if let Some(&Some((id, kind))) = self.tokens.get(node as usize)
                && accept(i + 1, kind)
            {
                best = Some((i + 1, id));
            }
        }
        best
    }

    /// Cuts `text` at its special tokens, leftmost and longest first. User-defined tokens count everywhere, all others
    /// only inside one of the `trusted` ranges (ascending, not overlapping).
    pub(crate) fn split(&self, text: &str, trusted: &[Range<usize>]) -> Vec<TextOrToken> {
        let bytes = text.as_bytes();
        let mut parts = Vec::new();
        let mut trusted = trusted.iter().peekable();
        let (mut at, mut start) = (0, 0);
        while let Some(&byte) = bytes.get(at) {
            while trusted.next_if(|range| range.end <= at).is_some() {}
            let trusted_end = trusted.peek().filter(|range| range.start <= at).map_or(at, |range| range.end);
            let accept = |len: usize, kind: Kind| kind == Kind::UserDefined || at + len <= trusted_end;
            let begins = self.first.get(byte as usize) == Some(&true);
            match begins.then(|| self.longest(bytes.get(at..).unwrap_or_default(), accept)).flatten() {
                Some((len, id)) => {
                    if start < at {
                        parts.push(TextOrToken::Text(start..at));
                    }
                    parts.push(TextOrToken::Token(id));
                    at += len;
                    start = at;
                }
                None => at += 1,
            }
        }
        if start < at {
            parts.push(TextOrToken::Text(start..at));
        }
        parts
    }
}
