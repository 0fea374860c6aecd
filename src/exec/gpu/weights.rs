//! A program's weights on the GPU: matrices stacked as fusion wants them, split at a binding's limit, streamed by slices.

use std::collections::HashMap;

use crate::file::CountFn;
use crate::gpu::{Buffer, Device};
use crate::model::{Program, Tensor, WeightSource, WeightSpec};
use crate::ops::lower::{MAX_ROWS, Matrix, WeightRows};
use crate::ops::{Part, PerPhase, Stack, VectorId, WeightId};
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// Bytes that are read, repacked and handed to the queue at a time.
const SLICE: usize = 8 << 20;

/// All weights of a program.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) matrices: Vec<Matrix>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) vectors: Buffer,
    pub(super) vector_at: Vec<u32>,
    biases: HashMap<BiasKey, u32>,
}

/// The biases of a stack's parts: which, and how many elements each.
type BiasKey = Vec<(Option<VectorId>, u32)>;

fn bias_key(parts: &[Part]) -> Option<BiasKey> {
    parts.iter().any(|p| p.bias.is_some()).then(|| parts.iter().map(|p| (p.bias, p.n)).collect())
}

/// Bytes of a row in the GPU's form.
fn row_bytes(format: BlockFormat, k: u32) -> Result<u64> {
    Ok(u64::from(format.gpu_row_words(u64::from(k))?) * 4)
}

/// Rows of a matrix in one buffer at most, a multiple of `unit`.
fn rows_in_buffer(device: &Device, row_bytes: u64, unit: u64) -> u64 {
    (device.caps().max_binding.min(device.caps().max_buffer) / row_bytes).min(MAX_ROWS.into()) / unit * unit
}

impl Weights {
    pub(super) async fn load(
        device: &Device,
        programs: &PerPhase<Program>,
        source: &impl WeightSource,
        progress: &mut CountFn<'_>,
    ) -> Result<Self> {
        let programs = [&programs.prefill, &programs.decode];
        let specs = &programs[0].weights;
        // What an op takes as one is contiguous; every other matrix stands alone. With them, how many rows must stay together.
        let mut stacks: Vec<(Vec<WeightId>, u32)> = Vec::new();
        let mut stacked = vec![false; specs.len()];
        let wanted: Vec<Stack> =
            programs.iter().flat_map(|program| &program.nodes).filter_map(|node| node.op.stack()).collect();
        for Stack { parts, .. } in wanted.iter().filter(|stack| stack.parts.len() > 1) {
            let ids: Vec<_> = parts.iter().map(|p| p.weight).collect();
            if ids.iter().all(|id| !stacked[id.index()]) {
                ids.iter().for_each(|id| stacked[id.index()] = true);
                // Both phases' programs may have the same parts, with another unit.
                let unit = wanted.iter().filter(|stack| stack.parts == *parts).map(|stack| stack.unit).max();
                stacks.push((ids, unit.unwrap_or(Stack::UNIT)));
            }
        }
        stacks.extend((0..specs.len()).filter(|&i| !stacked[i]).map(|i| (vec![WeightId(i as u32)], Stack::UNIT)));

        // All buffers are made before a byte is read: a model that does not fit is not downloaded first.
        let mut matrices: Vec<Option<Matrix>> = vec![None; specs.len()];
        let mut buffers = Vec::new();
        let place = || {
            for (stack, unit) in &stacks {
                // A run of one block format shares buffers.
                for ids in stack.chunk_by(|&a, &b| source.format(a) == source.format(b)) {
                    place(device, specs, ids, source.format(ids[0]), u64::from(*unit), &mut buffers, &mut matrices)?;
                }
            }
            Ok(())
        };
        device.checked("weights", place).await?;
        let missing = || Error::Model("a matrix was not placed".to_owned());
        let matrices: Vec<Matrix> = matrices.into_iter().map(|m| m.ok_or_else(missing)).collect::<Result<_>>()?;

        let mut total = 0;
        for (i, spec) in specs.iter().enumerate() {
            total += source.format(WeightId(i as u32)).row_bytes(u64::from(spec.k))? * u64::from(spec.n);
        }
        let mut loaded: Vec<Vec<f32>> = vec![Vec::new(); programs[0].vectors.len()];
        let mut upload = Upload { device, done: 0, total, since_submit: 0, words: Vec::new() };
        for tensor in source.in_order(specs.len(), loaded.len()) {
            match tensor {
                Tensor::Vector(id) => loaded[id.index()] = source.vector(id).await?,
                Tensor::Matrix(id) => {
                    let (matrix, k) = (&matrices[id.index()], specs[id.index()].k);
                    let mut slice = |first, bytes: &[u8]| upload.slice(matrix, k, first, bytes, &buffers, progress);
                    source.rows(id, SLICE, &mut slice).await?;
                    upload.drain().await?;
                }
            }
        }

        let mut vector_at = Vec::new();
        let mut elements: Vec<f32> = Vec::new();
        for vector in &loaded {
            vector_at.push(elements.len() as u32);
            elements.extend_from_slice(vector);
            elements.resize(elements.len().next_multiple_of(4), 0.0);
        }
        let mut biases = HashMap::new();
        for Stack { parts, .. } in &wanted {
            let Some(key) = bias_key(parts) else { continue };
            if biases.contains_key(&key) {
                continue;
            }
            let start = elements.len();
            biases.insert(key, start as u32);
            for part in parts {
                match part.bias {
                    Some(bias) => elements.extend_from_slice(&loaded[bias.index()]),
                    None => elements.resize(elements.len() + part.n as usize, 0.0),
                }
            }
            elements.resize(elements.len().next_multiple_of(4), 0.0);
        }
        let vectors = Buffer::new(device, "vectors", elements.len() as u64 * 4)?;
        vectors.write(device, 0, &elements);
        Ok(Self { matrices, buffers, vectors, vector_at, biases })
    }

    /// The element of `vectors` where the biases of these parts begin, one after another.
    pub(super) fn bias_at(&self, parts: &[Part]) -> Option<u32> {
        self.biases.get(&bias_key(parts)?).copied()
    }
}

/// Places matrices of one block format one after another, in as few buffers as possible.
fn place(
    device: &Device,
    specs: &[WeightSpec],
    ids: &[WeightId],
    format: BlockFormat,
    unit: u64,
    buffers: &mut Vec<Buffer>,
    matrices: &mut [Option<Matrix>],
) -> Result<()> {
    let row_bytes = row_bytes(format, specs[ids[0].index()].k)?;
    let mut most = rows_in_buffer(device, row_bytes, unit).max(1);
    let n = u64::from(specs[ids[0].index()].n);
    if n <= most && ids.iter().all(|id| u64::from(specs[id.index()].n) == n) {
        most = most / n * n; // none of the experts is split
    }
    let mut left: u64 = ids.iter().map(|&id| u64::from(specs[id.index()].n)).sum();
    let (mut capacity, mut at) = (0, 0);
    for &id in ids {
        let spec = &specs[id.index()];
        let n = u64::from(spec.n);
        let mut pieces = Vec::new();
        let mut row = 0;
        while row < n {
            if capacity == 0 {
                (capacity, at) = (left.min(most), 0);
                buffers.push(Buffer::new(device, &spec.tensor, capacity * row_bytes)?);
            }
            let rows = capacity.min(n - row);
            let buffer = buffers.len() - 1;
            pieces.push(WeightRows { buffer, at: at as u32, row: row as u32, n: rows as u32 });
            (row, at, capacity, left) = (row + rows, at + rows, capacity - rows, left - rows);
        }
        matrices[id.index()] = Some(Matrix { format, pieces });
    }
    Ok(())
}

/// Writes rows to buffers.
struct Upload<'a> {
    device: &'a Device,
    done: u64,
    total: u64,
    since_submit: u64,
    words: Vec<u32>,
}

impl Upload<'_> {
    /// Repacks rows of a matrix from `first` on and writes them to the buffers of its pieces.
    fn slice(
        &mut self,
        matrix: &Matrix,
        k: u32,
        first: u32,
        bytes: &[u8],
        buffers: &[Buffer],
        progress: &mut CountFn<'_>,
    ) -> Result<()> {
        let file_row = matrix.format.row_bytes(u64::from(k))? as usize;
        let words = matrix.format.gpu_row_words(u64::from(k))? as usize;
        self.words.clear();
        self.words.resize(bytes.len() / file_row * words, 0);
        for (from, to) in bytes.chunks_exact(file_row).zip(self.words.chunks_exact_mut(words)) {
            matrix.format.repack_row(from, u64::from(k), to)?;
        }
        let end = first + (bytes.len() / file_row) as u32;
        for piece in &matrix.pieces {
            let from = first.max(piece.row);
            let to = end.min(piece.row + piece.n);
            if from < to {
                let rows = (from - first) as usize * words..(to - first) as usize * words;
                let word = u64::from(piece.at + from - piece.row) * words as u64;
                buffers[piece.buffer].write(self.device, word, &self.words[rows]);
            }
        }
        self.since_submit += self.words.len() as u64 * 4;
        self.done += bytes.len() as u64;
        progress(self.done, self.total);
        Ok(())
    }
    /// Waits, now and then, until the device has taken what was written: wgpu keeps it in staging memory until then.
    async fn drain(&mut self) -> Result<()> {
        if self.since_submit > 32 << 20 {
            self.device.queue.submit([]);
            self.device.drained().await?;
            self.since_submit = 0;
        }
        Ok(())
    }
}
