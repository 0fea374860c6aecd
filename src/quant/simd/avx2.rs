//! x86-64 with AVX2, and with AVX-VNNI: two vectors of eight lanes.
//!
//! The functions of the arithmetic have no features of their own, because only so they can be inlined by attribute; they are
//! called by bodies that are compiled for the features.
#![allow(unsafe_code, reason = "vector instructions")]

use std::arch::x86_64::*;
use std::mem::transmute;

use super::super::q8::{LANES, Q8};
use super::Arithmetic;

/// AVX2, with AVX-VNNI or not.
pub(super) struct Avx2<const VNNI: bool>;

/// With the instructions of AVX2.
pub(super) mod plain {
    use super::super::super::q8::{LANES, Q8, Unpack};
    use super::super::super::row_products;
    use super::super::super::tile::{self, Tile};
    super::super::bodies!("avx2,f16c", super::Avx2<false>);
}

/// With those of AVX-VNNI, too.
pub(super) mod vnni {
    use super::super::super::q8::{LANES, Q8, Unpack};
    use super::super::super::row_products;
    use super::super::super::tile::{self, Tile};
    super::super::bodies!("avx2,f16c,avxvnni", super::Avx2<true>);
}

#[target_feature(enable = "avx2")]
pub(super) fn quantize(x: &[f32], out: &mut [Q8]) {
    Q8::quantize_body(x, out);
}

impl<const VNNI: bool> Avx2<VNNI> {
    /// `sum[l] += q[4 l] x[4 l] + ... + q[4 l + 3] x[4 l + 3]`
    #[inline(always)]
    fn dot(sum: __m256i, q: __m256i, x: __m256i) -> __m256i {
        // SAFETY: called by functions that have the features.
        unsafe {
            if VNNI {
                return _mm256_dpbusd_avx_epi32(sum, q, x);
            }
            // One side of the products has no sign: that of q goes to x. Pairs fit i16: 128 * 127 * 2.
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}

impl<const VNNI: bool> Arithmetic for Avx2<VNNI> {
    const BIAS: u8 = if VNNI { 128 } else { 0 };
    type Products = __m256i;
    // SAFETY: any 32 bytes are a vector.
    const NOTHING: __m256i = unsafe { transmute::<[u8; 32], __m256i>([0; 32]) };
    type Quads = [__m256i; 2];
    type Ints = [__m256i; 2];
    type Floats = [__m256; 2];

    #[inline(always)]
    fn products(q: &[u8; 32], x: &[i8; 32]) -> __m256i {
        // SAFETY: called by functions that have the features; any 32 bytes are a vector.
        unsafe {
            Self::dot(_mm256_setzero_si256(), transmute::<[u8; 32], __m256i>(*q), transmute::<[i8; 32], __m256i>(*x))
        }
    }

    #[inline(always)]
    fn across(rows: &[__m256i; LANES]) -> [[__m256i; 2]; 2] {
        // SAFETY: called by functions that have the features.
        unsafe {
            // Four rows: the sums of their first halves, then those of their second.
            let four = |i: usize| {
                let (a, b) = (_mm256_hadd_epi32(rows[i], rows[i + 1]), _mm256_hadd_epi32(rows[i + 2], rows[i + 3]));
                _mm256_hadd_epi32(a, b)
            };
            let (a, b, c, d) = (four(0), four(4), four(8), four(12));
            [
                [_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x20>(c, d)],
                [_mm256_permute2x128_si256::<0x31>(a, b), _mm256_permute2x128_si256::<0x31>(c, d)],
            ]
        }
    }

    #[inline(always)]
    fn columns(rows: &[[u8; 32]; LANES], out: &mut [[u8; 4 * LANES]; 8]) {
        for half in 0..2 {
            for eight in 0..2 {
                // SAFETY: called by functions that have the features; loads of 16 bytes at 0 or 16 of 32, stores of 32 at 0
                // or 32 of 64.
                unsafe {
                    // Of row r and of row r + 4.
                    let load = |r: usize| {
                        let row = |r: usize| _mm_loadu_si128(rows[8 * eight + r].as_ptr().add(16 * half).cast());
                        _mm256_set_m128i(row(r + 4), row(r))
                    };
                    let v = [load(0), load(1), load(2), load(3)];
                    let (a, b) = (_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
                    let (c, d) = (_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
                    let mut store =
                        |c: usize, v| _mm256_storeu_si256(out[4 * half + c].as_mut_ptr().add(32 * eight).cast(), v);
                    store(0, _mm256_unpacklo_epi64(a, c));
                    store(1, _mm256_unpackhi_epi64(a, c));
                    store(2, _mm256_unpacklo_epi64(b, d));
                    store(3, _mm256_unpackhi_epi64(b, d));
                }
            }
        }
    }

    #[inline(always)]
    fn quads(q: &[u8; 4 * LANES]) -> [__m256i; 2] {
        // SAFETY: any 64 bytes are two vectors.
        unsafe { transmute::<[u8; 4 * LANES], [__m256i; 2]>(*q) }
    }

    #[inline(always)]
    fn dot4(sum: [__m256i; 2], q: [__m256i; 2], x: &[i8; 4]) -> [__m256i; 2] {
        // SAFETY: called by functions that have the features; any four bytes are an i32.
        unsafe {
            let x = _mm256_set1_epi32(transmute::<[i8; 4], i32>(*x));
            [Self::dot(sum[0], q[0], x), Self::dot(sum[1], q[1], x)]
        }
    }

    #[inline(always)]
    fn ints(x: i32) -> [__m256i; 2] {
        // SAFETY: called by functions that have the features.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }

    #[inline(always)]
    fn add_ints(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: called by functions that have the features.
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn to_floats(x: [__m256i; 2]) -> [__m256; 2] {
        // SAFETY: called by functions that have the features.
        unsafe { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
    }

    #[inline(always)]
    fn floats(x: f32) -> [__m256; 2] {
        // SAFETY: called by functions that have the features.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn load(x: &[f32; LANES]) -> [__m256; 2] {
        // SAFETY: sixteen f32 are two vectors.
        unsafe { transmute::<[f32; LANES], [__m256; 2]>(*x) }
    }

    #[inline(always)]
    fn store(x: [__m256; 2], out: &mut [f32; LANES]) {
        // SAFETY: two vectors are sixteen f32.
        *out = unsafe { transmute::<[__m256; 2], [f32; LANES]>(x) };
    }

    #[inline(always)]
    fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: called by functions that have the features.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn sub(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: called by functions that have the features.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: called by functions that have the features.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn lookup(table: &[i8; 16], q: [u8; 32]) -> [i8; 32] {
        // SAFETY: called by functions that have the features; any 32 bytes are a vector.
        unsafe {
            let table = _mm256_broadcastsi128_si256(transmute::<[i8; 16], __m128i>(*table));
            transmute(_mm256_shuffle_epi8(table, transmute::<[u8; 32], __m256i>(q)))
        }
    }
}
