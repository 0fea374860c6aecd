//! Random weights that no file holds: made where they are read, so that a model of any size needs no disk and no memory.

use std::collections::HashMap;

use super::model_file::{Description, ModelFile};
use super::source::{ByteSource, ReadFuture};
use super::tensor::{TensorInfo, TensorType};
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// Weights that are made at a time: a multiple of the block of every format.
const UNIT: usize = 256;
/// Different units of a format; a tensor is a random sequence of them.
const UNITS: usize = 256;
/// Standard deviation of weights, as in models before they are trained.
const SIGMA: f64 = 0.02;

/// A model of random weights: the names, dimensions (outermost first) and formats of its tensors.
pub(crate) fn random_model(
    name: &str,
    description: Description,
    tensors: Vec<(String, Vec<u64>, BlockFormat)>,
    seed: u64,
) -> Result<ModelFile> {
    let mut infos = Vec::with_capacity(tensors.len());
    let mut offset = 0;
    for (name, shape, format) in tensors {
        let (k, rows) = shape.split_last().map_or((1, 1), |(&k, outer)| (k, outer.iter().product::<u64>()));
        let bytes = format.row_bytes(k)? * rows;
        infos.push(TensorInfo { name, ty: TensorType::Block(format), shape, file: 0, offset, bytes });
        offset += bytes;
    }
    let source = Random::new(name, seed, &infos)?;
    ModelFile::new(description, infos, vec![Box::new(source)])
}

/// A file of random weights. The same tensors and seed always give the same bytes, in whatever pieces they are read.
///
/// Encoding billions of numbers would take minutes; here a few thousand are encoded for each format, and blocks are sampled from
/// those. Vectors (norms, in models) are ones, and the decays of recurrent layers minus ones: else their states would grow.
struct Random {
    name: String,
    len: u64,
    seed: u64,
    tensors: Vec<TensorBytes>,
    pools: HashMap<BlockFormat, Vec<u8>>,
}

/// Where a tensor lies.
struct TensorBytes {
    start: u64,
    end: u64,
    kind: Kind,
}

enum Kind {
    /// The same number everywhere.
    All(f32),
    Blocks(BlockFormat),
}

impl Random {
    /// Tensors that are contiguous from byte 0 on.
    fn new(name: &str, seed: u64, tensors: &[TensorInfo]) -> Result<Self> {
        let mut pools = HashMap::new();
        let mut ranges = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let format = tensor.format()?;
            let decays = tensor.name.ends_with("ssm_a");
            let same = format == BlockFormat::F32 && (tensor.shape.len() == 1 || decays);
            let kind = if same { Kind::All(if decays { -1.0 } else { 1.0 }) } else { Kind::Blocks(format) };
            if !same && !pools.contains_key(&format) {
                pools.insert(format, pool(format, seed)?);
            }
            ranges.push(TensorBytes { start: tensor.offset, end: tensor.offset + tensor.bytes, kind });
        }
        let len = ranges.last().map_or(0, |range| range.end);
        Ok(Self { name: name.to_owned(), len, seed, tensors: ranges, pools })
    }

    fn fill(&self, offset: u64, mut out: &mut [u8]) -> Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
            return Err(Error::malformed(&self.name, offset, format!("{} bytes are beyond its end", out.len())));
        }
        let mut at = offset;
        for span in &self.tensors[self.tensors.partition_point(|range| range.end <= offset)..] {
            if out.is_empty() {
                break;
            }
            let here = out.len().min((span.end - at) as usize);
            let (part, rest) = out.split_at_mut(here);
            match span.kind {
                Kind::All(number) => {
                    let all = number.to_le_bytes();
                    part.iter_mut().zip((at - span.start) as usize % 4..).for_each(|(byte, i)| *byte = all[i % 4]);
                }
                Kind::Blocks(format) => self.blocks(format, span.start, at, part),
            }
            (at, out) = (at + here as u64, rest);
        }
        Ok(())
    }

    /// The bytes from `at` on of a tensor that starts at `start`.
    fn blocks(&self, format: BlockFormat, start: u64, at: u64, mut out: &mut [u8]) {
        let pool = &self.pools[&format];
        let bytes = (pool.len() / UNITS) as u64;
        let (mut unit, mut skip) = ((at - start) / bytes, ((at - start) % bytes) as usize);
        while !out.is_empty() {
            let sampled = mix(mix(self.seed ^ start) ^ unit) as usize % UNITS;
            let from = &pool[sampled * bytes as usize + skip..(sampled + 1) * bytes as usize];
            let (part, rest) = out.split_at_mut(from.len().min(out.len()));
            part.copy_from_slice(&from[..part.len()]);
            (unit, skip, out) = (unit + 1, 0, rest);
        }
    }
}

/// Normally distributed weights, encoded.
fn pool(format: BlockFormat, seed: u64) -> Result<Vec<u8>> {
    let uniform = |i: usize| (mix(seed ^ mix(i as u64)) >> 11) as f64 / (1u64 << 53) as f64;
    // Box and Muller (1958).
    let normal = |i: usize| {
        let (u, v) = (1.0 - uniform(2 * i), uniform(2 * i + 1));
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    };
    let weights: Vec<f32> = (0..UNIT * UNITS).map(|i| (SIGMA * normal(i)) as f32).collect();
    let mut bytes = vec![0; UNITS * format.row_bytes(UNIT as u64)? as usize];
    format.encode(&weights, &mut bytes)?;
    Ok(bytes)
}

/// Spreads every bit of `x` over all bits (the step and finaliser of SplitMix64, Steele et al. 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl ByteSource for Random {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ReadFuture<'a> {
        Box::pin(std::future::ready(self.fill(offset, out)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::TensorType;

    #[test]
    fn bytes_do_not_depend_on_the_pieces_they_are_read_in() {
        let tensor = |format, shape: &[u64], offset, bytes| TensorInfo {
            name: "t".into(),
            ty: TensorType::Block(format),
            shape: shape.into(),
            file: 0,
            offset,
            bytes,
        };
        let tensors = [
            tensor(BlockFormat::F32, &[5], 0, 20),
            tensor(BlockFormat::Q4_0, &[3, 96], 20, 162),
            tensor(BlockFormat::Q6_K, &[2, 512], 182, 840),
        ];
        let random = Random::new("random", 1, &tensors).unwrap();
        let mut whole = vec![0; 1022];
        random.fill(0, &mut whole).unwrap();
        assert_eq!(whole[..20].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).sum::<f32>(), 5.0);
        for size in [1, 7, 300] {
            let mut pieces = vec![0; 1022];
            for (i, piece) in pieces.chunks_mut(size).enumerate() {
                random.fill((i * size) as u64, piece).unwrap();
            }
            assert_eq!(pieces, whole, "by {size}");
        }
        assert!(random.fill(1000, &mut [0; 23]).is_err());
        let mut decoded = vec![0.0; 1024];
        BlockFormat::Q6_K.decode(&whole[182..], &mut decoded).unwrap();
        let rms = (decoded.iter().map(|x| x * x).sum::<f32>() / 1024.0).sqrt();
        assert!((0.018..0.022).contains(&rms), "{rms}");
    }
}
