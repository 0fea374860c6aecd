//! x86-64 with AVX2, and with AVX-VNNI: two parts, so eight rows at once.
#![allow(unsafe_code, reason = "vector instructions")]

use std::arch::x86_64::*;

use super::super::q8::Q8;
use super::vector::Vector;

/// A vector with AVX2, with AVX-VNNI or not.
#[derive(Clone, Copy)]
pub(super) struct Avx2<const VNNI: bool>(__m256i);

/// With the instructions of AVX2.
pub(super) mod plain {
    use super::super::super::q8::{LANES, Q8, Unpack};
    use super::super::super::row_products;
    use super::super::super::tile::{self, Tile};
    use super::super::float_products::{self, Number};
    use super::super::weighted_sums::{self, Rows};
    super::super::bodies!("avx2,fma,f16c", super::Avx2<false>, tiles: 2, 3, floats: 2, 2, 3, sums: 2, 4);
}

/// With those of AVX-VNNI, too.
pub(super) mod vnni {
    use super::super::super::q8::{LANES, Q8, Unpack};
    use super::super::super::row_products;
    use super::super::super::tile::{self, Tile};
    use super::super::float_products::{self, Number};
    use super::super::weighted_sums::{self, Rows};
    super::super::bodies!("avx2,fma,f16c,avxvnni", super::Avx2<true>, tiles: 2, 3, floats: 2, 2, 3, sums: 2, 4);
}

#[target_feature(enable = "avx2")]
pub(super) fn quantize(x: &[f32], out: &mut [Q8]) {
    Q8::quantize_body(x, out);
}

/// Four words, from places `step` bytes apart.
///
/// # Safety
/// They can be read.
#[inline(always)]
pub(super) unsafe fn gather(at: *const u8, step: usize) -> __m128i {
    // SAFETY: as the caller says; any x86-64 has the instructions.
    unsafe {
        let word = |i: usize| _mm_cvtsi32_si128(at.add(i * step).cast::<i32>().read_unaligned());
        let pair = |i: usize| _mm_unpacklo_epi32(word(i), word(i + 1));
        _mm_unpacklo_epi64(pair(0), pair(2))
    }
}

/// The sum of the floats, by halves.
#[inline(always)]
pub(super) fn total(x: __m256) -> f32 {
    // SAFETY: called by functions that have the features.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
}

impl<const VNNI: bool> Avx2<VNNI> {
    /// Neighbours' products, as sixteen i16: they fit for q below 128.
    #[inline(always)]
    fn pairs(q: __m256i, x: __m256i) -> __m256i {
        // SAFETY: called by functions that have the features.
        unsafe { _mm256_maddubs_epi16(q, x) }
    }

    /// Adds neighbours of sixteen i16 to the words of `sum`.
    #[inline(always)]
    fn add_pairs(sum: __m256i, pairs: __m256i) -> Self {
        // SAFETY: called by functions that have the features.
        Self(unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))) })
    }
}

super::vector_impl! {
    impl<const VNNI: bool> Vector for Avx2<VNNI> {
        const PARTS: usize = 2;
        const BIAS: u8 = if VNNI { 128 } else { 0 };
        const SHORT: bool = !VNNI;
        const UNROLLED: bool = true;
        type Floats = __m256;

        unsafe fn load(at: *const u8, step: usize) -> Self {
            Self(_mm256_loadu2_m128i(at.add(step).cast(), at.cast()))
        }
        unsafe fn gather(at: *const u8, step: usize) -> Self {
            Self(_mm256_set_m128i(gather(at.add(4 * step), step), gather(at, step)))
        }
        unsafe fn gather_f16s(at: *const u8, step: usize) -> __m256 {
            // One after another into a vector, without a shuffle between them.
            let bits = |i: usize| i32::from(at.add(i * step).cast::<u16>().read_unaligned());
            let x = _mm_insert_epi16::<1>(_mm_cvtsi32_si128(bits(0)), bits(1));
            let x = _mm_insert_epi16::<3>(_mm_insert_epi16::<2>(x, bits(2)), bits(3));
            let x = _mm_insert_epi16::<5>(_mm_insert_epi16::<4>(x, bits(4)), bits(5));
            _mm256_cvtph_ps(_mm_insert_epi16::<7>(_mm_insert_epi16::<6>(x, bits(6)), bits(7)))
        }
        unsafe fn floats_at(at: *const u8) -> __m256 { _mm256_loadu_ps(at.cast()) }
        unsafe fn f16s_at(at: *const u8) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
        unsafe fn bf16s_at(at: *const u8) -> __m256 {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        }
        fn fetch(at: *const u8) { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        fn from_bytes(bytes: &[u8]) -> Self { Self(_mm256_loadu_si256(bytes[..32].as_ptr().cast())) }
        fn to_bytes(self, out: &mut [u8]) { _mm256_storeu_si256(out[..32].as_mut_ptr().cast(), self.0) }
        fn spread(bytes: &[i8; 16]) -> Self { Self(_mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast()))) }
        fn word(x: i32) -> Self { Self(_mm256_set1_epi32(x)) }
        fn and(self, other: Self) -> Self { Self(_mm256_and_si256(self.0, other.0)) }
        fn or(self, other: Self) -> Self { Self(_mm256_or_si256(self.0, other.0)) }
        fn add(self, other: Self) -> Self { Self(_mm256_add_epi32(self.0, other.0)) }
        fn add_bytes(self, other: Self) -> Self { Self(_mm256_add_epi8(self.0, other.0)) }
        fn shl(self, n: u32) -> Self { Self(_mm256_sll_epi32(self.0, _mm_cvtsi32_si128(n as i32))) }
        fn shr(self, n: u32) -> Self { Self(_mm256_srl_epi32(self.0, _mm_cvtsi32_si128(n as i32))) }
        fn sar(self, n: u32) -> Self { Self(_mm256_sra_epi32(self.0, _mm_cvtsi32_si128(n as i32))) }
        fn low_words(self, other: Self) -> Self { Self(_mm256_unpacklo_epi32(self.0, other.0)) }
        fn high_words(self, other: Self) -> Self { Self(_mm256_unpackhi_epi32(self.0, other.0)) }
        fn low_pairs(self, other: Self) -> Self { Self(_mm256_unpacklo_epi64(self.0, other.0)) }
        fn high_pairs(self, other: Self) -> Self { Self(_mm256_unpackhi_epi64(self.0, other.0)) }
        fn shuffle(self, places: Self) -> Self { Self(_mm256_shuffle_epi8(self.0, places.0)) }
        fn set(self, bits: Self, to: u8) -> Self {
            Self(_mm256_cmpeq_epi8(_mm256_and_si256(self.0, bits.0), bits.0)).and(Self::byte(to))
        }
        fn dot(sum: Self, q: Self, x: Self) -> Self {
            if VNNI { Self(_mm256_dpbusd_avx_epi32(sum.0, q.0, x.0)) } else { Self::add_pairs(sum.0, Self::pairs(q.0, x.0)) }
        }
        fn dot_signed(sum: Self, q: Self, x: Self) -> Self {
            if VNNI {
                return Self::dot(sum, q, x);
            }
            // One side of the products has no sign: that of q goes to x. Pairs fit i16: 128 * 127 * 2.
            Self::add_pairs(sum.0, Self::pairs(_mm256_abs_epi8(q.0), _mm256_sign_epi8(x.0, q.0)))
        }
        fn dot_short(sum: Self, q: Self, x: Self) -> Self {
            if VNNI { Self::dot(sum, q, x) } else { Self(_mm256_add_epi16(sum.0, Self::pairs(q.0, x.0))) }
        }
        fn add_short(self, other: Self) -> Self {
            if VNNI { self.add(other) } else { Self(_mm256_add_epi16(self.0, other.0)) }
        }
        fn long(self) -> Self {
            if VNNI { self } else { Self(_mm256_madd_epi16(self.0, _mm256_set1_epi16(1))) }
        }
        fn floats(self) -> __m256 { _mm256_cvtepi32_ps(self.0) }
        fn f16_to_f32(self) -> __m256 {
            // The low halves of each part's words to its first eight bytes.
            let low = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 0, 1, 4, 5, 8, 9, 12, 13);
            let f16s = _mm256_shuffle_epi8(self.0, _mm256_broadcastsi128_si256(low));
            _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b00_00_10_00>(f16s)))
        }
        fn as_floats(self) -> __m256 { _mm256_castsi256_ps(self.0) }
        fn float(x: f32) -> __m256 { _mm256_set1_ps(x) }
        fn load_floats(x: &[f32]) -> __m256 { _mm256_loadu_ps(x[..8].as_ptr()) }
        fn store_floats(x: __m256, out: &mut [f32]) { _mm256_storeu_ps(out[..8].as_mut_ptr(), x) }
        fn add_floats(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn sub_floats(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        fn mul_floats(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn add_product_floats(sum: __m256, a: __m256, b: __m256) -> __m256 { _mm256_fmadd_ps(a, b, sum) }
        fn total(x: __m256) -> f32 { total(x) }
    }
}
