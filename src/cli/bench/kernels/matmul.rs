//! Matmul benchmarks: every dispatch reads a matrix that none before it has read, beside a plain stream of reads.

use super::{Item, Make, one, read, step_of};
use crate::Result;
use crate::exec::single::Single;
use crate::gpu::{Buffer, Device, Pipelines};
use crate::ops::{Epi, Linear, Op, Part, Pre};
use crate::quant::BlockFormat;

/// Columns of a matrix.
const K: u32 = 4096;
/// Bytes of a matrix, or a little less.
const MATRIX: u64 = 8 << 20;
/// Matrices of a plan, and of the shorter one whose time is subtracted: both include the cost of a submission.
const MATRICES: [usize; 2] = [72, 8];

/// One row of x and eight times matrices of a block format.
#[derive(Clone, Copy)]
struct Multiplication {
    format: BlockFormat,
    quick: bool,
}

pub(super) fn items(quick: bool) -> Vec<(String, Make)> {
    let formats = [BlockFormat::F16, BlockFormat::Q8_0, BlockFormat::Q4_0, BlockFormat::Q4_K, BlockFormat::Q6_K];
    let mut all: Vec<(String, Make)> = Vec::new();
    for format in formats {
        let multiplication = Multiplication { format, quick };
        all.push((format!("matvec {}", format.name()), Box::new(move |d, p| multiplication.items(d, p))));
    }
    let stream = move |d: &Device, p: &mut Pipelines| {
        let bytes = MATRIX * if quick { 8 } else { 32 };
        read(d, p, bytes.min(d.caps().max_binding))
    };
    all.push(one("a stream of reads, matvec's measure", stream));
    all
}

impl Multiplication {
    fn items(&self, device: &Device, pipelines: &mut Pipelines) -> Result<Vec<Item>> {
        let words = self.format.gpu_row_words(K.into())?;
        let row_bytes = u64::from(words) * 4;
        let n = (MATRIX / row_bytes / 64 * 64) as u32;
        let content = self.rows_of_w(words as usize, n)?;
        let matrices = (0..if self.quick { 10 } else { MATRICES[0] }).map(|_| {
            let buffer = Buffer::new(device, "w", u64::from(n) * row_bytes)?;
            buffer.write(device, 0, &content);
            device.finish()?; // or the copies of all would wait in memory
            Ok(buffer)
        });
        let matrices: Vec<Buffer> = matrices.collect::<Result<_>>()?;
        [(1, ", 1 row"), (8, ", 8 rows")]
            .map(|(rows, name)| Ok(Item { name: name.to_owned(), ..self.item(device, pipelines, &matrices, n, rows)? }))
            .into_iter()
            .collect()
    }

    fn item(&self, device: &Device, pipelines: &mut Pipelines, matrices: &[Buffer], n: u32, rows: u32) -> Result<Item> {
        let few = if self.quick { 2 } else { MATRICES[1] };
        let row_bytes = u64::from(self.format.gpu_row_words(K.into())?) * 4;
        let (step, counts) = step_of(device, rows)?;
        let x = Buffer::new(device, "x", u64::from(rows * K) * 4)?;
        x.write(device, 0, &vec![0.5f32; (rows * K) as usize]);
        let out = Buffer::new(device, "out", u64::from(rows * n) * 4)?;
        let mut plan = |matrices: &[Buffer]| {
            let mut single = Single::new(pipelines, &step);
            single.by_rows();
            let (x, out) = (single.value(&x, K)?, single.value(&out, n)?);
            for matrix in matrices {
                let part = Part { weight: single.matrix(matrix, self.format, n, K)?, n, bias: None };
                let (pre, epi) = (Pre::None, Epi::None);
                single.add(Op::Linear(Linear { x, k: K, parts: vec![part], pre, epi, out }))?;
            }
            single.finish()
        };
        let (all, less) = (plan(matrices)?, plan(&matrices[..few])?);
        let values = u64::from(rows) * u64::from(K + n) * 4;
        let bytes = (u64::from(n) * row_bytes + values) * (matrices.len() - few) as u64;
        Ok(Item { less: Some(less), ..Item::new(all, counts, bytes as f64) })
    }

    /// Rows of W as kernels read them, of ordinary numbers between -1 and 1.
    fn rows_of_w(&self, words: usize, n: u32) -> Result<Vec<u32>> {
        let row: Vec<f32> = (0..K).map(|i| (i.wrapping_mul(2_654_435_769) >> 8) as f32 / 8_388_608.0 - 1.0).collect();
        let mut bytes = vec![0; self.format.row_bytes(K.into())? as usize];
        self.format.encode(&row, &mut bytes)?;
        let mut packed = vec![0; words];
        self.format.repack_row(&bytes, K.into(), &mut packed)?;
        Ok(packed.repeat(n as usize))
    }
}
