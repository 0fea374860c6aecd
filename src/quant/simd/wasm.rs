//! WebAssembly with vectors of 128 bits (SIMD128): one part, so four rows at once.
//!
//! The module for processors multiplies bytes by an instruction of relaxed SIMD. Where a browser lacks that, it loads the same
//! module with the instruction spelt in others, which `tools/bindgen` makes.
#![allow(unsafe_code, reason = "vector instructions")]

use std::arch::wasm32::*;

use super::super::q8::{LANES, Q8, Unpack};
use super::super::row_products;
use super::super::tile::{self, Tile};
use super::float_products::{self, Number};
use super::vector::Vector;
use super::weighted_sums::{self, Rows};

/// A vector.
#[derive(Clone, Copy)]
pub(super) struct Simd128(v128);

#[cfg(feature = "relaxed-simd")]
super::bodies!("simd128,relaxed-simd", Simd128, tiles: 1, 4, floats: 4, 2, 2, sums: 2, 4);
#[cfg(not(feature = "relaxed-simd"))]
super::bodies!("simd128", Simd128, tiles: 1, 4, floats: 4, 2, 2, sums: 2, 4);

#[target_feature(enable = "simd128")]
pub(super) fn quantize(x: &[f32], out: &mut [Q8]) {
    Q8::quantize_body(x, out);
}

/// The f16 in the low half of each word; what else is in a word must be 0.
#[inline(always)]
fn halves(words: v128) -> v128 {
    /// 2^112: what an exponent with the bias of f16 lacks to that of f32. Numbers below the least normal one come out right, too.
    const REBIASED: f32 = f32::from_bits((127 + 112) << 23);
    let size = v128_and(words, u32x4_splat(0x7fff));
    let number = f32x4_mul(u32x4_shl(size, 13), f32x4_splat(REBIASED));
    // Infinities and NaN have the largest exponent in both.
    let largest = v128_and(u32x4_gt(size, u32x4_splat(0x7bff)), u32x4_splat(0x7f80_0000));
    let sign = u32x4_shl(v128_and(words, u32x4_splat(0x8000)), 16);
    v128_or(v128_or(number, largest), sign)
}

super::vector_impl! {
    impl Vector for Simd128 {
        const PARTS: usize = 1;
        const BIAS: u8 = 0;
        type Floats = v128;

        unsafe fn load(at: *const u8, _: usize) -> Self { Self(v128_load(at.cast())) }
        unsafe fn gather(at: *const u8, step: usize) -> Self {
            let word = |i: usize| at.add(i * step).cast::<u32>().read_unaligned();
            Self(u32x4(word(0), word(1), word(2), word(3)))
        }
        unsafe fn floats_at(at: *const u8) -> v128 { v128_load(at.cast()) }
        unsafe fn f16s_at(at: *const u8) -> v128 { halves(u32x4_extend_low_u16x8(v128_load64_zero(at.cast()))) }
        unsafe fn bf16s_at(at: *const u8) -> v128 {
            u32x4_shl(u32x4_extend_low_u16x8(v128_load64_zero(at.cast())), 16)
        }
        fn from_bytes(bytes: &[u8]) -> Self { Self(v128_load(bytes[..16].as_ptr().cast())) }
        fn to_bytes(self, out: &mut [u8]) { v128_store(out[..16].as_mut_ptr().cast(), self.0) }
        fn spread(bytes: &[i8; 16]) -> Self { Self(v128_load(bytes.as_ptr().cast())) }
        fn word(x: i32) -> Self { Self(i32x4_splat(x)) }
        fn and(self, other: Self) -> Self { Self(v128_and(self.0, other.0)) }
        fn or(self, other: Self) -> Self { Self(v128_or(self.0, other.0)) }
        fn add(self, other: Self) -> Self { Self(i32x4_add(self.0, other.0)) }
        fn add_bytes(self, other: Self) -> Self { Self(i8x16_add(self.0, other.0)) }
        fn shl(self, n: u32) -> Self { Self(u32x4_shl(self.0, n)) }
        fn shr(self, n: u32) -> Self { Self(u32x4_shr(self.0, n)) }
        fn sar(self, n: u32) -> Self { Self(i32x4_shr(self.0, n)) }
        fn low_words(self, other: Self) -> Self { Self(i32x4_shuffle::<0, 4, 1, 5>(self.0, other.0)) }
        fn high_words(self, other: Self) -> Self { Self(i32x4_shuffle::<2, 6, 3, 7>(self.0, other.0)) }
        fn low_pairs(self, other: Self) -> Self { Self(i64x2_shuffle::<0, 2>(self.0, other.0)) }
        fn high_pairs(self, other: Self) -> Self { Self(i64x2_shuffle::<1, 3>(self.0, other.0)) }
        fn shuffle(self, places: Self) -> Self { Self(i8x16_swizzle(self.0, places.0)) }
        fn set(self, bits: Self, to: u8) -> Self {
            Self(v128_and(i8x16_eq(v128_and(self.0, bits.0), bits.0), u8x16_splat(to)))
        }
        fn dot(sum: Self, q: Self, x: Self) -> Self {
            // All processors give the same where one operand has seven bits, and `q` has six.
            #[cfg(feature = "relaxed-simd")]
            return Self(i32x4_relaxed_dot_i8x16_i7x16_add(x.0, q.0, sum.0));
            #[cfg(not(feature = "relaxed-simd"))]
            Self::dot_signed(sum, q, x)
        }
        fn dot_signed(sum: Self, q: Self, x: Self) -> Self {
            let even = i32x4_dot_i16x8(i16x8_shr(i16x8_shl(q.0, 8), 8), i16x8_shr(i16x8_shl(x.0, 8), 8));
            let odd = i32x4_dot_i16x8(i16x8_shr(q.0, 8), i16x8_shr(x.0, 8));
            Self(i32x4_add(i32x4_add(sum.0, even), odd))
        }
        fn floats(self) -> v128 { f32x4_convert_i32x4(self.0) }
        fn f16_to_f32(self) -> v128 { halves(v128_and(self.0, u32x4_splat(0xffff))) }
        fn as_floats(self) -> v128 { self.0 }
        fn float(x: f32) -> v128 { f32x4_splat(x) }
        fn load_floats(x: &[f32]) -> v128 { v128_load(x[..4].as_ptr().cast()) }
        fn store_floats(x: v128, out: &mut [f32]) { v128_store(out[..4].as_mut_ptr().cast(), x) }
        fn add_floats(a: v128, b: v128) -> v128 { f32x4_add(a, b) }
        fn sub_floats(a: v128, b: v128) -> v128 { f32x4_sub(a, b) }
        fn mul_floats(a: v128, b: v128) -> v128 { f32x4_mul(a, b) }
        fn add_product_floats(sum: v128, a: v128, b: v128) -> v128 { f32x4_add(sum, f32x4_mul(a, b)) }
        fn total(x: v128) -> f32 {
            let pair = f32x4_add(x, i64x2_shuffle::<1, 1>(x, x));
            f32x4_extract_lane::<0>(pair) + f32x4_extract_lane::<1>(pair)
        }
    }
}
