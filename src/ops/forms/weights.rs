//! Weights in memory, as the CPU forms and the oracles read them.

use std::ops::Range;
use std::sync::Arc;

use crate::file::ByteSource;
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// A model's weights, in the order of its program's `weights` and `vectors`.
#[derive(Clone, Default)]
pub struct CpuWeights {
    /// One for each [`WeightId`](crate::ops::WeightId).
    pub matrices: Vec<Matrix>,
    /// One for each [`VectorId`](crate::ops::VectorId); what the spec adds to it is added already.
    pub vectors: Vec<Vec<f32>>,
}

/// A matrix `(n, k)` in any block format, row after row, where it lies: in a mapped file, or in memory.
#[derive(Clone)]
pub struct Matrix {
    source: Arc<dyn ByteSource>,
    at: Range<usize>,
    row_bytes: usize,
    format: BlockFormat,
    n: usize,
    k: usize,
}

/// A view of a [`Matrix`].
#[derive(Clone, Copy)]
pub(crate) struct WeightView<'a> {
    pub(crate) format: BlockFormat,
    rows: &'a [u8],
    pub(crate) row_bytes: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl Matrix {
    /// Rows that start at byte `offset` of a source whose bytes lie in memory; the source lives as long as the matrix.
    pub fn new(source: Arc<dyn ByteSource>, offset: u64, format: BlockFormat, n: u32, k: u32) -> Result<Self> {
        let row_bytes = format.row_bytes(u64::from(k))?;
        let all = source
            .mapped()
            .ok_or_else(|| Error::argument(source.name(), "the CPU reads weights in place: map the file"))?;
        // n and a row's bytes are both below 2^32.
        let end = offset.checked_add(row_bytes * u64::from(n)).filter(|&end| end <= all.len() as u64);
        let Some(end) = end else {
            let problem = format!("a matrix ({n}, {k}) of {} does not lie within the file", format.name());
            return Err(Error::malformed(source.name(), offset, problem));
        };
        let at = offset as usize..end as usize;
        Ok(Self { source, at, row_bytes: row_bytes as usize, format, n: n as usize, k: k as usize })
    }

    /// Rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns.
    pub fn k(&self) -> usize {
        self.k
    }

    /// How its rows are stored.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    pub(crate) fn view(&self) -> WeightView<'_> {
        let all = self.source.mapped().unwrap_or_default();
        let rows = &all[self.at.clone()]; // checked when it was made: a source in memory does not change its length
        WeightView { format: self.format, rows, row_bytes: self.row_bytes, n: self.n, k: self.k }
    }
}

impl<'a> WeightView<'a> {
    /// Bytes of all rows.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.len()
    }

    /// A row's blocks.
    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        &self.rows[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// The blocks of some rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> &'a [u8] {
        &self.rows[rows.start * self.row_bytes..rows.end * self.row_bytes]
    }

    /// Decodes a row.
    pub(crate) fn decode(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.k);
        self.decode_columns(row, 0, out);
    }

    /// Decodes some columns of a row, whole blocks.
    pub(crate) fn decode_columns(&self, row: usize, first: usize, out: &mut [f32]) {
        let info = self.format.info();
        assert!(first.is_multiple_of(info.weights) && out.len().is_multiple_of(info.weights), "whole blocks");
        let blocks = first / info.weights..(first + out.len()) / info.weights;
        (info.decode)(&self.row(row)[blocks.start * info.bytes..blocks.end * info.bytes], out);
    }
}
