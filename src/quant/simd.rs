//! The forms of the dot product in whole numbers: the same body compiled for more features of the CPU, with the instructions
//! that multiply bytes. What unpacks a block is plain code, which the compiler vectorises for the features of each form.
#![allow(unsafe_code, reason = "code compiled for features of the CPU is called once they were found")]

use super::q8::{Portable, Q8, Unpack, body};

/// A form of the dot products in whole numbers. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Simd {
    /// Plain code.
    Portable,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX-512's VNNI, on 256 bits.
    Vnni,
}

impl Simd {
    /// The forms that this CPU has, the fastest last.
    pub fn available() -> Vec<Self> {
        let all = [Self::Portable, Self::Avx2, Self::Vnni];
        all.into_iter().filter(|simd| simd.is_available()).collect()
    }

    /// The fastest form that this CPU has.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::Portable)
    }

    /// Whether this CPU has it. Found out once, then remembered.
    #[inline]
    fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Vnni => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}

/// [`body`] in a form; in plain code where the CPU does not have it.
pub(super) fn dot<U: Unpack<BYTES>, const BYTES: usize>(simd: Simd, blocks: &[[u8; BYTES]], x: &[Q8]) -> f32 {
    match simd {
        // SAFETY: the CPU has the features.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 if simd.is_available() => unsafe { x86::avx2::<U, BYTES>(blocks, x) },
        // SAFETY: the CPU has the features.
        #[cfg(target_arch = "x86_64")]
        Simd::Vnni if simd.is_available() => unsafe { x86::vnni::<U, BYTES>(blocks, x) },
        _ => body::<U, Portable, BYTES>(blocks, x),
    }
}

/// [`Q8::quantize_body`] in the widest form.
pub(super) fn quantize(x: &[f32], out: &mut [Q8]) {
    #[cfg(target_arch = "x86_64")]
    if Simd::Avx2.is_available() {
        // SAFETY: the CPU has the feature.
        return unsafe { x86::quantize(x, out) };
    }
    Q8::quantize_body(x, out);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::mem::transmute;

    use super::super::q8::Arithmetic;
    use super::{Q8, Unpack, body};

    #[target_feature(enable = "avx2")]
    pub(super) fn quantize(x: &[f32], out: &mut [Q8]) {
        Q8::quantize_body(x, out);
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn avx2<U: Unpack<BYTES>, const BYTES: usize>(blocks: &[[u8; BYTES]], x: &[Q8]) -> f32 {
        body::<U, X86<false>, BYTES>(blocks, x)
    }

    #[target_feature(enable = "avx2,avx512f,avx512vl,avx512vnni")]
    pub(super) fn vnni<U: Unpack<BYTES>, const BYTES: usize>(blocks: &[[u8; BYTES]], x: &[Q8]) -> f32 {
        body::<U, X86<true>, BYTES>(blocks, x)
    }

    /// AVX2, with VNNI or not. Only used by the functions above, which are compiled for what is called here; its functions
    /// have no features of their own, because only so they can be inlined by attribute.
    struct X86<const VNNI: bool>;

    impl<const VNNI: bool> Arithmetic for X86<VNNI> {
        type Sums = __m256;

        #[inline(always)]
        fn zeros() -> __m256 {
            // SAFETY: called by functions that have the feature.
            unsafe { _mm256_setzero_ps() }
        }

        #[inline(always)]
        fn add<const MINS: bool>(sums: __m256, scale: [f32; 2], q: [i8; 32], x: [i8; 32]) -> __m256 {
            // SAFETY: called by functions that have the features; any 32 bytes are a vector.
            unsafe {
                let (mut q, mut x) = (transmute::<[i8; 32], __m256i>(q), transmute::<[i8; 32], __m256i>(x));
                if !MINS {
                    // One side of the products has no sign: that of q goes to x.
                    (q, x) = (_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
                }
                let products = if VNNI {
                    _mm256_dpbusd_epi32(_mm256_setzero_si256(), q, x)
                } else {
                    // Pairs fit i16: 63 * 127 * 2, and 128 * 127 * 2 of signed quants.
                    _mm256_madd_epi16(_mm256_maddubs_epi16(q, x), _mm256_set1_epi16(1))
                };
                let scale = _mm256_set_m128(_mm_set1_ps(scale[1]), _mm_set1_ps(scale[0]));
                _mm256_add_ps(sums, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(products)))
            }
        }

        #[inline(always)]
        fn store(sums: __m256) -> [f32; 8] {
            // SAFETY: a vector is eight f32.
            unsafe { transmute(sums) }
        }

        #[inline(always)]
        fn lookup(table: &[i8; 16], q: [u8; 32]) -> [i8; 32] {
            // SAFETY: called by functions that have the feature; any 32 bytes are a vector.
            unsafe {
                let table = _mm256_broadcastsi128_si256(transmute::<[i8; 16], __m128i>(*table));
                transmute(_mm256_shuffle_epi8(table, transmute::<[u8; 32], __m256i>(q)))
            }
        }
    }
}
