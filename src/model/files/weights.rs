//! Where the weights of a program lie in a model's files, and how they are read from there.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::cpu::zeros;
use crate::file::{ByteSource, Bytes, ModelFile, TensorInfo};
use crate::model::files::names::{Names, Order, TensorRows};
use crate::model::files::source::RowsFn;
use crate::model::program::{Program, Runs, VectorSpec, WeightSpec};
use crate::ops::{Matrix, VectorId, WeightId};
use crate::quant::{BlockFormat, FormatInfo};
use crate::{Error, Result};

/// Where all weights of a program lie. Every shape was checked.
#[derive(Clone, Debug)]
pub struct Located {
    /// One a [`WeightId`].
    pub weights: Vec<MatrixAt>,
    /// One a [`VectorId`].
    pub vectors: Vec<VectorAt>,
}

/// A matrix (n, k) in a file.
#[derive(Clone, Debug)]
pub struct MatrixAt {
    /// The tensor.
    pub tensor: TensorInfo,
    /// How its rows are stored.
    pub format: BlockFormat,
    /// The first of its rows (columns, if it is stored transposed) that belong to the matrix.
    pub start: u32,
    /// Rows of the matrix.
    pub n: u32,
    /// Which rows these are: see [`Runs`].
    pub runs: Runs,
    /// Columns of the matrix.
    pub k: u32,
    /// Stored as (k, n), from this row of the tensor on. If not in a format of single numbers, it is decoded when it is read.
    pub transposed: Option<u32>,
}

/// A vector in a file.
#[derive(Clone, Debug)]
pub struct VectorAt {
    /// The tensor.
    pub tensor: TensorInfo,
    /// The first of its elements that belong to the vector.
    pub start: u32,
    /// Elements.
    pub n: u32,
    /// Which elements these are: see [`Runs`].
    pub runs: Runs,
    /// Added to each of them.
    pub add: f32,
    /// Each element x stands for `-e^x`.
    pub neg_exp: bool,
}

impl MatrixAt {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        let info = self.format.info();
        u64::from(self.k) / info.weights as u64 * info.bytes as u64
    }

    /// Bytes of the matrix.
    pub fn size(&self) -> u64 {
        u64::from(self.n) * self.row_bytes()
    }

    /// Whether its rows are contiguous in the file.
    pub fn in_one_piece(&self) -> bool {
        self.transposed.is_none() && self.runs.offset(self.n.saturating_sub(1)) == u64::from(self.n.saturating_sub(1))
    }

    /// Where the matrix lies in its tensor, counted in bytes from the tensor's start. For one that does not lie there in one
    /// piece, this is where it would lie if it did.
    pub fn bytes(&self) -> Range<u64> {
        let start = u64::from(self.start) * self.row_bytes();
        start..start + self.size()
    }

    /// The byte of the tensor where the first of its rows that the matrix has something of begins.
    pub fn first_byte(&self) -> u64 {
        let row = self.transposed.unwrap_or(self.start);
        u64::from(row) * (self.tensor.bytes / self.tensor.rows().max(1))
    }

    /// The rows and columns that a tensor needs to hold the matrix.
    fn extent(&self) -> [u64; 2] {
        let end = end(self.start, self.n, &self.runs);
        match self.transposed {
            None => [end, self.k.into()],
            Some(row) => [u64::from(row) + u64::from(self.k), end],
        }
    }
}

/// What comes after the last of some rows, or elements.
fn end(start: u32, n: u32, runs: &Runs) -> u64 {
    u64::from(start) + runs.offset(n.saturating_sub(1)) + 1
}

/// Finds every weight of a program in the model's files. An error names the tensor, its shape, and the one that is needed.
pub(in crate::model) fn locate(program: &Program, names: Names<'_>) -> Result<Located> {
    let gguf = names.file.gguf().is_some();
    let weights: Vec<_> = program.weights.iter().map(|spec| matrix(spec, names)).collect::<Result<_>>()?;
    let vectors: Vec<_> = program.vectors.iter().map(|spec| vector(spec, names)).collect::<Result<_>>()?;
    // A tensor may hold several matrices, and must hold nothing else: what is not used was misunderstood.
    let mut extents = HashMap::<&str, [u64; 2]>::new();
    for at in &weights {
        let extent = extents.entry(&at.tensor.name).or_default();
        let [rows, columns] = at.extent();
        *extent = [extent[0].max(rows), extent[1].max(columns)];
    }
    for at in &weights {
        let (info, wanted) = (&at.tensor, extents[at.tensor.name.as_str()]);
        // Stacks of matrices (experts) and kernels of one channel have more dimensions; only their rows matter.
        let whole_rows = at.transposed.is_some() || wanted[1] == u64::from(at.k);
        // GGUF files have matrices of one row as vectors.
        let matrix = info.shape.len() > 1 || gguf && wanted[0] == 1;
        if !matrix || [info.rows(), info.row_len()] != wanted || !whole_rows {
            return Err(wrong_shape(info, &wanted));
        }
    }
    let mut lengths = HashMap::<&str, u64>::new();
    for at in &vectors {
        let length = lengths.entry(&at.tensor.name).or_default();
        *length = end(at.start, at.n, &at.runs).max(*length);
    }
    for at in &vectors {
        let wanted = lengths[at.tensor.name.as_str()];
        // Those of all experts are rows of a matrix in files.
        let whole = at.tensor.shape.len() == 1
            || gguf && u64::from(at.n) == wanted // of groups, or of single elements
            || at.tensor.row_len().checked_rem(at.n.into()) == Some(0);
        if at.tensor.len() != wanted || !whole {
            return Err(wrong_shape(&at.tensor, &[wanted]));
        }
    }
    Ok(Located { weights, vectors })
}

fn find<'a>(names: Names<'a>, tensor: &str) -> Result<TensorRows<'a>> {
    match names.place(tensor) {
        Some(place) => Ok(place),
        // The error of the search names what is most like it.
        None => names.file.tensor(&names.spelled(tensor)).map(TensorRows::alone),
    }
}

fn wrong_shape(info: &TensorInfo, wanted: &[u64]) -> Error {
    Error::Model(format!(
        "tensor {} has shape {:?}; this model's configuration needs {wanted:?}",
        info.name, info.shape
    ))
}

impl TensorRows<'_> {
    /// The rows (or elements) of an expert's matrix of `n` among those of all.
    fn rows(&self, start: u32, n: u32, runs: Runs) -> Result<(u32, Runs)> {
        let (part, parts) = self.part;
        let of_expert = || self.expert.checked_mul(parts)?.checked_mul(n);
        let found = match self.order {
            Order::Rows => of_expert().and_then(|first| first.checked_add(part.checked_mul(n)?)?.checked_add(start)),
            Order::Turns => of_expert().and_then(|first| first.checked_add(part)),
            Order::Columns => Some(part),
        };
        let runs = if self.order == Order::Rows { runs } else { Runs { run: 1, skip: parts - 1 } };
        found.map(|first| (first, runs)).ok_or_else(|| self.too_far())
    }

    fn too_far(&self) -> Error {
        let info = self.tensor;
        Error::Model(format!("tensor {} of shape {:?} has no expert {}", info.name, info.shape, self.expert))
    }
}

fn matrix(spec: &WeightSpec, names: Names<'_>) -> Result<MatrixAt> {
    let place = find(names, &spec.tensor)?;
    let WeightSpec { start, n, runs, k, mut transposed, .. } = *spec;
    let (start, runs) = place.rows(start, n, runs)?;
    if place.order == Order::Columns {
        transposed = Some(place.expert.checked_mul(k).ok_or_else(|| place.too_far())?);
    }
    let info = place.tensor;
    let format = info.format()?;
    // A transpose of a block format runs across blocks: it is decoded.
    let format = if transposed.is_some() && format.info().weights != 1 { BlockFormat::F32 } else { format };
    Ok(MatrixAt { tensor: info.clone(), format, start, n, runs, k, transposed })
}

fn vector(spec: &VectorSpec, names: Names<'_>) -> Result<VectorAt> {
    let place = find(names, &spec.tensor)?;
    let VectorSpec { start, n, runs, add, neg_exp, .. } = *spec;
    let (start, runs) = place.rows(start, n, runs)?;
    place.tensor.format()?;
    Ok(VectorAt { tensor: place.tensor.clone(), start, n, runs, add, neg_exp })
}

impl Located {
    /// The rows of a matrix as the file has them, in slices of at most `slice` bytes, but whole rows: `each` gets the first
    /// row's number and the rows' bytes. Memory for one slice is held, and for the matrix if it is stored transposed.
    pub async fn read_rows(
        &self,
        file: &ModelFile,
        weight: WeightId,
        slice: usize,
        each: &mut RowsFn<'_>,
    ) -> Result<()> {
        self.read_some_rows(file, weight, 0..self.matrix(weight)?.n, slice, each).await
    }

    /// The same of some rows: a range of the matrix's.
    pub(in crate::model) async fn read_some_rows(
        &self,
        file: &ModelFile,
        weight: WeightId,
        range: Range<u32>,
        slice: usize,
        each: &mut RowsFn<'_>,
    ) -> Result<()> {
        let at = self.matrix(weight)?;
        let row_bytes = to_usize(at.row_bytes())?;
        let rows = u32::try_from(slice / row_bytes.max(1)).unwrap_or(u32::MAX).clamp(1, at.n);
        if at.transposed.is_some() {
            let bytes = transposed(file, at).await?;
            let bytes = &bytes[range.start as usize * row_bytes..range.end as usize * row_bytes];
            for (i, bytes) in bytes.chunks(row_bytes * rows as usize).enumerate() {
                each(range.start + i as u32 * rows, bytes)?;
            }
            return Ok(());
        }
        let mut buffer = Vec::new();
        for first in range.clone().step_by(rows as usize) {
            buffer.resize(rows.min(range.end - first) as usize * row_bytes, 0);
            self.read_runs(file, at, first, &mut buffer).await?;
            each(first, &buffer)?;
        }
        Ok(())
    }

    /// The rows of a matrix from `first` on, as many as the buffer holds.
    async fn read_runs(&self, file: &ModelFile, at: &MatrixAt, first: u32, mut buffer: &mut [u8]) -> Result<()> {
        let row_bytes = to_usize(at.row_bytes())?.max(1);
        let mut row = first;
        while !buffer.is_empty() {
            let rows = (at.runs.run - row % at.runs.run).min((buffer.len() / row_bytes) as u32).max(1);
            let (part, rest) = buffer.split_at_mut(rows as usize * row_bytes);
            let start = (u64::from(at.start) + at.runs.offset(row)) * at.row_bytes();
            file.read(&at.tensor, start..start + part.len() as u64, part).await?;
            (row, buffer) = (row + rows, rest);
        }
        Ok(())
    }

    /// The bytes of a matrix where they lie, if the file is in memory and holds it by rows.
    pub fn mapped<'a>(&self, file: &'a ModelFile, weight: WeightId) -> Option<&'a [u8]> {
        let at = self.matrix(weight).ok().filter(|at| at.in_one_piece())?;
        let Range { start, end } = at.bytes();
        file.mapped(&at.tensor)?.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }

    /// All bytes of a matrix, by rows.
    pub async fn read_matrix(&self, file: &ModelFile, weight: WeightId) -> Result<Vec<u8>> {
        let at = self.matrix(weight)?;
        if at.transposed.is_some() {
            return transposed(file, at).await;
        }
        let mut bytes = zeros(&at.tensor.name, to_usize(at.size())?)?;
        self.read_runs(file, at, 0, &mut bytes).await?;
        Ok(bytes)
    }

    /// A vector's elements.
    pub async fn read_vector(&self, file: &ModelFile, vector: VectorId) -> Result<Vec<f32>> {
        let at =
            self.vectors.get(vector.index()).ok_or_else(|| Error::argument("vector", "it is of another program"))?;
        let FormatInfo { weights, bytes, .. } = *at.tensor.format()?.info();
        let (first, all) = if weights == 1 {
            // A tensor that holds all experts' is long: only what is needed is read.
            let first = u64::from(at.start);
            let end = end(at.start, at.n, &at.runs);
            let mut stored = zeros::<u8>(&at.tensor.name, to_usize((end - first) * bytes as u64)?)?;
            file.read(&at.tensor, first * bytes as u64..end * bytes as u64, &mut stored).await?;
            let mut all = zeros(&at.tensor.name, stored.len() / bytes)?;
            at.tensor.format()?.decode(&stored, &mut all)?;
            (first, all)
        } else {
            (0, file.read_f32(&at.tensor).await?)
        };
        let map = |v: &f32| if at.neg_exp { -f64::from(*v).exp() as f32 } else { v + at.add };
        let element = |i| all.get((u64::from(at.start) - first + at.runs.offset(i)) as usize).map(map);
        Ok((0..at.n).map_while(element).collect())
    }

    /// A matrix for a CPU: where it lies, if the file is in memory and holds it by rows; else a copy.
    pub(in crate::model) async fn cpu_matrix(&self, file: &ModelFile, weight: WeightId) -> Result<Matrix> {
        let at = self.matrix(weight)?;
        let in_place = file.source(&at.tensor)?;
        let (source, start) = if in_place.mapped().is_some() && at.in_one_piece() {
            (in_place.clone(), at.tensor.offset + at.bytes().start)
        } else {
            let copy = Bytes::new(at.tensor.name.clone(), self.read_matrix(file, weight).await?);
            (Arc::new(copy) as Arc<dyn ByteSource>, 0)
        };
        Matrix::new(source, start, at.format, at.n, at.k)
    }

    fn matrix(&self, weight: WeightId) -> Result<&MatrixAt> {
        self.weights.get(weight.index()).ok_or_else(|| Error::argument("weight", "it is of another program"))
    }
}

/// The rows of a matrix that is stored as (k, n).
async fn transposed(file: &ModelFile, at: &MatrixAt) -> Result<Vec<u8>> {
    let info = &at.tensor;
    let (k, columns) = (at.k as usize, to_usize(info.row_len())?);
    let mut stored = zeros::<u8>(&info.name, to_usize(info.bytes / info.rows().max(1) * u64::from(at.k))?)?;
    let first = at.first_byte();
    file.read(info, first..first + stored.len() as u64, &mut stored).await?;
    if info.format()? != at.format {
        let mut decoded = zeros(&info.name, k * columns)?;
        info.format()?.decode(&stored, &mut decoded)?;
        stored = decoded.iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
    }
    let size = at.format.info().bytes;
    let mut rows = Vec::with_capacity(at.n as usize * k * size);
    for column in (0..at.n).map(|j| at.start as usize + at.runs.offset(j) as usize) {
        for row in 0..k {
            let from = (row * columns + column) * size;
            rows.extend_from_slice(&stored[from..from + size]);
        }
    }
    Ok(rows)
}

/// A length in memory.
fn to_usize(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::argument("weights", format!("{bytes} bytes in one piece; 4 GiB fit")))
}
