//! The file of logits that llama.cpp's perplexity tool writes and reads:
//!
//! `_logits_` | context, vocabulary, chunks (u32 each) | tokens (chunks × context, i32) | for each position that counts: scale and
//! minimum (f32), then for each token of the vocabulary a u16, `ln p = minimum + scale * u`, padded to whole words.

use std::io::{Read, Write};

use crate::engine::LogProbs;
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"_logits_";
/// Logits are clamped to at most this far below the largest.
pub(super) const RANGE: f32 = 16.0;
/// The most tokens in a file, since memory for them is allocated.
const MOST: u64 = 1 << 28;

/// Writes logits.
pub(super) struct Writer<W> {
    out: W,
    name: String,
    row: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Of chunks of `context` tokens each, which are contiguous in `tokens`.
    pub(super) fn new(mut out: W, name: String, context: u32, vocab: u32, tokens: &[u32]) -> Result<Self> {
        let mut header = MAGIC.to_vec();
        let chunks = (tokens.len() / context as usize) as u32;
        [context, vocab, chunks].iter().chain(tokens).for_each(|n| header.extend(n.to_le_bytes()));
        out.write_all(&header).map_err(|e| Error::io(&name, e))?;
        Ok(Self { out, name, row: Vec::new() })
    }

    /// The logits of the next position that counts.
    pub(super) fn push(&mut self, logits: &[f32], probs: &LogProbs<'_>) -> Result<()> {
        let lowest = logits.iter().copied().fold(f32::INFINITY, f32::min).max(probs.max - RANGE);
        let scale = (probs.max - lowest) / 65_535.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        self.row.clear();
        self.row.extend(scale.to_le_bytes());
        self.row.extend((lowest - probs.max - probs.log_sum as f32).to_le_bytes());
        // A saturating cast: what lies below the lowest is 0.
        let level = |&x: &f32| ((inverse * (x - lowest)).round_ties_even() as u16).to_le_bytes();
        self.row.extend(logits.iter().flat_map(level));
        self.row.resize(self.row.len().next_multiple_of(4), 0);
        self.out.write_all(&self.row).map_err(|e| Error::io(&self.name, e))
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.out.flush().map_err(|e| Error::io(&self.name, e))
    }
}

/// Reads logits.
pub(super) struct Reader<R> {
    input: R,
    name: String,
    pub(super) context: u32,
    pub(super) vocab: u32,
    pub(super) chunks: u32,
    tokens: Vec<u32>,
    bytes: Vec<u8>,
    row: Vec<f32>,
}

impl<R: Read> Reader<R> {
    /// A file of so many bytes.
    pub(super) fn new(mut input: R, name: String, bytes: u64) -> Result<Self> {
        let bad = |problem: String| Error::malformed(&name, None, problem);
        let mut header = [0; 20];
        input.read_exact(&mut header).map_err(|_| bad("it is too short for a file of logits".to_owned()))?;
        let Some(numbers) = header.strip_prefix(MAGIC) else {
            return Err(bad("it is not a file of logits".to_owned()));
        };
        let numbers: Vec<u32> = numbers.as_chunks().0.iter().map(|&n| u32::from_le_bytes(n)).collect();
        let [context, vocab, chunks] = numbers[..] else { return Err(bad("its header is cut off".to_owned())) };
        let count = u64::from(context) * u64::from(chunks);
        let rows = u64::from(chunks) * u64::from(context - context.min(1) - context / 2);
        let needed = rows.checked_mul(row_bytes(vocab)).and_then(|rows| rows.checked_add(20 + 4 * count));
        if context < 4 || vocab == 0 || count > MOST || needed != Some(bytes) {
            let problem =
                format!("{bytes} bytes do not hold {chunks} chunks of {context} tokens, {vocab} numbers each");
            return Err(bad(problem));
        }
        let mut stored = vec![0; 4 * count as usize];
        input.read_exact(&mut stored).map_err(|e| Error::io(&name, e))?;
        let tokens: Vec<u32> = stored.as_chunks().0.iter().map(|&n| u32::from_le_bytes(n)).collect();
        if let Some(id) = tokens.iter().find(|id| **id >= vocab) {
            return Err(bad(format!("token {id} is outside its vocabulary of {vocab}")));
        }
        Ok(Self { input, name, context, vocab, chunks, tokens, bytes: Vec::new(), row: Vec::new() })
    }

    /// The tokens of a chunk.
    pub(super) fn chunk(&self, i: u32) -> &[u32] {
        let context = self.context as usize;
        &self.tokens[i as usize * context..(i as usize + 1) * context]
    }

    /// `ln p` of every token at the next position that counts.
    pub(super) fn row(&mut self) -> Result<&[f32]> {
        self.bytes.resize(row_bytes(self.vocab) as usize, 0);
        self.input.read_exact(&mut self.bytes).map_err(|e| Error::io(&self.name, e))?;
        let (head, levels) = self.bytes.split_at(8);
        let [scale, lowest] = [&head[..4], &head[4..]].map(bytemuck::pod_read_unaligned::<f32>);
        self.row.clear();
        let level = |&two: &[u8; 2]| lowest + scale * f32::from(u16::from_le_bytes(two));
        self.row.extend(levels.as_chunks().0.iter().take(self.vocab as usize).map(level));
        Ok(&self.row)
    }
}

/// Bytes of a position.
fn row_bytes(vocab: u32) -> u64 {
    8 + 4 * u64::from(vocab).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two chunks of 6 tokens of a vocabulary of 5, as llama.cpp's tool lays them out, byte by byte: positions 3 and 4 of each count.
    fn file(rows: &[(f32, f32, [u16; 5])]) -> Vec<u8> {
        let mut bytes = b"_logits_\x06\0\0\0\x05\0\0\0\x02\0\0\0".to_vec();
        TOKENS.iter().for_each(|id| bytes.extend([*id as u8, 0, 0, 0]));
        for (scale, lowest, levels) in rows {
            bytes.extend(scale.to_le_bytes());
            bytes.extend(lowest.to_le_bytes());
            levels.iter().for_each(|level| bytes.extend(level.to_le_bytes()));
            bytes.extend([0, 0]); // to an even number of levels
        }
        bytes
    }

    const TOKENS: [u32; 12] = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1];

    #[test]
    fn files_are_laid_out_as_llama_cpp_lays_them_out() {
        // ln 2 apart, so that probabilities are 8/15 4/15 1/15 1/15 1/15 and all five alike.
        let two = std::f32::consts::LN_2;
        let steep = [3.0 * two, 2.0 * two, 0.0, 0.0, 0.0];
        let far = [0.0, -40.0, -40.0, -40.0, -4.0];
        let mut written = Vec::new();
        let mut writer = Writer::new(&mut written, "test".to_owned(), 6, 5, &TOKENS).unwrap();
        for logits in [steep, [1.5; 5], far, steep] {
            writer.push(&logits, &LogProbs::new(&logits)).unwrap();
        }
        writer.finish().unwrap();
        let least = |logit: f32, sum: f64| logit - sum.ln() as f32;
        // Of the largest logit 65,535; of a third less, 43,690; lower by more than 16, 0.
        let first = (3.0 * two / 65_535.0, least(-3.0 * two, 1.875), [65_535, 43_690, 0, 0, 0]);
        let alike = (0.0, least(0.0, 5.0), [0; 5]);
        let cut = (16.0 / 65_535.0, least(-16.0, 1.0 + (-4f64).exp()), [65_535, 0, 0, 0, 49_151]);
        let expected = file(&[first, alike, cut, first]);
        assert_eq!(written.len(), expected.len());
        let mut readers =
            [&written, &expected].map(|bytes| Reader::new(&bytes[..], "test".to_owned(), bytes.len() as u64).unwrap());
        for _ in 0..4 {
            let rows = readers.each_mut().map(|reader| reader.row().unwrap().to_vec());
            let near = rows[0].iter().zip(&rows[1]).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(near, "{rows:?}");
        }
        assert_eq!(written[..68], expected[..68], "header and tokens");
        // The levels themselves, and nothing after them.
        for row in 0..4 {
            let at = 68 + 20 * row + 8;
            assert_eq!(written[at..at + 12], expected[at..at + 12], "row {row}");
        }
    }

    #[test]
    fn rows_are_read_as_llama_cpp_reads_them() {
        let bytes = file(&[(0.5, -9.0, [18, 1, 0, 17, 2]); 4]);
        let mut reader = Reader::new(&bytes[..], "test".to_owned(), bytes.len() as u64).unwrap();
        assert_eq!((reader.context, reader.vocab, reader.chunks), (6, 5, 2));
        assert_eq!(reader.chunk(1), &TOKENS[6..]);
        for _ in 0..4 {
            assert_eq!(reader.row().unwrap(), [0.0, -8.5, -9.0, -0.5, -8.0]);
        }
        assert!(reader.row().is_err());
    }
}
