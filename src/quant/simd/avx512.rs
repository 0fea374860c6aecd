//! x86-64 with AVX-512 and VNNI: four parts, so sixteen rows at once, or two blocks of each of eight.
#![allow(unsafe_code, reason = "vector instructions")]

use std::arch::x86_64::*;

use super::super::q8::{LANES, Q8, Unpack};
use super::super::tile::{self, Tile};
use super::super::{row_pairs, row_products};
use super::float_products::{self, Number};
use super::vector::{Halves, Vector};
use super::weighted_sums::{self, Rows};
use super::{avx2, bodies};

/// A vector, with [`Vector::BLOCK`].
#[derive(Clone, Copy)]
pub(super) struct Avx512<const BLOCK: usize = 0>(__m512i);

bodies!("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", Avx512, tiles: 1, 6, floats: 1, 4, 6, sums: 4, 6);

/// [`rows`] for whole rows with an even number of blocks, of which it reads eight at a time.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn pairs<U: Unpack<BYTES>, const BYTES: usize>(
    w: &[u8],
    row_bytes: usize,
    x: &[Q8],
    out: &mut [f32; LANES],
) {
    row_pairs::body::<U, Avx512<BYTES>, BYTES>(w, row_bytes, x, out);
}

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn quantize(x: &[f32], out: &mut [Q8]) {
    Q8::quantize_body(x, out);
}

/// Four parts.
#[inline(always)]
fn parts(a: __m128i, b: __m128i, c: __m128i, d: __m128i) -> __m512i {
    // SAFETY: called by functions that have the features.
    unsafe {
        let v = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
        _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(v, c), d)
    }
}

/// Where part i is read, if parts are `step` bytes apart.
#[inline(always)]
fn place<const BLOCK: usize>(i: usize, step: usize) -> usize {
    if BLOCK == 0 { i * step } else { i % 2 * step + i / 2 * BLOCK }
}

super::vector_impl! {
    impl<const BLOCK: usize> Vector for Avx512<BLOCK> {
        const PARTS: usize = 4;
        const BIAS: u8 = 128;
        const BLOCK: usize = BLOCK;
        type Floats = __m512;

        unsafe fn load(at: *const u8, step: usize) -> Self {
            let part = |i: usize| _mm_loadu_si128(at.add(place::<BLOCK>(i, step)).cast());
            Self(parts(part(0), part(1), part(2), part(3)))
        }
        unsafe fn gather(at: *const u8, step: usize) -> Self {
            let part = |i: usize| avx2::gather(at.add(place::<BLOCK>(i, 4 * step)), step);
            Self(parts(part(0), part(1), part(2), part(3)))
        }
        unsafe fn floats_at(at: *const u8) -> __m512 { _mm512_loadu_ps(at.cast()) }
        unsafe fn f16s_at(at: *const u8) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
        unsafe fn bf16s_at(at: *const u8) -> __m512 {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
        fn fetch(at: *const u8) { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        fn from_bytes(bytes: &[u8]) -> Self { Self(_mm512_loadu_si512(bytes[..64].as_ptr().cast())) }
        fn to_bytes(self, out: &mut [u8]) { _mm512_storeu_si512(out[..64].as_mut_ptr().cast(), self.0) }
        fn spread(bytes: &[i8; 16]) -> Self { Self(_mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast()))) }
        fn word(x: i32) -> Self { Self(_mm512_set1_epi32(x)) }
        fn and(self, other: Self) -> Self { Self(_mm512_and_si512(self.0, other.0)) }
        fn or(self, other: Self) -> Self { Self(_mm512_or_si512(self.0, other.0)) }
        fn add(self, other: Self) -> Self { Self(_mm512_add_epi32(self.0, other.0)) }
        fn add_bytes(self, other: Self) -> Self { Self(_mm512_add_epi8(self.0, other.0)) }
        fn shl(self, n: u32) -> Self { Self(_mm512_sll_epi32(self.0, _mm_cvtsi32_si128(n as i32))) }
        fn shr(self, n: u32) -> Self { Self(_mm512_srl_epi32(self.0, _mm_cvtsi32_si128(n as i32))) }
        fn sar(self, n: u32) -> Self { Self(_mm512_sra_epi32(self.0, _mm_cvtsi32_si128(n as i32))) }
        fn low_words(self, other: Self) -> Self { Self(_mm512_unpacklo_epi32(self.0, other.0)) }
        fn high_words(self, other: Self) -> Self { Self(_mm512_unpackhi_epi32(self.0, other.0)) }
        fn low_pairs(self, other: Self) -> Self { Self(_mm512_unpacklo_epi64(self.0, other.0)) }
        fn high_pairs(self, other: Self) -> Self { Self(_mm512_unpackhi_epi64(self.0, other.0)) }
        fn shuffle(self, places: Self) -> Self { Self(_mm512_shuffle_epi8(self.0, places.0)) }
        fn set(self, bits: Self, to: u8) -> Self {
            Self(_mm512_maskz_mov_epi8(_mm512_test_epi8_mask(self.0, bits.0), _mm512_set1_epi8(to as i8)))
        }
        fn dot(sum: Self, q: Self, x: Self) -> Self { Self(_mm512_dpbusd_epi32(sum.0, q.0, x.0)) }
        fn dot_signed(sum: Self, q: Self, x: Self) -> Self { Self::dot(sum, q, x) }
        fn floats(self) -> __m512 { _mm512_cvtepi32_ps(self.0) }
        fn f16_to_f32(self) -> __m512 { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(self.0)) }
        fn as_floats(self) -> __m512 { _mm512_castsi512_ps(self.0) }
        fn float(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load_floats(x: &[f32]) -> __m512 { _mm512_loadu_ps(x[..16].as_ptr()) }
        fn store_floats(x: __m512, out: &mut [f32]) { _mm512_storeu_ps(out[..16].as_mut_ptr(), x) }
        fn add_floats(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub_floats(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul_floats(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn add_product_floats(sum: __m512, a: __m512, b: __m512) -> __m512 { _mm512_fmadd_ps(a, b, sum) }
        fn totals(x: [__m512; 4]) -> [f32; 4] {
            // Halves of two beside each other, then quarters of four: each part is the sum of a vector's parts.
            let halves = |a, b| {
                _mm512_add_ps(_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
            };
            let (ab, cd) = (halves(x[0], x[1]), halves(x[2], x[3]));
            let four = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
            );
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0b01_00_11_10>(four));
            let one = _mm512_add_ps(two, _mm512_movehdup_ps(two));
            let places = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps128(_mm512_permutexvar_ps(places, one)));
            out
        }
        fn total(x: __m512) -> f32 { avx2::total(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x))) }
    }
}

impl<const BLOCK: usize> Halves for Avx512<BLOCK> {
    #[inline(always)]
    fn beside(self, other: Self) -> Self {
        // SAFETY: called by functions that have the features.
        Self(unsafe { _mm512_mask_blend_epi64(0xf0, self.0, other.0) })
    }

    #[inline(always)]
    fn beside_floats(a: __m512, b: __m512) -> __m512 {
        // SAFETY: called by functions that have the features.
        unsafe { _mm512_mask_blend_ps(0xff00, a, b) }
    }

    #[inline(always)]
    fn swap_halves(x: __m512) -> __m512 {
        // SAFETY: called by functions that have the features.
        unsafe { _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x) }
    }
}
