//! Block formats: how a file stores a row of weights, and how it is read, written and laid out for a GPU.
//!
//! A *row* (k weights) is a whole number of *blocks*; a block is a fixed number of weights in a fixed number of bytes.
//! Each format is one file here, one line in the table below, and one decoder in `wgsl/quant/`. Every type that a
//! GGUF may name, decoded here or not, is listed in [`ggml`].
//!
//! **The GPU form of a row** is a whole number of 16-byte units, so that aligned `vec4<u32>` loads work: the quants of
//! all its blocks, then their scales as f16 pairs, then zeros. [`BlockFormat::repack_row`] makes it, the format's WGSL
//! decoder reads it, and [`BlockFormat::gpu_row_words`] is its length on both sides.

mod bf16;
mod fp16;
mod fp32;
pub mod ggml;
mod lanes;
mod q4_1;
mod q8_0;

use crate::{Error, Result};

/// Whole blocks to f32.
type Decode = fn(blocks: &[u8], out: &mut [f32]);
/// f32 to whole blocks.
type Encode = fn(weights: &[f32], out: &mut [u8]);

/// What the rest of the engine knows about a format.
#[derive(Debug)]
pub struct FormatInfo {
    /// The name that GGUF tools use: `Q8_0`.
    pub name: &'static str,
    /// The number of the type in a GGUF tensor table.
    pub ggml_type: u32,
    /// Weights in a block.
    pub weights: usize,
    /// Bytes of a block in a file.
    pub bytes: usize,
    /// Bit for bit as ggml does it.
    pub(crate) decode: Decode,
    /// Bit for bit as ggml's reference quantiser does it.
    pub(crate) encode: Option<Encode>,
    /// `sum_i row[i] * x[i]` over the decoded weights in f32, in the order of the `lanes` module.
    pub(crate) dot: fn(&[u8], &[f32]) -> f32,
    /// Words that the GPU form of a row of k weights needs, before it is rounded up to whole 16-byte units.
    pub(crate) row_words: fn(k: u32) -> u32,
    /// A row as the file has it to its GPU form; `out` is zeroed and `row_words` long or longer.
    pub(crate) repack: fn(&[u8], &mut [u32]),
    /// The decoder that kernels are composed with: `QBLOCK`, `row_words`, `dequant4`.
    pub wgsl: &'static str,
}

/// Declares [`BlockFormat`] and the table behind it: a variant, and the module whose `INFO` describes it.
macro_rules! formats {
    ($($(#[$doc:meta])* $variant:ident: $module:ident,)*) => {
        /// A format that weights can be stored in.
        #[allow(non_camel_case_types, reason = "the names that GGUF files and tools use")]
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum BlockFormat { $($(#[$doc])* $variant,)* }

        impl BlockFormat {
            /// Every format.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The format's line in the table.
            pub const fn info(self) -> &'static FormatInfo {
                match self { $(Self::$variant => &$module::INFO,)* }
            }
        }
    };
}

formats! {
    /// 32-bit floats.
    F32: fp32,
    /// 16-bit IEEE floats.
    F16: fp16,
    /// 16-bit floats with the exponent of 32-bit ones.
    BF16: bf16,
    /// 32 signed bytes and a scale.
    Q8_0: q8_0,
    /// 32 four-bit numbers, a scale and a minimum.
    Q4_1: q4_1,
}

/// The longest row that is taken: its GPU form stays far below 2^32 words in every format.
pub const MAX_ROW: u64 = 1 << 28;

impl BlockFormat {
    /// The format with this number in GGUF files, if this engine runs it.
    pub fn from_ggml(ggml_type: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.info().ggml_type == ggml_type)
    }

    /// The name that GGUF tools use.
    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// The names of all formats, for messages: `F32, F16, ...`.
    pub fn names() -> String {
        Self::ALL.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
    }

    /// Bytes of a row of `k` weights in a file. An error if `k` is no whole number of blocks, or out of range.
    pub fn row_bytes(self, k: u64) -> Result<u64> {
        let info = self.info();
        if k > MAX_ROW {
            return Err(Error::argument(info.name, format!("a row of {k} weights is longer than {MAX_ROW}")));
        }
        if !k.is_multiple_of(info.weights as u64) {
            let problem = format!("a row of {k} weights is not a multiple of its block of {}", info.weights);
            return Err(Error::argument(info.name, problem));
        }
        Ok(k / info.weights as u64 * info.bytes as u64)
    }

    /// 32-bit words of a row of `k` weights in its GPU form, a multiple of four.
    pub fn gpu_row_words(self, k: u64) -> Result<u32> {
        self.row_bytes(k)?;
        let k = u32::try_from(k).map_err(|_| Error::argument(self.name(), "row too long"))?;
        Ok((self.info().row_words)(k).next_multiple_of(4))
    }

    /// Decodes whole blocks: `out[i] = weight i`.
    pub fn decode(self, blocks: &[u8], out: &mut [f32]) -> Result<()> {
        self.check(blocks.len(), out.len())?;
        (self.info().decode)(blocks, out);
        Ok(())
    }

    /// Rounds weights to whole blocks. Unsupported where only ggml's own tools can encode the format.
    pub fn encode(self, weights: &[f32], out: &mut [u8]) -> Result<()> {
        self.check(out.len(), weights.len())?;
        let encode = self.info().encode.ok_or_else(|| {
            Error::unsupported(format!("writing {}", self.name()), "F32, F16, BF16, Q8_0 and Q4_1 can be written")
        })?;
        encode(weights, out);
        Ok(())
    }

    /// `sum_i row[i] * x[i]`: decoded weights times f32 activations, added in an order that depends on the length
    /// alone, so every format gives the bits that its decoded row gives as F32.
    ///
    /// # Panics
    /// If `row` is not the blocks of `x.len()` weights: a caller's bug in an inner loop.
    pub fn dot(self, row: &[u8], x: &[f32]) -> f32 {
        let info = self.info();
        assert!(
            x.len().is_multiple_of(info.weights) && row.len() == x.len() / info.weights * info.bytes,
            "dot: {} bytes of {} for {} activations",
            row.len(),
            info.name,
            x.len()
        );
        (info.dot)(row, x)
    }

    /// A row as files store it, `k` weights, to its GPU form: `out` is `gpu_row_words(k)` long.
    pub fn repack_row(self, row: &[u8], k: u64, out: &mut [u32]) -> Result<()> {
        if row.len() as u64 != self.row_bytes(k)? || out.len() as u64 != u64::from(self.gpu_row_words(k)?) {
            let problem = format!("{} bytes do not repack to {} words for k = {k}", row.len(), out.len());
            return Err(Error::argument(self.name(), problem));
        }
        out.fill(0);
        (self.info().repack)(row, out);
        Ok(())
    }

    /// The buffers of whole blocks must fit each other.
    fn check(self, bytes: usize, weights: usize) -> Result<()> {
        let info = self.info();
        if !weights.is_multiple_of(info.weights) {
            let problem = format!("{weights} weights are not a multiple of its block of {}", info.weights);
            return Err(Error::argument(info.name, problem));
        }
        if weights / info.weights * info.bytes != bytes {
            return Err(Error::argument(info.name, format!("{bytes} bytes do not hold {weights} weights")));
        }
        Ok(())
    }
}

/// Copies bytes into little-endian words; a last incomplete word is filled with zeros.
fn copy_words(bytes: &[u8], out: &mut [u32]) {
    for (word, bytes) in out.iter_mut().zip(bytes.chunks(4)) {
        let mut four = [0; 4];
        four[..bytes.len()].copy_from_slice(bytes);
        *word = u32::from_le_bytes(four);
    }
}
