//! A short stretch of a model's matmuls, for timing numbers of threads.

use std::ops::Range;
use std::time::Duration;

use web_time::Instant;

use crate::Result;
use crate::cpu::{Job, Share, Shared, ThreadPool, zeros};
use crate::ops::cpu::{CpuRun, StepRows};
use crate::ops::product::{X, product, product_scratch, q8_scratch};
use crate::ops::{CpuWeights, Part, WeightId};
use crate::quant::{LANES, Simd};

/// The first rows of matrices, multiplied one matrix after another as a step would.
pub(super) struct Probe<'a> {
    weights: &'a CpuWeights,
    int8: Option<Simd>,
    /// Matrices, and how many of their rows.
    pieces: Vec<(WeightId, usize)>,
    /// (rows, k) for the longest k.
    x: Vec<f32>,
    scratch: Shared<f32>,
    scratch_len: usize,
}

/// Bytes of a piece: the same for large matrices, so that a few of them do not take all the time.
const PIECE: usize = 1 << 20;
/// Bytes of all pieces: more than the caches of most cores hold.
const ALL: usize = 32 << 20;

impl<'a> Probe<'a> {
    /// For up to `rows` rows of activations and `threads` threads.
    pub(super) fn new(weights: &'a CpuWeights, int8: Option<Simd>, rows: usize, threads: usize) -> Result<Self> {
        // A shorter row may need more space than a longer one: more panels of it are unpacked together.
        let scratch_of = |k: usize| q8_scratch(rows, k as u32) + product_scratch(k as u32);
        let (mut pieces, mut bytes, mut k, mut scratch_len) = (Vec::new(), 0, 0, 0);
        for (i, matrix) in (0..).zip(&weights.matrices) {
            if bytes >= ALL {
                break;
            }
            let view = matrix.view();
            let n = (PIECE / view.row_bytes.max(1)).next_multiple_of(LANES).min(view.n);
            pieces.push((WeightId(i), n));
            (bytes, k, scratch_len) = (bytes + n * view.row_bytes, k.max(view.k), scratch_len.max(scratch_of(view.k)));
        }
        let scratch_len = scratch_len.next_multiple_of(16);
        let mut x = zeros("activations", rows * k)?;
        x.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 255) as f32 - 127.0);
        let scratch = Shared::zeroed("scratch memory", threads * scratch_len)?;
        Ok(Self { weights, int8, pieces, x, scratch, scratch_len })
    }

    /// Reads a byte of every page, so that a mapped file is in memory when matmuls are timed. Gives up after `most`;
    /// timings would say nothing then.
    pub(super) fn touch(&self, most: Duration) -> bool {
        const PAGE: usize = 4096;
        let started = Instant::now();
        let weights = self.weights;
        let touched = |&(id, n): &(WeightId, usize)| {
            let bytes = weights.matrices[id.index()].view().rows(0..n);
            std::hint::black_box(bytes.iter().step_by(PAGE).fold(0u8, |sum, byte| sum ^ byte));
            started.elapsed() < most
        };
        self.pieces.iter().all(touched)
    }

    /// The index of the piece that lies so many bytes after piece `first`; after the last piece, the first follows.
    pub(super) fn offset(&self, first: usize, bytes: usize) -> usize {
        let (mut at, mut left) = (first, bytes);
        while left > 0 {
            let (id, n) = self.pieces[at % self.pieces.len()];
            left = left.saturating_sub((n * self.weights.matrices[id.index()].view().row_bytes).max(1));
            at += 1;
        }
        at
    }

    /// How long so many threads take to multiply `rows` rows of activations by some pieces; after the last piece, the first
    /// follows.
    pub(super) fn time(&self, pool: &ThreadPool, threads: usize, rows: usize, pieces: Range<usize>) -> Duration {
        let step = &StepRows {
            rows: &[],
            seqs: &[],
            outs: &[],
            tables: &[],
            table_stride: 0,
            angles: &[],
            block: 0,
            decode: rows == 1,
        };
        let started = Instant::now();
        let work = |region: usize, share: &Share| {
            let (weight, n) = self.pieces[(pieces.start + region) % self.pieces.len()];
            let run = CpuRun {
                share: *share,
                step,
                weights: self.weights,
                values: &[],
                places: &[],
                caches: &[],
                int8: self.int8,
                scratch: &self.scratch,
                scratch_len: self.scratch_len,
            };
            let k = run.weight(weight).k;
            let (eight, rest) = run.scratch().split_at_mut(q8_scratch(rows, k as u32));
            let x = &X::new(&run, &self.x[..rows * k], k as u32, [weight], eight);
            let part = Part { weight, n: n as u32, bias: None };
            product(&run, &part, share.of(n, LANES), x, 0..rows, rest, |_, _, y| {
                std::hint::black_box(y);
            });
        };
        pool.run(threads, &Job { regions: pieces.len(), shares: &|_, threads| threads, work: &work });
        started.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::file::Bytes;
    use crate::ops::Matrix;
    use crate::quant::BlockFormat;

    /// Rows of 2048 take more space than those of 5632, of which fewer panels are unpacked together.
    #[test]
    fn rows_of_every_length_fit() {
        let matrix = |k: u32| {
            let bytes = vec![0; 16 * BlockFormat::Q4_K.row_bytes(u64::from(k)).unwrap() as usize];
            Matrix::new(Arc::new(Bytes::new("zeros", bytes)), 0, BlockFormat::Q4_K, 16, k).unwrap()
        };
        for ks in [[2048, 5632], [5632, 2048], [256, 14336]] {
            let weights = CpuWeights { matrices: ks.map(matrix).to_vec(), vectors: Vec::new() };
            let probe = Probe::new(&weights, Some(Simd::best()), 16, 2).unwrap();
            for (rows, threads) in [(1, 1), (16, 1), (1, 2), (16, 2)] {
                probe.time(&ThreadPool::shared(threads), threads, rows, 0..3);
            }
        }
    }
}
