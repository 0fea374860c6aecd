//! Activations of eight bits, and dot products in whole numbers.
//!
//! **The order of summation** is the same in every form, so they agree to the bit: for each 32 weights, eight sums of four
//! neighbouring products, exact in i32; each times its scale goes to running sum `l` or, for odd groups of 32, `8 + l`, a
//! product and a sum each rounded to f32; minima have two running sums of their own. Then halves are added pairwise.

use super::fit::ROUND;
use super::simd::{self, Simd};

/// 32 activations, `x ≈ scale * quant`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Q8 {
    /// The largest activation over 127. Not finite if an activation is not.
    pub scale: f32,
    /// `scale` times the sum of each half's quants: what a weight's minimum is multiplied by.
    pub sums: [f32; 2],
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
            // As whole numbers, sizes of floats are in order and NaN is above all.
            let mut max = 0;
            for x in x {
                max = max.max(x.to_bits() & 0x7fff_ffff);
            }
            let max = f32::from_bits(max);
            let inverse = if max == 0.0 { 0.0 } else { 127.0 / max };
            for (q, x) in out.quants.iter_mut().zip(x) {
                // Rounds to even, as `fit::nearest`; the low byte of the bits is the whole number.
                *q = (x * inverse + ROUND).to_bits() as i8;
            }
            out.scale = max / 127.0;
            let mut sums = [0i16; 2];
            for (sum, half) in sums.iter_mut().zip(out.quants.as_chunks::<16>().0) {
                for q in half {
                    *sum += i16::from(*q);
                }
            }
            out.sums = [f32::from(sums[0]) * out.scale, f32::from(sums[1]) * out.scale];
        }
    }
}

/// 32 weights as whole numbers: `weight i = scale[i / 16] * q[i] - min[i / 16]`.
pub(super) struct Part {
    pub(super) q: [i8; 32],
    pub(super) scale: [f32; 2],
    /// Not read of formats without minima.
    pub(super) min: [f32; 2],
}

impl Part {
    /// Weights with one scale and no minimum.
    #[inline(always)]
    pub(super) fn signed(q: [i8; 32], scale: f32) -> Self {
        Part { q, scale: [scale; 2], min: [0.0; 2] }
    }
}

/// How a format's blocks give their weights as whole numbers. What is in here must be inlined by attribute: it is compiled
/// for the features of each form.
pub(super) trait Unpack<const BYTES: usize> {
    /// Groups of 32 weights in a block: 1, or an even number.
    const GROUPS: usize;
    /// Whether weights have minima. If so quants go from 0 to 63, else from -128 to 127.
    const MINS: bool;

    /// A group of a block.
    fn part<A: Arithmetic>(block: &[u8; BYTES], group: usize) -> Part;
}

/// The arithmetic of a form: eight running sums, one vector.
pub(super) trait Arithmetic {
    /// Eight f32.
    type Sums: Copy;

    fn zeros() -> Self::Sums;

    /// `sums[l] += scale[l / 4] * (q[4 l] x[4 l] + ... + q[4 l + 3] x[4 l + 3])`; the quants are not negative if `MINS`.
    fn add<const MINS: bool>(sums: Self::Sums, scale: [f32; 2], q: [i8; 32], x: [i8; 32]) -> Self::Sums;

    fn store(sums: Self::Sums) -> [f32; 8];

    /// `table[q]`; q below 16.
    fn lookup(table: &[i8; 16], q: [u8; 32]) -> [i8; 32];
}

/// Plain code.
pub(super) struct Portable;

impl Arithmetic for Portable {
    type Sums = [f32; 8];

    #[inline(always)]
    fn zeros() -> [f32; 8] {
        [0.0; 8]
    }

    #[inline(always)]
    fn add<const MINS: bool>(mut sums: [f32; 8], scale: [f32; 2], q: [i8; 32], x: [i8; 32]) -> [f32; 8] {
        for l in 0..8 {
            let mut products = 0;
            for j in 4 * l..4 * l + 4 {
                products += i32::from(q[j]) * i32::from(x[j]);
            }
            sums[l] += scale[l / 4] * products as f32;
        }
        sums
    }

    #[inline(always)]
    fn store(sums: [f32; 8]) -> [f32; 8] {
        sums
    }

    #[inline(always)]
    fn lookup(table: &[i8; 16], q: [u8; 32]) -> [i8; 32] {
        q.map(|q| table[usize::from(q & 15)])
    }
}

/// The dot product of a row, in a form: an entry of the formats' table.
pub(super) fn dot<U: Unpack<BYTES>, const BYTES: usize>(simd: Simd, row: &[u8], x: &[Q8]) -> f32 {
    simd::dot::<U, BYTES>(simd, row.as_chunks().0, x)
}

/// Running sums: of even and odd groups, and of minima of first and second halves.
struct Sums<A: Arithmetic> {
    products: [A::Sums; 2],
    mins: [f32; 2],
}

impl<A: Arithmetic> Sums<A> {
    #[inline(always)]
    fn add<U: Unpack<BYTES>, const BYTES: usize>(&mut self, block: &[u8; BYTES], group: usize, odd: usize, x: &Q8) {
        let part = U::part::<A>(block, group);
        let scale = [part.scale[0] * x.scale, part.scale[1] * x.scale];
        let sums = self.products[odd];
        if U::MINS {
            self.products[odd] = A::add::<true>(sums, scale, part.q, x.quants);
            self.mins[0] += part.min[0] * x.sums[0];
            self.mins[1] += part.min[1] * x.sums[1];
        } else {
            self.products[odd] = A::add::<false>(sums, scale, part.q, x.quants);
        }
    }
}

/// The body of all forms.
#[inline(always)]
pub(super) fn body<U: Unpack<BYTES>, A: Arithmetic, const BYTES: usize>(blocks: &[[u8; BYTES]], x: &[Q8]) -> f32 {
    let mut sums = Sums::<A> { products: [A::zeros(); 2], mins: [0.0; 2] };
    if U::GROUPS == 1 {
        let ((pairs, last), (x_pairs, x_last)) = (blocks.as_chunks::<2>(), x.as_chunks::<2>());
        for ([even, odd], [x_even, x_odd]) in pairs.iter().zip(x_pairs) {
            sums.add::<U, BYTES>(even, 0, 0, x_even);
            sums.add::<U, BYTES>(odd, 0, 1, x_odd);
        }
        if let ([block], [x]) = (last, x_last) {
            sums.add::<U, BYTES>(block, 0, 0, x);
        }
    } else {
        for (block, x) in blocks.iter().zip(x.chunks_exact(U::GROUPS)) {
            for (pair, [x_even, x_odd]) in x.as_chunks().0.iter().enumerate() {
                sums.add::<U, BYTES>(block, 2 * pair, 0, x_even);
                sums.add::<U, BYTES>(block, 2 * pair + 1, 1, x_odd);
            }
        }
    }
    let (mut total, odd) = (A::store(sums.products[0]), A::store(sums.products[1]));
    for l in 0..8 {
        total[l] += odd[l];
    }
    for half in [4, 2, 1] {
        for l in 0..half {
            total[l] += total[l + half];
        }
    }
    total[0] - (sums.mins[0] + sums.mins[1])
}
