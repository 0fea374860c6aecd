//! The forms of products in whole numbers: the same bodies compiled for more features of the CPU, with the instructions that
//! multiply bytes. What unpacks a block is plain code, which the compiler vectorises for the features of each form; formats
//! that many files use have their own code for AVX-512.
#![allow(unsafe_code, reason = "code compiled for features of the CPU is called once they were found")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_rows;
mod portable;

use portable::Portable;

use super::q8::{LANES, Q8, Unpack};
use super::row_products;
use super::tile::{self, Tile};

/// A form of the products in whole numbers. All give the same bits.
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
}

impl Simd {
    /// The forms that this CPU has, the fastest last.
    pub fn available() -> Vec<Self> {
        let all = [Self::Portable, Self::Avx2, Self::AvxVnni, Self::Avx512];
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
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
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
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}

/// Sixteen whole rows of `stride` bytes times a row of activations, with the features of [`Simd::Avx512`].
#[cfg(target_arch = "x86_64")]
pub(super) type Rows512 = unsafe fn(w: &[u8], stride: usize, x: &[Q8]) -> [f32; LANES];

/// Sixteen lanes, and products of bytes.
pub(super) trait Arithmetic {
    /// What quants of weights are xor-ed with: 128 where the products want them without a sign.
    const BIAS: u8;
    /// Products of 32 weights, in part added up.
    type Products: Copy;
    /// No products.
    const NOTHING: Self::Products;
    /// Four quants of each of sixteen rows.
    type Quads: Copy;
    /// Sixteen i32.
    type Ints: Copy;
    /// Sixteen f32.
    type Floats: Copy;

    /// The products of 32 weights, with the bias, and activations.
    fn products(q: &[u8; 32], x: &[i8; 32]) -> Self::Products;
    /// The sums of each half of the products of each row.
    fn across(rows: &[Self::Products; LANES]) -> [Self::Ints; 2];
    /// Puts rows beside each other: `out[c][4 r + i] = rows[r][4 c + i]`.
    fn columns(rows: &[[u8; 32]; LANES], out: &mut [[u8; 4 * LANES]; 8]);
    fn quads(q: &[u8; 4 * LANES]) -> Self::Quads;
    /// `sum[l] += q[4 l] x[0] + ... + q[4 l + 3] x[3]`; q with the bias, x without.
    fn dot4(sum: Self::Ints, q: Self::Quads, x: &[i8; 4]) -> Self::Ints;
    /// The same in all lanes.
    fn ints(x: i32) -> Self::Ints;
    fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn to_floats(x: Self::Ints) -> Self::Floats;
    /// The same in all lanes.
    fn floats(x: f32) -> Self::Floats;
    fn load(x: &[f32; LANES]) -> Self::Floats;
    fn store(x: Self::Floats, out: &mut [f32; LANES]);
    fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn sub(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `table[q]`; q below 16.
    fn lookup(table: &[i8; 16], q: [u8; 32]) -> [i8; 32];
}

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
            _ => $portable,
        }
    };
}

/// Defines the bodies compiled for features of the CPU.
#[cfg(target_arch = "x86_64")]
macro_rules! bodies {
    ($features:literal, $arithmetic:ty) => {
        #[target_feature(enable = $features)]
        pub(in super::super) fn rows<U: Unpack<BYTES>, const BYTES: usize>(
            w: &[u8],
            row_bytes: usize,
            x: &[Q8],
            out: &mut [f32; LANES],
        ) {
            row_products::body::<U, $arithmetic, BYTES>(w, row_bytes, x, out);
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn tiles<U: Unpack<BYTES>, const BYTES: usize>(
            w: &[u8],
            row_bytes: usize,
            out: &mut [Tile],
        ) {
            tile::unpack::<U, $arithmetic, BYTES>(w, row_bytes, out);
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn products<const HALVES: bool, const MINS: bool>(
            tiles: &[Tile],
            x: &[&[Q8]],
            out: &mut [[f32; LANES]],
        ) {
            tile::products::<$arithmetic, HALVES, MINS>(tiles, x, out);
        }
    };
}
#[cfg(target_arch = "x86_64")]
use bodies;

/// [`Eight::rows`](super::q8::Eight::rows)
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
    if let (Simd::Avx512, Some(form), true) = (simd, U::AVX512, w.len() >= LANES * row_bytes)
        && simd.is_available()
    {
        // SAFETY: the CPU has the features, and there are sixteen whole rows for x.
        *out = unsafe { form(w, row_bytes, x) };
        return;
    }
    in_form!(
        simd,
        rows::<U, BYTES>(w, row_bytes, x, out),
        row_products::body::<U, Portable, BYTES>(w, row_bytes, x, out)
    );
}

/// [`Eight::tiles`](super::q8::Eight::tiles)
pub(super) fn tiles<U: Unpack<BYTES>, const BYTES: usize>(simd: Simd, w: &[u8], row_bytes: usize, out: &mut [Tile]) {
    in_form!(simd, tiles::<U, BYTES>(w, row_bytes, out), tile::unpack::<U, Portable, BYTES>(w, row_bytes, out));
}

/// [`Eight::products`](super::q8::Eight::products)
pub(super) fn products<const HALVES: bool, const MINS: bool>(
    simd: Simd,
    tiles: &[Tile],
    x: &[&[Q8]],
    out: &mut [[f32; LANES]],
) {
    in_form!(simd, products::<HALVES, MINS>(tiles, x, out), tile::products::<Portable, HALVES, MINS>(tiles, x, out));
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
    Q8::quantize_body(x, out);
}
