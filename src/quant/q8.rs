//! Int8 activations, and what a format says of its weights for integer dot products.
//!
//! **The order of summation** is the same in every variant, for rows alone (`row_products`) and by tiles (`tile`), so they
//! agree to the bit. For each 32 weights, or each 16 where those have scales of their own, the products are added in i32,
//! which is exact. That sum times (the weights' scale times the activations') goes to one running sum, a product and a sum
//! each rounded to f32. Minima have a running sum of their own, subtracted at the end.

use super::fit::ROUND;
use super::simd::{self, Blocks, Bytes, Simd, Vector};
use super::tile::Tile;

/// Rows of weights of a tile, and those whose products are asked for at once.
pub(crate) const LANES: usize = 16;

/// 32 activations, `x ≈ scale * quant`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Q8 {
    /// The largest activation over 127. Not finite if an activation is not.
    pub scale: f32,
    /// `scale` times the sum of the quants: what a weight's minimum is multiplied by.
    pub sum: f32,
    /// -128 times the sums of the low and high 16 quants: corrects products with weights' quants that 128 was added to.
    pub corrections: [i32; 2],
    /// From -127 to 127.
    pub quants: [i8; 32],
}

impl Q8 {
    /// Rounds activations; `out` has one for each 32 of them.
    ///
    /// # Panics
    /// If the lengths do not fit: a caller's bug in an inner loop.
    pub fn quantize(x: &[f32], out: &mut [Q8]) {
        assert_eq!(x.len(), 32 * out.len());
        simd::quantize(x, out);
    }

    /// The body of all forms.
    #[inline(always)]
    pub(super) fn quantize_body(x: &[f32], out: &mut [Q8]) {
        for (x, out) in x.as_chunks::<32>().0.iter().zip(out) {
            // As integers, sizes of floats are in order and NaN is above all.
            let mut max = 0;
            for x in x {
                max = max.max(x.to_bits() & 0x7fff_ffff);
            }
            let max = f32::from_bits(max);
            let inverse = if max == 0.0 { 0.0 } else { 127.0 / max };
            for (q, x) in out.quants.iter_mut().zip(x) {
                // Rounds to even, as `fit::nearest`; the low byte of the bits is the integer.
                *q = (x * inverse + ROUND).to_bits() as i8;
            }
            let mut sums = [0i16; 2];
            for (sum, half) in sums.iter_mut().zip(out.quants.as_chunks::<16>().0) {
                for q in half {
                    *sum += i16::from(*q);
                }
            }
            out.scale = max / 127.0;
            out.sum = f32::from(sums[0] + sums[1]) * out.scale;
            out.corrections = sums.map(|sum| -128 * i32::from(sum));
        }
    }

    /// The low and the high 16 quants.
    #[inline(always)]
    pub(super) fn low_high(&self) -> &[[i8; 16]; 2] {
        bytemuck::cast_ref(&self.quants)
    }

    /// `-by` times the sum of the low or high 16 quants: corrects products with weights' quants that are too large by that
    /// much.
    #[inline(always)]
    pub(super) fn sum_below(&self, by: u8, half: usize) -> i32 {
        (self.corrections[half] >> 7) * i32::from(by) // a multiple of 128
    }

    /// `scale` times the sum of the low or high 16 quants.
    #[inline(always)]
    pub(super) fn half_sum(&self, half: usize) -> f32 {
        (self.corrections[half] / -128) as f32 * self.scale
    }
}

/// 32 columns of some rows as integers: for the low (h = 0) and high 16, `weight = scale[h] * (quant - ABOVE) - min[h]`.
pub(super) struct Group<V: Vector> {
    pub(super) quants: [Bytes<V>; 2],
    pub(super) scale: [V::Floats; 2],
    /// Not read of formats without minima.
    pub(super) min: [V::Floats; 2],
}

impl<V: Vector> Group<V> {
    /// One scale and no minimum.
    #[inline(always)]
    pub(super) fn new(quants: [Bytes<V>; 2], scale: V::Floats) -> Self {
        Self { quants, scale: [scale; 2], min: [V::float(0.0); 2] }
    }
}

/// How a format's blocks give their weights as integers. Functions in here need an inline attribute: they are compiled for
/// the instruction set of each variant.
pub(super) trait Unpack<const BYTES: usize> {
    /// Groups of 32 weights in a block.
    const GROUPS: usize;
    /// Whether the low and the high 16 weights of a group have scales (and minima) of their own.
    const SCALES_BY_16: bool = false;
    /// Whether weights have minima.
    const MINS: bool = false;
    /// Bits of a quant. With 8 it has a sign, and the variant's bias; with fewer it has none.
    const BITS: u32;
    /// Whether quants are signed.
    const SIGNED: bool = Self::BITS == 8;
    /// What is added to unsigned quants.
    const ABOVE: u8 = above(Self::MINS, Self::BITS);

    /// Calls `each` with the groups of a block of some rows, in order.
    fn block<V: Vector>(w: &Blocks<V, BYTES>, each: impl FnMut(usize, Group<V>));
}

/// What is added to quants of so many bits, so that they have no sign: half their range, where no minimum does as much.
pub(super) const fn above(mins: bool, bits: u32) -> u8 {
    if mins || bits == 8 { 0 } else { 1 << (bits - 1) }
}

type Products = fn(simd: Simd, tiles: &[Tile], x: &[&[Q8]], out: &mut [[f32; LANES]]);

/// A format's int8 kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int8Form {
    /// `out[i] = row i · x`, for the first [`LANES`] rows, or as many as `w` has; further results mean nothing.
    pub(crate) rows: fn(simd: Simd, w: &[u8], row_bytes: usize, x: &[Q8], out: &mut [f32; LANES]),
    /// The same rows as tiles, one for each 32 columns.
    pub(crate) tiles: fn(simd: Simd, w: &[u8], row_bytes: usize, out: &mut [Tile]),
    /// `out[i][j] = row j · x[i]`, of tiles.
    pub(crate) products: Products,
}

/// A format's entry in the table.
pub(super) const fn eight<U: Unpack<BYTES>, const BYTES: usize>() -> Int8Form {
    Int8Form {
        rows: simd::rows::<U, BYTES>,
        tiles: simd::tiles::<U, BYTES>,
        products: match (U::SCALES_BY_16, U::MINS, U::BITS) {
            (false, false, 8) => simd::products::<false, false, 8>,
            (false, false, 4) => simd::products::<false, false, 4>,
            (false, false, 5) => simd::products::<false, false, 5>,
            (false, true, 4) => simd::products::<false, true, 4>,
            (false, true, 5) => simd::products::<false, true, 5>,
            (true, true, 2) => simd::products::<true, true, 2>,
            (true, false, 3) => simd::products::<true, false, 3>,
            (true, false, 6) => simd::products::<true, false, 6>,
            _ => panic!("a new kind of quants: it needs a form here"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::BlockFormat;

    /// Sixteen rows at once and fewer, alone and by tiles, with one and many rows of activations, of any bytes.
    #[test]
    fn rows_and_tiles_give_the_same_bits_in_every_form() {
        let mut seed = 1u64;
        let mut byte = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 56) as u8
        };
        let mut checked = 0;
        for (format, eight) in BlockFormat::ALL.iter().filter_map(|f| Some((f, f.info().eight?))) {
            // Rows with an even number of blocks have a form of their own if sixteen are of more than 12 KiB.
            let long = (simd::LONG / LANES / format.info().bytes + 1).next_multiple_of(2);
            for (blocks, n, many, largest) in [
                (1, 16, 8, false),
                (3, 16, 11, false),
                (2, 5, 1, false),
                (5, 16, 3, false),
                (2, 16, 13, true),
                (long, 16, 2, false),
                (long, 16, 2, true),
                (long, 15, 1, false),
                (long + 1, 16, 1, false),
            ] {
                let k = blocks * format.info().weights;
                let row_bytes = blocks * format.info().bytes;
                let mut w: Vec<u8> = (0..n * row_bytes).map(|_| byte()).collect();
                let mut x: Vec<f32> = (0..many * k).map(|_| f32::from(byte() as i8) * 0.3).collect();
                // Where all are as large as they can be, sums are, too.
                if largest && format.info().encode.is_some() {
                    let weights = |row: usize| {
                        (0..k).map(move |c| if c.is_multiple_of(32) == row.is_multiple_of(2) { -1.0 } else { 1.0 })
                    };
                    let weights: Vec<f32> = (0..n).flat_map(weights).collect();
                    format.encode(&weights, &mut w).unwrap();
                    x.chunks_mut(k).enumerate().for_each(|(i, x)| x.fill([1.0, -1.0][i % 2]));
                }
                let mut q8 = vec![Q8::default(); x.len() / 32];
                Q8::quantize(&x, &mut q8);
                let x: Vec<&[Q8]> = q8.chunks(k / 32).collect();
                let mut expected = vec![[0.0; LANES]; many];
                for (x, out) in x.iter().zip(&mut expected) {
                    for (row, out) in w.chunks(row_bytes).zip(out) {
                        *out = format.dot_q8(Simd::Portable, row, x).unwrap();
                    }
                }
                for simd in Simd::available() {
                    let mut check = |out: &[[f32; LANES]], what: &str| {
                        let both =
                            out.iter().zip(&expected).flat_map(|(out, expected)| out.iter().zip(expected).take(n));
                        for (out, expected) in both {
                            let same = out.to_bits() == expected.to_bits() || out.is_nan() && expected.is_nan();
                            assert!(same, "{} {simd:?} {what}, {blocks} blocks: {out} for {expected}", format.name());
                            checked += 1;
                        }
                    };
                    let mut out = vec![[0.0; LANES]; many];
                    for (x, out) in x.iter().zip(&mut out) {
                        (eight.rows)(simd, &w, row_bytes, x, out);
                    }
                    check(&out, "rows");
                    let mut tiles: Vec<Tile> = vec![bytemuck::Zeroable::zeroed(); k / 32];
                    (eight.tiles)(simd, &w, row_bytes, &mut tiles);
                    (eight.products)(simd, &tiles, &x, &mut out);
                    check(&out, "tiles");
                }
            }
        }
        assert!(checked > 10_000);
    }
}
