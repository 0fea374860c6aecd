//! The token table: the bytes and the kind of every id, checked once and shared by all tokenizer kinds.

use std::collections::HashMap;

use crate::{Error, Result};

/// No vocabulary in use comes near; it bounds what a hostile file can make us allocate.
pub(crate) const MAX_TOKENS: usize = 1 << 22;
/// The longest real token is a run of about a thousand spaces; a longer one only slows every lookup.
pub(crate) const MAX_TOKEN_BYTES: usize = 16 << 10;

/// What a token is for, numbered as `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ordinary text.
    Normal,
    /// Stands for text that the vocabulary cannot spell.
    Unknown,
    /// Begins, ends or structures a text; never made from what a user wrote.
    Control,
    /// Text that is always one token, found before the model runs.
    UserDefined,
    /// An id without use.
    Unused,
    /// One raw byte.
    Byte,
}

impl Kind {
    /// The kind with GGUF number `n`.
    pub(crate) fn from_gguf(n: i64) -> Option<Self> {
        Some(match n {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }

    /// Whether the model may produce it from text.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::Normal | Self::UserDefined)
    }
}

/// The bytes and kinds of all ids, and the way back from the bytes of text tokens.
#[derive(Debug, Default)]
pub(crate) struct Vocab {
    bytes: Vec<u8>,
    ends: Vec<u32>, // (tokens) where a token's bytes end
    kinds: Vec<Kind>,
    by_text: HashMap<Box<[u8]>, u32>, // text tokens alone: no lookup can end in a control token
}

impl Vocab {
    /// Appends a token that decodes to `bytes`. Text that equals `key` becomes this token; two Normal keys must differ.
    pub(crate) fn push(&mut self, bytes: &[u8], kind: Kind, key: Option<&[u8]>) -> Result<()> {
        let id = self.kinds.len();
        if id >= MAX_TOKENS {
            return Err(malformed(format!("the vocabulary has more than {MAX_TOKENS} tokens")));
        }
        if bytes.len() > MAX_TOKEN_BYTES {
            return Err(malformed(format!("token {id} is {} bytes long; the limit is {MAX_TOKEN_BYTES}", bytes.len())));
        }
        let end = u32::try_from(self.bytes.len() + bytes.len())
            .map_err(|_| malformed("the tokens hold more than 4 GiB of text"))?;
        self.bytes.extend_from_slice(bytes);
        self.ends.push(end);
        self.kinds.push(kind);
        let Some(key) = key.filter(|key| kind.is_text() && !key.is_empty()) else { return Ok(()) };
        match self.by_text.get(key) {
            Some(&first) if kind == Kind::Normal && self.kind(first) == Some(Kind::Normal) => {
                return Err(malformed(format!("tokens {first} and {id} are duplicates of one text")));
            }
            // A user-defined twin of a normal token is found before the model runs.
            Some(_) if kind == Kind::UserDefined => {}
            _ => {
                self.by_text.insert(key.into(), id as u32);
            }
        }
        Ok(())
    }

    /// How many ids there are.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// The bytes of a token.
    pub(crate) fn piece(&self, id: u32) -> Option<&[u8]> {
        let at = id as usize;
        let end = *self.ends.get(at)? as usize;
        let start = if at == 0 { 0 } else { *self.ends.get(at - 1)? as usize };
        self.bytes.get(start..end)
    }

    /// The kind of a token.
    pub(crate) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    /// The text token with exactly these bytes.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<u32> {
        self.by_text.get(bytes).copied()
    }

    /// All ids with their bytes and kinds.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &[u8], Kind)> {
        (0..self.kinds.len() as u32).filter_map(|id| Some((id, self.piece(id)?, self.kind(id)?)))
    }
}

/// The value of a byte token: `<0x41>` is 0x41.
pub(crate) fn byte_token(text: &[u8]) -> Option<u8> {
    let hex = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if hex.len() != 2 || !hex.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
}

/// An error of the token table.
pub(crate) fn malformed(problem: impl Into<String>) -> Error {
    Error::malformed("tokenizer", None, problem)
}
