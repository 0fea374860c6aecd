//! Block formats: how a file stores a row of weights, and how it is read, written and laid out for a GPU.
//!
//! A *row* (k weights) is a multiple of the block; a block is a fixed number of weights in a fixed number of bytes.
//! Each format is one file here, one line in the table below, and one decoder in `wgsl/quant/`. Every type that a
//! GGUF may name, decoded here or not, is listed in `ggml`.
//!
//! **The GPU form of a row** is a whole multiple of 16-byte units, so that aligned `vec4<u32>` loads work. It is made of
//! *planes*: one part of every block, say the quants, then the next part of every block, each plane from a whole word;
//! then zeros. Where blocks are whole 16-byte units, one plane of whole blocks is the file's own form.
//! [`BlockFormat::repack_row`] makes it, the format's WGSL decoder reads it, and [`BlockFormat::gpu_row_words`] is its
//! length on both sides.

mod bf16;
mod fit;
mod float_rows;
mod fp16;
mod fp32;
#[cfg(not(feature = "unstable_internals"))]
pub(crate) mod ggml;
#[cfg(feature = "unstable_internals")]
pub mod ggml;
mod iq4_nl;
mod iq4_xs;
pub mod mix;
mod mxfp4;
mod packed6;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8;
mod q8_0;
#[cfg(target_arch = "x86_64")]
mod row_pairs;
mod row_products;
mod rows;
mod simd;
mod tile;

use std::ops::Range;

internal!(use q8::Q8);
pub(crate) use q8::{Int8Form, LANES};
pub(crate) use simd::SECTION;
internal!(use simd::Simd);
pub(crate) use tile::Tile;

use crate::{Error, Result};

/// Whole blocks to f32.
type Decode = fn(blocks: &[u8], out: &mut [f32]);
/// f32 to whole blocks.
type Encode = fn(weights: &[f32], out: &mut [u8]);

/// `out[i * n + j] = row j · x[i]` for the n rows of numbers that w holds, each as long as the rows of x.
pub(crate) type FloatProducts = fn(simd: Simd, w: &[u8], x: &[&[f32]], out: &mut [f32]);

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
    /// Products with f32 activations, in the order of the `float_products` module; none for blocks that have to be decoded.
    pub(crate) floats: Option<FloatProducts>,
    /// Products with int8 activations, in the order of the `q8` module; none for formats of floats.
    pub(crate) eight: Option<Int8Form>,
    /// The bytes of a block that each plane of the GPU form holds.
    pub(crate) planes: &'static [Range<usize>],
    /// The decoder that kernels are composed with: `QBLOCK`, `HALF_GAP`, `Chunk`, `row_words`, `chunk`, `decode16`.
    pub wgsl: &'static str,
}

/// Declares [`BlockFormat`] and the table after it: a variant, and the module whose `INFO` describes it.
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
    /// 32 four-bit numbers and a scale.
    Q4_0: q4_0,
    /// 32 four-bit numbers, a scale and a minimum.
    Q4_1: q4_1,
    /// 32 five-bit numbers and a scale.
    Q5_0: q5_0,
    /// 32 five-bit numbers, a scale and a minimum.
    Q5_1: q5_1,
    /// 256 two-bit numbers, scales and minima of 16.
    Q2_K: q2_k,
    /// 256 three-bit numbers, scales of 16.
    Q3_K: q3_k,
    /// 256 four-bit numbers, scales and minima of 32.
    Q4_K: q4_k,
    /// 256 five-bit numbers, scales and minima of 32.
    Q5_K: q5_k,
    /// 256 six-bit numbers, scales of 16.
    Q6_K: q6_k,
    /// 32 four-bit numbers of uneven levels and a scale.
    IQ4_NL: iq4_nl,
    /// 256 four-bit numbers of uneven levels, scales of 32.
    IQ4_XS: iq4_xs,
    /// 32 four-bit floats and a power of two.
    MXFP4: mxfp4,
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
        Self::names_of(Self::ALL, ", ")
    }

    /// The names of some formats, with what stands between them.
    pub(crate) fn names_of(formats: &[Self], between: &str) -> String {
        formats.iter().map(|format| format.name()).collect::<Vec<_>>().join(between)
    }

    /// The format of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.name() == name)
    }

    /// Its place in [`BlockFormat::ALL`], for tables of all formats.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether quants are places in a list of levels.
    pub(crate) fn has_codebook(self) -> bool {
        matches!(self, Self::IQ4_NL | Self::IQ4_XS | Self::MXFP4)
    }

    /// Whether weights are int8, times a scale, plus a constant, for each 16 or 32 of them: products with
    /// int8 activations are exact sums.
    pub fn has_ints(self) -> bool {
        self.info().eight.is_some()
    }

    /// Bytes of a row of `k` weights in a file. An error if `k` is not a multiple of blocks, or out of range.
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
        let blocks = k / self.info().weights as u64;
        let words: u64 = self.info().planes.iter().map(|plane| (blocks * plane.len() as u64).div_ceil(4)).sum();
        let words = u32::try_from(words).map_err(|_| Error::argument(self.name(), "row too long"))?;
        Ok(words.next_multiple_of(4))
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
            let others: Vec<_> = Self::ALL.iter().filter(|f| f.info().encode.is_some()).map(|f| f.name()).collect();
            Error::unsupported(format!("writing {}", self.name()), format!("{} can be written", others.join(", ")))
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
        let mut out = [0.0];
        match info.floats {
            Some(products) => products(Simd::best(), row, &[x], &mut out),
            None => {
                let mut decoded = vec![0.0; x.len()];
                (info.decode)(row, &mut decoded);
                Self::floats(Simd::best(), &decoded, &[x], &mut out);
            }
        }
        out[0]
    }

    /// `out[i * n + j] = w[j] · x[i]` for n rows of floats.
    pub(crate) fn floats(simd: Simd, w: &[f32], x: &[&[f32]], out: &mut [f32]) {
        simd::float_products::<simd::F32>(simd, bytemuck::cast_slice(w), x, out);
    }

    /// `sum_i row[i] * x[i]` with int8 activations, summed in integers for each 32: the same bits in every form.
    /// None if the format has floats and no such product.
    ///
    /// # Panics
    /// If `row` is not the blocks of `32 * x.len()` weights: a caller's bug in an inner loop.
    pub fn dot_q8(self, simd: Simd, row: &[u8], x: &[Q8]) -> Option<f32> {
        let info = self.info();
        let k = 32 * x.len();
        assert!(
            k.is_multiple_of(info.weights) && row.len() == k / info.weights * info.bytes,
            "dot_q8: {} bytes of {} for {k} activations",
            row.len(),
            info.name
        );
        info.eight.map(|eight| {
            let mut out = [0.0; LANES];
            (eight.rows)(simd, row, row.len(), x, &mut out);
            out[0]
        })
    }

    /// A row as files store it, `k` weights, to its GPU form: `out` is `gpu_row_words(k)` long.
    pub fn repack_row(self, row: &[u8], k: u64, out: &mut [u32]) -> Result<()> {
        if row.len() as u64 != self.row_bytes(k)? || out.len() as u64 != u64::from(self.gpu_row_words(k)?) {
            let problem = format!("{} bytes do not repack to {} words for k = {k}", row.len(), out.len());
            return Err(Error::argument(self.name(), problem));
        }
        out.fill(0);
        let info = self.info();
        let mut at = 0;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(out);
        for plane in info.planes {
            if plane.len() == info.bytes {
                bytes[..row.len()].copy_from_slice(row);
                break;
            }
            let to = bytes[at..].chunks_exact_mut(plane.len());
            row.chunks_exact(info.bytes).zip(to).for_each(|(block, to)| to.copy_from_slice(&block[plane.clone()]));
            at += (row.len() / info.bytes * plane.len()).next_multiple_of(4);
        }
        out.iter_mut().for_each(|word| *word = u32::from_le(*word));
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

/// Applies a decoder to each block.
#[inline(always)]
fn decode_blocks<const BYTES: usize, const WEIGHTS: usize>(
    blocks: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; WEIGHTS]),
) {
    blocks.as_chunks().0.iter().zip(out.as_chunks_mut().0).for_each(|(block, out)| decode(block, out));
}

/// Applies an encoder to each block.
fn encode_blocks<const BYTES: usize, const WEIGHTS: usize>(
    weights: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; WEIGHTS], &mut [u8; BYTES]),
) {
    weights.as_chunks().0.iter().zip(out.as_chunks_mut().0).for_each(|(weights, block)| encode(weights, block));
}

/// The f16 at a byte of a block, as f32; exact. Inlined arithmetic, because a call for each block would cost more than it.
#[inline(always)]
fn f16_at(block: &[u8], at: usize) -> f32 {
    let bits = u32::from(u16::from_le_bytes([block[at], block[at + 1]]));
    let size = (bits & 0x7fff) << 13;
    // 2^112 moves the exponent of numbers and of subnormals to its place; infinity and NaN are beyond.
    let finite = f32::from_bits(size) * f32::from_bits(0x7780_0000);
    let size = if size < 0x0f80_0000 { finite.to_bits() } else { size | 0x7f80_0000 };
    f32::from_bits(size | (bits & 0x8000) << 16)
}

/// The weight of the largest size, with its sign; the first of equals.
fn largest(weights: &[f32]) -> f32 {
    weights.iter().copied().fold(0.0, |max, w| if w.abs() > max.abs() { w } else { max })
}

/// Stores an f16 at a byte of a block.
fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::compose::{Fragment, Kernel, compose};

    /// Weights with a sign, fractions and ties, the same as were given to gguf-py for the expected bytes below.
    fn weights() -> Vec<f32> {
        let w = |i: i32| ((i * 37) % 64 - 20) as f32 / 24.0;
        (0..64).map(|i| if i < 32 { w(i) } else { -3.0 * w(i) }).collect()
    }

    #[test]
    fn the_table_agrees_with_ggml() {
        for &format in BlockFormat::ALL {
            let info = format.info();
            let ggml = ggml::by_id(info.ggml_type).unwrap();
            assert_eq!((info.name, info.weights, info.bytes), (ggml.name, ggml.weights as usize, ggml.bytes as usize));
            assert_eq!(BlockFormat::from_ggml(info.ggml_type), Some(format));
        }
        assert!(ggml::TYPES.windows(2).all(|pair| pair[0].id < pair[1].id));
        assert_eq!(BlockFormat::from_ggml(4), None);
    }

    #[test]
    fn blocks_are_encoded_as_gguf_py_does() {
        for (format, expected) in [
            (
                BlockFormat::Q8_0,
                &[
                    57, 35, 197, 50, 226, 80, 0, 109, 30, 206, 59, 235, 89, 9, 118, 38, 215, 68, 244, 97, 18, 127, 47,
                    224, 77, 253, 106, 27, 203, 56, 232, 86, 6, 115, 75, 41, 220, 45, 189, 15, 159, 241, 129, 211, 36,
                    180, 6, 150, 232, 57, 202, 27, 171, 253, 141, 223, 48, 192, 18, 162, 244, 132, 214, 39, 183, 9,
                    153, 235,
                ][..],
            ),
            (
                BlockFormat::Q4_0,
                &[
                    43, 179, 156, 37, 122, 3, 88, 161, 54, 139, 20, 105, 178, 71, 145, 54, 139, 20, 64, 57, 54, 139,
                    20, 105, 178, 71, 144, 37, 122, 3, 88, 161, 54, 156, 37, 122,
                ][..],
            ),
            (
                BlockFormat::Q4_1,
                &[
                    154, 49, 171, 186, 64, 217, 98, 251, 149, 46, 183, 81, 218, 115, 12, 149, 62, 200, 81, 234, 17, 56,
                    64, 197, 55, 174, 21, 140, 226, 89, 192, 55, 157, 4, 123, 226, 72, 191, 38, 157,
                ][..],
            ),
            (
                BlockFormat::Q5_0,
                &[
                    43, 175, 149, 66, 161, 20, 23, 74, 228, 6, 160, 66, 108, 6, 57, 211, 117, 159, 49, 91, 245, 23, 64,
                    53, 10, 165, 82, 40, 91, 6, 40, 194, 100, 142, 32, 74, 229, 6, 177, 83, 125, 23, 57, 211,
                ][..],
            ),
            (
                BlockFormat::Q5_1,
                &[
                    107, 45, 171, 186, 42, 181, 90, 169, 128, 162, 213, 247, 42, 76, 127, 145, 196, 230, 25, 59, 110,
                    128, 179, 213, 223, 51, 64, 197, 42, 181, 90, 169, 127, 93, 42, 8, 213, 179, 128, 110, 59, 25, 230,
                    196, 145, 127, 76, 42,
                ][..],
            ),
            (
                BlockFormat::MXFP4,
                &[
                    125, 157, 117, 43, 118, 80, 199, 99, 13, 117, 58, 214, 81, 183, 100, 28, 118, 127, 219, 4, 237,
                    177, 78, 217, 31, 236, 147, 253, 176, 62, 218, 20, 236, 162,
                ][..],
            ),
        ] {
            let mut out = vec![0; format.row_bytes(64).unwrap() as usize];
            format.encode(&weights(), &mut out).unwrap();
            assert_eq!(out, expected, "{}", format.name());
        }
    }

    #[test]
    fn ties_between_quants_go_up() {
        let mut w = [0.0; 32];
        (w[0], w[1], w[2]) = (15.0, 2.5, 3.5); // d = 1, m = 0
        let mut out = [0; 20];
        BlockFormat::Q4_1.encode(&w, &mut out).unwrap();
        assert_eq!(out[4..7], [15, 3, 4]);
        (w[0], w[1], w[2]) = (127.0, 2.5, -2.5); // d = 1: away from zero
        let mut out = [0; 34];
        BlockFormat::Q8_0.encode(&w, &mut out).unwrap();
        assert_eq!(out[2..5], [127, 3, -3i8 as u8]);
    }

    #[test]
    fn floats_round_to_nearest_even() {
        let encode = |format: BlockFormat, w: f32| {
            let mut out = [0; 2];
            format.encode(&[w], &mut out).unwrap();
            u16::from_le_bytes(out)
        };
        let ulp = |bits: i32| 1.0 + 0.5f32.powi(bits); // 1 and a half unit in the last place is a tie
        assert_eq!(encode(BlockFormat::F16, ulp(11)), 0x3c00);
        assert_eq!(encode(BlockFormat::F16, ulp(10) + 0.5f32.powi(11)), 0x3c02);
        assert_eq!(encode(BlockFormat::BF16, ulp(8)), 0x3f80);
        assert_eq!(encode(BlockFormat::BF16, ulp(7) + 0.5f32.powi(8)), 0x3f82);
        assert_eq!(encode(BlockFormat::F16, 65520.0), 0x7c00); // above the largest: infinity
        assert!(half::bf16::from_bits(encode(BlockFormat::BF16, f32::NAN)).is_nan());
    }

    #[test]
    fn every_f16_is_read() {
        for bits in 0..=u16::MAX {
            let (read, expected) = (f16_at(&bits.to_le_bytes(), 0), half::f16::from_bits(bits).to_f32());
            assert!(read.to_bits() == expected.to_bits() || read.is_nan() && expected.is_nan(), "{bits:04x}: {read}");
        }
    }

    #[test]
    fn odd_rows_are_errors() {
        for format in [BlockFormat::Q8_0, BlockFormat::Q4_1] {
            let error = format.row_bytes(33).unwrap_err().to_string();
            assert!(error.contains("33") && error.contains("block of 32"), "{error}");
            assert!(format.gpu_row_words(172).is_err());
            assert!(format.encode(&[0.0; 33], &mut [0; 34]).is_err());
            assert!(format.encode(&[0.0; 32], &mut [0; 33]).is_err());
            assert!(format.decode(&[0; 34], &mut [0.0; 31]).is_err());
            assert!(format.repack_row(&[0; 34], 32, &mut [0; 8]).is_err());
        }
        assert!(BlockFormat::F32.row_bytes(MAX_ROW + 1).is_err());
        assert!(BlockFormat::F16.gpu_row_words(MAX_ROW).is_ok());
    }

    #[test]
    fn the_gpu_form_is_the_blocks_by_planes() {
        for &format in BlockFormat::ALL {
            let info = format.info();
            let mut covered: Vec<usize> = info.planes.iter().cloned().flatten().collect();
            covered.sort();
            assert!(covered.into_iter().eq(0..info.bytes), "{}: each byte is in one plane", info.name);
            for blocks in [0, 1, 2, 3, 7, 8, 33] {
                let k = (blocks * info.weights) as u64;
                let row: Vec<u8> = (0..blocks * info.bytes).map(|i| (i * 37 % 251 + 1) as u8).collect();
                let mut words = vec![u32::MAX; format.gpu_row_words(k).unwrap() as usize];
                format.repack_row(&row, k, &mut words).unwrap();
                assert!(words.len().is_multiple_of(4));
                let mut expected = Vec::new();
                for plane in info.planes {
                    row.chunks_exact(info.bytes).for_each(|block| expected.extend_from_slice(&block[plane.clone()]));
                    expected.resize(expected.len().next_multiple_of(4), 0);
                }
                expected.resize(expected.len().next_multiple_of(16), 0);
                let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                assert!(words == expected, "{} with {blocks} blocks", info.name);
            }
        }
    }

    #[test]
    fn decoders_are_valid_wgsl() {
        for &format in BlockFormat::ALL {
            let mut kernel = Kernel::new(
                "decoder",
                "//! use: <weights>, lib/unpack
                @group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;
                @group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
                @compute @workgroup_size(1) fn main() { y[QBLOCK + chunk_at(3u)] = decode16(chunk(row_words(64u), 64u, 1u), 1u)[2]; }",
            );
            kernel.fill("weights", Fragment { name: format.name(), source: format.info().wgsl });
            let source = compose(&kernel).unwrap();
            let module = naga::front::wgsl::parse_str(&source);
            let module = module.unwrap_or_else(|e| panic!("{}: {}", format.name(), e.emit_to_string(&source)));
            // Conversion from f16 bits: part of WebGPU, without any optional feature.
            let capabilities = naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32;
            let valid =
                naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities).validate(&module);
            valid.unwrap_or_else(|e| panic!("{}: {e:?}", format.name()));
            let block = format!("const QBLOCK: u32 = {}u;", format.info().weights);
            assert!(source.contains(&block), "{}: {block}", format.name());
        }
    }
}
