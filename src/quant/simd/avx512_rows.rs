//! Sixteen rows times one row of activations with AVX-512, straight from the blocks of the formats that most files are in.
//!
//! A vector holds 16 bytes of four rows; four vectors make sixteen rows, row `4 l + e` in the l-th quarter of vector e, so that
//! adding across quarters (`across`) brings the sums of the rows in order. While sixteen rows are multiplied, the next sixteen,
//! which lie behind them, are fetched into the cache.
#![allow(unsafe_code, reason = "vector instructions, and loads at offsets within rows whose length was checked")]

use std::arch::x86_64::*;

use super::super::q8::{LANES, Q8};

/// Sixteen rows of `stride` bytes from `w` on.
#[derive(Clone, Copy)]
struct Rows {
    w: *const u8,
    stride: usize,
}

/// A function that has the features; they let its helpers be inlined.
macro_rules! with_features {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident ($($arg:ident: $ty:ty),*) $(-> $out:ty)? $body:block)*) => {
        $($(#[$doc])*
        #[inline]
        #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        $vis unsafe fn $name($($arg: $ty),*) $(-> $out)? {
            #[allow(unused_unsafe, reason = "some only compute")]
            // SAFETY: callers give sixteen rows that have the bytes which are read.
            unsafe { $body }
        })*
    };
}

with_features! {
    /// 16 bytes at `at` of each row.
    fn sixteen(rows: Rows, at: usize) -> [__m512i; 4] {
        let Rows { w, stride } = rows;
        let quarters = [w.add(at), w.add(at + 4 * stride), w.add(at + 8 * stride), w.add(at + 12 * stride)];
        let mut out = [_mm512_setzero_si512(); 4];
        for (e, out) in out.iter_mut().enumerate() {
            let load = |quarter: usize| _mm_loadu_si128(quarters[quarter].add(e * stride).cast());
            let v = _mm512_castsi128_si512(load(0));
            let v = _mm512_inserti32x4::<1>(v, load(1));
            let v = _mm512_inserti32x4::<2>(v, load(2));
            *out = _mm512_inserti32x4::<3>(v, load(3));
        }
        out
    }

    /// The word at `at` of each row.
    fn words(rows: Rows, at: usize) -> __m512i {
        let Rows { w, stride } = rows;
        let quarter = |q: usize| {
            let word = |e: usize| w.add(at + (4 * q + e) * stride).cast::<i32>().read_unaligned();
            let v = _mm_cvtsi32_si128(word(0));
            let v = _mm_insert_epi32::<1>(v, word(1));
            let v = _mm_insert_epi32::<2>(v, word(2));
            _mm_insert_epi32::<3>(v, word(3))
        };
        let v = _mm512_castsi128_si512(quarter(0));
        let v = _mm512_inserti32x4::<1>(v, quarter(1));
        let v = _mm512_inserti32x4::<2>(v, quarter(2));
        _mm512_inserti32x4::<3>(v, quarter(3))
    }

    /// The f16 in the low half of each word.
    fn low_halves(words: __m512i) -> __m512 {
        _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
    }

    /// The f16 in the high half of each word.
    fn high_halves(words: __m512i) -> __m512 {
        low_halves(_mm512_srli_epi32::<16>(words))
    }

    /// Turns 16 bytes of each row into four words of each row: word j of all rows is the j-th vector.
    fn columns(v: [__m512i; 4]) -> [__m512i; 4] {
        let (a, b) = (_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
        let (c, d) = (_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
        [
            _mm512_unpacklo_epi64(a, c),
            _mm512_unpackhi_epi64(a, c),
            _mm512_unpacklo_epi64(b, d),
            _mm512_unpackhi_epi64(b, d),
        ]
    }

    /// The words of sixteen rows of 32 bytes: word j of all rows is the j-th vector.
    pub(super) fn columns_of(rows: &[[u8; 32]; LANES]) -> [__m512i; 8] {
        let rows = Rows { w: rows.as_ptr().cast(), stride: 32 };
        let ([a, b, c, d], [e, f, g, h]) = (columns(sixteen(rows, 0)), columns(sixteen(rows, 16)));
        [a, b, c, d, e, f, g, h]
    }

    /// The sum of each row's four words.
    fn across(v: [__m512i; 4]) -> __m512i {
        let two = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (a, b) = (two(v[0], v[1]), two(v[2], v[3]));
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
    }

    /// 16 activations, in each quarter.
    fn half(x: &Q8, half: usize) -> __m512i {
        _mm512_broadcast_i32x4(_mm_loadu_si128(x.quants.as_ptr().add(16 * half).cast()))
    }

    /// `sums + q · x`
    fn dot(sums: [__m512i; 4], q: [__m512i; 4], x: __m512i) -> [__m512i; 4] {
        let mut out = sums;
        for (out, q) in out.iter_mut().zip(q) {
            *out = _mm512_dpbusd_epi32(*out, q, x);
        }
        out
    }

    /// `q >> shift & mask`, byte by byte; the mask must not let bits of neighbours through.
    fn bits(q: [__m512i; 4], shift: u32, mask: i8) -> [__m512i; 4] {
        let (mask, shift) = (_mm512_set1_epi8(mask), _mm_cvtsi32_si128(shift as i32));
        q.map(|q| _mm512_and_si512(_mm512_srl_epi16(q, shift), mask))
    }

    /// `y + (scale * by) * sums`
    fn add_scaled(y: __m512, scale: __m512, by: f32, sums: __m512i) -> __m512 {
        _mm512_add_ps(y, _mm512_mul_ps(_mm512_mul_ps(scale, _mm512_set1_ps(by)), _mm512_cvtepi32_ps(sums)))
    }

    /// `y + min * sum`
    fn add_min(y: __m512, min: __m512, sum: f32) -> __m512 {
        _mm512_add_ps(y, _mm512_mul_ps(min, _mm512_set1_ps(sum)))
    }

    /// Byte `i` of each word, without a sign.
    fn byte(words: __m512i, i: u32) -> __m512 {
        let shifted = _mm512_srl_epi32(words, _mm_cvtsi32_si128(8 * i as i32));
        _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(255)))
    }

    /// Fetches what the next sixteen rows have in the place of a block of `bytes` of these, the b-th.
    fn fetch_next(rows: Rows, b: usize, bytes: usize) {
        for line in 0..(LANES * bytes).div_ceil(64) {
            // An address beyond the file is none that is read.
            let next = rows.w.wrapping_add(LANES * (rows.stride + b * bytes) + 64 * line);
            _mm_prefetch::<_MM_HINT_T1>(next.cast());
        }
    }

    /// The sixteen sums, minima subtracted.
    fn result(y: __m512, mins: __m512) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        _mm512_storeu_ps(out.as_mut_ptr(), _mm512_sub_ps(y, mins));
        out
    }

    /// Products of sixteen rows of Q4_0.
    pub(in super::super) fn q4_0(w: &[u8], stride: usize, x: &[Q8]) -> [f32; LANES] {
        let rows = Rows { w: w.as_ptr(), stride };
        let mut y = _mm512_setzero_ps();
        for (b, x) in x.iter().enumerate() {
            fetch_next(rows, b, 18);
            let q = sixteen(rows, 18 * b + 2);
            let sums = dot([_mm512_setzero_si512(); 4], bits(q, 0, 15), half(x, 0));
            let sums = across(dot(sums, bits(q, 4, 15), half(x, 1)));
            // A quant is 8 above its weight.
            let sums = _mm512_add_epi32(sums, _mm512_set1_epi32((x.corrections[0] + x.corrections[1]) / 16));
            y = add_scaled(y, low_halves(words(rows, 18 * b)), x.scale, sums);
        }
        result(y, _mm512_setzero_ps())
    }

    /// Products of sixteen rows of Q4_1.
    pub(in super::super) fn q4_1(w: &[u8], stride: usize, x: &[Q8]) -> [f32; LANES] {
        let rows = Rows { w: w.as_ptr(), stride };
        let (mut y, mut mins) = (_mm512_setzero_ps(), _mm512_setzero_ps());
        for (b, x) in x.iter().enumerate() {
            fetch_next(rows, b, 20);
            let q = sixteen(rows, 20 * b + 4);
            let sums = dot([_mm512_setzero_si512(); 4], bits(q, 0, 15), half(x, 0));
            let sums = across(dot(sums, bits(q, 4, 15), half(x, 1)));
            let words = words(rows, 20 * b);
            y = add_scaled(y, low_halves(words), x.scale, sums);
            mins = add_min(mins, high_halves(words), -x.sum);
        }
        result(y, mins)
    }

    /// Products of sixteen rows of Q5_0.
    pub(in super::super) fn q5_0(w: &[u8], stride: usize, x: &[Q8]) -> [f32; LANES] {
        let rows = Rows { w: w.as_ptr(), stride };
        let mut y = _mm512_setzero_ps();
        for (b, x) in x.iter().enumerate() {
            fetch_next(rows, b, 22);
            let at = 22 * b;
            let (q, fifths) = (sixteen(rows, at + 6), words(rows, at + 2));
            let sums = dot([_mm512_setzero_si512(); 4], with_fifths(bits(q, 0, 15), fifths, 0), half(x, 0));
            let sums = across(dot(sums, with_fifths(bits(q, 4, 15), fifths, 2), half(x, 1)));
            // A quant is 16 above its weight.
            let sums = _mm512_add_epi32(sums, _mm512_set1_epi32((x.corrections[0] + x.corrections[1]) / 8));
            y = add_scaled(y, low_halves(words(rows, at)), x.scale, sums);
        }
        result(y, _mm512_setzero_ps())
    }

    /// Adds 16 to each of 16 bytes whose bit is set, in bytes `first` and `first + 1` of each row's word.
    fn with_fifths(q: [__m512i; 4], words: __m512i, first: i8) -> [__m512i; 4] {
        // Byte j of a quarter looks at bit j % 8.
        let bits = _mm512_set1_epi64(0x8040_2010_0804_0201_u64 as i64);
        let places = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0101_0101_0101_0101, 0));
        let mut out = q;
        for (e, out) in out.iter_mut().enumerate() {
            // Row 4 l + e is word e of quarter l.
            let bytes = _mm512_shuffle_epi8(words, _mm512_add_epi8(places, _mm512_set1_epi8(4 * e as i8 + first)));
            let set = _mm512_test_epi8_mask(bytes, bits);
            *out = _mm512_mask_add_epi8(*out, set, *out, _mm512_set1_epi8(16));
        }
        out
    }

    /// Products of sixteen rows of Q8_0.
    pub(in super::super) fn q8_0(w: &[u8], stride: usize, x: &[Q8]) -> [f32; LANES] {
        let rows = Rows { w: w.as_ptr(), stride };
        let mut y = _mm512_setzero_ps();
        let biased = |q: [__m512i; 4]| q.map(|q| _mm512_xor_si512(q, _mm512_set1_epi8(-128)));
        for (b, x) in x.iter().enumerate() {
            fetch_next(rows, b, 34);
            let first = biased(sixteen(rows, 34 * b + 2));
            let second = biased(sixteen(rows, 34 * b + 18));
            let sums = dot([_mm512_setzero_si512(); 4], first, half(x, 0));
            let sums = across(dot(sums, second, half(x, 1)));
            let sums = _mm512_add_epi32(sums, _mm512_set1_epi32(x.corrections[0] + x.corrections[1]));
            y = add_scaled(y, low_halves(words(rows, 34 * b)), x.scale, sums);
        }
        result(y, _mm512_setzero_ps())
    }

    /// Products of sixteen rows of Q4_K.
    pub(in super::super) fn q4_k(w: &[u8], stride: usize, x: &[Q8]) -> [f32; LANES] {
        let rows = Rows { w: w.as_ptr(), stride };
        let (mut y, mut mins) = (_mm512_setzero_ps(), _mm512_setzero_ps());
        for (b, x) in x.as_chunks::<8>().0.iter().enumerate() {
            let at = 144 * b;
            fetch_next(rows, b, 144);
            let head = columns(sixteen(rows, at));
            let (d, dmin) = (low_halves(head[0]), high_halves(head[0]));
            let [scales, min_scales] = packed6(head);
            for pair in 0..4 {
                let q = [sixteen(rows, at + 16 + 32 * pair), sixteen(rows, at + 32 + 32 * pair)];
                for odd in 0..2 {
                    let (group, x) = (2 * pair + odd, &x[2 * pair + odd]);
                    let shift = 4 * odd as u32;
                    let sums = dot([_mm512_setzero_si512(); 4], bits(q[0], shift, 15), half(x, 0));
                    let sums = across(dot(sums, bits(q[1], shift, 15), half(x, 1)));
                    let (word, i) = (group / 4, group as u32 % 4);
                    y = add_scaled(y, _mm512_mul_ps(d, byte(scales[word], i)), x.scale, sums);
                    mins = add_min(mins, _mm512_mul_ps(dmin, byte(min_scales[word], i)), x.sum);
                }
            }
        }
        result(y, mins)
    }

    /// Scales and minima of eight groups, four bytes a word: see `packed6`. `head` is (d, dmin), then the twelve bytes.
    fn packed6(head: [__m512i; 4]) -> [[__m512i; 2]; 2] {
        let [_, first, second, third] = head;
        let and = |v, mask| _mm512_and_si512(v, _mm512_set1_epi8(mask));
        let high = |v| and(_mm512_srli_epi32::<2>(v), 0x30);
        let scales = [and(first, 63), _mm512_or_si512(and(third, 15), high(first))];
        let mins = [and(second, 63), _mm512_or_si512(and(_mm512_srli_epi32::<4>(third), 15), high(second))];
        [scales, mins]
    }

    /// Products of sixteen rows of Q6_K.
    pub(in super::super) fn q6_k(w: &[u8], stride: usize, x: &[Q8]) -> [f32; LANES] {
        let rows = Rows { w: w.as_ptr(), stride };
        let mut y = _mm512_setzero_ps();
        for (b, x) in x.as_chunks::<8>().0.iter().enumerate() {
            let at = 210 * b;
            fetch_next(rows, b, 210);
            let scales = columns(sixteen(rows, at + 192));
            let d = high_halves(words(rows, at + 206));
            for (part, x) in x.as_chunks::<4>().0.iter().enumerate() {
                let mut sums = [[_mm512_setzero_si512(); 4]; 2];
                for (h, sums) in sums.iter_mut().enumerate() {
                    let high = sixteen(rows, at + 128 + 32 * part + 16 * h);
                    let high = [high.map(|v| _mm512_slli_epi16::<4>(v)), high.map(|v| _mm512_slli_epi16::<2>(v)),
                        high, high.map(|v| _mm512_srli_epi16::<2>(v))];
                    for r in 0..2 {
                        let low = sixteen(rows, at + 64 * part + 32 * r + 16 * h);
                        for (r, low) in [(r, bits(low, 0, 15)), (r + 2, bits(low, 4, 15))] {
                            let mut q = low;
                            for (q, high) in q.iter_mut().zip(high[r]) {
                                *q = _mm512_or_si512(*q, _mm512_and_si512(high, _mm512_set1_epi8(0x30)));
                            }
                            sums[r] = across(dot([_mm512_setzero_si512(); 4], q, half(&x[r], h)));
                        }
                    }
                }
                for (r, x) in x.iter().enumerate() {
                    for (h, sums) in sums.iter().enumerate() {
                        // A quant is 32 above its weight.
                        let sums = _mm512_add_epi32(sums[r], _mm512_set1_epi32(x.corrections[h] / 4));
                        let scale = signed_byte(scales[2 * part + r / 2], 2 * (r as u32 % 2) + h as u32);
                        y = add_scaled(y, _mm512_mul_ps(d, scale), x.scale, sums);
                    }
                }
            }
        }
        result(y, _mm512_setzero_ps())
    }

    /// Byte `i` of each word, with its sign.
    fn signed_byte(words: __m512i, i: u32) -> __m512 {
        let shifted = _mm512_sll_epi32(words, _mm_cvtsi32_si128(24 - 8 * i as i32));
        _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(shifted))
    }
}
