//! A program's weights on the GPU: matrices stacked as fusion wants them, split at a binding's limit, streamed by slices.

use std::collections::HashMap;

use crate::gpu::{Buffer, Device};
use crate::model::{Program, WeightSource};
use crate::ops::lower::{Matrix, Piece};
use crate::ops::{Op, Part, VectorId, WeightId};
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// Bytes that are read, repacked and handed to the queue at a time.
const SLICE: usize = 8 << 20;

/// Rows in a buffer, so that a dispatch of four rows a workgroup stays below 65,535 of them.
const MAX_ROWS: u64 = 200_000;

/// All weights of a program.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) matrices: Vec<Matrix>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) vectors: Buffer,
    pub(super) vector_at: Vec<u32>,
    biases: HashMap<BiasKey, u32>,
}

/// The biases of a list of parts: which, and how many elements each.
type BiasKey = Vec<(Option<VectorId>, u32)>;

fn bias_key(parts: &[Part]) -> Option<BiasKey> {
    parts.iter().any(|p| p.bias.is_some()).then(|| parts.iter().map(|p| (p.bias, p.n)).collect())
}

/// Bytes of a row in the GPU's form.
fn row_bytes(format: BlockFormat, k: u32) -> Result<u64> {
    Ok(u64::from(format.gpu_row_words(u64::from(k))?) * 4)
}

/// Most rows of a matrix in one buffer.
fn rows_in_buffer(device: &Device, row_bytes: u64) -> u64 {
    // A multiple of 4: a workgroup takes four rows.
    (device.caps().max_binding.min(device.caps().max_buffer) / row_bytes).min(MAX_ROWS) / 4 * 4
}

/// Whether matrices fit into one buffer as one matrix of one block format.
pub(super) fn stackable(device: &Device, program: &Program, source: &impl WeightSource, ids: &[WeightId]) -> bool {
    let Some(&first) = ids.first() else { return false };
    let format = source.format(first);
    let rows: u64 = ids.iter().map(|w| u64::from(program.weights[w.index()].n)).sum();
    let k = program.weights[first.index()].k;
    ids.iter().all(|&w| source.format(w) == format)
        && row_bytes(format, k).is_ok_and(|bytes| rows <= rows_in_buffer(device, bytes))
}

impl Weights {
    pub(super) async fn load(
        device: &Device,
        programs: &[Program],
        source: &impl WeightSource,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let specs = &programs[0].weights;
        // Parts of a fused linear lie one behind the other; every other matrix stands alone.
        let mut stacks: Vec<Vec<WeightId>> = Vec::new();
        let mut stacked = vec![false; specs.len()];
        let linears = || {
            programs.iter().flat_map(|p| &p.nodes).filter_map(|n| match &n.op {
                Op::Linear(linear) => Some(linear),
                _ => None,
            })
        };
        for linear in linears().filter(|l| l.parts.len() > 1) {
            let ids: Vec<_> = linear.parts.iter().map(|p| p.weight).collect();
            if ids.iter().all(|id| !stacked[id.index()]) {
                ids.iter().for_each(|id| stacked[id.index()] = true);
                stacks.push(ids);
            }
        }
        stacks.extend((0..specs.len()).filter(|&i| !stacked[i]).map(|i| vec![WeightId(i as u32)]));

        let mut total = 0;
        for (i, spec) in specs.iter().enumerate() {
            total += source.format(WeightId(i as u32)).row_bytes(u64::from(spec.k))? * u64::from(spec.n);
        }
        let mut matrices: Vec<Option<Matrix>> = vec![None; specs.len()];
        let mut buffers = Vec::new();
        let mut upload = Upload { device, source, done: 0, total, since_submit: 0, words: Vec::new() };
        for stack in stacks {
            let mut at = 0;
            while at < stack.len() {
                // A run of one block format shares buffers.
                let format = source.format(stack[at]);
                let run = stack[at..].iter().take_while(|&&w| source.format(w) == format).count();
                let ids = &stack[at..at + run];
                at += run;
                upload.run(programs, ids, format, &mut buffers, &mut matrices, progress).await?;
            }
        }

        let mut vector_at = Vec::new();
        let mut elements: Vec<f32> = Vec::new();
        let mut loaded = Vec::new();
        for i in 0..programs[0].vectors.len() {
            let vector = source.vector(VectorId(i as u32)).await?;
            vector_at.push(elements.len() as u32);
            elements.extend_from_slice(&vector);
            elements.resize(elements.len().next_multiple_of(4), 0.0);
            loaded.push(vector);
        }
        let mut biases = HashMap::new();
        for linear in linears() {
            let Some(key) = bias_key(&linear.parts) else { continue };
            if biases.contains_key(&key) {
                continue;
            }
            let start = elements.len();
            biases.insert(key, start as u32);
            for part in &linear.parts {
                match part.bias {
                    Some(bias) => elements.extend_from_slice(&loaded[bias.index()]),
                    None => elements.resize(elements.len() + part.n as usize, 0.0),
                }
            }
            elements.resize(elements.len().next_multiple_of(4), 0.0);
        }
        let vectors = Buffer::new(device, "vectors", elements.len() as u64 * 4)?;
        vectors.write(device, 0, &elements);
        let missing = || Error::Model("a matrix was not placed".to_owned());
        let matrices = matrices.into_iter().map(|m| m.ok_or_else(missing)).collect::<Result<_>>()?;
        Ok(Self { matrices, buffers, vectors, vector_at, biases })
    }

    /// The element of `vectors` where the biases of parts lie one behind the other.
    pub(super) fn bias_at(&self, parts: &[Part]) -> Option<u32> {
        self.biases.get(&bias_key(parts)?).copied()
    }
}

/// Streams rows from a source to buffers.
struct Upload<'a, S> {
    device: &'a Device,
    source: &'a S,
    done: u64,
    total: u64,
    since_submit: u64,
    words: Vec<u32>,
}

impl<S: WeightSource> Upload<'_, S> {
    /// Places matrices of one block format one behind the other, in as few buffers as they fit, and fills them.
    async fn run(
        &mut self,
        programs: &[Program],
        ids: &[WeightId],
        format: BlockFormat,
        buffers: &mut Vec<Buffer>,
        matrices: &mut [Option<Matrix>],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let spec = |id: WeightId| &programs[0].weights[id.index()];
        let k = spec(ids[0]).k;
        let row_bytes = row_bytes(format, k)?;
        let most = rows_in_buffer(self.device, row_bytes).max(1);
        let mut left: u64 = ids.iter().map(|&id| u64::from(spec(id).n)).sum();
        let (mut room, mut at) = (0, 0);
        for &id in ids {
            let n = u64::from(spec(id).n);
            let mut pieces = Vec::new();
            let mut row = 0;
            while row < n {
                if room == 0 {
                    (room, at) = (left.min(most), 0);
                    buffers.push(Buffer::new(self.device, &spec(id).tensor, room * row_bytes)?);
                }
                let rows = room.min(n - row);
                let buffer = buffers.len() - 1;
                pieces.push(Piece { buffer, at: at as u32, row: row as u32, n: rows as u32 });
                (row, at, room, left) = (row + rows, at + rows, room - rows, left - rows);
            }
            let matrix = Matrix { format, pieces };
            let source = self.source;
            source.rows(id, SLICE, &mut |first, bytes| self.slice(&matrix, k, first, bytes, buffers, progress)).await?;
            matrices[id.index()] = Some(matrix);
        }
        Ok(())
    }

    /// Repacks rows of a matrix from `first` on and writes them to the buffers of its pieces.
    fn slice(
        &mut self,
        matrix: &Matrix,
        k: u32,
        first: u32,
        bytes: &[u8],
        buffers: &[Buffer],
        progress: &mut dyn FnMut(u64, u64),
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
        if self.since_submit > 32 << 20 {
            // wgpu keeps what was written in staging memory until a submission has taken it.
            self.device.queue.submit([]);
            self.device.finish()?;
            self.since_submit = 0;
        }
        self.done += bytes.len() as u64;
        progress(self.done, self.total);
        Ok(())
    }
}
