//! SentencePiece-style BPE: of all neighbouring pieces, the pair whose join has the best score is joined first.
//!
//! Spaces become `▁`; a character that is no token of its own falls back to byte tokens.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::vocab::{Kind, Vocab, malformed};
use crate::Result;

/// The visible space of SentencePiece.
pub(crate) const SPACE: &str = "\u{2581}";

/// The merge part of a SentencePiece tokenizer.
#[derive(Debug)]
pub(crate) struct Spm {
    scores: Vec<f32>,
    bytes: Vec<Option<u32>>, // (256) the byte tokens
    unk: Option<u32>,
    space_prefix: bool,
    collapse_spaces: bool,
}

/// A piece of the text: a link in a list, empty once it is part of its left neighbour.
#[derive(Clone, Copy)]
struct Piece {
    start: u32,
    end: u32,
    prev: u32,
    next: u32,
}

/// No neighbour.
const NONE: u32 = u32::MAX;

/// A possible join of the piece at `left` with the next one, `end - start` bytes in all.
struct Join {
    score: f32,
    left: u32,
    right: u32,
    start: u32,
    end: u32,
}

impl Ord for Join {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}
impl PartialOrd for Join {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Join {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Join {}

impl Spm {
    /// `scores` has one finite number a token; `bytes` the ids of the byte tokens.
    pub(crate) fn new(
        scores: Vec<f32>,
        bytes: Vec<Option<u32>>,
        unk: Option<u32>,
        space_prefix: bool,
        collapse_spaces: bool,
    ) -> Self {
        Self { scores, bytes, unk, space_prefix, collapse_spaces }
    }

    /// Appends the ids of `text`, which stands at the start of the input or after a special token.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let mut normal = String::with_capacity(text.len() + text.len() / 4 + SPACE.len());
        if self.space_prefix {
            normal.push_str(SPACE);
        }
        // Removing extra spaces takes those at both ends and all but one between words.
        let trimmed = if self.collapse_spaces { text.trim_matches(' ') } else { text };
        let mut after_space = false;
        for c in trimmed.chars() {
            let space = c == ' ';
            if !(space && after_space && self.collapse_spaces) {
                if space { normal.push_str(SPACE) } else { normal.push(c) }
            }
            after_space = space;
        }
        if u32::try_from(normal.len()).is_err() {
            return Err(malformed("the text is longer than 4 GiB"));
        }
        self.merge(vocab, &normal, out)
    }

    fn merge(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let mut pieces: Vec<Piece> = Vec::with_capacity(text.len());
        for (i, (start, c)) in text.char_indices().enumerate() {
            let i = i as u32;
            pieces.push(Piece {
                start: start as u32,
                end: (start + c.len_utf8()) as u32,
                prev: i.checked_sub(1).unwrap_or(NONE),
                next: i + 1,
            });
        }
        let Some(last) = pieces.last_mut() else { return Ok(()) };
        last.next = NONE;

        let mut heap = BinaryHeap::new();
        for left in 1..pieces.len() as u32 {
            heap.extend(self.join(vocab, text, &pieces, left - 1, left));
        }
        while let Some(Join { left, right, start, end, .. }) = heap.pop() {
            // Stale if either piece has changed since: together they must still span the same bytes.
            let (Some(&a), Some(&b)) = (pieces.get(left as usize), pieces.get(right as usize)) else { continue };
            if a.start == a.end || b.start == b.end || a.start != start || b.end != end || a.next != right {
                continue;
            }
            if let Some(b) = pieces.get_mut(right as usize) {
                b.end = b.start;
            }
            if let Some(a) = pieces.get_mut(left as usize) {
                (a.end, a.next) = (end, b.next);
            }
            if let Some(after) = pieces.get_mut(b.next as usize) {
                after.prev = left;
            }
            heap.extend(self.join(vocab, text, &pieces, a.prev, left));
            heap.extend(self.join(vocab, text, &pieces, left, b.next));
        }

        let mut at = 0;
        while let Some(&Piece { start, end, next, .. }) = pieces.get(at as usize) {
            let bytes = text.as_bytes().get(start as usize..end as usize).unwrap_or_default();
            match vocab.find(bytes) {
                Some(id) => out.push(id),
                None => self.fall_back(bytes, out)?,
            }
            at = next;
        }
        Ok(())
    }

    /// The join of two neighbours, if it is a token.
    fn join(&self, vocab: &Vocab, text: &str, pieces: &[Piece], left: u32, right: u32) -> Option<Join> {
        let start = pieces.get(left as usize)?.start;
        let end = pieces.get(right as usize)?.end;
        let id = vocab.find(text.as_bytes().get(start as usize..end as usize)?)?;
        Some(Join { score: *self.scores.get(id as usize)?, left, right, start, end })
    }

    fn fall_back(&self, bytes: &[u8], out: &mut Vec<u32>) -> Result<()> {
        let ids = bytes.iter().map(|&b| self.bytes.get(b as usize).copied().flatten());
        match (ids.collect::<Option<Vec<u32>>>(), self.unk) {
            (Some(ids), _) => out.extend(ids),
            (None, Some(unk)) => out.push(unk),
            (None, None) => {
                return Err(malformed(format!(
                    "no token spells {:?}, and there is no unknown token",
                    String::from_utf8_lossy(bytes)
                )));
            }
        }
        Ok(())
    }
}

/// The ids of the byte tokens of a vocabulary whose byte pieces are single bytes.
pub(crate) fn byte_ids(vocab: &Vocab) -> Vec<Option<u32>> {
    let mut ids = vec![None; 256];
    for (id, piece, kind) in vocab.iter() {
        if let (Kind::Byte, &[byte]) = (kind, piece)
            && let Some(slot) = ids.get_mut(byte as usize)
        {
            *slot = Some(id);
        }
    }
    ids
}
