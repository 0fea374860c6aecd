//! Byte-level BPE: a word starts as its bytes; of all neighbouring pairs the one with the earliest merge is joined first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::pretokenize::PreTokenizer;
use super::vocab::{Vocab, malformed};
use crate::Result;

/// The merge part of a byte-level BPE tokenizer.
#[derive(Debug)]
pub(crate) struct Bpe {
    pre: PreTokenizer,
    merges: HashMap<u64, (u32, u32)>, // pair of ids → (rank, joined id)
    bytes: Vec<Option<u32>>,          // (256) the single-byte tokens
    unk: Option<u32>,
}

impl Bpe {
    /// `merges` are pairs of texts in the byte alphabet, separated by one space, earliest first.
    pub(crate) fn new(vocab: &Vocab, merges: &[&[u8]], pre: PreTokenizer, unk: Option<u32>) -> Result<Self> {
        let alphabet = Alphabet::new();
        // Control tokens can be spelled by merges, but a merge that made one would let a text make it.
        let mut rest: HashMap<&[u8], ()> = HashMap::new();
        for (_, piece, kind) in vocab.iter() {
            if !kind.is_text() {
                rest.insert(piece, ());
            }
        }
        let mut table = HashMap::with_capacity(merges.len());
        for (rank, merge) in merges.iter().enumerate() {
            let bad = |why: &str| malformed(format!("merge {rank} ({:?}) {why}", String::from_utf8_lossy(merge)));
            let text = std::str::from_utf8(merge).map_err(|_| bad("is not UTF-8"))?;
            // The space that separates is the first one after the first character: a part may begin with one.
            let skip = text.chars().next().map_or(0, char::len_utf8);
            let cut = text.get(skip..).and_then(|tail| tail.find(' ')).map(|at| at + skip);
            let (left, right) = cut.and_then(|at| Some((text.get(..at)?, text.get(at + 1..)?))).unwrap_or((text, ""));
            if left.is_empty() || right.is_empty() {
                return Err(bad("is not two texts separated by a space"));
            }
            let (Some(left), Some(right)) = (alphabet.decode(left), alphabet.decode(right)) else {
                return Err(bad("holds characters outside the byte alphabet"));
            };
            let joined = [left.as_slice(), right.as_slice()].concat();
            let mut ids = [0; 3];
            let mut makes_text = true;
            for (slot, part) in ids.iter_mut().zip([&left, &right, &joined]) {
                match vocab.find(part) {
                    Some(id) => *slot = id,
                    None if rest.contains_key(part.as_slice()) => makes_text = false,
                    None => return Err(bad("names a text that is not in the vocabulary")),
                }
            }
            if makes_text {
                let [left, right, joined] = ids;
                table.entry(pair(left, right)).or_insert((rank as u32, joined));
            }
        }
        let bytes = (0..=255u8).map(|b| vocab.find(&[b])).collect();
        Ok(Self { pre, merges: table, bytes, unk })
    }

    /// Appends the ids of `text`.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) -> Result<()> {
        for word in self.pre.split(text) {
            let word = text.as_bytes().get(word).unwrap_or_default();
            match self.pre.whole_words().then(|| vocab.find(word)).flatten() {
                Some(id) => out.push(id),
                None => self.merge(word, out)?,
            }
        }
        Ok(())
    }

    fn merge(&self, word: &[u8], out: &mut Vec<u32>) -> Result<()> {
        const GONE: u32 = u32::MAX; // no id: the vocabulary is far smaller
        let mut ids = Vec::with_capacity(word.len());
        for &byte in word {
            let id = self.bytes.get(byte as usize).copied().flatten().or(self.unk);
            ids.push(id.ok_or_else(|| malformed(format!("no token for byte 0x{byte:02X}, and no unknown token")))?);
        }
        if let [id] = ids[..] {
            out.push(id);
            return Ok(());
        }
        let n = ids.len();
        let mut next: Vec<usize> = (1..=n).collect(); // n: no neighbour
        let mut prev: Vec<usize> = (0..n).map(|i| i.wrapping_sub(1)).collect();
        let mut heap = BinaryHeap::with_capacity(n);
        let offer = |ids: &[u32], left: usize, right: usize| {
            let (&a, &b) = (ids.get(left)?, ids.get(right)?);
            let &(rank, joined) = self.merges.get(&pair(a, b))?;
            Some(Reverse((rank, left, a, b, joined)))
        };
        for left in 0..n.saturating_sub(1) {
            heap.extend(offer(&ids, left, left + 1));
        }
        while let Some(Reverse((_, left, a, b, joined))) = heap.pop() {
            let Some(&right) = next.get(left) else { continue };
            if ids.get(left) != Some(&a) || ids.get(right) != Some(&b) {
                continue; // stale: one of the two has been joined to another
            }
            let after = next.get(right).copied().unwrap_or(n);
            set(&mut ids, left, joined);
            set(&mut ids, right, GONE);
            set(&mut next, left, after);
            set(&mut prev, after, left);
            heap.extend(offer(&ids, prev.get(left).copied().unwrap_or(n), left));
            heap.extend(offer(&ids, left, after));
        }
        out.extend(ids.into_iter().filter(|&id| id != GONE));
        Ok(())
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Writes `list[at]` where there is such an element.
fn set<T>(list: &mut [T], at: usize, value: T) {
    if let Some(slot) = list.get_mut(at) {
        *slot = value;
    }
}

/// The byte alphabet of GPT-2: every byte as a printable character.
///
/// Printable Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 and up.
pub(crate) struct Alphabet {
    to_byte: HashMap<char, u8>,
}

impl Alphabet {
    pub(crate) fn new() -> Self {
        let mut moved = 0x100;
        let to_byte = (0..=255u8).map(|byte| {
            let c = match byte {
                b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
                _ => {
                    moved += 1;
                    char::from_u32(moved - 1).unwrap_or('\0')
                }
            };
            (c, byte)
        });
        Self { to_byte: to_byte.collect() }
    }

    /// The bytes that `text` stands for; None if a character is outside the alphabet.
    pub(crate) fn decode(&self, text: &str) -> Option<Vec<u8>> {
        text.chars().map(|c| self.to_byte.get(&c).copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_covers_all_bytes() {
        let alphabet = Alphabet::new();
        assert_eq!(alphabet.to_byte.len(), 256);
        assert_eq!(alphabet.decode("ĠaĊ"), Some(b" a\n".to_vec()));
        assert_eq!(alphabet.decode("中"), None);
    }
}
