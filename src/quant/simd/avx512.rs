//! x86-64 with AVX-512 and VNNI: one vector of sixteen lanes. As in `avx2`, the arithmetic is called by bodies that are compiled
//! for the features.
#![allow(unsafe_code, reason = "vector instructions")]

use std::arch::x86_64::*;
use std::mem::transmute;

use super::super::q8::{LANES, Q8, Unpack};
use super::super::row_products;
use super::super::tile::{self, Tile};
use super::{Arithmetic, avx512_rows, bodies};

pub(super) struct Avx512;

bodies!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", Avx512);

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn quantize(x: &[f32], out: &mut [Q8]) {
    Q8::quantize_body(x, out);
}

impl Arithmetic for Avx512 {
    const BIAS: u8 = 128;
    type Products = __m256i;
    // SAFETY: any 32 bytes are a vector.
    const NOTHING: __m256i = unsafe { transmute::<[u8; 32], __m256i>([0; 32]) };
    type Quads = __m512i;
    type Ints = __m512i;
    type Floats = __m512;

    #[inline(always)]
    fn products(q: &[u8; 32], x: &[i8; 32]) -> __m256i {
        // SAFETY: called by functions that have the features; any 32 bytes are a vector.
        unsafe {
            let (q, x) = (transmute::<[u8; 32], __m256i>(*q), transmute::<[i8; 32], __m256i>(*x));
            _mm256_dpbusd_epi32(_mm256_setzero_si256(), q, x)
        }
    }

    #[inline(always)]
    fn across(rows: &[__m256i; LANES]) -> [__m512i; 2] {
        // SAFETY: called by functions that have the features.
        unsafe {
            // Four rows: the sums of their first halves, then those of their second.
            let four = |i: usize| {
                let (a, b) = (_mm256_hadd_epi32(rows[i], rows[i + 1]), _mm256_hadd_epi32(rows[i + 2], rows[i + 3]));
                _mm256_hadd_epi32(a, b)
            };
            let two = |a, b| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
            let (ab, cd) = (two(four(0), four(4)), two(four(8), four(12)));
            [_mm512_shuffle_i32x4::<0b10_00_10_00>(ab, cd), _mm512_shuffle_i32x4::<0b11_01_11_01>(ab, cd)]
        }
    }

    #[inline(always)]
    fn columns(rows: &[[u8; 32]; LANES], out: &mut [[u8; 4 * LANES]; 8]) {
        // SAFETY: called by functions that have the features; there are sixteen rows of 32 bytes.
        let columns = unsafe { avx512_rows::columns_of(rows) };
        // SAFETY: eight vectors are eight times 64 bytes.
        *out = unsafe { transmute::<[__m512i; 8], [[u8; 4 * LANES]; 8]>(columns) };
    }

    #[inline(always)]
    fn quads(q: &[u8; 4 * LANES]) -> __m512i {
        // SAFETY: any 64 bytes are a vector.
        unsafe { transmute::<[u8; 4 * LANES], __m512i>(*q) }
    }

    #[inline(always)]
    fn dot4(sum: __m512i, q: __m512i, x: &[i8; 4]) -> __m512i {
        // SAFETY: called by functions that have the features; any four bytes are an i32.
        unsafe { _mm512_dpbusd_epi32(sum, q, _mm512_set1_epi32(transmute::<[i8; 4], i32>(*x))) }
    }

    #[inline(always)]
    fn ints(x: i32) -> __m512i {
        // SAFETY: called by functions that have the features.
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    fn add_ints(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: called by functions that have the features.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn to_floats(x: __m512i) -> __m512 {
        // SAFETY: called by functions that have the features.
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    fn floats(x: f32) -> __m512 {
        // SAFETY: called by functions that have the features.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(x: &[f32; LANES]) -> __m512 {
        // SAFETY: sixteen f32 are a vector.
        unsafe { transmute::<[f32; LANES], __m512>(*x) }
    }

    #[inline(always)]
    fn store(x: __m512, out: &mut [f32; LANES]) {
        // SAFETY: a vector is sixteen f32.
        *out = unsafe { transmute::<__m512, [f32; LANES]>(x) };
    }

    #[inline(always)]
    fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: called by functions that have the features.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: called by functions that have the features.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: called by functions that have the features.
        unsafe { _mm512_mul_ps(a, b) }
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
