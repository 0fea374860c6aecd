//! AArch64: one part, so four rows at once; with the products of four bytes that most have (`dotprod`), or without.
#![allow(unsafe_code, reason = "vector instructions")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::vector::Vector;

/// A vector, with `dotprod` or not.
#[derive(Clone, Copy)]
pub(super) struct Neon<const DOT: bool>(uint8x16_t);

/// With the instructions of every AArch64.
pub(super) mod plain {
    use super::super::super::q8::{LANES, Q8, Unpack};
    use super::super::super::row_products;
    use super::super::super::tile::{self, Tile};
    use super::super::float_products::{self, Number};
    use super::super::weighted_sums::{self, Rows};
    super::super::bodies!("neon", super::Neon<false>, tiles: 1, 4, floats: 4, 2, 3, sums: 4, 4);
}

/// With `dotprod`, too.
pub(super) mod dot {
    use super::super::super::q8::{LANES, Q8, Unpack};
    use super::super::super::row_products;
    use super::super::super::tile::{self, Tile};
    use super::super::float_products::{self, Number};
    use super::super::weighted_sums::{self, Rows};
    super::super::bodies!("neon,dotprod", super::Neon<true>, tiles: 1, 4, floats: 4, 2, 3, sums: 4, 4);
}

impl<const DOT: bool> Neon<DOT> {
    #[inline(always)]
    fn words(self) -> uint32x4_t {
        // SAFETY: every AArch64 has it.
        unsafe { vreinterpretq_u32_u8(self.0) }
    }

    #[inline(always)]
    fn ints(self) -> int32x4_t {
        // SAFETY: every AArch64 has it.
        unsafe { vreinterpretq_s32_u8(self.0) }
    }

    #[inline(always)]
    fn of_words(x: uint32x4_t) -> Self {
        // SAFETY: every AArch64 has it.
        Self(unsafe { vreinterpretq_u8_u32(x) })
    }

    #[inline(always)]
    fn of_ints(x: int32x4_t) -> Self {
        // SAFETY: every AArch64 has it.
        Self(unsafe { vreinterpretq_u8_s32(x) })
    }
}

super::vector_impl! {
    impl<const DOT: bool> Vector for Neon<DOT> {
        const PARTS: usize = 1;
        const BIAS: u8 = 0;
        type Floats = float32x4_t;

        unsafe fn load(at: *const u8, _: usize) -> Self { Self(vld1q_u8(at)) }
        unsafe fn gather(at: *const u8, step: usize) -> Self {
            let word = |i: usize| at.add(i * step).cast::<u32>().read_unaligned();
            Self::of_words(vld1q_u32([word(0), word(1), word(2), word(3)].as_ptr()))
        }
        unsafe fn floats_at(at: *const u8) -> float32x4_t { vreinterpretq_f32_u8(vld1q_u8(at)) }
        unsafe fn f16s_at(at: *const u8) -> float32x4_t { vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at))) }
        unsafe fn bf16s_at(at: *const u8) -> float32x4_t {
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(at))))
        }
        fn from_bytes(bytes: &[u8]) -> Self { Self(vld1q_u8(bytes[..16].as_ptr())) }
        fn to_bytes(self, out: &mut [u8]) { vst1q_u8(out[..16].as_mut_ptr(), self.0) }
        fn spread(bytes: &[i8; 16]) -> Self { Self(vreinterpretq_u8_s8(vld1q_s8(bytes.as_ptr()))) }
        fn word(x: i32) -> Self { Self::of_ints(vdupq_n_s32(x)) }
        fn and(self, other: Self) -> Self { Self(vandq_u8(self.0, other.0)) }
        fn or(self, other: Self) -> Self { Self(vorrq_u8(self.0, other.0)) }
        fn add(self, other: Self) -> Self { Self::of_ints(vaddq_s32(self.ints(), other.ints())) }
        fn add_bytes(self, other: Self) -> Self { Self(vaddq_u8(self.0, other.0)) }
        fn shl(self, n: u32) -> Self { Self::of_words(vshlq_u32(self.words(), vdupq_n_s32(n as i32))) }
        fn shr(self, n: u32) -> Self { Self::of_words(vshlq_u32(self.words(), vdupq_n_s32(-(n as i32)))) }
        fn sar(self, n: u32) -> Self { Self::of_ints(vshlq_s32(self.ints(), vdupq_n_s32(-(n as i32)))) }
        fn low_words(self, other: Self) -> Self { Self::of_words(vzip1q_u32(self.words(), other.words())) }
        fn high_words(self, other: Self) -> Self { Self::of_words(vzip2q_u32(self.words(), other.words())) }
        fn low_pairs(self, other: Self) -> Self {
            Self(vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(self.0), vreinterpretq_u64_u8(other.0))))
        }
        fn high_pairs(self, other: Self) -> Self {
            Self(vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(self.0), vreinterpretq_u64_u8(other.0))))
        }
        fn shuffle(self, places: Self) -> Self { Self(vqtbl1q_u8(self.0, places.0)) }
        fn set(self, bits: Self, to: u8) -> Self { Self(vandq_u8(vtstq_u8(self.0, bits.0), vdupq_n_u8(to))) }
        fn dot(sum: Self, q: Self, x: Self) -> Self {
            let (q, x) = (vreinterpretq_s8_u8(q.0), vreinterpretq_s8_u8(x.0));
            if DOT {
                // `vdotq_s32` is not stable yet.
                let mut out = sum.ints();
                asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) out, in(vreg) q, in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags));
                return Self::of_ints(out);
            }
            // Neighbours' products fit i16: 128 * 127 * 2.
            let (low, high) = (vmull_s8(vget_low_s8(q), vget_low_s8(x)), vmull_high_s8(q, x));
            Self::of_ints(vpadalq_s16(sum.ints(), vpaddq_s16(low, high)))
        }
        fn dot_signed(sum: Self, q: Self, x: Self) -> Self { Self::dot(sum, q, x) }
        fn floats(self) -> float32x4_t { vcvtq_f32_s32(self.ints()) }
        fn f16_to_f32(self) -> float32x4_t { vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(self.words()))) }
        fn as_floats(self) -> float32x4_t { vreinterpretq_f32_u8(self.0) }
        fn float(x: f32) -> float32x4_t { vdupq_n_f32(x) }
        fn load_floats(x: &[f32]) -> float32x4_t { vld1q_f32(x[..4].as_ptr()) }
        fn store_floats(x: float32x4_t, out: &mut [f32]) { vst1q_f32(out[..4].as_mut_ptr(), x) }
        fn add_floats(a: float32x4_t, b: float32x4_t) -> float32x4_t { vaddq_f32(a, b) }
        fn sub_floats(a: float32x4_t, b: float32x4_t) -> float32x4_t { vsubq_f32(a, b) }
        fn mul_floats(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmulq_f32(a, b) }
        fn add_product_floats(sum: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t { vfmaq_f32(sum, a, b) }
        fn total(x: float32x4_t) -> f32 {
            let pair = vadd_f32(vget_low_f32(x), vget_high_f32(x));
            vget_lane_f32::<0>(pair) + vget_lane_f32::<1>(pair)
        }
    }
}
