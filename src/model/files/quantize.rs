//! Weights in another format than the file's: encoded while they are loaded.

use crate::Result;
use crate::file::Bytes;
use crate::model::files::open::Model;
use crate::model::files::source::RowsFn;
use crate::model::program::Program;
use crate::ops::{Attend, Matrix, Op, WeightId};
use crate::quant::BlockFormat;
use crate::quant::mix::{FileType, TensorContext};

/// Weights that are decoded and encoded at a time.
const SLICE: usize = 4 << 20;

/// What the matrices of a model become when they are loaded.
pub(in crate::model) struct Quantized {
    pub(in crate::model) to: FileType,
    /// One a [`WeightId`].
    pub(in crate::model) formats: Vec<BlockFormat>,
    threads: usize,
}

impl Model {
    /// From now on, the model's matrices have the formats of a file of type `to`, encoded by so many threads while they are
    /// loaded. What such a file keeps in f32 (norms, routers) stays as it is. Weights that are quantised already lose twice.
    pub fn quantize(&mut self, to: FileType, threads: usize) {
        let names: Vec<String> = self.program.weights.iter().map(|spec| self.gguf_name(&spec.tensor)).collect();
        let tied = names.iter().all(|name| name != "output.weight");
        let (layers, group) = (self.program.layers(), group(&self.program));
        let format = |(name, at): (&String, &crate::model::files::weights::MatrixAt)| {
            let shape = [u64::from(at.n), u64::from(at.k)];
            let context = TensorContext { name, shape: &shape, layers, group, tied };
            match to.format_of(&context) {
                BlockFormat::F32 if to.format != BlockFormat::F32 => at.format,
                format => format,
            }
        };
        let formats = names.iter().zip(&self.located.weights).map(format).collect();
        self.quantized = Some(Quantized { to, formats, threads });
    }

    /// The type that the model is loaded as, if not its file's.
    pub fn quantized(&self) -> Option<FileType> {
        self.quantized.as_ref().map(|quantized| quantized.to)
    }

    /// Rows of a matrix, encoded, as [`WeightSource::rows`](crate::model::WeightSource::rows) gives them.
    pub(in crate::model) async fn quantized_rows(
        &self,
        quantized: &Quantized,
        weight: WeightId,
        slice: usize,
        each: &mut RowsFn<'_>,
    ) -> Result<()> {
        let at = &self.located.weights[weight.index()];
        let (from, to) = (at.format, quantized.formats[weight.index()]);
        if from == to {
            return self.located.read_rows(&self.file, weight, slice, each).await;
        }
        let k = at.k as usize;
        let [stored, encoded] = [from.row_bytes(k as u64)? as usize, to.row_bytes(k as u64)? as usize];
        let rows = (slice / encoded.max(1)).min(SLICE / k.max(1)).max(1);
        let mut decoded = Vec::new();
        let mut encode = |first: u32, bytes: &[u8]| {
            decoded.resize(bytes.len() / stored.max(1) * k, 0.0);
            from.decode(bytes, &mut decoded)?;
            each(first, &to.encode_rows(&decoded, k, quantized.threads)?)
        };
        self.located.read_rows(&self.file, weight, rows * stored, &mut encode).await
    }

    /// A matrix for a CPU, encoded.
    pub(in crate::model) async fn quantized_matrix(&self, quantized: &Quantized, weight: WeightId) -> Result<Matrix> {
        let at = &self.located.weights[weight.index()];
        let format = quantized.formats[weight.index()];
        if format == at.format {
            return self.located.cpu_matrix(&self.file, weight).await;
        }
        let mut bytes = Vec::new();
        let mut keep = |_, rows: &[u8]| {
            bytes.extend_from_slice(rows);
            Ok(())
        };
        self.quantized_rows(quantized, weight, usize::MAX, &mut keep).await?;
        Matrix::new(std::sync::Arc::new(Bytes::new(at.tensor.name.clone(), bytes)), 0, format, at.n, at.k)
    }
}

/// Query heads per KV head; mixes spend more bits on values that many heads share.
fn group(program: &Program) -> u32 {
    let attention = |node: &crate::model::Node| match &node.op {
        Op::Attend(Attend { heads, kv_heads, .. }) => Some(heads / kv_heads.max(&1)),
        _ => None,
    };
    program.nodes.iter().find_map(attention).unwrap_or(1)
}
