//! The forms of dot products: the same bodies compiled for more features of the CPU, with the instructions that
//! multiply bytes.
#![allow(unsafe_code, reason = "code compiled for features of the CPU is called once they were found")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
mod float_products;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod vector;
#[cfg(target_arch = "wasm32")]
mod wasm;
mod weighted_sums;

use std::sync::OnceLock;

pub(super) use blocks::{Blocks, columns, each_group};
#[cfg(target_arch = "x86_64")]
pub(super) use blocks::{ahead, each_pair};
use float_products::Number;
pub(crate) use float_products::SECTION;
pub(super) use float_products::{Bf16, F16, F32};
#[cfg(target_arch = "x86_64")]
pub(super) use vector::Halves;
pub(super) use vector::{Bytes, Vector, both, each_of};
pub(super) use weighted_sums::Rows;

use super::q8::{LANES, Q8, Unpack};
use super::tile::Tile;

/// A form of the integer dot products. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Simd {
    /// Plain code.
    Portable,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX2 and AVX-VNNI.
    AvxVnni,
    /// x86-64 with AVX-512 and its VNNI.
    Avx512,
    /// AArch64.
    Neon,
    /// AArch64 with the products of four bytes (`dotprod`).
    NeonDot,
    /// WebAssembly with vectors of 128 bits (SIMD128).
    Wasm,
}

impl Simd {
    /// The forms that this CPU has, the fastest last.
    pub fn available() -> Vec<Self> {
        use Simd::*;
        let all = [Portable, Avx2, AvxVnni, Avx512, Neon, NeonDot, Wasm];
        all.into_iter().filter(|simd| simd.is_available()).collect()
    }

    /// The fastest form that this CPU has.
    pub fn best() -> Self {
        static BEST: OnceLock<Simd> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().last().copied().unwrap_or(Self::Portable))
    }

    /// Whether this CPU has it. Found out once, then remembered.
    #[inline]
    fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
            // A module with these instructions is refused as a whole where they are missing.
            #[cfg(target_arch = "wasm32")]
            Self::Wasm => true,
            _ => false,
        }
    }
}

/// Writes the functions of a [`Vector`] without their attributes and blocks.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "wasm32"))]
macro_rules! vector_impl {
    (
        impl $(<const $generic:ident: $kind:ty>)? Vector for $name:ty {
            const PARTS: usize = $parts:expr;
            const BIAS: u8 = $bias:expr;
            $(const SHORT: bool = $short:expr;)?
            $(const UNROLLED: bool = $unrolled:expr;)?
            $(const BLOCK: usize = $block:expr;)?
            type Floats = $floats:ty;
            $(unsafe fn $load:ident($($load_arg:tt)*) -> $loaded:ty $load_body:block)*
            $(fn $op:ident($($arg:tt)*) $(-> $out:ty)? $body:block)*
        }
    ) => {
        impl $(<const $generic: $kind>)? Vector for $name {
            const PARTS: usize = $parts;
            const BIAS: u8 = $bias;
            $(const SHORT: bool = $short;)?
            $(const UNROLLED: bool = $unrolled;)?
            $(const BLOCK: usize = $block;)?
            type Floats = $floats;
            $(#[inline(always)]
            unsafe fn $load($($load_arg)*) -> $loaded {
                // SAFETY: called by functions that have the instructions, and can read there.
                unsafe { $load_body }
            })*
            $(#[inline(always)]
            #[allow(unused_unsafe, reason = "some do no more than call others")]
            fn $op($($arg)*) $(-> $out)? {
                // SAFETY: called by functions that have the instructions; slices were checked.
                unsafe { $body }
            })*
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "wasm32"))]
use vector_impl;

/// Calls a function of the form's module; plain code where the CPU does not have the form.
macro_rules! in_form {
    ($simd:expr, $name:ident :: <$($generic:tt),*> ($($arg:expr),*), $portable:expr) => {
        match $simd {
            // SAFETY: the CPU has the features.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 if $simd.is_available() => unsafe { avx2::plain::$name::<$($generic),*>($($arg),*) },
            // SAFETY: the CPU has the features.
            #[cfg(target_arch = "x86_64")]
            Simd::AvxVnni if $simd.is_available() => unsafe { avx2::vnni::$name::<$($generic),*>($($arg),*) },
            // SAFETY: the CPU has the features.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 if $simd.is_available() => unsafe { avx512::$name::<$($generic),*>($($arg),*) },
            // SAFETY: every AArch64 has the instructions.
            #[cfg(target_arch = "aarch64")]
            Simd::Neon => unsafe { neon::plain::$name::<$($generic),*>($($arg),*) },
            // SAFETY: the CPU has the instructions.
            #[cfg(target_arch = "aarch64")]
            Simd::NeonDot if $simd.is_available() => unsafe { neon::dot::$name::<$($generic),*>($($arg),*) },
            #[cfg(all(target_arch = "wasm32", feature = "unstable_internals"))]
            Simd::Wasm => wasm::$name::<$($generic),*>($($arg),*),
            // Plain code beside it would only be downloaded.
            #[cfg(all(target_arch = "wasm32", not(feature = "unstable_internals")))]
            _ => wasm::$name::<$($generic),*>($($arg),*),
            #[cfg(not(all(target_arch = "wasm32", not(feature = "unstable_internals"))))]
            _ => $portable,
        }
    };
}

/// Defines the bodies compiled for features of the CPU.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "wasm32"))]
macro_rules! bodies {
    ($features:literal, $vector:ty, tiles: $vectors:literal, $x_rows:literal, floats: $parts:literal, $rows:literal, $many:literal, sums: $wide:literal, $high:literal) => {
        #[target_feature(enable = $features)]
        pub(in super::super) fn rows<U: Unpack<BYTES>, const BYTES: usize>(
            w: &[u8],
            row_bytes: usize,
            x: &[Q8],
            out: &mut [f32; LANES],
        ) {
            row_products::body::<U, $vector, BYTES>(w, row_bytes, x, out);
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn tiles<U: Unpack<BYTES>, const BYTES: usize>(
            w: &[u8],
            row_bytes: usize,
            out: &mut [Tile],
        ) {
            tile::unpack::<U, $vector, BYTES>(w, row_bytes, out);
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn products<const SCALES_BY_16: bool, const MINS: bool, const BITS: u32>(
            tiles: &[Tile],
            x: &[&[Q8]],
            out: &mut [[f32; LANES]],
        ) {
            tile::products::<$vector, SCALES_BY_16, MINS, BITS, $vectors, $x_rows>(tiles, x, out);
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn float_products<N: Number>(w: &[u8], x: &[&[f32]], out: &mut [f32]) {
            float_products::body::<N, $vector, $parts, $rows, $many>(w, x, out);
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn weighted_sums<N: Number>(
            by: (&[f32], usize),
            rows: Rows<'_>,
            shape: (usize, usize),
            out: (&mut [f32], usize),
        ) {
            weighted_sums::body::<N, $vector, $wide, $high>(by, rows, shape, out);
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn transpose<N: Number>(rows: Rows<'_>, shape: (usize, usize), out: (&mut [f32], usize)) {
            weighted_sums::transpose::<N, $vector>(rows, shape, out);
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "wasm32"))]
use bodies;

/// A core reads [`LANES`] rows of more bytes than this faster by eight at a time: 1.10 times for Q4_K_M at 1B, 1.01 Q4_0, 0.99
/// Q6_K; two threads 1.02 to 1.04 times. Below, nothing was gained (160M). BENCHMARKS.md has the device.
#[cfg(any(test, target_arch = "x86_64"))]
pub(super) const LONG: usize = 12 << 10;

/// [`Int8Form::rows`](super::q8::Int8Form::rows)
pub(super) fn rows<U: Unpack<BYTES>, const BYTES: usize>(
    simd: Simd,
    w: &[u8],
    row_bytes: usize,
    x: &[Q8],
    out: &mut [f32; LANES],
) {
    let bytes = x.len() / U::GROUPS * BYTES;
    assert!(row_bytes == bytes && w.len() >= row_bytes, "rows of {row_bytes} bytes for {} activations", 32 * x.len());
    #[cfg(target_arch = "x86_64")]
    if simd == Simd::Avx512 && simd.is_available() {
        // With more than a byte a weight (Q8_0), products wait for memory alone. Eight rows in vectors of 256 bits read it 1.4 times
        // as fast as sixteen, and 1.15 times as fast as by two blocks of each.
        if BYTES > 32 * U::GROUPS {
            // SAFETY: a CPU with AVX-512 has the features.
            return unsafe { avx2::plain::rows::<U, BYTES>(w, row_bytes, x, out) };
        }
        if w.len() == LANES * row_bytes && w.len() > LONG && (row_bytes / BYTES).is_multiple_of(2) {
            // SAFETY: the CPU has the features.
            return unsafe { avx512::pairs::<U, BYTES>(w, row_bytes, x, out) };
        }
    }
    in_form!(
        simd,
        rows::<U, BYTES>(w, row_bytes, x, out),
        super::row_products::body::<U, portable::Portable, BYTES>(w, row_bytes, x, out)
    );
}

/// [`Int8Form::tiles`](super::q8::Int8Form::tiles)
pub(super) fn tiles<U: Unpack<BYTES>, const BYTES: usize>(simd: Simd, w: &[u8], row_bytes: usize, out: &mut [Tile]) {
    in_form!(
        simd,
        tiles::<U, BYTES>(w, row_bytes, out),
        super::tile::unpack::<U, portable::Portable, BYTES>(w, row_bytes, out)
    );
}

/// [`Int8Form::products`](super::q8::Int8Form::products)
pub(super) fn products<const SCALES_BY_16: bool, const MINS: bool, const BITS: u32>(
    simd: Simd,
    tiles: &[Tile],
    x: &[&[Q8]],
    out: &mut [[f32; LANES]],
) {
    in_form!(
        simd,
        products::<SCALES_BY_16, MINS, BITS>(tiles, x, out),
        super::tile::products::<portable::Portable, SCALES_BY_16, MINS, BITS, 1, 4>(tiles, x, out)
    );
}

/// `out[i * n + j] = row j · x[i]` for the n rows of numbers that `w` holds, as long as those of x.
pub(super) fn float_products<N: Number>(simd: Simd, w: &[u8], x: &[&[f32]], out: &mut [f32]) {
    in_form!(simd, float_products::<N>(w, x, out), float_products::body::<N, portable::Portable, 4, 2, 1>(w, x, out));
}

/// `out[r][c] += Σ_t by[r][t] rows[t][c]`, t in order, for so many rows and columns; rows of `by` and of `out` lie so many floats
/// apart.
pub(super) fn weighted_sums<N: Number>(
    simd: Simd,
    by: (&[f32], usize),
    rows: Rows<'_>,
    shape: (usize, usize),
    out: (&mut [f32], usize),
) {
    in_form!(
        simd,
        weighted_sums::<N>(by, rows, shape, out),
        weighted_sums::body::<N, portable::Portable, 2, 2>(by, rows, shape, out)
    );
}

/// `out[c][r] = rows[r][c]` for so many rows and columns; rows of `out` lie so many floats apart.
pub(super) fn transpose<N: Number>(simd: Simd, rows: Rows<'_>, shape: (usize, usize), out: (&mut [f32], usize)) {
    in_form!(
        simd,
        transpose::<N>(rows, shape, out),
        weighted_sums::transpose::<N, portable::Portable>(rows, shape, out)
    );
}

/// [`Q8::quantize_body`] in the widest form.
pub(super) fn quantize(x: &[f32], out: &mut [Q8]) {
    #[cfg(target_arch = "x86_64")]
    {
        if Simd::Avx512.is_available() {
            // SAFETY: the CPU has the features.
            return unsafe { avx512::quantize(x, out) };
        }
        if Simd::Avx2.is_available() {
            // SAFETY: the CPU has the feature.
            return unsafe { avx2::quantize(x, out) };
        }
    }
    #[cfg(target_arch = "wasm32")]
    wasm::quantize(x, out);
    #[cfg(not(target_arch = "wasm32"))]
    Q8::quantize_body(x, out);
}
